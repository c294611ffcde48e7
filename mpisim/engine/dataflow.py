"""Executor of a program: hosted ranks run until they block, then processes exchange messages.

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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mpi import parallel
from ..mpi.phases import phases
from ..mpi.reductions import allreduce_any, allreduce_max
from ..program import Program
from ..topo import Network
from ._core import core as core_class
from .cost import Priced, agreed, price
from .critical_path import CriticalPath, walk_back
from .deadlock import deadlock
from .digest import summed_over_processes
from .distribution import Distribution, Tilings, distribute
from .exchange import Progress, count_operations, exchange, open_window
from .flows import shared_links
from .memory_needed import Memory, count, needed, on_this_machine
from .relaxation import Relaxation
from .rows import Solution
from .run import Mode, Run
from .run_setup import RunSetup, set_up
from .setup_cache import SetupCache

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
    setups: SetupCache | None = None,
    relax: bool = True,
    digest: bool = True,
) -> Run:
    """Program, network → `Run` with the times of all its rows. **Collective**.

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
        Whether the rows of all ranks will be written: counted in the estimate of the memory that
        the run needs.
    wire_delays : sequence of (int64, shape (n,), or None), optional
        By table, the time in ps that each row takes beside its network price, for communications
        without a duration; 0 for other rows. All members of a communication have the same.
    setup : RunSetup, optional
        `Run.setup` of an earlier run; reused where valid, as in runs of programs that differ in
        durations alone.
    setups : SetupCache, optional
        Of runs of other programs on the same network, which may have routes and classes of ranks in
        common with this one.
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
        setup = set_up(
            program, comm, network, placement, fold, contention, wire_delays, setup, setups
        )
        simulated, shared = setup.simulated, setup.shared
        priced, memory = _priced(program, comm, network, wire_delays, setup, timeline)
    relax = relax and setup.relaxes
    label = f"{progress}, {memory}" if progress else ""
    tilings = None if setups is None else partial(setups.get, "tiles", network)
    advanced = _advance(setup, priced, comm, relax, label, wall, tilings)
    distribution, core = advanced.distribution, advanced.core
    if allreduce_any(core.unfinished > 0, several):
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
        raise deadlock(distribution, core, several)

    with _timed(wall, "finish"):
        end = np.full(simulated.n, np.iinfo(np.int64).min, np.int64)
        end[distribution.hosted] = core.ends()
        end = allreduce_max(end, several)
        if phases.monitor is not None:
            phases.monitor.end(int(end.min()), int(end.max()))
        hashed = summed_over_processes(core.hash_sum(), several) if digest else ""
        solution = Solution(distribution.core_input, core)

    of_rank = simulated.classes.of_rank
    find_path = partial(walk_back, distribution, solution, end[of_rank], several)
    path: CriticalPath | None = None
    if critical_path:
        with _timed(wall, "path"):
            path = find_path()
    placed = distribution.placement[of_rank]
    return Run(
        program=program,
        hosted=np.flatnonzero(placed == comm.rank).astype(np.int32),
        placement=placed,
        classes=simulated.classes,
        rank_end=end[of_rank],
        step_time=int(end.max()),
        digest=hashed,
        rounds=advanced.rounds,
        mode=_mode(advanced, several),
        contended=0 if shared is None else shared.n_groups,
        domains=0 if shared is None else shared.n_domains,
        links=0 if shared is None else len(shared.routes.names),
        critical_path=path,
        wall=wall,
        solution=solution,
        setup=advanced.setup,
        find_shared=partial(advanced.relaxation.shared_links, network)
        if advanced.relaxation
        else partial(shared_links, distribution, core, network),
        find_path=find_path,
    )


def _priced(
    program: Program,
    comm: Intracomm,
    network: Network | None,
    wire_delays: Sequence[NDArray[np.int64] | None],
    setup: RunSetup,
    timeline: bool,
) -> tuple[Priced, Memory]:
    """Return prices of the hosted ranks' rows, once the run is known to fit. **Collective**."""
    simulated, shared = setup.simulated, setup.shared
    several = comm if comm.size > 1 else None
    hosted = np.flatnonzero(setup.placement == comm.rank).astype(np.int32)
    with parallel.collective_errors(comm):
        more = needed(count(simulated, hosted), shared is not None, timeline)
    memory = on_this_machine(more, several)
    with parallel.collective_errors(comm):
        memory.check(folded=simulated.folded, timeline=timeline)
        ranks = simulated.classes.representative[hosted]
        patterns = shared.routes.patterns if shared else ()
        priced = price(program, ranks, network, patterns, wire_delays)
    return agreed(priced, several if shared else None), memory


def _over(setup: RunSetup, comm: Intracomm | None) -> Intracomm | None:
    """Run setup, communicator → communicator of the run, None if process 0 hosts every rank."""
    return comm if setup.placement.max() > 0 else None


def _mode(advanced: _Advanced, comm: Intracomm | None) -> Mode:
    if advanced.setup.shared is None:
        return "dataflow"
    if advanced.relaxation:
        return "relaxation"
    return "windows" if _over(advanced.setup, comm) else "events"


@contextmanager
def _timed(wall: dict[str, float], phase: str) -> Iterator[None]:
    """Add the seconds that a phase takes to `wall`."""
    begun = time.perf_counter()
    yield
    wall[phase] = wall.get(phase, 0.0) + time.perf_counter() - begun


class _Advanced(NamedTuple):
    """Engine state once no rank can go on: all have ended, or they are in a deadlock.

    Attributes
    ----------
    distribution : Distribution
    core : core class
        After the run.
    rounds : int
        Exchanges between processes.
    relaxation : Relaxation or None
        Where it gave the times.
    setup : RunSetup
        For further runs.
    """

    distribution: Distribution
    core: Any
    rounds: int
    relaxation: Relaxation | None
    setup: RunSetup


def _advance(
    setup: RunSetup,
    priced: Priced,
    comm: Intracomm,
    relax: bool,
    label: str,
    wall: dict[str, float],
    tilings: Tilings | None,
) -> _Advanced:
    """Run all ranks until they end or block: in passes, or event by event. **Collective**."""
    simulated, placement, shared = setup.simulated, setup.placement, setup.shared
    several = comm if comm.size > 1 else None
    distribution: Distribution | None = None
    relaxation: Relaxation | None = None
    with _timed(wall, "plan"):
        if shared is None or (relax and not shared.backwards):
            distribution = distribute(
                simulated, placement, comm.rank, priced, known=setup.lowered, tilings=tilings
            )
            if shared:
                relaxation = Relaxation(distribution, priced.known, setup.waited, several)
    with _timed(wall, "simulate"):
        if phases.monitor is not None:
            n_links = len(shared.routes.names) if shared else None
            phases.monitor.begin(simulated.program.n_ranks, simulated.n, n_links)
        rounds = 0
        if distribution is not None:
            rounds, core = _run_passes(distribution, relaxation, comm, several, label)
            if core is not None:
                if relaxation is not None:
                    setup = replace(setup, waited=relaxation.waited)
                return _Advanced(distribution, core, rounds, relaxation, setup)
            relaxation, setup = None, replace(setup, relaxes=False)
        spread = _over(setup, several)
        operations = count_operations(simulated, placement, spread) if spread else None
        distribution = distribute(
            simulated, placement, comm.rank, priced, shared, operations, setup.lowered
        )
        core = core_class(True)(distribution.core_input)
        rounds += _execute(distribution, core, comm, several, label, False)
        return _Advanced(distribution, core, rounds, None, setup)


def _run_passes(
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
        core = core_class(False)(distribution.core_input)
        if relaxation is not None:
            core.park_at(relaxation.horizon)
        if phases.monitor is not None:
            phases.monitor.begin_pass(relaxation.n_full if relaxation else None)
        rounds += _execute(distribution, core, comm, several, label, relaxation is None)
        if relaxation is None:
            return rounds, core
        if relaxation.is_whole and allreduce_any(core.unfinished > 0, several):
            return rounds, core
        final = relaxation.settle(core)
        if final is not False:
            return rounds, core if final else None


def _execute(
    distribution: Distribution,
    core: Any,
    comm: Intracomm,
    several: Intracomm | None,
    label: str,
    steady: bool,
) -> int:
    """Run all ranks until they end or block, with a label for progress. **Collective**.

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
                note = None if watching is None else watching.words()
                state = exchange(distribution, core, moving, several, note)
                rounds += 1
                if watching is not None and state.notes is not None:
                    watching.hear(state.notes)
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
