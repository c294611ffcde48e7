"""Tables, communicators and ranks, added one by one → `Program`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .program import Communicators, Names, Program
from .table import Table
from .table_builder import TableBuilder

__all__ = ["ProgramBuilder"]


class ProgramBuilder:
    """Collect tables, communicators and ranks, then `build` the program."""

    def __init__(self) -> None:
        self.names = Names()
        self._tables: list[Table] = []
        self._groups: dict[tuple[tuple[int, ...], str | None], int] = {}
        self._of_ranges: dict[tuple[range, str | None], int] = {}
        self._ranks: list[tuple[int, tuple[int, ...], float, int]] = []

    def table(self, label: str = "") -> TableBuilder:
        """Return a builder of rows that shares this program's names."""
        return TableBuilder(self.names, label)

    def add_table(self, table: Table) -> int:
        """Add a built table and return its number."""
        self._tables.append(table)
        return len(self._tables) - 1

    def communicator(self, members: Sequence[int], name: str | None = None) -> int:
        """Return the number of the communicator with these members and name, new or known.

        Parameters
        ----------
        members : sequence of int
            Global ranks, in the communicator's own order; for SEND and RECV the sender, then the
            receiver. A range that is known is not listed again: each of its ranks gives it.
        name : str, optional
            Tells communicators of the same members apart.
        """
        if isinstance(members, range):
            number = self._of_ranges.get((members, name))
            if number is None:
                number = self.communicator(tuple(members), name)
                self._of_ranges[members, name] = number
            return number
        key = (tuple(map(int, members)), name)
        if key not in self._groups:
            self._groups[key] = len(self._groups)
        return self._groups[key]

    def add_rank(
        self, table: int, slots: Sequence[int] = (), speed: float = 1.0, start: int = 0
    ) -> int:
        """Add the next rank: its table, the communicator of each slot, speed, start (ps).

        Parameters
        ----------
        table : int
            Its number, as `add_table` returned it.
        slots : sequence of int
            Numbers of communicators, as `communicator` returned them.
        speed : float
            Durations of KERNEL and COPY rows are divided by it.
        start : int
            When its host starts, in ps.

        Returns
        -------
        int
            Number of the rank.
        """
        self._ranks.append((table, tuple(slots), speed, start))
        return len(self._ranks) - 1

    def build(self, attributes: Mapping[str, str] | None = None) -> Program:
        """Return the program.

        Raises
        ------
        ProgramError
            When the parts do not fit together.
        """
        counts = np.array([len(slots) for _, slots, _, _ in self._ranks], np.int64)
        return Program(
            names=tuple(self.names),
            tables=tuple(self._tables),
            communicators=Communicators.of(
                [members for members, _ in self._groups],
                [name or f"group {c}" for (_, name), c in self._groups.items()],
            ),
            table=np.array([table for table, _, _, _ in self._ranks], np.int32),
            slot_index=np.concatenate([[0], np.cumsum(counts)]),
            slots=np.array([c for _, slots, _, _ in self._ranks for c in slots], np.int32),
            speed=np.array([speed for _, _, speed, _ in self._ranks]),
            start=np.array([start for _, _, _, start in self._ranks], np.int64),
            attributes=dict(attributes or {}),
        )
