"""What a prediction says of the slowdown that overlap has cost, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import PICOSECONDS, Quantity
from ..engine.run import CriticalPath, PieceKind
from ..kernels.slowdown import CLASSES
from ..program import Kind
from .passes import Outcome
from .rank import Ranks

__all__ = ["Overlap"]

COMMUNICATIONS = "overlap: communications"
"""What the slowdown of communications rests on, among the numbers of a model."""


@dataclass(frozen=True)
class Overlap:
    """What is to be said of overlap in a run.

    Attributes
    ----------
    ranks : Ranks
        The program without slowdown, and the model.
    outcome : Outcome
    mode : {"static", "coupled"}
    """

    ranks: Ranks
    outcome: Outcome
    mode: Literal["static", "coupled"]

    @property
    def numbers(self) -> dict[str, Quantity]:
        """The numbers that the slowdown rests on, with their error bars."""
        return dict(self.ranks.devices[0].factors.numbers)

    def statements(self) -> dict[str, Any]:
        """Return attributes of the results.

        Returns
        -------
        dict
            ``overlap`` (for people, the mode first), ``overlap_added`` (share of the step time
            without slowdown), and ``overlap_slowdowns``, texts, one a class of kernels.
        """
        outcome = self.outcome
        before, after = outcome.before, outcome.run.step_time
        added = after / before - 1 if before else 0.0
        text = (
            f"{self.mode}: the step takes {before / PICOSECONDS:.6g} s without slowdown, "
            f"{added:+.2%} with it"
        )
        if self.mode == "coupled":
            text += f"; {outcome.passes} passes"
            if outcome.left:
                text += f", not settled: rows that still change: {outcome.left:,}"
        return {
            "overlap": text,
            "overlap_added": added,
            "overlap_slowdowns": self._slowdowns(),
        }

    def _slowdowns(self) -> list[str]:
        n = self.ranks.program.n_ranks
        rows = [
            (f"{name} kernels", *each)
            for name, each in zip(CLASSES, self.outcome.spent.tolist(), strict=True)
        ]
        rows.append(("communications", *self.outcome.wire.tolist()))
        return [
            f"{name}: x {beside / alone:.3f} for {alone / n / PICOSECONDS * 1e3:,.4g} ms a rank "
            f"that overlap"
            for name, alone, beside in rows
            if alone
        ] or ["nothing overlaps"]

    def lengths(self, path: CriticalPath) -> dict[str, float]:
        """Return how much of a critical path rests on the numbers of the slowdown, in ps.

        Of what slowdown has added to a class's kernels on the path, as much rests on each number as
        of what it has added to all kernels of the class.

        Parameters
        ----------
        path : CriticalPath
            Of the run with slowdown.
        """
        added, wire = self._added(path)
        outcome = self.outcome
        longer = outcome.spent[:, 1] - outcome.spent[:, 0]
        found = {COMMUNICATIONS: wire}
        for i, name in enumerate(self.ranks.terms):
            found[name] = sum(
                a * (t / by)
                for a, t, by in zip(added.tolist(), outcome.terms[:, i].tolist(), longer.tolist())
                if by
            )
        return found

    def _added(self, path: CriticalPath) -> tuple[NDArray[np.int64], float]:
        """Return what the pieces of a path have longer than alone: kernels by class, and the rest.

        Communications that share links take longer for that, too: no more counts than what
        slowdown has added to communications on the whole.
        """
        ranks = self.ranks
        kernels = np.zeros(len(CLASSES), np.int64)
        wire = 0.0
        alone, beside = self.outcome.wire.tolist()
        most = beside / alone - 1 if alone else 0.0
        length = path.end - path.begin
        here = np.isin(path.kind, (PieceKind.COMPUTE, PieceKind.COMMUNICATION))
        for rank in np.unique(path.rank[here]).tolist():
            table, device = ranks.program.table_of(rank), ranks.device(rank)
            pieces = np.flatnonzero(here & (path.rank == rank))
            rows = path.row[pieces].astype(np.int64)
            computing = table.kind[rows] == Kind.KERNEL
            number = device.numbers(table, rows[computing])
            alone_there = table.duration[rows[computing]] * ranks.varied(rank, rows[computing])
            longer = np.rint(length[pieces[computing]] - alone_there).astype(np.int64)
            known = number >= 0
            np.add.at(kernels, device.work.kind[number[known]], np.maximum(longer[known], 0))
            held = ranks.residents.of(rank)
            at = np.searchsorted(held.rows, rows[~computing])
            lasting = held.alone[at]
            wire += float(np.clip(length[pieces[~computing]] - lasting, 0, most * lasting).sum())
        return kernels, wire
