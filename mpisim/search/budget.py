"""Candidates, step times → power, price and GPUs; lower bounds of them without a step time.

Rented GPUs, and bought ones without their electricity, cost the same in every hour. Whatever runs,
a cluster draws what its idle GPUs, hosts and switches do (`ClusterPower.least`). So the price of an
hour, and with the least time of a step (`mpisim.search.bound`) its energy and its dollars, have
lower bounds that need no simulation.
"""

from __future__ import annotations

from ..base.errors import InputError
from ..base.frozen import frozen
from ..cost.prices import J_OF_A_KWH, SECONDS_OF_AN_HOUR
from ..cost.step import StepCost, cost_of_cluster, step_cost
from ..experiment import Experiment
from ..prediction.hardware import Hardware
from ..prediction.network import NetworkCache
from .choice import Choice

__all__ = ["Budget", "budget_of", "over_budget", "simulated_cost"]


@frozen
class Budget:
    """Costs of a candidate that do not depend on its step time.

    Attributes
    ----------
    usd_hour : float
        $ of an hour, without electricity that is paid for by itself; 0: not asked for.
    usd_joule : float
        $ of a J that the building draws; 0 where electricity is part of the price.
    least_watts : float
        W below which the building's power cannot be.
    purchase : float
        $ to buy all of it; 0: not asked for.
    """

    usd_hour: float = 0.0
    usd_joule: float = 0.0
    least_watts: float = 0.0
    purchase: float = 0.0


def budget_of(choice: Choice, experiment: Experiment, hardware: Hardware) -> Budget:
    """Experiment → what it costs whatever its step, as far as a search asks for it.

    Parameters
    ----------
    choice : Choice
    experiment : Experiment
    hardware : Hardware
        Of the experiment.

    Raises
    ------
    InputError
        If a price that is asked for, or what the hardware draws, is not known.
    """
    power, prices = cost_of_cluster(experiment, hardware)
    asked = {*choice.objectives, *choice.limits, *choice.job_limits}
    usd_hour = usd_joule = purchase = 0.0
    if asked & {"usd_per_token", "usd_per_hour", "job_usd"}:
        if prices.hour is None:
            raise InputError(prices.missing)
        usd_hour = prices.hour.value
        usd_joule = prices.kwh.value / J_OF_A_KWH if prices.pays_electricity else 0.0
    if "price" in asked:
        if prices.purchase is None:
            raise InputError(prices.no_purchase)
        purchase = prices.purchase.value
    return Budget(usd_hour, usd_joule, power.least, purchase)


def over_budget(choice: Choice, budget: Budget, watts: float) -> bool:
    """Whether a candidate is beyond a limit.

    Parameters
    ----------
    choice : Choice
    budget : Budget
    watts : float
        That the building draws, or the least that it can.
    """
    hour = budget.usd_hour + budget.usd_joule * watts * SECONDS_OF_AN_HOUR
    limits = choice.limits
    return (
        watts > limits.get("power", watts)
        or hour > limits.get("usd_per_hour", hour)
        or budget.purchase > limits.get("price", budget.purchase)
    )


def simulated_cost(experiment: Experiment, networks: NetworkCache) -> tuple[int, int, StepCost]:
    """Experiment → ps and tokens of its step, simulated in full, and what it costs. Local.

    Parameters
    ----------
    experiment : Experiment
    networks : NetworkCache
        Shared by the candidates of a search.

    Raises
    ------
    InputError
        As `mpisim.prediction.prepared.prepare`.
    """
    from mpi4py import MPI

    from ..prediction.execution import execute
    from ..prediction.long_steps import long_step
    from ..prediction.prepared import prepare
    from ..results import collect

    comm, repetition = MPI.COMM_SELF, None
    found = long_step(experiment, comm, networks=networks)
    if found is not None:
        prepared, run, _, repetition = found
    else:
        prepared = prepare(experiment, networks=networks)
        run, _ = execute(prepared, comm)
    results = collect(run, comm=comm, repetition=repetition)
    assert results is not None
    micro_batches = experiment.plan.global_batch / prepared.experiment.plan.global_batch
    tokens = round(prepared.workload.tokens * micro_batches)
    return results.step_time_ps, tokens, step_cost(prepared, results, tokens=tokens)
