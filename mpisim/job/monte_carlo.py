"""Runs of jobs from random numbers, many at once: one pass a failure, of all runs together.

Every run has random numbers of its own, Philox's with the run's number as key (Salmon et al. 2011),
and the i-th interruption of a run takes the i-th of them. So a run is the same on any number of
processes, and jobs that differ in one number are compared on the same random numbers.

Between two interruptions nothing is random: how much of a stretch of running was steps, standstill
or lost follows from its length alone (`_stretch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import gamma
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..mpi.parallel import collective_errors
from .model import JobModel, stacked

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["COUNTS", "EXACT", "FACTORS", "PARTS", "Runs", "mean_waiting", "simulate_runs"]

PARTS = (
    "training",
    "checkpoints",
    "lost work",
    "detection",
    "waiting for nodes",
    "restart",
    "rewarmup",
    "maintenance",
)
"""Where the time of a run goes; the parts add up to it."""

COUNTS = ("failures", "planned", "nodes", "checkpoints written")
"""What is counted in a run: interruptions, nodes that left, checkpoints until the end."""

DRAWS_PER_INTERRUPTION = 3
"""Random numbers of an interruption: time to a failure, to a planned interruption, node or not."""

FACTORS = ("step", "detection", "restart", "rate")
"""Numbers of a job that runs may have with errors: each run then has a factor of its own."""

EXACT = (0.0, 0.0, 0.0, 0.0)

RUNS_PER_CHUNK = 1024
"""Runs that go side by side: arrays that fit into the cache."""

MOST_INTERRUPTIONS = 200_000
"""Of a run: more would take minutes."""

ENOUGH_INTERRUPTIONS = 1000
"""Of all runs together, for means over them to be sure within a few percent."""

MOST_RUNS = 16_000

WAITING_RUNS = 256
"""Least number of runs whose mean is how long a job waits for nodes, if it is not said how many."""

WAITING_INTERRUPTIONS, OF_EACH_SPARE = 2000, 50
"""Interruptions of such a run, or for each spare that may leave in it: of a longer job a part is
simulated, in which it has come to wait as long for each node as it does from then on."""

Floats = NDArray[np.float64]


class Runs:
    """Runs of some jobs.

    Attributes
    ----------
    parts : float64, shape (jobs, runs, len(PARTS))
        Seconds.
    counts : int64, shape (jobs, runs, len(COUNTS))
    """

    def __init__(self, parts: Floats, counts: NDArray[np.int64]) -> None:
        self.parts, self.counts = parts, counts

    @property
    def time(self) -> Floats:
        """Seconds until the end, shape (jobs, runs)."""
        total: Floats = self.parts.sum(axis=2)
        return total


def runs_needed(model: JobModel, least: int) -> int:
    """Job → how many runs tell what interruptions do to it: more where they are rare.

    Parameters
    ----------
    model : JobModel
    least : int
        Runs, however many interruptions a run has.
    """
    expected = model.undisturbed * (model.rate + model.planned_rate)
    if not expected:
        return least
    return int(min(max(ENOUGH_INTERRUPTIONS / expected, least), MOST_RUNS))


def simulate_runs(
    models: Sequence[JobModel],
    runs: int,
    seed: int = 0,
    comm: Intracomm | None = None,
    *,
    first: int = 0,
    errors: Sequence[float] = EXACT,
) -> Runs:
    """Jobs → runs of each, with the same random numbers for all jobs. **Collective.**

    Parameters
    ----------
    models : sequence of JobModel
    runs : int
        Of each.
    seed : int
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the runs; all get all of them.
    first : int
        Number of the first run.
    errors : sequence of float
        Of each number of `FACTORS`: relative, one standard deviation. Each run has factors of its
        own for them, lognormal with median 1.

    Raises
    ------
    InputError
        If a job would be interrupted too often to come to an end.
    """
    expected = max(model.undisturbed * (model.rate + model.planned_rate) for model in models)
    if expected > MOST_INTERRUPTIONS:
        raise InputError(
            f"job: a run would be interrupted {expected:.3g} times; up to {MOST_INTERRUPTIONS:,} "
            "are simulated: give fewer tokens or steps, or rarer failures"
        )
    rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
    begin, end = runs * rank // size, runs * (rank + 1) // size
    chunks = []
    with nullcontext() if comm is None else collective_errors(comm):
        for at in range(begin, end, RUNS_PER_CHUNK):
            numbers = np.arange(at, min(at + RUNS_PER_CHUNK, end)) + first
            chunks.append(_simulate(models, numbers, seed, errors, expected))
    if chunks:
        parts = np.concatenate([each[0] for each in chunks], axis=1)
        counts = np.concatenate([each[1] for each in chunks], axis=1)
    else:
        parts = np.zeros((len(models), 0, len(PARTS)))
        counts = np.zeros((len(models), 0, len(COUNTS)), np.int64)
    if comm is not None and comm.size > 1:
        gathered = comm.allgather((parts, counts))
        parts = np.concatenate([each[0] for each in gathered], axis=1)
        counts = np.concatenate([each[1] for each in gathered], axis=1)
    return Runs(parts, counts)


def mean_waiting(model: JobModel, runs: int | None = None, seed: int = 0) -> float:
    """Job → how long it waits for nodes that stand ready too late, in the mean of runs. Local.

    Parameters
    ----------
    model : JobModel
    runs : int, optional
        By default `WAITING_RUNS`, or more where interruptions are rare.
    seed : int
        The runs are those of `simulate_runs`.

    Returns
    -------
    float
        Seconds; swapping nodes in is not part of it.
    """
    expected = model.undisturbed * model.rate
    if model.spares < 0 or not expected * model.node_share:
        return 0.0
    most = max(WAITING_INTERRUPTIONS, OF_EACH_SPARE * model.spares / model.node_share)
    steps = max(int(model.steps * min(1.0, most / expected)), 1)
    part = replace(model, steps=steps, interval=min(model.interval, steps))
    found = simulate_runs([part], runs or runs_needed(part, WAITING_RUNS), seed)
    waited = found.parts[0, :, PARTS.index("waiting for nodes")]
    swapped = found.counts[0, :, COUNTS.index("nodes")] * model.swap
    return float((waited - swapped).mean()) * model.steps / steps


class _Draws:
    """Random numbers of some runs: uniform in (0, 1], by run and interruption."""

    def __init__(self, runs: NDArray[np.int64], seed: int, expected: int) -> None:
        self._generators = [
            np.random.Generator(np.random.Philox(key=np.array([seed, run], np.uint64)))
            for run in runs
        ]
        self._block = max(16, expected)
        normal = [each.standard_normal(len(FACTORS)) for each in self._generators]
        self.normal: Floats = np.array(normal).reshape(len(runs), len(FACTORS))
        self._begin = self._end = 0
        self._numbers: Floats = np.empty((len(runs), 0, DRAWS_PER_INTERRUPTION))

    def of(self, interruption: int, rows: NDArray[np.int64]) -> Floats:
        """Interruption, runs → their numbers, (rows, DRAWS_PER_INTERRUPTION)."""
        while interruption >= self._end:
            shape = (self._block, DRAWS_PER_INTERRUPTION)
            self._numbers = 1.0 - np.array([each.random(shape) for each in self._generators])
            self._begin, self._end = self._end, self._end + self._block
        found: Floats = self._numbers[rows, interruption - self._begin]
        return found


def _simulate(
    models: Sequence[JobModel],
    runs: NDArray[np.int64],
    seed: int,
    errors: Sequence[float],
    expected: float,
) -> tuple[Floats, NDArray[np.int64]]:
    """Run some runs of each job; see `simulate_runs`."""
    n = len(runs)
    draws = _Draws(runs, seed, min(2048, int(1.2 * expected + 4 * expected**0.5) + 8))
    # One row a job and run; `row` says where its sums go, and `run` where its numbers come from.
    row = np.arange(len(models) * n)
    run = np.tile(np.arange(n), len(models))
    m = {name: np.repeat(values, n) for name, values in stacked(list(models)).items()}
    for i, (name, error) in enumerate(zip(FACTORS, errors, strict=True)):
        if error:
            m[name] = m[name] * np.exp(error * draws.normal[run, i])
    mean_of_shape = np.array([gamma(1 + 1 / model.shape) for model in models])
    with np.errstate(divide="ignore"):
        m["scale"] = 1 / (m["rate"] * np.repeat(mean_of_shape, n))
        m["planned_scale"] = 1 / m["planned_rate"]
    spares = max(1, int(max(model.spares for model in models)))
    state = {
        **m,
        "clock": np.zeros(len(row)),
        "saved": np.zeros(len(row)),
        "again": np.zeros(len(row)),  # 1: a restart comes before the next step
        "lost nodes": np.zeros(len(row), np.int64),
    }
    ready = np.zeros((len(row), spares))  # when each spare is there, a ring: repairs end in order
    parts = np.zeros((len(row), len(PARTS)))
    counts = np.zeros((len(row), len(COUNTS)), np.int64)
    interruption = 0
    while len(row):
        ended = _advance(state, ready, parts, counts, row, draws.of(interruption, run))
        interruption += 1
        if interruption > 20 * MOST_INTERRUPTIONS:
            raise InputError("the job is interrupted so often that it does not come to an end")
        if ended.any():
            stay = ~ended
            state = {name: values[stay] for name, values in state.items()}
            row, run, ready = row[stay], run[stay], ready[stay]
    shape = (len(models), n)
    return parts.reshape(*shape, -1), counts.reshape(*shape, -1)


def _advance(
    s: dict[str, NDArray],
    ready: Floats,
    parts: Floats,
    counts: NDArray[np.int64],
    row: NDArray[np.int64],
    drawn: Floats,
) -> NDArray[np.bool_]:
    """Take every run to its next interruption, or to its end; return which have ended."""
    with np.errstate(invalid="ignore", over="ignore"):
        failure = s["scale"] * (-np.log(drawn[:, 0])) ** (1 / s["shape"])
        planned = s["planned_scale"] * -np.log(drawn[:, 1])
        failure = np.where(np.isnan(failure), np.inf, failure)  # infinite times 0
        planned = np.where(np.isnan(planned), np.inf, planned)
    until = np.minimum(failure, planned)
    is_planned = planned < failure

    restart = s["again"] * s["restart"]
    rewarmup = s["again"] * s["rewarmup"]
    left = s["steps"] - s["saved"]
    checkpoints = np.ceil(left / s["interval"])
    needed = left * s["step"] + checkpoints * s["stall"] + s["persist"]
    ended = until >= restart + rewarmup + needed

    running = np.clip(until - restart - rewarmup, 0, needed)
    steps, stalled, whole = _stretch(s, running, left, checkpoints)
    done = np.minimum(np.floor(steps / s["step"] + 1e-9), left)
    # A checkpoint that a planned interruption asks for may be the last.
    closes = is_planned & ~ended & (done >= left)
    closing = np.where(is_planned & ~ended & (done > 0), s["stall"] + s["persist"], 0.0)
    ended |= closes
    keeps = np.where(is_planned, done, np.minimum(whole * s["interval"], left))
    keeps = np.where(ended, left, keeps)
    kept = keeps * s["step"]

    down = ~ended
    fails = down & ~is_planned
    leaves = fails & (drawn[:, 2] <= s["node_share"])
    detection = np.where(fails, s["detection"], 0.0)
    after = s["clock"] + until + detection
    waiting = _swap(s, ready, leaves, after)
    maintenance = np.where(down & is_planned, s["maintenance"], 0.0)

    add = (
        kept,
        stalled + closing,
        np.maximum(steps - kept, 0.0),
        detection,
        waiting,
        np.minimum(restart, until),
        np.clip(until - restart, 0.0, rewarmup),
        maintenance,
    )
    for number, values in enumerate(add):
        parts[row, number] += values
    counts[row, 0] += fails
    counts[row, 1] += down & is_planned
    counts[row, 2] += leaves
    counts[row, 3] += np.where(ended, checkpoints, whole + (closing > 0)).astype(np.int64)
    s["clock"] = s["clock"] + sum(add)
    s["saved"] = s["saved"] + keeps
    s["again"] = np.ones(len(row))
    return np.asarray(ended)


def _stretch(
    s: dict[str, NDArray],
    running: Floats,
    left: Floats,
    checkpoints: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of running → seconds of steps, of standstill, and checkpoints that are whole.

    A run goes through segments of `interval` steps and a standstill; the last may be shorter, and
    only then is its checkpoint waited for.
    """
    work = s["interval"] * s["step"]
    segment = work + s["stall"]
    full = np.minimum(np.floor(running / segment), checkpoints - 1)
    rest = running - full * segment
    last = np.where(full == checkpoints - 1, left * s["step"] - full * work, work)
    steps = full * work + np.minimum(rest, last)
    stalled = full * s["stall"] + np.maximum(rest - last, 0.0)
    whole = np.clip(np.floor((running - s["persist"]) / segment), 0.0, checkpoints - 1)
    return steps, stalled, whole


def _swap(
    s: dict[str, NDArray],
    ready: Floats,
    leaves: NDArray[np.bool_],
    now: Floats,
) -> Floats:
    """Runs with a failed node → wait of each for a spare; the node goes to repair."""
    pool = s["spares"]
    place = (s["lost nodes"] % np.maximum(pool, 1)).astype(np.int64)
    at = np.arange(len(place))
    own = s["repair"]
    wait = np.where(pool > 0, np.minimum(np.maximum(ready[at, place] - now, 0.0), own), own)
    wait = np.where(pool < 0, 0.0, wait)
    with np.errstate(invalid="ignore"):
        ready[at, place] = np.where(leaves & (pool > 0), now + own, ready[at, place])
    s["lost nodes"] = s["lost nodes"] + leaves
    return np.asarray(np.where(leaves, wait + s["swap"], 0.0))
