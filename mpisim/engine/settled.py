"""What is settled before ranks run: who is simulated for whom, where, and what can be shared.

Nothing of it depends on how long rows last, but for who is alike, and that only on which ranks
agree in it. A program that differs from another in times alone can therefore take over what was
settled for that one, if its times are equal within each of the classes that were found:

*The coarsest stable partition is the same.* Let P be the one found, of ranks, groups and links,
which begins with ranks of one table, speed and start. Ranks of one class of P have one table in the
new program too, so that P refines what the new partition begins with; and it is stable, for that
is a matter of labels and of who meets where. The coarsest such partition, Q, is therefore P or
coarser. Ranks that have one table in the new program had one before, so that Q refines what P
began with, and being stable it is P or finer.

*Routes hold.* Communications that take longer than before have lower rates. Links that could not be
full cannot be now; others may no longer be, but a link that is not full holds nobody back. What is
said to tell ranks apart (`Classes.apart`) may then be the ranks they meet where it would be their
communicators anew, or the reverse; the classes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import UsageError
from ..mpi import parallel
from ..mpi.reductions import allreduce_any
from ..program import Program, check_matching, signatures
from ..program.matching import differing, sequence
from ..program.table import UNPRICED, Table
from ..topo import Network
from .contention import Contention, find
from .fold import Cast, quotient, whole
from .placement import block_placement, check_held, check_placement, default_placement

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Settled", "settle"]


@dataclass(frozen=True, eq=False)
class Settled:
    """What a run has settled.

    Attributes
    ----------
    network : Network or None
    contention : bool
    fold : bool or None
        What was asked for.
    cast : Cast
        Who is simulated, of which program.
    placement : int32, shape (cast.n,)
        The process of everyone simulated.
    shared : Contention or None
        What they share, if anything.
    """

    network: Network | None
    contention: bool
    fold: bool | None
    cast: Cast
    placement: NDArray[np.int32]
    shared: Contention | None

    def holds_for(self, program: Program, network: Network | None, contention: bool) -> bool:
        """Say whether it holds for a program: it differs in times alone, which are equal within
        classes; its communications take no less time.

        The same on all processes where all hold all tables.
        """
        old = self.cast.program
        if self.network is not network or self.contention != contention:
            return False
        if any(getattr(old, part) is not getattr(program, part) for part in _WHO_MEETS_WHERE):
            return False
        classes = self.cast.classes
        of_class = program.table[classes.representative]
        if (of_class[classes.of_rank] != program.table).any():
            return False
        pairs = set(zip(of_class.tolist(), old.table[classes.representative].tolist()))
        if len(pairs) != len({new for new, _ in pairs}):
            return False
        return all(_longer(program.tables[new], old.tables[before]) for new, before in pairs)


_WHO_MEETS_WHERE = ("communicators", "slot_index", "slots", "speed", "start", "jitter")


def _longer(new: Table | None, old: Table | None) -> bool:
    """Say whether a table differs in times alone, its communications' being no shorter."""
    if new is old or new is None or old is None:
        return new is old
    if new.structure is not old.structure:
        return False
    if ((new.duration == UNPRICED) != (old.duration == UNPRICED)).any():
        return False
    if old.longer is None:
        return True
    return new.longer is not None and bool((new.longer >= old.longer).all())


def settle(
    program: Program,
    comm: Intracomm,
    network: Network | None,
    placement: ArrayLike | None,
    fold: bool | None,
    contention: bool,
    known: Settled | None,
) -> Settled:
    """Settle it. **Collective.**

    Parameters
    ----------
    program, comm, network, placement, fold, contention
        As for `mpisim.engine.simulate`.
    known : Settled, optional
        Of a program that this one may differ from in times alone.

    Raises
    ------
    MatchError, UsageError, InputError
        As `mpisim.engine.simulate` does.
    """
    several = comm if comm.size > 1 else None
    partial = _is_partial(program, several)
    if several and known is not None:
        # Otherwise processes have tables of their own, and prices to agree on.
        again = known.cast.folded and known.fold == fold and placement is None and not partial
        known = known if again else None
    with parallel.collective_errors(comm):
        if fold and (partial or placement is not None):
            raise UsageError("a program that is partial or placed cannot be folded")
        if known is not None and not known.holds_for(program, network, contention):
            known = None
        if known is not None and known.fold == fold and placement is None:
            return replace(known, cast=known.cast.of(program))
        if placement is not None:
            placed = check_placement(program, placement, comm.size)
        elif partial:
            placed = block_placement(program.n_ranks, comm.size)
        else:
            placed = default_placement(program, comm.size)
        hosted = np.flatnonzero(placed == comm.rank).astype(np.int32)
        check_held(program, hosted)
    if known is not None:
        shared = known.shared
    else:
        _match(program, hosted, partial, comm, several)
        shared = find(program, network, comm, partial) if contention else None
    with parallel.collective_errors(comm):
        few = comm.size < program.n_ranks and placement is None and not partial
        routes = None if shared is None else shared.routes
        cast = whole(program, routes)
        if fold or (fold is None and few):
            most = None if fold else program.n_ranks // 2
            cast = quotient(program, network, most, routes) or cast
        if cast.folded:
            # Few ranks that share links: one process runs their events sooner than several
            # agree on what may happen next.
            placed = block_placement(cast.n, comm.size if routes is None else 1)
    return Settled(network, contention, fold, cast, placed, shared)


def _is_partial(program: Program, comm: Intracomm | None) -> bool:
    """Whether some process does not hold all tables. **Collective**."""
    return allreduce_any(program.is_partial, comm)


def _match(
    program: Program,
    hosted: NDArray[np.int32],
    partial: bool,
    comm: Intracomm,
    several: Intracomm | None,
) -> None:
    """Check that communications match. **Collective**."""
    if not (several and partial):
        with parallel.collective_errors(comm):
            check_matching(program)
        return
    own = signatures(program)
    own = own[np.isin(own[:, 1], hosted)]
    found = _gathered(own, several)
    pairs = [(c, rank) for c, rank in differing(found)]
    sequences = {}
    if pairs:  # on all processes or on none
        here = set(hosted.tolist())
        mine = {(c, rank): sequence(program, rank, c) for c, rank in pairs if rank in here}
        for part in several.allgather(mine):
            sequences.update(part)
    with parallel.collective_errors(comm):
        check_matching(program, found, sequences)


def _gathered(own: NDArray[np.int64], comm: Intracomm) -> NDArray[np.int64]:
    """Return the rows of all processes, one after the other. **Collective**."""
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([own.size], np.int64), counts)
    found = np.empty(int(counts.sum()), np.int64)
    comm.Allgatherv(np.ascontiguousarray(own), [found, (counts, np.cumsum(counts) - counts)])
    return found.reshape(-1, own.shape[1])
