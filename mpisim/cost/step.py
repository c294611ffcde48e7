"""A step as it was simulated → what it costs: energy by part, average power, dollars.

What a GPU does is taken from the accounts of the step (`mpisim.results.accounting`): while kernels
run it draws the power of products for as much of the time as products take among the kernels, and
that of other kernels for the rest; what runs beside them is in these figures. While only
communications run, whether they move bytes or wait, it draws the power of communications; for the
rest of the step it is idle. Hosts, NICs and switches draw the same all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.frozen import frozen
from ..base.text import percentage, quantity
from ..experiment import Experiment
from ..kernels.slowdown.constants import CLASSES, class_of_family
from ..prediction.hardware import Hardware, gpu_kinds, hardware_of
from ..prediction.prepared import PreparedExperiment
from ..program import Kind
from ..results import Results
from ..topo import find_cluster
from .power import STATES, ClusterPower, Uncertain, added, cluster_power
from .prices import J_OF_A_KWH, SECONDS_OF_AN_HOUR, Prices, read_prices

__all__ = ["Busy", "StepCost", "busy_of", "cost_of_cluster", "step_cost"]

MILLION = 1e6


class Busy(NamedTuple):
    """Seconds that the mean GPU of a kind spends on each kind of work in a step.

    Attributes
    ----------
    gpus : int
        That are used, of this kind.
    matrix, memory, communication : float
        s in which products run, other kernels, and communications alone.
    """

    gpus: int
    matrix: float
    memory: float
    communication: float

    @property
    def times(self) -> dict[str, float]:
        """s by state of `STATES`, without "idle"."""
        return {name: getattr(self, name) for name in STATES[1:]}


@frozen
class StepCost:
    """Energy, mean power and price of a step.

    Attributes
    ----------
    seconds : float
    error : float
        Of the step time, relative: one standard deviation.
    joules : mapping of str to Uncertain
        J by part: those of `STATES` over all GPUs, then "hosts", "nics", "switches" and "building",
        what the building draws beyond these.
    gpu_watts : Uncertain
        Mean power of a GPU that is used.
    node_watts : Uncertain
        Mean power of a node with its NICs.
    most_watts : float
        Power of the building with all GPUs at their board's power: what a peak can be.
    usd : Uncertain or None
        US dollars of the step; None: no price is known.
    usd_per_hour : float or None
    purchase : Uncertain or None
        US dollars to buy it all.
    tokens : int
        Tokens (images, samples) of the step.
    samples : str
        What these are.
    missing : str
        Why something is not known, or empty.
    assumptions : tuple of str
        Lines for people.
    """

    seconds: float
    error: float
    joules: Mapping[str, Uncertain]
    gpu_watts: Uncertain
    node_watts: Uncertain
    most_watts: float
    usd: Uncertain | None
    usd_per_hour: float | None
    purchase: Uncertain | None
    tokens: int
    samples: str
    missing: str
    assumptions: tuple[str, ...]

    @property
    def energy(self) -> Uncertain:
        """J of the whole building in a step."""
        total = added(list(self.joules.values()))
        return Uncertain(total.value, float(np.hypot(total.error, self.error * total.value)))

    @property
    def joules_of_building(self) -> float:
        """J of the whole building in a step."""
        return sum(each.value for each in self.joules.values())

    @property
    def watts(self) -> Uncertain:
        """Mean power of the whole building."""
        total = added(list(self.joules.values()))
        return total.times(1 / self.seconds)

    @property
    def kwh_per_million(self) -> float:
        """Energy of the building for a million tokens (images, samples), in kWh."""
        return self.energy.value / J_OF_A_KWH / max(self.tokens, 1) * MILLION

    @property
    def usd_per_million(self) -> float | None:
        """US dollars of a million tokens (images, samples); None: no price is known."""
        return None if self.usd is None else self.usd.value / max(self.tokens, 1) * MILLION

    def lines(self) -> list[str]:
        """Return what it says, lines for people."""
        total = self.energy
        power = self.watts
        parts = ", ".join(
            f"{LABELS[name]} {percentage(each.value / total.value)}"
            for name, each in self.joules.items()
        )
        found = [
            f"energy of a step: {joules_text(total.value)} ± {percentage(total.relative)}, "
            f"{self.kwh_per_million:,.4g} kWh for a million {self.samples}",
            f"of it: {parts}",
            f"mean power: {watts_text(power.value)} ± {percentage(power.relative)} with the "
            "building; "
            f"{self.gpu_watts.value:,.0f} W ± {percentage(self.gpu_watts.relative)} a GPU, "
            f"{watts_text(self.node_watts.value)} ± {percentage(self.node_watts.relative)} a node",
            f"at most {watts_text(self.most_watts)} with the building, with all GPUs at their "
            "board's power",
        ]
        if self.usd is None:
            found.append(f"dollars: {self.missing}")
        else:
            found.append(
                f"dollars: ${self.usd.value:,.4g} ± {percentage(self.usd.relative)} a step, "
                f"${self.usd_per_hour:,.2f} an hour, "
                f"${self.usd_per_million:,.4g} for a million {self.samples}"
            )
        return [*found, *self.assumptions]

    def attributes(self) -> dict[str, Any]:
        """Return what is kept with results: texts in ``cost``, and `numbers` beside them."""
        return {**self.numbers(), "cost": self.lines()}

    def numbers(self) -> dict[str, float]:
        """Return the numbers that are kept with results.

        ``energy`` (J of a step), ``power`` (W of the building), ``power_gpu``, ``power_node`` (W),
        ``power_error``, ``power_gpu_error``, ``power_node_error`` (relative),
        ``energy_per_million`` (kWh); where prices are known
        ``usd_step``, ``usd_hour``, ``usd_per_million``, ``usd_error`` (relative), and
        ``usd_purchase``.
        """
        found: dict[str, float] = {
            "energy": self.energy.value,
            "power": self.watts.value,
            "power_gpu": self.gpu_watts.value,
            "power_node": self.node_watts.value,
            "power_error": self.watts.relative,
            "power_gpu_error": self.gpu_watts.relative,
            "power_node_error": self.node_watts.relative,
            "energy_per_million": self.kwh_per_million,
        }
        if self.usd is not None:
            found |= {
                "usd_step": self.usd.value,
                "usd_hour": self.usd.value / self.seconds * SECONDS_OF_AN_HOUR,
                "usd_per_million": self.usd.value / max(self.tokens, 1) * MILLION,
                "usd_error": self.usd.relative,
            }
        if self.purchase is not None:
            found["usd_purchase"] = self.purchase.value
        return found


LABELS = {
    "idle": "GPUs idle",
    "matrix": "products",
    "memory": "other kernels",
    "communication": "communications alone",
    "hosts": "hosts",
    "nics": "NICs",
    "switches": "switches",
    "building": "building",
}


def joules_text(joules: float) -> str:
    """Return J or kWh with a unit that suits them."""
    if joules >= J_OF_A_KWH:
        return f"{joules / J_OF_A_KWH:,.4g} kWh"
    return quantity(joules, "J")


def watts_text(watts: float) -> str:
    """Return W with a unit that suits them."""
    return quantity(watts, "W")


def cost_of_cluster(
    experiment: Experiment, hardware: Hardware | None = None
) -> tuple[ClusterPower, Prices]:
    """Experiment → what its cluster draws, and what it costs, whatever runs on it.

    Parameters
    ----------
    experiment : Experiment
    hardware : Hardware, optional
        Of the experiment, if known.

    Raises
    ------
    InputError
        If hardware is unknown, or nothing says what it draws.
    """
    hardware = hardware_of(experiment) if hardware is None else hardware
    choice, cluster = experiment.cluster, hardware.cluster
    kinds = gpu_kinds(choice, cluster, hardware.named)
    counts = None
    if kinds is not None:
        counts = np.bincount(kinds, minlength=len(hardware.named)).tolist()
    power = cluster_power(cluster, choice.nodes, hardware.named, counts, experiment.prices.pue)
    names = list(hardware.named)
    listed = find_cluster(choice.preset)
    return power, read_prices(experiment.prices, cluster, choice.nodes, names, counts, listed)


def busy_of(prepared: PreparedExperiment, results: Results) -> list[Busy]:
    """Experiment, result → what the mean GPU of each kind does.

    Parameters
    ----------
    prepared : PreparedExperiment
    results : Results
        Of the experiment.

    Returns
    -------
    list of Busy
        By the kinds of GPUs of `mpisim.prediction.hardware.gpus_of`.
    """
    pricings = prepared.workload.pricings
    matrix = matrix_share(prepared, results)
    kinds = prepared.workload.layout.gpu_of
    of_rank = np.zeros(results.n_ranks, np.int64) if kinds is None else kinds
    found = []
    for kind in range(len(pricings)):
        here = of_rank == kind
        n = int(here.sum())
        compute, exposed = (
            float(results.ranks[name][here].mean()) * 1e-12 if n else 0.0
            for name in ("compute", "exposed")
        )
        found.append(Busy(n, matrix * compute, (1 - matrix) * compute, exposed))
    return found


def matrix_share(prepared: PreparedExperiment, results: Results) -> float:
    """Return the share of products in the time of all kernels and copies.

    Parameters
    ----------
    prepared : PreparedExperiment
    results : Results
    """
    products = CLASSES.index("matrix")
    names = {
        name
        for pricing in prepared.workload.pricings
        for (name, _), kernel in pricing.kernels.items()
        if class_of_family(kernel.qualified_family) == products
    }
    columns = (results.kernels[each].tolist() for each in ("name", "kind", "total"))
    matrix = whole = 0
    for name, kind, total in zip(*columns, strict=True):
        whole += total
        matrix += total if kind == Kind.KERNEL and name in names else 0
    return matrix / whole if whole else 0.0


def step_cost(
    prepared: PreparedExperiment, results: Results, tokens: int | None = None
) -> StepCost:
    """Experiment, result → what its step costs.

    Parameters
    ----------
    prepared : PreparedExperiment
        Of a long step that follows from shorter ones, that of one of these.
    results : Results
        Of the whole step.
    tokens : int, optional
        Tokens (images, samples) of the whole step, where `results` do not say.

    Raises
    ------
    InputError
        If nothing says what the hardware draws.
    """
    experiment = prepared.experiment
    named = {
        name: pricing.model.gpu
        for name, pricing in zip(
            hardware_of(experiment).named, prepared.workload.pricings, strict=True
        )
    }
    hardware = Hardware(prepared.cluster, named, results.n_ranks)
    power, prices = cost_of_cluster(experiment, hardware)
    uncertainty = results.attributes.get("uncertainty")
    error = uncertainty if isinstance(uncertainty, float) else 0.0
    model = experiment.model
    words = "tokens" if model.samples == "sequences" else model.samples
    if tokens is None:
        tokens = int(results.attributes.get(words, prepared.workload.tokens))
    return cost_from(
        power,
        prices,
        busy_of(prepared, results),
        results.step_time,
        tokens,
        nodes=experiment.cluster.nodes,
        error=error,
        samples=words,
    )


def cost_from(
    power: ClusterPower,
    prices: Prices,
    busy: Sequence[Busy],
    seconds: float,
    tokens: int,
    *,
    nodes: int,
    error: float = 0.0,
    samples: str = "tokens",
) -> StepCost:
    """Power, prices, what GPUs do in a step → what it costs.

    Parameters
    ----------
    power : ClusterPower
    prices : Prices
    busy : sequence of Busy
        Of each kind of GPU.
    seconds : float
        Of the step.
    tokens : int
        Of the step.
    nodes : int
    error : float
        Of the step time, relative.
    samples : str
        What `tokens` are.
    """
    seconds = max(seconds, 1e-12)
    joules = {name: Uncertain(0.0, 0.0) for name in STATES}
    used: dict[str, Uncertain] = dict(joules)
    n_used = 0
    for gpu, n, each in zip(power.gpus, power.counts, busy, strict=True):
        one = gpu.energy(each.times, seconds)
        for name in STATES:
            # GPUs of a kind are off together: their errors add up.
            mine = one[name].times(each.gpus)
            used[name] = _together(used[name], mine)
            rest = one["idle"].times(n - each.gpus) if name == "idle" else Uncertain(0.0, 0.0)
            joules[name] = _together(_together(joules[name], mine), rest)
        n_used += each.gpus
    joules |= {
        "hosts": power.hosts.times(seconds),
        "nics": power.nics.times(seconds),
        "switches": power.switches.times(seconds),
    }
    machines = added(list(joules.values()))
    pue = power.pue
    # Together with that of the machines: the error of a product of two independent numbers.
    spread = float(np.hypot((pue.value**2 - 1) ** 0.5 * machines.error, pue.error * machines.value))
    joules["building"] = Uncertain((pue.value - 1) * machines.value, spread)
    within = [joules[name] for name in (*STATES, "hosts", "nics")]
    total = added(list(joules.values()))
    usd = prices.of(seconds, total)
    return StepCost(
        seconds=seconds,
        error=error,
        joules=joules,
        gpu_watts=added(list(used.values())).times(1 / seconds / max(n_used, 1)),
        node_watts=added(within).times(1 / seconds / nodes),
        most_watts=power.most,
        usd=usd,
        usd_per_hour=None if usd is None else usd.value / seconds * SECONDS_OF_AN_HOUR,
        purchase=prices.purchase,
        tokens=tokens,
        samples=samples,
        missing=prices.missing,
        assumptions=(*power.assumptions, *prices.assumptions),
    )


def _together(one: Uncertain, other: Uncertain) -> Uncertain:
    """Two numbers that are off together → their sum."""
    return Uncertain(one.value + other.value, one.error + other.error)
