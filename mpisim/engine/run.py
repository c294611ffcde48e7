"""Outcome of a run as one process holds it: the clocks of the ranks it hosted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..program import Program
from .rows import Rows, Solution

if TYPE_CHECKING:
    from ._core import Ledger
    from .flows import Shared
    from .path import PathEnd
    from .settled import Settled

__all__ = ["Apart", "Binding", "Classes", "CriticalPath", "Mode", "PieceKind", "Run"]

Mode = Literal["dataflow", "events", "windows"]


class Binding(IntEnum):
    """The input that arrived last and so decided when a row became ready."""

    HOST = 0
    """The CPU: its clock plus the launch latency (HOST_WAIT: nothing waited for was later)."""
    STREAM = 1
    """The previous kernel of the stream, plus the gap."""
    WAIT = 2
    """``WAIT + i``: the i-th of the row's waits, plus the gap. ``WAIT + 125`` stands for the
    126th and all later ones."""
    QUEUE = 128
    """Bit set beside the above: the launching call itself had to wait for the stream's launch
    queue. Of equal inputs the stream counts before waits, waits before the host; JOINED rows have
    the binding of their batch's first row, without this bit."""


class PieceKind(IntEnum):
    """Kind of work in a piece of the critical path."""

    COMPUTE = 0
    COPY = 1
    COMMUNICATION = 2
    """Wire time, after the last member was ready."""
    HOST = 3
    """CPU work, launching calls and the tails of waits."""
    LAUNCH = 4
    """Launch latency from the CPU to the device."""
    GAP = 5
    """Between two kernels of a stream, or from the end of what was waited for to the start."""
    START = 6
    """Before the rank's start offset. Its row is -1, its name "start"."""


class Apart(IntEnum):
    """What tells a class of ranks from the largest class of the same table."""

    NOT = 0
    """It is the largest."""
    SPEED = 1
    START = 2
    GROUPS = 3
    """The size or the cost of a communicator: placement, for the most part."""
    NEIGHBOURS = 4
    """Nothing of its own: it meets ranks that are told apart."""


@dataclass(frozen=True, eq=False)
class Classes:
    """Ranks that do the same at the same times, and of which one was simulated for all.

    In a run that was not folded every rank is a class of its own.

    Attributes
    ----------
    of_rank : int32, shape (n_ranks,)
        The class of each rank.
    representative : int32, shape (n,)
        The rank that was simulated, the lowest of each class; ascending.
    count : int64, shape (n,)
        Number of ranks.
    apart : uint8, shape (n,)
        An `Apart`.
    """

    of_rank: NDArray[np.int32]
    representative: NDArray[np.int32]
    count: NDArray[np.int64]
    apart: NDArray[np.uint8]

    @classmethod
    def of_one(cls, n_ranks: int) -> Classes:
        """Every rank a class of its own."""
        ranks = np.arange(n_ranks, dtype=np.int32)
        return cls(ranks, ranks, np.ones(n_ranks, np.int64), np.zeros(n_ranks, np.uint8))

    def __len__(self) -> int:
        return len(self.representative)


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain of pieces that ends last; complete and equal on every process.

    Pieces are in time order and contiguous: each begins where the one before ended, the first at
    0, the last ends at the step time.

    Attributes
    ----------
    kind : uint8, shape (n,)
        A `PieceKind`.
    rank, row : int32, shape (n,)
    begin, end : int64, shape (n,)
        ps.
    name : int32, shape (n,)
        Index into `names`.
    names : tuple of str
    """

    kind: NDArray[np.uint8]
    rank: NDArray[np.int32]
    row: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """The outcome of one run, as one process holds it.

    Times are int64 ps. Timelines of single rows are recomputed on demand: see `rows`.

    Attributes
    ----------
    program : Program
    hosted : int32, shape (h,)
        Global ranks simulated by this process, themselves or by the representative of their
        class; ascending.
    placement : int32, shape (n_ranks,)
        The process of every rank.
    classes : Classes
        Equivalence classes and their representatives.
    rank_end : int64, shape (n_ranks,)
        When each rank's last row (host or device) ended; complete on every process.
    step_time : int
        The latest `rank_end`.
    digest : str
        32 hexadecimal digits; the same for any number of processes and any placement, folded or
        not.
    rounds : int
        Exchanges between processes.
    mode : {"dataflow", "events", "windows"}
        Whether communications shared links, and if so whether on one process or on several.
    contended : int
        Number of the program's communicators that may share links.
    domains : int
        Number of contention domains.
    links : int
        Number of links that can saturate.
    critical_path : CriticalPath or None
        Where it was requested.
    wall : mapping of str to float
        Wall-clock seconds of the phases of the run on this process, for benchmarks.
    solution : Solution
        Timelines of the ranks that were simulated here.
    settled : Settled
        What was settled before it, for runs of programs that differ in times alone.
    find_shared : callable
        Computes `shared`, which few callers need.
    find_path : callable
        Finds the critical path that ends at a `PathEnd`. **Collective**.
    """

    program: Program
    hosted: NDArray[np.int32]
    placement: NDArray[np.int32]
    classes: Classes
    rank_end: NDArray[np.int64]
    step_time: int
    digest: str
    rounds: int
    mode: Mode
    contended: int
    domains: int
    links: int
    critical_path: CriticalPath | None
    wall: dict[str, float]
    solution: Solution
    settled: Settled
    find_shared: Callable[[], Shared | None]
    find_path: Callable[[PathEnd], CriticalPath]

    @cached_property
    def shared(self) -> Shared | None:
        """Links that communications could share, and what flowed here; None if there are none."""
        return self.find_shared()

    @cached_property
    def simulated(self) -> NDArray[np.int64]:
        """Which entries of `hosted` are representatives of their class, in ascending order."""
        of_rank = self.classes.of_rank[self.hosted]
        return np.flatnonzero(self.classes.representative[of_rank] == self.hosted)

    @cached_property
    def simulated_by(self) -> NDArray[np.int64]:
        """Entry of `simulated` that represents each entry of `hosted`; shape (h,)."""
        of_rank = self.classes.of_rank[self.hosted]
        return np.searchsorted(of_rank[self.simulated], of_rank)

    @cached_property
    def identical(self) -> NDArray[np.int64]:
        """Index of the representative with an identical timeline, the lowest; for `simulated`."""
        return self.solution.identical()

    def rows(self, i: int) -> Rows:
        """Return the timeline of the i-th of `hosted`; ranks of one class share it.

        Recomputed on demand, and only the last few are cached, so that a run of many ranks fits
        into memory: take what is needed of one rank, then go on to the next.
        """
        return self.solution.rows(int(self.simulated_by[i]))

    def account(
        self, i: int, ledger: Ledger, until: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Add up the times of the rows of the i-th of `hosted`.

        Parameters
        ----------
        i : int
            Entry of `hosted`.
        ledger : Ledger
            For the rank's table.
        until : int
            End of the run, in ps: what lies after it does not count.
        """
        return self.solution.account(int(self.simulated_by[i]), ledger, until)
