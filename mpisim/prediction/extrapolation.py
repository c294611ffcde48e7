"""The time of a long step from two shorter ones: further micro-batches only repeat what is there.

Once a pipeline is full, every further round of micro-batches takes as long as the one before, until
the end. So the step of m micro-batches follows from those of two smaller numbers, which both have
the beginning, the end and what is hidden behind them:

    T(m) = T(b) + (m - b) (T(b) - T(a)) / (b - a)

with a, b and m alike modulo a round, so that all end in the same place of it. A sweep over plans
needs no more of a step than its time, and a pipeline of 32 stages that 768 micro-batches pass is
known from 32 and 40 of them.

This fails where something takes longer for a round than the step does: it falls behind, but began
early, and the step feels it only when that lead is spent. So what every stream and CPU has to do in
a round is added up, and where any of it could make the step longer by more than `BOUND`, two longer
steps are asked, and then all micro-batches are simulated. So they are at once in a pipeline whose
gradients are reduced in every micro-batch, which couples its stages so loosely that a lead may last
for dozens of rounds, and in ZB-H1, where what meets what on links and GPUs goes on changing from
round to round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..engine import Run
from ..experiment import Experiment, Plan
from ..memory import Verdict
from ..mpi.reductions import largest
from ..program import Flag
from ..topo import find_cluster
from .execution import execute
from .memory_fit import verdict
from .network import NetworkCache
from .prepared import Case, prepare
from .step_constants import StepConstants

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "BOUND",
    "Rounds",
    "StepTime",
    "attempts",
    "busy",
    "extended",
    "settled",
    "shorter",
    "step_time",
    "with_micro_batches",
]

BOUND = 1e-3
"""Share of a step by which its time may differ from that of the step in full. None of the random
plans of docs/experiments.md differs by more."""

WORTH = 0.6
"""Share of the micro-batches below which the detour pays."""

LEAST = 4
"""Micro-batches that fill a pipeline, however few stages it has."""

LATER = 4
"""Rounds by which two other steps are longer where the first two do not tell: a stage that has more
to do than others may take a few rounds to hold them up."""

FILLING = {"dualpipe": 3}
"""Rounds of the stages until a pipeline is full; 1 for schedules that are not listed."""

Ints = NDArray[np.int64]


class Rounds(NamedTuple):
    """Micro-batches of a replica: of the two steps that are simulated, and of the one asked for."""

    first: int
    second: int
    whole: int

    @property
    def further(self) -> float:
        """Times that what lies between the first and the second follows the second."""
        return (self.whole - self.second) / (self.second - self.first)


@dataclass(frozen=True)
class StepTime:
    """How long a step takes.

    Attributes
    ----------
    picoseconds : int
    memory : Verdict
        Whether it fits.
    tokens : int
        Tokens (images, samples) of the step.
    rounds : Rounds or None
        What it was worked out from; None if all micro-batches were simulated.
    """

    picoseconds: int
    memory: Verdict
    tokens: int
    rounds: Rounds | None

    @property
    def assumption(self) -> str:
        """What the time rests on that a full simulation would not; empty if it was one."""
        if self.rounds is None:
            return ""
        first, second, whole = self.rounds
        return (
            f"{whole} micro-batches from {first} and {second} that were simulated: each further "
            f"one takes as long as those between (to {BOUND:.1%})"
        )


def shorter(experiment: Experiment) -> Rounds | None:
    """Return what to simulate in place of a step; None where that is the step itself.

    The latter is for one that is not long enough, one whose micro-batches are not all alike
    (kernels with jitter, replicas with batches of their own), and one that two would not tell.
    """
    plan = experiment.plan
    replicas = _replicas(experiment)
    if plan.replica_batch or experiment.variation.kernels or not replicas:
        return None
    if plan.schedule == "zb-h1" or (plan.zero >= 2 and plan.pp > 1):
        return None
    whole, rest = divmod(plan.global_batch, replicas * plan.micro_batch)
    if rest:
        return None  # a plan that will be refused
    a_round = _round(plan)
    filled = plan.pp * FILLING.get(plan.schedule, 1)
    filled = max(filled, -(-LEAST // a_round) * a_round)
    first = filled + (whole - filled) % a_round
    found = Rounds(first, first + a_round, whole)
    return found if found.first + found.second <= WORTH * whole else None


def attempts(experiment: Experiment) -> list[Rounds]:
    """Return what to simulate in place of a step, in turn, until two steps tell its time; nothing
    where that takes the step itself."""
    found = shorter(experiment)
    if found is None:
        return []
    more = LATER * (found.second - found.first)
    later = Rounds(found.first + more, found.second + more, found.whole)
    return [found, later] if later.first + later.second <= WORTH * later.whole else [found]


def _round(plan: Plan) -> int:
    """Return how many micro-batches make a round.

    Interleaved schedules take groups of as many as there are stages; of others a step has a
    micro-batch more or less, DualPipe one in either direction.
    """
    if plan.schedule == "interleaved":
        return plan.pp
    several = max(2, plan.pp // 4)
    return several + several % 2


def _replicas(experiment: Experiment) -> int:
    """Return the data parallel size; 0 if the GPUs are not shared evenly."""
    plan, cluster = experiment.plan, experiment.cluster
    if plan.dp is not None:
        return plan.dp
    gpus = cluster.gpus or cluster.nodes * find_cluster(cluster.preset).gpus_per_node
    replicas, rest = divmod(gpus, plan.tp * plan.cp * plan.pp)
    return 0 if rest else replicas


def with_micro_batches(experiment: Experiment, number: int) -> Experiment:
    """Return an experiment with another number of micro-batches a replica."""
    plan = experiment.plan
    batch = number * _replicas(experiment) * plan.micro_batch
    return replace(experiment, plan=replace(plan, global_batch=batch))


def extended(first: float, second: float, rounds: Rounds) -> float:
    """Return T(m) from T(a) and T(b), of the step or of any part of it."""
    return second + rounds.further * (second - first)


def busy(case: Case, run: Run) -> Ints:
    """Return for how long CPU and streams have something to do, on a rank of each table. Local.

    Returns
    -------
    int64, shape (tables, 1 + streams)
        ps of the CPU, then of each stream: kernels, and communications once all are there. The
        most of all ranks simulated here.
    """
    streams = max((table.n_streams for table in case.program.tables if table), default=0)
    found = np.zeros((len(case.program.tables), 1 + streams), np.int64)
    for i in run.simulated.tolist():
        rank = int(run.hosted[i])
        table, rows = run.program.table_of(rank), run.rows(i)
        # Of communications that are one launch only the first counts: they run side by side.
        some = np.flatnonzero(table.is_device & ((table.flags & Flag.JOINED) == 0))
        lasting = (rows.end - rows.wire)[some].astype(float)  # whole ps below 2^53: exact
        host = int(table.host.sum() + table.launch_cost.sum())
        on_device = np.bincount(table.stream[some], lasting, streams).astype(np.int64)
        own = found[case.program.table[rank]]
        np.maximum(own, [host, *on_device], out=own)
    return found


def settled(first: Ints, second: Ints, times: tuple[float, float], rounds: Rounds) -> bool:
    """Say whether each further round takes as long as those between two steps.

    Parameters
    ----------
    first, second : int64, shape (tables, 1 + streams)
        `busy` of the two steps.
    times : tuple of float
        Of the two steps, in ps.
    rounds : Rounds
    """
    behind = int((second - first).max(initial=0)) - (times[1] - times[0])
    return rounds.further * behind <= BOUND * extended(*times, rounds)


def step_time(
    experiment: Experiment,
    comm: Intracomm,
    *,
    constants: StepConstants | None = None,
    every: bool = False,
    networks: NetworkCache | None = None,
) -> StepTime:
    """Return how long a step of an experiment takes. **Collective.**

    Parameters
    ----------
    experiment : Experiment
    comm : mpi4py.MPI.Intracomm
    constants : StepConstants, optional
        As for `mpisim.prediction.prepare`.
    every : bool
        Whether to simulate all micro-batches.
    networks : NetworkCache, optional
        Shared by the steps that one caller compares; they are faster then.

    Raises
    ------
    InputError
        As `mpisim.prediction.prepare`.
    """
    networks = networks or NetworkCache()
    for rounds in [] if every else attempts(experiment):
        found = _extrapolated(experiment, rounds, comm, constants, networks)
        if found is not None:
            return found
    case = prepare(experiment, constants, networks=networks)
    run, _ = execute(case, comm)
    return StepTime(run.step_time, case.memory, case.workload.tokens, None)


def _extrapolated(
    experiment: Experiment,
    rounds: Rounds,
    comm: Intracomm,
    constants: StepConstants | None,
    networks: NetworkCache,
) -> StepTime | None:
    """Return the time of a step from two shorter ones; None if they do not tell it."""
    memory = verdict(experiment)
    tokens = 0
    times: list[int] = []
    loads: list[Ints] = []
    case = prepare(with_micro_batches(experiment, rounds.first), constants, memory, networks)
    for number in rounds[:2]:
        if times:
            case = case.with_micro_batches(number)
        run, _ = execute(case, comm)
        load = largest(busy(case, run), comm)
        times.append(run.step_time)
        loads.append(load)
        tokens = case.workload.tokens // number * rounds.whole
    first, second = times
    if not settled(loads[0], loads[1], (first, second), rounds):
        return None
    return StepTime(round(extended(first, second, rounds)), memory, tokens, rounds)
