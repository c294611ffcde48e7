"""The slowdown by overlap in a prediction: texts for its results, and what the path depends on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.frozen import frozen
from ..base.quantity import PICOSECONDS, Quantity
from ..base.text import percentage
from ..engine.critical_path import PieceKind
from ..kernels.slowdown import CLASSES
from ..program import Kind
from .model import OverlapModel
from .passes import SlowdownOutcome

if TYPE_CHECKING:
    from ..engine.repetition import Repetition

__all__ = ["OverlapSummary"]

COMMUNICATIONS = "overlap: communications"
"""Name of the number that the slowdown of communications depends on."""


@frozen
class OverlapSummary:
    """Summary of overlap in a run.

    Attributes
    ----------
    model : OverlapModel
        The model, with the program without slowdown.
    outcome : SlowdownOutcome
    mode : {"static", "coupled"}
    repetition : Repetition, optional
        Of a long step, how it follows from the run that has the rows.
    """

    model: OverlapModel
    outcome: SlowdownOutcome
    mode: Literal["static", "coupled"]
    repetition: Repetition | None = None

    def times_of_rows(self, rank: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of a rank's table → how often each runs in the step, of which a table may have less.

        Parameters
        ----------
        rank : int
        rows : int64, shape (n,)
        """
        times = np.ones(len(rows), np.int64)
        if self.repetition is not None:
            window = self.repetition.window
            first = window.low[rank]
            period = (rows >= first) & (rows < first + window.n_rows[rank])
            times[period] += self.repetition.times
        return times

    @property
    def numbers(self) -> dict[str, Quantity]:
        """The numbers that the slowdown depends on, with their error bars."""
        return dict(self.model.devices[0].factors.numbers)

    def statements(self) -> dict[str, Any]:
        """Return attributes of the results.

        Returns
        -------
        dict
            ``overlap`` (for people, the mode first), ``overlap_added`` (share of the step time
            without slowdown), and ``overlap_slowdowns``, texts, one a class of kernels.
        """
        outcome = self.outcome
        before, after = outcome.step_time_alone, outcome.run.step_time
        added = after / before - 1 if before else 0.0
        text = (
            f"{self.mode}: the step takes {before / PICOSECONDS:.6g} s without slowdown, "
            f"{percentage(added, 2, signed=True)} with it"
        )
        if self.mode == "coupled":
            text += f"; {outcome.passes} passes"
            if outcome.unconverged_rows:
                text += f", not converged: rows that still change: {outcome.unconverged_rows:,}"
        return {
            "overlap": text,
            "overlap_added": added,
            "overlap_slowdowns": self._slowdowns(),
        }

    def _slowdowns(self) -> list[str]:
        n = self.model.program.n_ranks
        rows = [
            (f"{name} kernels", *each)
            for name, each in zip(CLASSES, self.outcome.kernel_time.tolist(), strict=True)
        ]
        rows.append(("communications", *self.outcome.wire_time.tolist()))
        return [
            f"{name}: x {beside / alone:.3f} for {alone / n / PICOSECONDS * 1e3:,.4g} ms a rank "
            f"that overlap"
            for name, alone, beside in rows
            if alone
        ] or ["nothing overlaps"]

    @property
    def longer(self) -> NDArray[np.int64]:
        """What overlap adds to each kernel of the critical path, with its repeats, in ps."""
        return self._added[2]

    def lengths(self) -> dict[str, float]:
        """Return the part of a critical path that depends on each number of the slowdown, in ps.

        Of the time that slowdown adds to a class of kernels on the path, each number has the same
        share as of the time that it adds to all kernels of the class.
        """
        added, wire, _ = self._added
        outcome = self.outcome
        longer = outcome.kernel_time[:, 1] - outcome.kernel_time[:, 0]
        found = {COMMUNICATIONS: wire}
        for i, name in enumerate(self.model.terms):
            found[name] = sum(
                a * (t / by)
                for a, t, by in zip(added.tolist(), outcome.terms[:, i].tolist(), longer.tolist())
                if by
            )
        return found

    @cached_property
    def _added(self) -> tuple[NDArray[np.int64], float, NDArray[np.int64]]:
        """The time that slowdown adds to the path, in ps: kernels by class; communications; pieces.

        Communications that share links take longer for that, too: no more counts than the ratio
        that slowdown adds to communications altogether.
        """
        model, path = self.model, self.outcome.run.critical_path
        assert path is not None
        pieces_longer = np.zeros(len(path.kind), np.int64)
        kernels = np.zeros(len(CLASSES), np.int64)
        wire = 0.0
        alone, beside = self.outcome.wire_time.tolist()
        max_ratio = beside / alone - 1 if alone else 0.0
        length, times = path.end - path.begin, path.times
        here = np.isin(path.kind, (PieceKind.COMPUTE, PieceKind.COMMUNICATION))
        for rank in distinct(path.rank[here]).tolist():
            table, device = model.program.table_of(rank), model.device(rank)
            pieces = np.flatnonzero(here & (path.rank == rank))
            rows = path.row[pieces].astype(np.int64)
            computing = table.kind[rows] == Kind.KERNEL
            number = device.numbers(table, rows[computing])
            factors = model.duration_factors(rank, rows[computing])
            alone_there = table.duration[rows[computing]] * factors
            longer = np.rint(length[pieces[computing]] - alone_there).astype(np.int64)
            known = number >= 0
            longer = np.maximum(longer, 0) * times[pieces[computing]]
            pieces_longer[pieces[computing]] = longer
            np.add.at(kernels, device.work.kind[number[known]], longer[known])
            own = model.communications.of(rank)
            at = np.searchsorted(own.rows, rows[~computing])
            lasting = own.alone[at]
            longer = length[pieces[~computing]] - lasting
            longer = np.clip(longer, 0, max_ratio * lasting) * times[pieces[~computing]]
            wire += float(longer.sum())
        return kernels, wire, pieces_longer
