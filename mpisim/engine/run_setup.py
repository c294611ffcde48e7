"""Program, network → run setup: rank equivalence classes, placement, link contention.

All of it is computed before a clock moves. It depends on durations of rows only in that ranks of
one class must have equal durations. Overlap runs one program again and again with other durations;
the setup of an earlier run is *valid* for a later one (`RunSetup.is_valid_for`) if the programs
differ in durations alone, these are equal within each class of the earlier run, and no
communication takes less time than it did. Why that is enough:

*The classes are the same.* Let P be the partition of ranks, communicators and links that the
earlier run found: the coarsest stable one that refines the partition by table, speed and start. A
partition is stable, or not, by its classes and by who communicates on what alone. Ranks of one
class of P have one table in the new program too, so P refines the new initial partition, and it is
still stable; the coarsest such partition, Q, is therefore P or coarser. Tables that are one in the
new program were one in the earlier program, so Q refines the earlier initial partition, and being
stable it is P or finer.

*The routes are valid.* Communications that take longer have lower rates, so a link that could not
saturate cannot now. One that could may no longer do so; but a link below its capacity delays no
flow. `EquivalenceClasses.split_reason` is the one thing that may differ: PARTNERS instead of
COMMUNICATORS, or the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import ProgramError, UsageError
from ..base.frozen import frozen
from ..mpi import parallel
from ..mpi.reductions import allreduce_any
from ..program import Program, check_matching, signatures
from ..program.matching import differing, sequence
from ..program.table import UNPRICED, Table
from ..topo import Network
from .contention import Contention, find_contention
from .fold import SimulatedRanks, every_rank, fold_ranks
from .lowering import LoweredTables
from .placement import block_placement, check_placement, check_tables_held, default_placement
from .setup_cache import SetupCache

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["RunSetup", "set_up"]


@frozen(eq=False)
class RunSetup:
    """The setup of a run; equal on all processes but for the tables that each holds.

    Attributes
    ----------
    network : Network or None
    contention : bool
    fold : bool or None
        As requested of `mpisim.engine.simulate`.
    wire_delays : sequence of int64 arrays or None
        Likewise, by table; empty: none.
    simulated : SimulatedRanks
        The representatives, and the program.
    placement : int32, shape (simulated.n,)
        The process of each simulated rank.
    shared : Contention or None
        Communications that share links; None if none do.
    lowered : LoweredTables
        Instructions of tables; runs that take over a setup add to the same object.
    relaxes : bool
        Whether relaxation is tried: False once a run has given it up.
    waited : int64, shape (n_communications + 1,), or None
        By how much longer than alone each communication of this process took in an earlier run, in
        ps; None: nothing is known. Relaxation of the next run begins with it.
    """

    network: Network | None
    contention: bool
    fold: bool | None
    wire_delays: Sequence[NDArray[np.int64] | None]
    simulated: SimulatedRanks
    placement: NDArray[np.int32]
    shared: Contention | None
    lowered: LoweredTables
    relaxes: bool = True
    waited: NDArray[np.int64] | None = None

    def is_valid_for(
        self,
        program: Program,
        network: Network | None,
        contention: bool,
        wire_delays: Sequence[NDArray[np.int64] | None] = (),
    ) -> bool:
        """Return whether this setup is also that of another program: see the module's head.

        The same on all processes where all hold all tables.

        Parameters
        ----------
        program : Program
        network : Network or None
            Must be the same object as the setup's.
        contention : bool
        wire_delays : sequence of int64 arrays or None
            By table of `program`, in ps; empty: none.
        """
        old = self.simulated.program
        if self.network is not network or self.contention != contention:
            return False
        if any(getattr(old, part) is not getattr(program, part) for part in _SAME_PARTS):
            return False
        classes = self.simulated.classes
        of_class = program.table[classes.representative]
        if (of_class[classes.of_rank] != program.table).any():
            return False
        pairs = set(zip(of_class.tolist(), old.table[classes.representative].tolist()))
        if len(pairs) != len({new for new, _ in pairs}):
            return False
        return all(
            _no_faster(
                program.tables[new],
                wire_delays[new] if wire_delays else None,
                old.tables[before],
                self.wire_delays[before] if self.wire_delays else None,
            )
            for new, before in pairs
        )


_SAME_PARTS = ("communicators", "slot_index", "slots", "speed", "start", "jitter")
"""Parts of a `Program` in which two may not differ if one is to take over the other's setup."""


def _no_faster(
    new: Table | None,
    new_delay: NDArray[np.int64] | None,
    old: Table | None,
    old_delay: NDArray[np.int64] | None,
) -> bool:
    """Return whether tables differ in durations alone and no communication takes less time."""
    if new is None or old is None:
        return new is old
    if new.structure is not old.structure:
        return False
    if new is not old and ((new.duration == UNPRICED) != (old.duration == UNPRICED)).any():
        return False
    if old_delay is None or new_delay is old_delay:
        return True
    return new_delay is not None and bool((new_delay >= old_delay).all())


def set_up(
    program: Program,
    comm: Intracomm,
    network: Network | None,
    placement: ArrayLike | None,
    fold: bool | None,
    contention: bool,
    wire_delays: Sequence[NDArray[np.int64] | None],
    known: RunSetup | None,
    others: SetupCache | None = None,
) -> RunSetup:
    """Compute the setup of a run, or reuse `known` where valid. **Collective.**

    Parameters
    ----------
    program, comm, network, placement, fold, contention, wire_delays
        As for `mpisim.engine.simulate`.
    known : RunSetup, optional
        Of an earlier run, of a program that may differ from this one in durations alone.
    others : SetupCache, optional
        Of runs of other programs on the same network.

    Raises
    ------
    MatchError, UsageError, InputError, ProgramError
        As `mpisim.engine.simulate` does.
    """
    several = comm if comm.size > 1 else None
    partial = _is_partial(program, several)
    lowered = LoweredTables() if known is None else known.lowered
    if several and known is not None:
        # Where processes hold different tables they would have to agree. What is folded is whole.
        whole = known.simulated.folded and not partial
        known = known if whole and placement is None else None
    with parallel.collective_errors(comm):
        _check_wire_delays(program, wire_delays)
        if fold and (partial or placement is not None):
            raise UsageError("a program that is partial or placed cannot be folded")
        if known is not None and not known.is_valid_for(program, network, contention, wire_delays):
            known = None
        if known is not None and known.fold == fold and placement is None:
            return replace(
                known, wire_delays=wire_delays, simulated=known.simulated.with_program(program)
            )
        if placement is not None:
            placed = check_placement(program, placement, comm.size)
        elif partial:
            placed = block_placement(program.n_ranks, comm.size)
        else:
            placed = default_placement(program, comm.size)
        hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
        check_tables_held(program, hosted)
    if known is not None:
        shared = known.shared
    else:
        _check_matching(program, hosted, partial, comm, several)
        shared = (
            find_contention(program, network, comm, partial, wire_delays, others)
            if contention
            else None
        )
    with parallel.collective_errors(comm):
        may_fold = comm.size < program.n_ranks and placement is None and not partial
        routes = None if shared is None else shared.routes
        simulated = every_rank(program, routes)
        if fold or (fold is None and may_fold):
            max_classes = None if fold else program.n_ranks // 2
            simulated = fold_ranks(program, network, max_classes, routes, others) or simulated
        if simulated.folded:
            # Few ranks that share links: one process runs their events sooner than several
            # agree on what may happen next.
            placed = block_placement(simulated.n, comm.size if routes is None else 1)
    return RunSetup(network, contention, fold, wire_delays, simulated, placed, shared, lowered)


def _check_wire_delays(program: Program, delays: Sequence[NDArray[np.int64] | None]) -> None:
    """Refuse delays of rows that the network does not price, and negative ones."""
    if delays and len(delays) != len(program.tables):
        raise ProgramError(f"wire delays of {len(delays)} tables; there are {len(program.tables)}")
    late: dict[int, NDArray[np.intp]] = {}  # tables may share delays
    for table, delay in zip(program.tables, delays):
        if table is None or delay is None:
            continue
        if id(delay) not in late:
            late[id(delay)] = np.flatnonzero(delay)
        rows = late[id(delay)]
        if delay.shape != (len(table),) or (delay[rows] < 0).any():
            raise ProgramError(f"table {table.label!r}: wire delays are not one time a row")
        if (table.duration[rows] != UNPRICED).any():  # which communications alone may be
            raise ProgramError(f"table {table.label!r}: wire delay of a row with a duration")


def _is_partial(program: Program, comm: Intracomm | None) -> bool:
    """Return whether some process does not hold all tables. **Collective**."""
    return allreduce_any(program.is_partial, comm)


def _check_matching(
    program: Program,
    hosted: NDArray[np.int32],
    partial: bool,
    comm: Intracomm,
    several: Intracomm | None,
) -> None:
    """Refuse communications that differ between members. **Collective**."""
    if not (several and partial):
        with parallel.collective_errors(comm):
            check_matching(program)
        return
    own = signatures(program)
    own = own[np.isin(own[:, 1], hosted)]
    found = _all_gathered(own, several)
    pairs = [(c, rank) for c, rank in differing(found)]
    sequences = {}
    if pairs:  # on all processes or on none
        here = set(hosted.tolist())
        mine = {(c, rank): sequence(program, rank, c) for c, rank in pairs if rank in here}
        for part in several.allgather(mine):
            sequences.update(part)
    with parallel.collective_errors(comm):
        check_matching(program, found, sequences)


def _all_gathered(own: NDArray[np.int64], comm: Intracomm) -> NDArray[np.int64]:
    """Rows of this process → those of all processes, in their order. **Collective**."""
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([own.size], np.int64), counts)
    found = np.empty(int(counts.sum()), np.int64)
    comm.Allgatherv(np.ascontiguousarray(own), [found, (counts, np.cumsum(counts) - counts)])
    return found.reshape(-1, own.shape[1])
