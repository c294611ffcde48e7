"""A program of iterations → when each worker did what, with the updates that came first.

With backup workers an iteration goes on with the updates that come first, and which those are is
known only when the program has been run, and so is which iterations are skipped. So it is run in
passes: each waits, in every iteration of every worker, for the updates that came first in the pass
before, and skips what tokens allowed in it, until a pass changes nothing.

Why this ends, and in the only possible result: take the schedule of the protocol itself, and in it
the decisions in the order of the times at which they are made. What happens before such a time does
not depend on later decisions. So if a pass waits for the right updates in all decisions up to some
time, everything until the next decision happens in it as in that schedule, arrivals before it
included, and the pass after it waits for the right updates there, too. A pass makes at least one
more decision right, mostly those of all workers in several iterations. Updates that arrive at one
moment count in the order of their senders, tokens before what is decided at that moment.

No pass hangs, whatever it skips. To enter iteration k, next to iteration p, takes the end of p,
updates of k - 1, and tokens for p + 1, which receivers send when they enter their first iteration
from p + 1 - max_gap on: none higher than p, since nobody skips to more than max_gap above its last.
So everything waits for what is done in lower iterations. And in the end no update is missing: who
skips an iteration has tokens that tell that its receivers have entered a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..base.frozen import frozen
from ..mpi.reductions import allreduce_max
from ..topo import Network
from .decisions import Decisions, with_decisions
from .program import IterationProgram

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["WorkerTimeline", "simulate_decentralized"]

Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
"""Arrival of what was not sent, in ps."""

_KEPT = ("entered", "ended")


@frozen(eq=False)
class WorkerTimeline:
    """When each worker did what; equal on all processes. Times are in ps.

    Attributes
    ----------
    iterations : IterationProgram
        With the updates that were waited for.
    arrivals : tuple of int64, shape (iterations, senders)
        When each update of each worker's senders had come; `NEVER` for those of skipped iterations.
    entered, ended : int64, shape (workers, iterations)
        When an iteration began on the GPU, and when its last kernel ended; -1 if it was skipped.
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

    @property
    def skipped(self) -> Ints:
        """Number of iterations that each worker skipped, shape (workers,)."""
        found: Ints = (self.entered < 0).sum(axis=1)
        return found

    @cached_property
    def largest_gap(self) -> int:
        """Most iterations that a worker was ahead of one that it exchanges updates with."""
        gap = 0
        done = [np.flatnonzero(times >= 0) for times in self.entered]
        for sender, receiver in self.iterations.graph.edges:
            for ahead, behind in ((sender, receiver), (receiver, sender)):
                begins, others = (
                    self.entered[ahead, done[ahead]],
                    self.entered[behind, done[behind]],
                )
                reached = np.append(done[behind], -1)[
                    np.searchsorted(others, begins, side="right") - 1
                ]
                gap = max(gap, int((done[ahead] - reached).max()))
        return gap


def simulate_decentralized(
    iterations: IterationProgram,
    network: Network | None,
    comm: Intracomm,
    *,
    contention: bool = True,
) -> WorkerTimeline:
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
    found, passes = iterations, 0
    protocol, shape = iterations.protocol, (len(iterations.rows), len(iterations.rows[0].ends))
    decided = Decisions((), np.ones(shape, np.bool_))
    while True:
        run = engine.simulate(found.program, comm, network=network, contention=contention)
        passes += 1
        times = _times_of(found, run, comm, decided.executed)
        arrivals = tuple(each.updates for each in times)
        latest = Decisions(
            tuple(_first_ones(found, each) for each in arrivals),
            _executed(found, times, decided.executed) if protocol.skip else decided.executed,
        )
        if not protocol.backup or (decided.awaited and latest.equals(decided)):
            break
        decided = latest
        found = with_decisions(iterations, decided)
    entered, ended = (np.stack([getattr(each, name) for each in times]) for name in _KEPT)
    for each in (entered, ended):
        each[~decided.executed] = -1
    return WorkerTimeline(found, arrivals, entered, ended, passes, run.digest)


class WorkerTimes(NamedTuple):
    """When rows of `WorkerRows` ended, in ps; shapes as there, `NEVER` where nothing came."""

    entered: Ints
    ended: Ints
    updates: Ints
    tokens: Ints


def _times_of(
    found: IterationProgram, run: engine.Run, comm: Intracomm, executed: NDArray[np.bool_]
) -> list[WorkerTimes]:
    """Return when rows of every worker ended."""
    wanted = [
        np.concatenate(
            [each.ravel() for each in (rows.enters, rows.ends, rows.updates, rows.tokens)]
        )
        for rows in found.rows
    ]
    times = [np.full(len(each), -1, np.int64) for each in wanted]
    for i, worker in enumerate(run.hosted.tolist()):
        times[worker][:] = run.rows(i).end[wanted[worker]]
    flat = allreduce_max(np.concatenate(times), comm)
    made = []
    for worker, rows in enumerate(found.rows):
        parts, flat = flat[: len(wanted[worker])], flat[len(wanted[worker]) :]
        n = len(rows.ends)
        cut = 2 * n + rows.updates.size
        updates = parts[2 * n : cut].reshape(rows.updates.shape).copy()
        tokens = parts[cut:].reshape(rows.tokens.shape).copy()
        updates[~executed[list(found.graph.senders[worker])].T] = NEVER
        if tokens.size:
            tokens[~executed[list(found.graph.receivers[worker])].T | (rows.tokens < 0)] = NEVER
        # The begin of an iteration is a kernel of no duration: it ends when it begins.
        made.append(WorkerTimes(parts[:n].copy(), parts[n : 2 * n].copy(), updates, tokens))
    return made


def _first_ones(found: IterationProgram, arrivals: Ints) -> Ints:
    """Arrivals at one worker → senders, by position, whose updates each iteration goes on with."""
    used = arrivals[: len(arrivals) - found.protocol.staleness]
    kept = arrivals.shape[1] - found.protocol.backup
    return np.sort(np.argsort(used, axis=1, kind="stable")[:, :kept], axis=1)


def _executed(
    found: IterationProgram, times: Sequence[WorkerTimes], executed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Times of a pass → iterations that are not skipped, as decided by the tokens that had come."""
    protocol, decided = found.protocol, np.zeros_like(executed)
    assert protocol.max_gap is not None
    for came, done in zip(times, decided, strict=True):
        last = 0
        done[0] = True
        while last + 1 < len(done):
            here = came.tokens <= came.entered[last + 1]
            # The receiver that is least far, by its tokens; all have entered iteration 0.
            reached = min(int(np.flatnonzero(each).max(initial=0)) for each in here.T)
            following = last + 1
            furthest = min(following + protocol.skip, reached, last + protocol.max_gap)
            last = max(following, furthest)
            done[last] = True
    return decided
