"""A program of iterations → when each worker did what, with the updates that came first.

With backup workers an iteration goes on with the updates that come first, and which those are is
known only when the program has been run. So it is run in passes: each waits, in every iteration of
every worker, for the updates that came first in the pass before, until a pass changes nothing.

Why this ends, and in the only possible result: take the schedule of the protocol itself, and in it
the decisions in the order of the times at which they are made. What happens before such a time does
not depend on later decisions. So if a pass waits for the right updates in all decisions up to some
time, everything until the next decision happens in it as in that schedule, arrivals before it
included, and the pass after it waits for the right updates there, too. A pass makes at least one
more decision right, mostly those of all workers in several iterations. Updates that arrive at one
moment count in the order of their senders.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..base.frozen import frozen
from ..mpi.reductions import allreduce_max
from ..topo import Network
from .program import IterationProgram

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Outcome", "simulate_decentralized"]

Ints = NDArray[np.int64]


@frozen(eq=False)
class Outcome:
    """When each worker did what; equal on all processes. Times are in ps.

    Attributes
    ----------
    iterations : IterationProgram
        With the updates that were waited for.
    arrivals : tuple of int64, shape (iterations, senders)
        When each update of each worker's senders had come.
    entered, ended : int64, shape (workers, iterations)
        When an iteration began on the GPU, and when its last kernel ended.
    passes : int
        Runs that it took.
    digest : str
        Of the last.
    """

    iterations: IterationProgram
    arrivals: tuple[Ints, ...]
    entered: Ints
    ended: Ints
    passes: int
    digest: str

    @property
    def iteration_times(self) -> NDArray[np.float64]:
        """Time of an iteration of each worker, in ps, in the mean of all; shape (workers,)."""
        found: NDArray[np.float64] = self.ended[:, -1] / self.ended.shape[1]
        return found

    @property
    def iteration_time(self) -> float:
        """Time of an iteration in ps, in the mean of all iterations and workers."""
        return float(self.iteration_times.mean())

    @cached_property
    def largest_gap(self) -> int:
        """Most iterations that a worker was ahead of one that it exchanges updates with."""
        gap = 0
        for sender, receiver in self.iterations.graph.edges:
            for ahead, behind in ((sender, receiver), (receiver, sender)):
                others = np.searchsorted(self.entered[behind], self.entered[ahead], side="right")
                gap = max(gap, int((np.arange(len(others)) - (others - 1)).max()))
        return gap


def simulate_decentralized(
    iterations: IterationProgram,
    network: Network | None,
    comm: Intracomm,
    *,
    contention: bool = True,
) -> Outcome:
    """Run a program until every iteration went on with the updates that came first. **Collective.**

    Parameters
    ----------
    iterations : IterationProgram
    network : Network or None
        Prices the updates.
    comm : mpi4py.MPI.Intracomm
        Its processes share the workers.
    contention : bool
        Whether updates share the links of the network.
    """
    found = iterations
    passes = 0
    awaited: tuple[Ints, ...] | None = None
    while True:
        run = engine.simulate(found.program, comm, network=network, contention=contention)
        passes += 1
        times = _times_of(found, run, comm)
        arrivals = tuple(each[:, 2:] for each in times)
        chosen = tuple(_first_ones(found, each) for each in arrivals)
        if not found.protocol.backup or (awaited is not None and _equal(chosen, awaited)):
            break
        awaited = chosen
        found = found.with_awaited(chosen)
    entered, ended = (np.stack([each[:, column] for each in times]) for column in (0, 1))
    return Outcome(found, arrivals, entered, ended, passes, run.digest)


def _equal(first: Sequence[Ints], other: Sequence[Ints]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def _times_of(found: IterationProgram, run: engine.Run, comm: Intracomm) -> list[Ints]:
    """Return begins, ends and arrivals of updates of every worker, a row an iteration."""
    shapes = [(len(rows.ends), 2 + rows.updates.shape[1]) for rows in found.rows]
    times = [np.full(shape, -1, np.int64) for shape in shapes]
    for i, worker in enumerate(run.hosted.tolist()):
        rows, timeline = found.rows[worker], run.rows(i)
        # The begin of an iteration is a kernel of no duration: it ends when it begins.
        times[worker][:, 0] = timeline.end[rows.enters]
        times[worker][:, 1] = timeline.end[rows.ends]
        times[worker][:, 2:] = timeline.end[rows.updates]
    flat = allreduce_max(np.concatenate([each.ravel() for each in times]), comm)
    cuts = np.cumsum([each.size for each in times])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]


def _first_ones(found: IterationProgram, arrivals: Ints) -> Ints:
    """Arrivals at one worker → senders, by position, whose updates each iteration goes on with."""
    used = arrivals[: len(arrivals) - found.protocol.staleness]
    kept = arrivals.shape[1] - found.protocol.backup
    return np.sort(np.argsort(used, axis=1, kind="stable")[:, :kept], axis=1)
