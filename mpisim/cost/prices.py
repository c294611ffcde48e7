"""Dollars: what an hour of a cluster costs, rented by the GPU or bought and written off.

What the experiment's ``[prices]`` says comes first; the rest is from ``data/prices.toml``. Rented
GPUs bring their node, the network and the electricity. Their price is that of a cluster with the
network of its file: NICs, ports and links that an experiment adds or leaves out move it by what
they cost to buy, over the years of use. Bought ones cost their price over the years of use, and the
electricity that the building draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import J_OF_A_KWH, SECONDS_OF_AN_HOUR
from ..base.schema import Limits, build
from ..base.text import percentage
from ..experiment import PriceChoice
from ..kernels import gpu_name
from ..topo import Cluster
from .power import Uncertain, added, cluster_nics, switch_ports

__all__ = [
    "HOURS_OF_A_YEAR",
    "J_OF_A_KWH",
    "SECONDS_OF_AN_HOUR",
    "ListPrice",
    "Prices",
    "read_prices",
]

FILE = "prices.toml"

HOURS_OF_A_YEAR = 8766
"""Hours in a year of 365.25 days."""


@frozen
class ListPrice:
    """A price of ``data/prices.toml``.

    Attributes
    ----------
    value : float
        US dollars; of `years` years.
    error : float
        How far offers lie apart: one standard deviation as a fraction of the value.
    date : str
        When it was asked for: "2026-05".
    source : str
    """

    value: Annotated[float, Limits(least=0)]
    error: Annotated[float, Limits(least=0, most=10)]
    date: str
    source: str


@cache
def price(table: str, name: str) -> ListPrice | None:
    """Table and name → the price of ``data/prices.toml``, None where there is none.

    Parameters
    ----------
    table, name : str
        As in ``price("on-demand", "h100-sxm")``.
    """
    found: dict[str, Any] | None = packaged(FILE).get(table, {}).get(name)
    return None if found is None else build(ListPrice, found, FILE, f"{table}.{name}")


@frozen
class Prices:
    """Prices of one cluster in US dollars: an hour of it, a kWh, and what it costs to buy.

    Attributes
    ----------
    hour : Uncertain or None
        $ of an hour of the whole cluster, without electricity where that is paid for by itself;
        None: not known.
    kwh : Uncertain
        $ of a kWh.
    purchase : Uncertain or None
        $ to buy GPUs, nodes, NICs, switches and links; None: not known.
    pays_electricity : bool
        Whether electricity comes on top of `hour`.
    missing : str
        Why `hour` is not known, or empty.
    no_purchase : str
        Why `purchase` is not known, or empty.
    assumptions : tuple of str
        Lines for people: each price with its date and source.
    """

    hour: Uncertain | None
    kwh: Uncertain
    purchase: Uncertain | None
    pays_electricity: bool
    missing: str
    no_purchase: str
    assumptions: tuple[str, ...]

    def of(self, seconds: float, joules: Uncertain) -> Uncertain | None:
        """Return the $ of a time in which the building draws so much; None: not known.

        Parameters
        ----------
        seconds : float
        joules : Uncertain
            Of the building. Not looked at where electricity is part of the price.
        """
        if self.hour is None:
            return None
        rent = self.hour.times(seconds / SECONDS_OF_AN_HOUR)
        if not self.pays_electricity:
            return rent
        kwh = joules.times(1 / J_OF_A_KWH)
        relative = (kwh.relative**2 + self.kwh.relative**2) ** 0.5
        bill = kwh.value * self.kwh.value
        return added([rent, Uncertain(bill, bill * relative)])


def read_prices(
    choice: PriceChoice,
    cluster: Cluster,
    nodes: int,
    named: Sequence[str],
    counts: Sequence[int] | None = None,
    listed: Cluster | None = None,
) -> Prices:
    """The user's prices, a cluster → what it costs.

    Parameters
    ----------
    choice : PriceChoice
        ``[prices]`` of the experiment.
    cluster : Cluster
    nodes : int
    named : sequence of str
        Names of its kinds of GPUs.
    counts : sequence of int, optional
        GPUs of each kind, of all nodes; all of the first if not given.
    listed : Cluster, optional
        The cluster as its file has it, whose network the rent of a GPU is taken to include; this
        one if not given.
    """
    total = nodes * cluster.gpus_per_node
    numbers = (total, *(0 for _ in named[1:])) if counts is None else tuple(counts)
    lines: list[str] = []
    kwh = _known(choice.kwh, "electricity", "kwh", "a kWh", lines)
    assert kwh is not None
    purchase, no_purchase = _purchase(choice, cluster, nodes, named, numbers, lines)
    if choice.contract == "owned":
        hour = None if purchase is None else _written_off(purchase, choice, lines)
        return Prices(hour, kwh, purchase, True, no_purchase, no_purchase, tuple(lines))
    # Electricity and what is bought are not paid for here.
    lines, parts, unknown, rented = [], [], "", 0
    for name, n in zip(named, numbers, strict=True):
        if not n:
            continue
        own = _own_hour(choice, name)
        what = f"an hour of a GPU ({name}), {choice.contract}"
        each = _known(own, choice.contract, gpu_name(name), what, lines)
        if each is None:
            unknown = (
                f"no price of an hour of {name}, {choice.contract}, is known; give prices.gpu_hour"
            )
        else:
            parts.append(each.times(n))
            rented += n if own is None else 0
    if rented and listed is not None:
        more = _more_network(cluster, listed, nodes, lines)
        if more.value:
            parts.append(_written_off(more, choice, lines).times(rented / total))
    hour = None if unknown else added(parts)
    return Prices(hour, kwh, purchase, False, unknown, no_purchase, tuple(lines))


def _written_off(purchase: Uncertain, choice: PriceChoice, lines: list[str]) -> Uncertain:
    """Return the $ of an hour of what was bought, over the years of its use."""
    years = _known(choice.years, "ownership", "years", "years of use", lines, unit="")
    assert years is not None
    value = purchase.value / (years.value * HOURS_OF_A_YEAR)
    relative = (purchase.relative**2 + years.relative**2) ** 0.5
    return Uncertain(value, abs(value) * relative)


def _own_hour(choice: PriceChoice, name: str) -> float | None:
    """Return what the user says of an hour of a GPU; None if nothing."""
    by_name: Mapping[str, float] = {
        gpu_name(each): value for each, value in choice.gpu_hours.items()
    }
    return by_name.get(gpu_name(name), choice.gpu_hour)


def _known(
    own: float | None, table: str, name: str, what: str, lines: list[str], unit: str = "$"
) -> Uncertain | None:
    """Return the user's number, or that of the file; and say which."""
    if own is not None:
        lines.append(f"{what}: {unit}{own:g} ([prices])")
        return Uncertain(own, 0.0)
    found = price(table, name)
    if found is None:
        return None
    lines.append(
        f"{what}: {unit}{found.value:g} ± {percentage(found.error)}, {found.date}: {found.source}"
    )
    return Uncertain(found.value, found.value * found.error)


def _purchase(
    choice: PriceChoice,
    cluster: Cluster,
    nodes: int,
    named: Sequence[str],
    numbers: Sequence[int],
    lines: list[str],
) -> tuple[Uncertain | None, str]:
    """Return what buying all of it costs, and why that is not known."""
    parts = []
    if choice.node is not None:
        lines.append(f"a node: ${choice.node:g} ([prices])")
        parts.append(Uncertain(choice.node * nodes, 0.0))
    else:
        for name, n in zip(named, numbers, strict=True):
            if not n:
                continue
            each = _known(None, "purchase", gpu_name(name), f"a GPU ({name}) with its node", lines)
            if each is None:
                return None, f"no price to buy {name} is known; give prices.node"
            parts.append(each.times(n))
    network = _network(cluster, nodes)
    if choice.node is not None:  # which has its NICs
        del network["nic"]
    return added([*parts, _price_of_network(network, lines)]), ""


def _network(cluster: Cluster, nodes: int) -> dict[str, float]:
    """Return the Gb/s of all ports of switches, of all links, and of all NICs."""
    n_nics, rate = cluster_nics(cluster, nodes)
    ports = switch_ports(cluster, nodes) if n_nics else 0.0
    # Every port but those that NICs are joined to is one end of a link between switches.
    links = 1 + (ports - 1) / 2 if ports else 0.0
    of_each = {"port": ports, "link": links, "nic": 1.0}
    return {name: n_nics * rate * each for name, each in of_each.items()}


def _price_of_network(amounts: Mapping[str, float], lines: list[str]) -> Uncertain:
    """Return the $ of Gb/s of NICs, ports and links; the lines say what each costs."""
    parts = []
    for name, amount in amounts.items():
        gigabit = _known(None, "network", name, f"Gb/s of a {name}", lines)
        if gigabit is None:
            raise InputError(f"{FILE}: table 'network' lacks {name!r}")
        parts.append(gigabit.times(amount))
    return added(parts)


def _more_network(cluster: Cluster, listed: Cluster, nodes: int, lines: list[str]) -> Uncertain:
    """Return the $ to buy what a cluster's network has above that of its file, for as many GPUs."""
    share = cluster.gpus_per_node / listed.gpus_per_node
    usual, own = _network(listed, nodes), _network(cluster, nodes)
    notes: list[str] = []
    changes = {name: own[name] - share * usual[name] for name in own}
    found = _price_of_network({name: n for name, n in changes.items() if n}, notes)
    if found.value:
        what = "more" if found.value > 0 else "less"
        lines.append(
            f"the network costs ${abs(found.value):,.0f} {what} than that of the cluster's file, "
            "which the price of a GPU includes: written off over the years of use"
        )
        lines += notes
    return found
