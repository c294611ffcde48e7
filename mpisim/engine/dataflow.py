"""The executor: hosted ranks run until they block, then processes exchange messages.

One loop serves all modes of a run.

- *dataflow*: the cost of a communication does not depend on other traffic. Every time is a maximum
  of sums of earlier ones (max-plus recurrence), so no global clock is needed and each process runs
  ahead as far as it can.
- *relaxation*: communications share links. Passes of dataflow, with how long each communication
  takes held fixed, until passes agree: see `mpisim.engine.relaxation`. Where that is not possible,
  or would take too many passes:
- *events*: on one process. The core is an event loop by itself.
- *windows*: on several processes. When nothing can move, all processes agree on a window and let
  the events in it happen: see `mpisim.engine.exchange`.

Only maxima, minima and integer sums cross processes, so the answer is the same for any number of
them, whatever they host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mpi import parallel
from ..mpi.phases import phases
from ..mpi.reductions import allreduce_any, allreduce_max
from ..program import Program
from ..topo import Network
from ._core import core as core_class
from .contention import Contention
from .cost import agreed, price
from .critical_path import CriticalPath, walk_back
from .deadlock import deadlock
from .digest import summed_over_processes
from .distribution import Distribution, distribute
from .exchange import Progress, count_operations, exchange, open_window
from .flows import shared_links
from .memory_needed import count, needed, on_this_machine
from .relaxation import Relaxation
from .rows import Solution
from .run import Mode, Run
from .run_setup import RunSetup, set_up

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["simulate"]

_ROWS_PER_EXCHANGE = 2_000_000
"""Rows after which a process with messages to send sends them, though it could go on.

Without this bound two halves of a pipeline alternate instead of working at the same time: each
would run until nothing of its own could move before it sent the other anything.
"""

_ROWS_PER_UPDATE = 5_000_000
"""Rows between two updates of the progress line: well below a second."""


class _SingleProcess:
    """Stands in for a communicator where there is one process."""

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
    wire_delays: Sequence[NDArray[np.int64] | None] = (),
    setup: RunSetup | None = None,
    relax: bool = True,
    digest: bool = True,
) -> Run:
    """Simulate a program. **Collective**.

    Parameters
    ----------
    program : Program
        Whole, or partial with the tables of the ranks placed here.
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the run; without it this one does all.
    network : Network, optional
        Prices communications that have no duration of their own.
    placement : int32, shape (n_ranks,), optional
        The process of every rank, the same on every process. By default ranks that communicate
        often share one; of a partial program, and of a folded one, contiguous blocks do.
    fold : bool, optional
        Whether to simulate one rank of each equivalence class. The result is the same, to the last
        bit. By default a whole program is folded where there are fewer processes than ranks, no
        placement is given, and it has at most half as many classes as ranks.
    critical_path : bool
        Whether to find the critical path.
    contention : bool
        Let communications share the links of a `SharedNetwork`; otherwise each takes as long as
        it does alone.
    progress : str
        Label of the progress line on a terminal; empty to show none.
    timeline : bool
        Whether the rows of all ranks will be written: counted when it is said what memory the run
        needs.
    wire_delays : sequence of (int64, shape (n,), or None), optional
        By table, the time in ps that each row takes beside its network price, for communications
        without a duration; 0 for other rows. All members of a communication have the same.
    setup : RunSetup, optional
        `Run.setup` of an earlier run; reused where valid, as in runs of programs that differ in
        durations alone.
    relax : bool
        Whether to try relaxation where communications share links, before events. The times are
        the same.
    digest : bool
        Whether to work out the digest, which those who ask for times alone do not look at.

    Returns
    -------
    Run
        The clocks of the ranks that this process hosts, and what all processes have in common.

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
    single: Any = _SingleProcess()
    comm = single if comm is None else comm
    several = comm if comm.size > 1 else None
    wall: dict[str, float] = {}
    with _timed(wall, "plan"):
        setup = set_up(program, comm, network, placement, fold, contention, wire_delays, setup)
        simulated, placed, shared = setup.simulated, setup.placement, setup.shared
        hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
        with parallel.collective_errors(comm):
            more = needed(count(simulated, hosted), shared is not None, timeline)
        memory = on_this_machine(more, several)
        with parallel.collective_errors(comm):
            memory.check(folded=simulated.folded, timeline=timeline)
            ranks = simulated.classes.representative[hosted]
            spread = several if placed.max() > 0 else None
            patterns = shared.routes.patterns if shared else ()
            priced = price(program, ranks, network, patterns, wire_delays)
        priced = agreed(priced, several if shared else None)
        relaxation: Relaxation | None = None
        relax = relax and setup.relaxes
        if shared is None or (relax and not shared.backwards):
            distribution = distribute(simulated, placed, comm.rank, priced, known=setup.lowered)
            if shared:
                relaxation = Relaxation(distribution, priced.known, several)

    with _timed(wall, "simulate"):
        watching = phases.monitor
        if watching is not None:
            watching.begin(
                program.n_ranks, simulated.n, len(shared.routes.names) if shared else None
            )
        label = f"{progress}, {memory}" if progress else ""
        rounds, engine = 0, None
        if shared is None or relaxation:
            rounds, engine = _passes(distribution, relaxation, comm, several, label)
        if engine is None:  # event by event
            if relaxation is not None:
                relaxation, setup = None, replace(setup, relaxes=False)
            operations = count_operations(simulated, placed, spread) if spread else None
            distribution = distribute(
                simulated, placed, comm.rank, priced, shared, operations, setup.lowered
            )
            engine = core_class(True)(distribution.core_input)
            rounds += _execute(distribution, engine, comm, several, label, False)
        if allreduce_any(engine.unfinished > 0, several):
            if simulated.folded:  # say which ranks wait, not which classes
                simulate(
                    program,
                    comm,
                    network=network,
                    fold=False,
                    contention=contention,
                    wire_delays=wire_delays,
                    relax=relax,
                )
            raise deadlock(distribution, engine, several)

    with _timed(wall, "finish"):
        end = np.full(simulated.n, np.iinfo(np.int64).min, np.int64)
        end[distribution.hosted] = engine.ends()
        end = allreduce_max(end, several)
        if watching is not None:
            watching.end(int(end.min()), int(end.max()))
        hashed = summed_over_processes(engine.hash_sum(), several) if digest else ""
        solution = Solution(distribution.core_input, engine)

    of_rank = simulated.classes.of_rank
    path: CriticalPath | None = None
    if critical_path:
        with _timed(wall, "path"):
            path = walk_back(distribution, solution, end[of_rank], several)
    placed = distribution.placement[of_rank]
    hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
    return Run(
        program=program,
        hosted=hosted,
        placement=placed,
        classes=simulated.classes,
        rank_end=end[of_rank],
        step_time=int(end.max()),
        digest=hashed,
        rounds=rounds,
        mode=_mode(shared, relaxation, spread),
        contended=0 if shared is None else shared.n_groups,
        domains=0 if shared is None else shared.n_domains,
        links=0 if shared is None else len(shared.routes.names),
        critical_path=path,
        wall=wall,
        solution=solution,
        setup=setup,
        find_shared=partial(relaxation.shared_links, network)
        if relaxation
        else partial(shared_links, distribution, engine, network),
        find_path=partial(walk_back, distribution, solution, end[of_rank], several),
    )


def _mode(
    contention: Contention | None, relaxation: Relaxation | None, comm: Intracomm | None
) -> Mode:
    if contention is None:
        return "dataflow"
    if relaxation:
        return "relaxation"
    return "windows" if comm else "events"


@contextmanager
def _timed(wall: dict[str, float], phase: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    wall[phase] = time.perf_counter() - begun


def _passes(
    distribution: Distribution,
    relaxation: Relaxation | None,
    comm: Intracomm,
    several: Intracomm | None,
    label: str,
) -> tuple[int, Any]:
    """Run all ranks until the times are final. **Collective**.

    Returns the number of exchanges, and the core after the run; None where relaxation has given up.
    """
    rounds = 0
    while True:
        engine = core_class(False)(distribution.core_input)
        if relaxation is not None:
            engine.park_at(relaxation.horizon)
        watching = phases.monitor
        if watching is not None:
            watching.begin_pass(relaxation.n_full if relaxation else None)
        rounds += _execute(distribution, engine, comm, several, label, relaxation is None)
        if relaxation is None:
            return rounds, engine
        if relaxation.is_whole and allreduce_any(engine.unfinished > 0, several):
            return rounds, engine
        final = relaxation.settle(engine)
        if final is not False:
            return rounds, engine if final else None


def _execute(
    distribution: Distribution,
    core: Any,
    comm: Intracomm,
    several: Intracomm | None,
    label: str,
    steady: bool,
) -> int:
    """Run all ranks as far as they come, showing progress under a label. **Collective**.

    Returns the number of exchanges. Where ranks have not ended by then, none can move. Where
    communications share links equal numbers of rows do not take equal times: `steady` is False.
    """
    rounds = 0
    contended = distribution.core_input.flows is not None
    budget = _ROWS_PER_EXCHANGE if several else _ROWS_PER_UPDATE
    watching = phases.monitor
    total = distribution.core_input.n_rows
    with parallel.progress(comm, label, total, steady=steady) as update:
        while True:
            moving = core.advance(budget)
            update(core.rows_done)
            if watching is not None:
                watching.look(core, contended, several is None)
            if moving and core.n_outgoing == 0:
                continue
            if several:
                saying = None if watching is None else watching.words()
                state = exchange(distribution, core, moving, several, saying)
                rounds += 1
                if watching is not None and state.said is not None:
                    watching.hear(state.said)
            else:
                state = Progress(core.unfinished, False)
            # Flows that no one waits for are run to their ends as well.
            if state.unfinished == 0 and not (contended and state.goes_on):
                return rounds
            if not state.goes_on:
                if contended or not allreduce_any(core.split(), several):
                    return rounds
                continue
            if several and not state.moving:
                open_window(core, state.earliest, several)
