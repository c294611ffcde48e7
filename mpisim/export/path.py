"""The critical path as slices and arrows: what each piece was, and from which row to which it goes.

A piece without a row of its own on the device (CPU, launch latency, gap) has no slice in a
stream; arrows go from one operation on the device to the next that is on the path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..engine.critical_path import CriticalPath, PieceKind
from ..program import Program
from ..traces.export_events import first_of_batch

__all__ = ["Arrow", "PathOnRanks", "Piece"]

ON_DEVICE = (PieceKind.COMPUTE, PieceKind.COPY, PieceKind.COMMUNICATION)


class Piece(NamedTuple):
    """A piece of the critical path: begin and end in ps."""

    kind: str
    rank: int
    name: str
    begin: int
    end: int


class Arrow(NamedTuple):
    """From an operation on the device to the next one of the path, by rank and row.

    Its number is that of the piece it goes to: the same on every process.
    """

    number: int
    source: tuple[int, int]
    target: tuple[int, int]


class PathOnRanks:
    """The critical path of a run, and its arrows between some ranks.

    Parameters
    ----------
    path : CriticalPath or None
        None: nothing is on it.
    program : Program
        Arrows of ranks whose tables other processes hold begin and end at rows rather than at the
        first row of their launch.
    """

    def __init__(self, path: CriticalPath | None, program: Program) -> None:
        self._path, self._program = path, program
        self._first: dict[int, list[int]] = {}

    def pieces(self, rank: int | None = None) -> Iterator[Piece]:
        """Yield the pieces in order of time; those of one rank if given."""
        path = self._path
        if path is None:
            return
        which = np.arange(len(path.kind)) if rank is None else np.flatnonzero(path.rank == rank)
        columns = (path.kind, path.rank, path.name, path.begin, path.end)
        for kind, on, name, begin, end in zip(
            *(column[which].tolist() for column in columns), strict=True
        ):
            words = PieceKind(kind).name.lower()
            yield Piece(words, on, path.names[name] if name >= 0 else words, begin, end)

    def arrows(self) -> list[Arrow]:
        """Return the arrows in order of time, of all ranks; numbers are the same everywhere."""
        path = self._path
        if path is None:
            return []
        device = np.flatnonzero(np.isin(path.kind, ON_DEVICE) & (path.row >= 0))
        found: list[Arrow] = []
        last: tuple[int, int] | None = None
        for piece, rank, row in zip(
            device.tolist(), path.rank[device].tolist(), path.row[device].tolist(), strict=True
        ):
            stop = rank, self._launch(rank, row)
            if last is not None and last != stop:
                found.append(Arrow(piece, last, stop))
            last = stop
        return found

    def _launch(self, rank: int, row: int) -> int:
        """The first row of a row's launch, which alone is an operation on the device."""
        number = int(self._program.table[rank])
        table = self._program.tables[number]
        if table is None:
            return row
        if number not in self._first:
            self._first[number] = first_of_batch(table)
        return self._first[number][row]
