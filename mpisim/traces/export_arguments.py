"""What a trace says of a communication: its group, what it moves, between whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program import Kind, Operation, Table
from .nccl_names import Communicated, names_of, sizes

__all__ = ["Arguments", "Event", "Group", "RankRun"]

SHOWN = 30
"""The profiler cuts longer lists of ranks."""

Event = dict[str, Any]
"""An event, or the arguments of one, as in the file."""


@dataclass(frozen=True)
class Group:
    """A communicator as a file shows it: its name, and its members by global rank."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class RankRun:
    """One rank of a run.

    Attributes
    ----------
    number : int
        Global rank.
    table : Table
    names : sequence of str
        Names of rows.
    groups : list of Group
        Of each communicator slot.
    start : int
        When the rank's host started, in ps.
    begin, end : int64, shape (n_rows,)
        As in `mpisim.engine.rows.Rows`, in ps.
    """

    number: int
    table: Table
    names: Sequence[str]
    groups: list[Group]
    start: int
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


class Arguments:
    """Describes the communications of one rank."""

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self.ordinal = run.table.ordinal.tolist()

    def names(self, row: int) -> Communicated:
        """How a row is called."""
        return names_of(
            Kind(int(self.run.table.kind[row])), Operation(int(self.run.table.operation[row]))
        )

    def group(self, row: int) -> Group:
        """The communicator of a row."""
        return self.run.groups[int(self.run.table.slot[row])]

    def sizes(self, row: int) -> tuple[int, int, int]:
        """Elements in, elements out and bytes an element; -1 elements where unknown."""
        table = self.run.table
        total = int(table.bytes[row])
        members = len(self.group(row).members)
        operation = Operation(int(table.operation[row]))
        return sizes(operation, total, members) if total >= 0 else (-1, -1, 4)

    def input(self, row: int) -> Event:
        """Shape of what a communication takes."""
        taken, _, width = self.sizes(row)
        return _shapes([taken], width)

    def tensors(self, row: int) -> Event:
        """Shapes of an operator's tensors: output first, as the ``_base`` operators have them."""
        if self.run.table.operation[row] == Operation.ALL_GATHER:
            taken, given, width = self.sizes(row)
            return _shapes([given, taken], width)
        return self.input(row)

    def arguments(self, batch: list[int]) -> Event:
        """What recent files tell of a launch, on its operator and on its kernel."""
        row, group = batch[0], self.group(batch[0])
        collective = self.names(row).collective if len(batch) == 1 else "coalesced"
        taken, given, width = self.sizes(row)
        members = group.members
        shown = list(map(str, members))
        if len(shown) > SHOWN:
            shown = [*shown[: SHOWN // 2], "...", *shown[-SHOWN // 2 :]]
        args: Event = {"Collective name": collective} if collective else {}
        if taken >= 0:
            args |= {
                "In msg nelems": taken,
                "Out msg nelems": given,
                "dtype": "Float" if width == 4 else "Byte",
            }
        args |= {
            "Group size": len(members),
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.name,
            "Process Group Ranks": f"[{', '.join(shown)}]",
            "Seq": int(self.ordinal[row]),
        }
        if self.run.table.kind[row] != Kind.COLLECTIVE and len(batch) == 1:
            args |= {"Src Rank": members[0], "Dst Rank": members[1]}
        return args


def _shapes(elements: list[int], width: int) -> Event:
    if min(elements) < 0:
        return {}
    kind = "float" if width == 4 else "unsigned char"
    return {"Input Dims": [[n] for n in elements], "Input type": [kind] * len(elements)}
