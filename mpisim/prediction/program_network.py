"""From a cluster's name and keys of a command line to the network that prices a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, UsageError, nearest
from ..experiment import ClusterChoice, NetworkChoice, assigned
from ..program import Program
from ..schema import build, defaults
from ..topo import Cluster, Network, find_cluster
from ..topo.speeds import SPEEDS, with_speeds
from .hardware import check_speeds
from .statements import network_notes, worded
from .without_effect import AskedNetwork, priced

__all__ = ["ProgramNetwork", "network_for"]

KEYS = ("nodes", *SPEEDS)
"""Of ``[cluster]``, those that a program does not settle."""

ALL_TIMED = "every communication has a duration of its own"

LEFT_OUT = (
    "the slowdown of kernels and communications that overlap (a program does not say what its "
    "kernels do)",
    "packets: communications that share a link share its bandwidth fairly and at once",
)


@dataclass(frozen=True)
class ProgramNetwork:
    """The network of a program.

    Attributes
    ----------
    asked : AskedNetwork
    cluster : Cluster
        With the speeds asked for.
    network : Network
    given : dict of str to object
        Keys of ``[network]`` that the command line has, by full name.
    """

    asked: AskedNetwork
    cluster: Cluster
    network: Network
    given: dict[str, Any]

    @property
    def contention(self) -> bool:
        """Whether communications share links."""
        return self.asked.choice.contention

    def statements(self, program: Program) -> dict[str, list[str]]:
        """Return what results of a program say of its network: assumptions, and what is left out.

        Local.
        """
        table = {key.partition(".")[2]: value for key, value in self.given.items()}
        left = defaults(NetworkChoice, table, "network")
        shown = {key: value for key, value in left.items() if value not in (None, {})}
        if self.asked.choice.model != "nccl":
            shown.pop("network.contention", None)  # a note says so
        nodes = f"{self.asked.nodes} node" + ("s" if self.asked.nodes > 1 else "")
        return {
            "assumptions": [
                self.cluster.title,
                f"{nodes}; neighbouring ranks share a node",
                *(f"{key} = {worded(value)}" for key, value in self.given.items()),
                *([] if priced(program) else [f"{ALL_TIMED}: the cluster prices none"]),
                *network_notes(self.cluster, program, self.asked),
                *(f"{key} = {worded(value)} (default)" for key, value in shown.items()),
            ],
            "not_modelled": list(LEFT_OUT),
        }


def network_for(cluster: str, changes: Sequence[str], ranks: int) -> ProgramNetwork:
    """Return the network of a program's ranks on a cluster, as by ``[network]``. Local.

    Parameters
    ----------
    cluster : str
        A name or the path of a file.
    changes : sequence of str
        As ``"network.model=alpha-beta"``, ``"cluster.nic_bandwidth=800 Gb/s"``.
    ranks : int
        Of the program: one a GPU, nodes are filled in order.

    Raises
    ------
    InputError
        For an unknown name or key, a value that cannot be, or more ranks than GPUs.
    UsageError
        For a change that is no assignment, or of a key that the program settles.
    """
    table = assigned(changes)
    for key in table:
        if key not in ("network", "cluster"):
            raise UsageError(
                f"--set {key}: a program's keys are those of network and cluster"
                f"{nearest(key, ('network', 'cluster'))}"
            )
        if not isinstance(table[key], dict):
            raise UsageError(f"--set {key}: not of the form {key}.KEY=VALUE")
    where, named = table.get("cluster", {}), table.get("network", {})
    for key in where:
        if key not in KEYS:
            allowed = ", ".join(f"cluster.{name}" for name in KEYS)
            raise UsageError(
                f"--set cluster.{key}: no key of a program's cluster{nearest(key, KEYS)}; allowed: "
                f"{allowed}"
            )
    choice = build(NetworkChoice, named, "--set", "network")
    preset = find_cluster(cluster)
    least = -(-ranks // preset.gpus_per_node)
    placed = build(ClusterChoice, {"nodes": least, **where, "preset": cluster}, "--set", "cluster")
    if placed.nodes < least:
        raise InputError(
            f"cluster.nodes is {placed.nodes}; the program's {ranks} ranks need {least} nodes of "
            f"{preset.gpus_per_node} GPUs"
        )
    check_speeds(placed.speeds, choice.model)
    asked = AskedNetwork(preset, placed.nodes, choice, placed.speeds)
    given = {f"network.{key}": value for key, value in named.items()}
    return ProgramNetwork(asked, with_speeds(preset, placed.speeds), asked.network(), given)
