"""Dataflow mode: the executor. Ranks run until they block, then processes exchange what they know.

No global clock is needed where the cost of a communication does not depend on other traffic: every
time is a maximum of sums of earlier ones, so each process runs ahead as far as it can. Only
maxima and integer sums cross processes, and the answer is the same for any number of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..mpi import parallel
from ..mpi.reductions import anywhere, largest
from ..program import Program
from ..topo import Network
from ._core import core as core_class
from .contention import Contention
from .cost import price
from .deadlock import deadlock
from .digest import summed_over_processes
from .exchange import Progress, exchange
from .flows import used_links
from .memory_needed import count, needed, on_this_machine
from .path import walk_back
from .plan import Plan, make_plan
from .rows import Solution
from .run import CriticalPath, Mode, Run
from .settled import Settled, settle
from .windows import count_operations, open_window

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["simulate"]

_ROWS_A_ROUND = 2_000_000
"""Rows after which a process that has something to tell does so, though it could go on.

Without this bound two halves of a pipeline alternate instead of working at the same time: each
would run until nothing of its own could move before it told the other anything.
"""

_ROWS_A_GLANCE = 5_000_000
"""Rows between two updates of the progress line: well below a second."""


class _Alone:
    """The communicator of a process that has none."""

    rank = 0
    size = 1


def simulate(
    program: Program,
    comm: Intracomm | None = None,
    *,
    network: Network | None = None,
    placement: ArrayLike | None = None,
    fold: bool | None = None,
    critical_path: bool = False,
    contention: bool = True,
    progress: str = "",
    timeline: bool = False,
    settled: Settled | None = None,
) -> Run:
    """Run a program and return what this process knows of it. **Collective**.

    Parameters
    ----------
    program : Program
        Whole, or partial with the tables of the ranks placed here.
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the run; without it this one does all.
    network : Network, optional
        Prices communications that have no duration of their own.
    placement : int32, shape (n_ranks,), optional
        The process of every rank, the same on every process. By default ranks that meet often
        share one; of a partial program, and of a folded one, contiguous blocks do.
    fold : bool, optional
        Whether to simulate one rank for all that are alike. The result is the same, to the last
        bit. By default a whole program is folded where there are fewer processes than ranks, no
        placement is given, and it has at most half as many classes as ranks.
    critical_path : bool
        Find the critical path.
    contention : bool
        Let communications share the links of a `SharedNetwork`; otherwise each takes as long as
        it does alone.
    progress : str
        What a long run is called where its progress is shown on a terminal; empty to show none.
    timeline : bool
        Whether the rows of all ranks will be written: counted when it is said what memory the run
        needs.
    settled : Settled, optional
        `Run.settled` of another run, of a program that this one may differ from in times alone:
        what then still holds is taken over.

    Returns
    -------
    Run

    Raises
    ------
    MatchError
        If communications do not match over the members of a communicator.
    UsageError
        If a program is to be folded that is partial, or placed.
    DeadlockError
        If no rank can move and not all have ended.
    InputError
        If a communication has no duration and there is no network; if a rank is placed where its
        table is not held; if the run needs more memory than the machine has.

    Every error is raised on all processes.
    """
    alone: Any = _Alone()
    comm = alone if comm is None else comm
    several = comm if comm.size > 1 else None
    wall: dict[str, float] = {}
    with _timed(wall, "plan"):
        settled = settle(program, comm, network, placement, fold, contention, settled)
        cast, placed, shared = settled.cast, settled.placement, settled.shared
        hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
        with parallel.agreed(comm):
            more = needed(count(cast, hosted), shared is not None, timeline)
        memory = on_this_machine(more, several)
        with parallel.agreed(comm):
            memory.check(folded=cast.folded, timeline=timeline)
            ranks = cast.classes.representative[hosted]
            spread = several if placed.max() > 0 else None
            patterns = shared.routes.patterns if shared else ()
            known = shared.prices if shared and spread else ()
            priced = price(program, ranks, network, patterns, known)
        operations = count_operations(cast, placed, spread) if shared and spread else None
        plan = make_plan(cast, placed, comm.rank, priced, shared, operations)
        engine = core_class(shared is not None)(plan.layout)

    with _timed(wall, "simulate"):
        rounds = _execute(plan, engine, comm, several, f"{progress}, {memory}" if progress else "")
        if rounds is None:
            if cast.folded:  # say which ranks wait, not which classes
                simulate(program, comm, network=network, fold=False, contention=contention)
            raise deadlock(plan, engine, several)

    with _timed(wall, "finish"):
        ends, part = engine.finish()
        end = np.full(cast.n, np.iinfo(np.int64).min, np.int64)
        end[plan.hosted] = ends
        end = largest(end, several)
        digest = summed_over_processes(part, several)
        solution = Solution(plan.layout, engine)

    of_rank = cast.classes.of_rank
    path: CriticalPath | None = None
    if critical_path:
        with _timed(wall, "path"):
            path = walk_back(plan, solution, end[of_rank], several)
    placed = plan.placement[of_rank]
    hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
    return Run(
        program=program,
        hosted=hosted,
        placement=placed,
        classes=cast.classes,
        rank_end=end[of_rank],
        step_time=int(end.max()),
        digest=digest,
        rounds=rounds,
        mode=_mode(shared, spread),
        contended=0 if shared is None else shared.n_groups,
        domains=0 if shared is None else shared.n_domains,
        links=0 if shared is None else len(shared.routes.names),
        critical_path=path,
        wall=wall,
        solution=solution,
        settled=settled,
        find_shared=partial(used_links, plan, engine, network),
        find_path=partial(walk_back, plan, solution, end[of_rank], several),
    )


def _mode(contention: Contention | None, comm: Intracomm | None) -> Mode:
    if contention is None:
        return "dataflow"
    return "windows" if comm else "events"


@contextmanager
def _timed(wall: dict[str, float], phase: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    wall[phase] = time.perf_counter() - begun


def _execute(
    plan: Plan, core: Any, comm: Intracomm, several: Intracomm | None, label: str
) -> int | None:
    """Run all ranks to their ends, showing progress under a label. **Collective**.

    Returns the number of exchanges, or None if no rank can move and not all have ended.
    """
    rounds = 0
    contended = plan.layout.traffic is not None
    budget = _ROWS_A_ROUND if several else _ROWS_A_GLANCE
    with parallel.progress(comm, label, plan.layout.n_rows) as update:
        while True:
            moving = core.advance(budget)
            update(core.rows_done)
            if moving and core.n_posted == 0:
                continue
            if several:
                state = exchange(plan, core, moving, several)
                rounds += 1
            else:
                state = Progress(core.unfinished, False)
            # Flows that nobody waits for are run to their ends as well.
            if state.unfinished == 0 and not (contended and state.goes_on):
                return rounds
            if not state.goes_on:
                if contended or not anywhere(core.split(), several):
                    return None
                continue
            if several and not state.moving:
                open_window(core, state.earliest, several)
