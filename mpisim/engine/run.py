"""`Run`: step time, end of each rank, timelines and critical path of a simulated program."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Program
from .critical_path import CriticalPath, PathEnd
from .flows import SharedLinks
from .fold import EquivalenceClasses
from .rows import Rows, Solution
from .run_setup import RunSetup

if TYPE_CHECKING:
    from ._core import Ledger
    from .lowering import LoweredTable

__all__ = ["Mode", "Run"]

Mode = Literal["dataflow", "relaxation", "events", "windows"]


@frozen(eq=False)
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
    classes : EquivalenceClasses
        Equivalence classes and their representatives.
    rank_end : int64, shape (n_ranks,)
        When each rank's last row (host or device) ended; complete on every process.
    step_time : int
        The latest `rank_end`.
    digest : str
        32 hexadecimal digits; the same for any number of processes and any placement, folded or
        not. Empty where it was not asked for.
    rounds : int
        Exchanges between processes.
    mode : {"dataflow", "relaxation", "events", "windows"}
        How the times were found: dataflow where communications share no links, else by relaxation,
        or from event to event, on one process or (windows) on several.
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
    setup : RunSetup
        For further runs of programs that differ in durations alone.
    find_shared : callable
        Computes `shared`, which few callers need.
    find_path : callable
        Finds the critical path that ends at a `PathEnd`. **Collective**.
    """

    program: Program
    hosted: NDArray[np.int32]
    placement: NDArray[np.int32]
    classes: EquivalenceClasses
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
    setup: RunSetup
    find_shared: Callable[[], SharedLinks | None]
    find_path: Callable[[PathEnd], CriticalPath]

    @cached_property
    def shared(self) -> SharedLinks | None:
        """Links that communications could share, and flows simulated here; None: no such links."""
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

        Recomputed on demand, and only the last are cached, so that a run of many ranks fits into
        memory: take what is needed of one rank, then go on to the next.
        """
        return self.solution.rows(int(self.simulated_by[i]))

    def lasting(self, i: int) -> NDArray[np.int64]:
        """Return the time of each row of the i-th of `hosted`, without waits, in ps."""
        return self.solution.lasting(int(self.simulated_by[i]))

    def lowered(self, i: int) -> LoweredTable:
        """Return the lowered table of the i-th of `hosted`."""
        return self.solution.lowered(int(self.simulated_by[i]))

    def accounts(
        self, entries: NDArray[np.int64], ledger: Ledger, until: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Add up the times of the rows of ranks: see `Solution.accounts`.

        Parameters
        ----------
        entries : int64, shape (n,)
            Of `hosted`.
        ledger : Ledger
            For the ranks' tables, which differ in durations alone.
        until : int
            End of the run, in ps: what lies after it does not count.
        """
        return self.solution.accounts(self.simulated_by[entries], ledger, until)
