"""Watts: of a GPU by what runs on it, of the rest of its node, of the network, of the building.

A GPU draws its idle power all the time, and more while something runs:

    P = P_idle + (P_matrix - P_idle) t_matrix + (P_memory - P_idle) t_memory
               + (P_communication - P_idle) t_communication

with t the shares of the time in which products run, other kernels, and communications alone.
What a GPU draws is a share of its board's power (``data/power.toml``); hosts and NICs draw the same
all the time, and so do switches. Hosts of nodes on which nothing runs draw less. `PUE` is what the
building draws for each watt of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, hypot, sqrt
from typing import NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..kernels import Gpu, gpu_name
from ..topo import Cluster

__all__ = [
    "STATES",
    "ClusterPower",
    "GpuPower",
    "Uncertain",
    "cluster_power",
    "gpu_power",
    "host_power",
    "watts_of",
]

FILE = "power.toml"

STATES = ("idle", "matrix", "memory", "communication")
"""What a GPU does: nothing, products, other kernels, communications with nothing beside them."""

GIGABIT = 1e9 / 8
"""Bytes a second in one Gb/s."""


class Uncertain(NamedTuple):
    """A number with its error.

    Attributes
    ----------
    value : float
    error : float
        One standard deviation, in the unit of the value.
    """

    value: float
    error: float

    @property
    def relative(self) -> float:
        """The error as a share of the value; 0 of nothing."""
        return self.error / abs(self.value) if self.value else 0.0

    def times(self, factor: float) -> Uncertain:
        """Return the number times one that is known."""
        return Uncertain(self.value * factor, self.error * abs(factor))


def added(parts: Sequence[Uncertain]) -> Uncertain:
    """Numbers whose errors are independent → their sum."""
    return Uncertain(sum(each.value for each in parts), sqrt(sum(each.error**2 for each in parts)))


@cache
def number(table: str, name: str) -> Quantity:
    """Table and name → the number of ``data/power.toml``.

    Parameters
    ----------
    table, name : str
        As in ``number("gpu", "idle")``.

    Raises
    ------
    KeyError
        If there is no such number.
    """
    return build(Quantity, packaged(FILE)[table][name], FILE, f"{table}.{name}")


@frozen
class GpuPower:
    """Power of one GPU, in each state of its work.

    Attributes
    ----------
    board : float
        W that the board may draw.
    watts : mapping of str to Uncertain
        W by entries of `STATES`.
    """

    board: float
    watts: Mapping[str, Uncertain]

    def energy(self, busy: Mapping[str, float], seconds: float) -> dict[str, Uncertain]:
        """Times of what runs → J of each, idle power counted all the time.

        Parameters
        ----------
        busy : mapping of str to float
            s by entries of `STATES` but "idle".
        seconds : float
            Of the whole step.

        Returns
        -------
        dict of str to Uncertain
            By entries of `STATES`. What runs counts above the idle power.
        """
        idle = self.watts["idle"]
        rest = max(seconds - sum(busy.get(name, 0.0) for name in STATES[1:]), 0.0)
        found = {"idle": Uncertain(idle.value * seconds, idle.error * rest)}
        for name in STATES[1:]:
            watts, time = self.watts[name], busy.get(name, 0.0)
            more = max(watts.value - idle.value, 0.0)
            found[name] = Uncertain(more * time, watts.error * time)
        return found


def gpu_power(gpu: Gpu) -> GpuPower:
    """GPU → what it draws by what runs on it.

    Raises
    ------
    InputError
        If nothing says what its board may draw.
    """
    if gpu.power is None:
        raise InputError(f"nothing says what {gpu.title} draws; give 'power' in its file")
    board = gpu.power.si
    watts = {}
    for name in STATES:
        share = number("gpu", name)
        watts[name] = Uncertain(board * share.si, board * share.si * share.error)
    return GpuPower(board, watts)


@frozen
class ClusterPower:
    """Power of a cluster: GPUs, hosts, NICs, switches, cooling.

    Attributes
    ----------
    gpus : tuple of GpuPower
        By kind of GPU, as `mpisim.prediction.hardware.gpus_of` has them.
    counts : tuple of int
        GPUs of each kind, of all nodes: those that are not used draw their idle power.
    hosts : Uncertain
        W of all nodes without GPUs and NICs, while something runs on them.
    nics : Uncertain
        W of all NICs.
    switches : Uncertain
        W of all switches and optics.
    pue : Uncertain
        W of the building for each of these.
    assumptions : tuple of str
        Lines for people.
    idle_hosts : Uncertain, optional
        As `hosts`, while nothing runs on any; as under load if not given.
    """

    gpus: tuple[GpuPower, ...]
    counts: tuple[int, ...]
    hosts: Uncertain
    nics: Uncertain
    switches: Uncertain
    pue: Uncertain
    assumptions: tuple[str, ...]
    idle_hosts: Uncertain | None = None

    @property
    def beside(self) -> Uncertain:
        """W of all that is no GPU."""
        return added([self.hosts, self.nics, self.switches])

    @property
    def least(self) -> float:
        """W below which the building's power cannot be in a step: all GPUs idle."""
        return self.while_gpus("idle").value

    @property
    def idle(self) -> Uncertain:
        """W of the building while nothing runs on any node."""
        return self.building(self.nodes_idle)

    @property
    def nodes_idle(self) -> Uncertain:
        """W of all machines while nothing runs on any node."""
        hosts = self.hosts if self.idle_hosts is None else self.idle_hosts
        return added([*self._gpus("idle"), hosts, self.nics, self.switches])

    def while_gpus(self, state: str) -> Uncertain:
        """W of the building while all GPUs do the same, and hosts draw what they do under load.

        Parameters
        ----------
        state : str
            An entry of `STATES`.
        """
        return self.building(added([*self._gpus(state), self.beside]))

    def building(self, machines: Uncertain) -> Uncertain:
        """W of the machines → W of the building."""
        pue = self.pue
        error = hypot(pue.value * machines.error, pue.error * machines.value)
        return Uncertain(pue.value * machines.value, error)

    def _gpus(self, state: str) -> list[Uncertain]:
        """Return the W of all GPUs of each kind: those of a kind are off together."""
        return [each.watts[state].times(n) for each, n in zip(self.gpus, self.counts, strict=True)]

    @property
    def most(self) -> float:
        """W of the building with all GPUs at their board's power, used or not."""
        gpus = sum(each.board * n for each, n in zip(self.gpus, self.counts, strict=True))
        return (gpus + self.beside.value) * self.pue.value


def cluster_power(
    cluster: Cluster,
    nodes: int,
    named: Mapping[str, Gpu],
    counts: Sequence[int] | None = None,
    pue: float | None = None,
) -> ClusterPower:
    """Cluster and its GPUs → what it draws.

    Parameters
    ----------
    cluster : Cluster
    nodes : int
    named : mapping of str to Gpu
        Its kinds of GPUs, as `mpisim.prediction.hardware.Hardware` has them.
    counts : sequence of int, optional
        GPUs of each kind; all of the first if not given.
    pue : float, optional
        In place of that of ``data/power.toml``.

    Raises
    ------
    InputError
        If nothing says what a GPU draws.
    """
    total = nodes * cluster.gpus_per_node
    numbers = (total, *(0 for _ in list(named)[1:])) if counts is None else tuple(counts)
    gpus = tuple(gpu_power(gpu) for gpu in named.values())
    hosts, idle_hosts, lines = [], [], []
    for name, gpu, n in zip(named, gpus, numbers, strict=True):
        each, idle = host_power(gpu_name(name), gpu.board)
        hosts.append(each.times(n))
        idle_hosts.append(idle.times(n))
        if n:
            lines.append(
                f"a GPU ({name}) draws "
                + ", ".join(f"{gpu.watts[state].value:,.0f} W {WORDS[state]}" for state in STATES)
                + f"; its part of the node {each.value:,.0f} W, {idle.value:,.0f} W if nothing runs"
            )
    n_nics, rate = cluster_nics(cluster, nodes)
    nic, port = number("network", "nic"), number("network", "port")
    ports = n_nics * switch_ports(cluster, nodes) * rate
    if pue is None:
        given = number("facility", "pue")
        building = Uncertain(given.si, given.si * given.error)
    else:
        building = Uncertain(pue, 0.0)
    lines.append(f"the building draws {building.value:g} times what the machines do (PUE)")
    return ClusterPower(
        gpus,
        numbers,
        added(hosts),
        Uncertain(n_nics * nic.si, n_nics * nic.si * nic.error),
        Uncertain(ports * port.si, ports * port.si * port.error),
        building,
        tuple(lines),
        added(idle_hosts),
    )


def host_power(name: str, board: float) -> tuple[Uncertain, Uncertain]:
    """GPU → W of its part of the node without NICs: while something runs, and while nothing does.

    Parameters
    ----------
    name : str
        Of the GPU's preset.
    board : float
        W that its board may draw.
    """
    tables = packaged(FILE)
    if name in tables["host"]:
        host = number("host", name)
        busy = Uncertain(host.si, host.si * host.error)
    else:
        share = number("other", "host")
        busy = Uncertain(board * share.si, board * share.si * share.error)
    table = ("host_idle", name) if name in tables["host_idle"] else ("other", "host_idle")
    host = number(*table)
    idle = min(host.si, busy.value)
    return busy, Uncertain(idle, idle * host.error)


WORDS = {
    "idle": "idle",
    "matrix": "in products",
    "memory": "in other kernels",
    "communication": "in communications alone",
}
"""States of a GPU, as texts name them."""

WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}


def watts_of(value: str | float, where: str) -> float:
    """Power as a number of W, or as a text with its unit → W.

    Parameters
    ----------
    value : str or float
    where : str
        The key, for messages.

    Raises
    ------
    InputError
        If it is none.

    Examples
    --------
    >>> watts_of("2 MW", "max_power")
    2000000.0
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", str(value))
    if found is None or (found[2] or "W") not in WATTS or not float(found[1]):
        raise InputError(
            f'{where} is {value!r}; it must be a power above 0, as 500000, "500 kW" or "2 MW"'
        )
    return float(found[1]) * WATTS[found[2] or "W"]


def cluster_nics(cluster: Cluster, nodes: int) -> tuple[int, float]:
    """Return the NICs of all nodes, and the line rate of one in Gb/s."""
    node = cluster.node
    if node is None or node.nic_bandwidth is None:
        return 0, 0.0
    return nodes * node.nics, node.nic_bandwidth.si / GIGABIT


def switch_ports(cluster: Cluster, nodes: int) -> float:
    """Return the ports of switches that a fabric has for each NIC.

    A tier of a tree takes one port down, and one up where there is a tier above; up from a leaf
    that is oversubscribed lead fewer.

    Parameters
    ----------
    cluster : Cluster
    nodes : int
        One alone needs none.
    """
    fabric, (nics, _) = cluster.fabric, cluster_nics(cluster, nodes)
    if fabric is None or not nics or nodes < 2:
        return 0.0
    if fabric.kind == "switch":
        return 1.0
    usual = round(number("network", "switch_ports").si)
    leaf = fabric.leaf or usual
    leaves = ceil(nics / leaf)
    if leaves < 2:
        return 1.0
    up = 2.0 / fabric.oversubscription
    if leaves <= (fabric.pod or max(2 * leaf, usual)):
        return 1.0 + up
    return 1.0 + up + up / fabric.core_oversubscription
