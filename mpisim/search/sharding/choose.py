"""The best placement of an experiment's tables: sharders and a local search, each simulated.

Sharders give placements; the local search starts from the two that cost least. All of these are
simulated in full, and the fastest that fits into memory is chosen: the cost guides the search, the
simulator decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import InputError
from ...base.frozen import frozen
from ...experiment import Dlrm, Experiment, with_keys
from ...prediction.execution import execute
from ...prediction.prepared import PreparedExperiment, prepare
from ...prediction.uncertainty import error_bar
from ...workloads.dlrm import SHARDERS, EmbeddingTable, TablePlacement, model_tables, placements
from ...workloads.dlrm.sharding import sharded
from ...workloads.dlrm.tables import SHARDING
from ..finalists import difference_error
from .cost import LOADS, PlacementCost
from .improve import improved, options

__all__ = ["SEARCH", "Chosen", "SimulatedPlacement", "choose_placement"]

SEARCH = "search"
"""The name of the placement that the local search found."""

FILE = "file"
"""The name of the placement that the experiment has."""

STARTS = 2
"""Placements of least cost that the local search starts from."""

FULLEST = 0.995
"""Share of the room for tables that the search fills."""


@frozen
class SimulatedPlacement:
    """A placement simulated in full.

    Attributes
    ----------
    name : str
        Of the sharder, ``"search"``, or ``"file"``.
    placed : tuple of TablePlacement
    step_ps : int
    error : float
        One standard deviation of the step time, as a share of it.
    effects : mapping of str to float
        What it consists of, as of `mpisim.search.finalists.Finalist`.
    cost : float
        Seconds, as of `PlacementCost`.
    balance : mapping of str to float
        By `LOADS` the most loaded rank over the mean of all; 1 where nobody has any.
    peak : int
        Bytes on the fullest GPU.
    fits : bool
    digest : str
    """

    name: str
    placed: tuple[TablePlacement, ...]
    step_ps: int
    error: float
    effects: Mapping[str, float]
    cost: float
    balance: Mapping[str, float]
    peak: int
    fits: bool
    digest: str

    @property
    def step_time(self) -> float:
        """Seconds."""
        return self.step_ps * 1e-12


@frozen
class Chosen:
    """Placements found, the best first, with their simulated steps.

    Attributes
    ----------
    found : tuple of SimulatedPlacement
        The fastest that fit first, then those that do not fit.
    tables : tuple of EmbeddingTable
    ranks : int
    compared : int
        Placements whose cost was compared.
    seconds : float
        That the choice took.
    """

    found: tuple[SimulatedPlacement, ...]
    tables: tuple[EmbeddingTable, ...]
    ranks: int
    compared: int
    seconds: float

    @property
    def best(self) -> SimulatedPlacement:
        """The fastest that fits; where none does, the fastest."""
        return self.found[0]

    def as_fast(self, other: SimulatedPlacement) -> bool:
        """Whether the error of the difference to the best does not tell a placement from it.

        What is off is off for both: the error is that of what they do not have in common. A
        placement that is no slower than one that cannot be told cannot either.
        """
        return any(
            other.step_ps <= each.step_ps
            and each.step_time - self.best.step_time <= difference_error(self.best, each)
            for each in self.found
            if each.fits
        )


def choose_placement(
    experiment: Experiment,
    *,
    sharders: Sequence[str] = tuple(SHARDERS),
    kinds: Sequence[str] = SHARDING,
    search: bool = True,
) -> Chosen:
    """Experiment → placements of its tables, simulated, the fastest first. Local.

    Parameters
    ----------
    experiment : Experiment
        Of a DLRM.
    sharders : sequence of str
        Keys of `SHARDERS`.
    kinds : sequence of str
        Kinds of sharding that the search may take. Tables in host memory it takes only where
        those of the model do not fit on the GPUs.
    search : bool
        Whether to search, besides.

    Raises
    ------
    InputError
        If it is not a DLRM, or the plan does not go with it.
    """
    begun = time.monotonic()
    model, source = experiment.model, experiment.source
    if not isinstance(model, Dlrm):
        raise InputError(
            f"{source}: model.family is {model.family!r}; embedding tables are those of a 'dlrm'"
        )
    if not experiment.plan.framework.fused:
        raise InputError(
            f"{source}: framework.fused is false; tables are placed in any way by FBGEMM's "
            f"kernels: true"
        )
    run = replace(experiment.run, allow_oom=True)
    experiment = replace(experiment, run=run)
    tables = model_tables(model)
    empty = prepare(_with(experiment, ["row_wise fused_uvm"]))
    ranks = empty.workload.layout.grid.dp
    cost = PlacementCost(empty, tables, _room(experiment, empty, tables, ranks))
    named: dict[str, list[TablePlacement]] = {}
    if experiment.plan.tables.placement:
        named[FILE] = placements(experiment.plan, tables, ranks)
    for name in sharders:
        of = sharded(name, tables, ranks)
        named[name] = [TablePlacement("table_wise", (rank,)) for rank in of]
    compared = len(named)
    if search:
        found, more = _searched(cost, named, kinds)
        named[SEARCH] = found
        compared += more
    simulated: dict[tuple[TablePlacement, ...], SimulatedPlacement] = {}
    for name, placed in named.items():
        key = tuple(placed)
        known = simulated.get(key)
        simulated[key] = (
            replace(known, name=f"{known.name}, {name}")
            if known is not None
            else _simulated(experiment, name, key, cost, empty)
        )
    order = sorted(simulated.values(), key=lambda each: (not each.fits, each.step_ps, each.cost))
    return Chosen(tuple(order), tuple(tables), ranks, compared, time.monotonic() - begun)


def _room(
    experiment: Experiment, empty: PreparedExperiment, tables: Sequence[EmbeddingTable], ranks: int
) -> float:
    """Return the elements of tables that a rank has room for, with what the allocator loses."""
    even = prepare(_with(experiment, ["row_wise"]), networks=empty.networks).memory.peak
    held = sum(-(-each.entries // ranks) * each.width for each in tables)
    left = empty.memory.capacity - empty.memory.peak
    return max(1.0, FULLEST * left * held / (even - empty.memory.peak))


def _searched(
    cost: PlacementCost, named: Mapping[str, Sequence[TablePlacement]], kinds: Sequence[str]
) -> tuple[list[TablePlacement], int]:
    """Return the best end of the local searches, and how many placements they compared."""
    host = sum(each.size for each in cost.tables) > cost.room * cost.ranks
    numbers = range(len(cost.tables))
    choices = [options(cost, number, kinds=kinds, host=host) for number in numbers]
    if not all(choices):
        raise InputError(f"no kind of {', '.join(kinds)} can have table {choices.index([])}")
    starts = sorted(named.values(), key=cost.of)[:STARTS]
    starts = [each for each in starts if _allowed(each, choices)] or [[of[0] for of in choices]]
    ends = [improved(cost, each, choices) for each in starts]
    best = min((placed for placed, _ in ends), key=cost.of)
    return best, sum(compared for _, compared in ends)


def _allowed(placed: Sequence[TablePlacement], choices: Sequence[Sequence[TablePlacement]]) -> bool:
    return all(each in of for each, of in zip(placed, choices, strict=True))


def _with(experiment: Experiment, texts: Sequence[str]) -> Experiment:
    return replace(experiment, plan=with_keys(experiment.plan, {"tables.placement": tuple(texts)}))


def _simulated(
    experiment: Experiment,
    name: str,
    placed: tuple[TablePlacement, ...],
    cost: PlacementCost,
    empty: PreparedExperiment,
) -> SimulatedPlacement:
    from mpi4py import MPI

    prepared = prepare(_with(experiment, [str(each) for each in placed]), networks=empty.networks)
    run, overlap = execute(prepared, MPI.COMM_SELF, critical_path=True)
    bar = error_bar(prepared, run, overlap=overlap)
    loads, _ = cost.loads(placed)
    mean = loads.mean(axis=1)
    over = np.where(mean > 0, loads.max(axis=1) / np.where(mean > 0, mean, 1.0), 1.0)
    return SimulatedPlacement(
        name=name,
        placed=placed,
        step_ps=run.step_time,
        error=bar.relative,
        effects={each.name: each.effect for each in bar.effects},
        cost=cost.of(placed),
        balance=dict(zip(LOADS, over.tolist(), strict=True)),
        peak=prepared.memory.peak,
        fits=prepared.memory.fits,
        digest=run.digest,
    )
