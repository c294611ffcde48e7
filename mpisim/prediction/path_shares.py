"""What a critical path rests on: of each number of the model, how much of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..engine.critical_path import PieceKind
from ..engine.run import Run
from ..program import UNPRICED, Operation
from .case import Case

if TYPE_CHECKING:
    from .program_case import ProgramCase

__all__ = ["PathShares"]

Ints = NDArray[np.int64]

ON_DEVICE = (PieceKind.COMPUTE, PieceKind.COMMUNICATION)


class PathShares:
    """The numbers each piece of a critical path rests on.

    Called with the number of a piece it returns the share of its length that is proportional to
    each number, by name. `alike` sorts pieces, so that each kind is looked up once.
    """

    def __init__(self, case: Case | ProgramCase, run: Run) -> None:
        assert run.critical_path is not None
        self.case, self.path = case, run.critical_path
        groups = case.program.communicators
        self.label = np.zeros(len(groups), np.int64)
        if case.network is not None:
            self.label, self.classes = case.network.group_classes(
                groups.index, groups.members, case.program.operation_bits
            )
            self.communication = cache(case.network.shares)

    def __call__(self, piece: int) -> Mapping[str, float]:
        kind = PieceKind(int(self.path.kind[piece]))
        if kind is PieceKind.COMMUNICATION:
            return self._communicates(piece)
        return self._works(piece, kind)

    def _works(self, piece: int, kind: PieceKind) -> Mapping[str, float]:
        path, case = self.path, self.case
        if not isinstance(case, Case):  # what was recorded rests on nothing
            return self._kernel(piece, case.counted.shares) if kind is PieceKind.COMPUTE else {}
        if kind is PieceKind.HOST:
            shares = case.workload.pricing_of(int(path.rank[piece])).host_shares
            if case.constants is None:
                return shares
            if case.constants.covers("host", case.constants.framework):
                shares = {}
            return {**shares, case.constants.host: 1.0}
        if kind is PieceKind.LAUNCH:
            return {"launch_latency": 1.0}
        if kind is PieceKind.START and case.constants is not None:
            return {case.constants.overhead[0]: 1.0}
        if kind is not PieceKind.COMPUTE:
            return {}
        pricing = case.workload.pricing_of(int(path.rank[piece]))
        return self._kernel(piece, pricing.shares)

    def _kernel(
        self, piece: int, shares: Mapping[tuple[str, int], Mapping[str, float]]
    ) -> Mapping[str, float]:
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        table = self.case.program.table_of(rank)
        name = self.case.program.names[table.name[row]]
        return shares.get((name, int(table.duration[row])), {})

    def _communicates(self, piece: int) -> Mapping[str, float]:
        rank, row = int(self.path.rank[piece]), int(self.path.row[piece])
        program = self.case.program
        table = program.table_of(rank)
        if table.duration[row] != UNPRICED:
            return {}
        group = program.slots_of(rank)[table.slot[row]]
        return self.communication(
            Operation(int(table.operation[row])),
            int(table.bytes[row]),
            self.classes[self.label[group]],
        )

    def alike(self) -> Iterator[tuple[int, Ints]]:
        """Yield one piece of each kind, and all pieces of that kind.

        Kernels of one name and duration are alike, and communications of one operation and size
        over groups of one class.
        """
        path, program = self.path, self.case.program
        keys = np.zeros((len(path.kind), 4), np.int64)
        keys[:, 0] = path.kind
        on_device = np.isin(path.kind, ON_DEVICE)
        of_piece = program.table[path.rank]
        for number in np.unique(of_piece[on_device]).tolist():
            pieces = np.flatnonzero(on_device & (of_piece == number))
            rank, row = path.rank[pieces], path.row[pieces]
            table = program.table_of(int(rank[0]))
            compute = path.kind[pieces] == PieceKind.COMPUTE
            kernels, at = pieces[compute], row[compute]
            keys[kernels, 1:3] = np.stack([table.name[at], table.duration[at]], axis=1)
            sends, at = pieces[~compute], row[~compute]
            group = program.slots[program.slot_index[rank[~compute]] + table.slot[at]]
            columns = [table.operation[at], table.bytes[at], self.label[group]]
            keys[sends, 1:] = np.stack(columns, axis=1)
        _, first, kind = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(kind.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(kind.reshape(-1), minlength=len(first)))
        for piece, pieces in zip(first.tolist(), np.split(order, ends[:-1]), strict=True):
            yield piece, pieces

    def lengths(self) -> dict[str, float]:
        """Return how much of the step rests on each number, in ps."""
        length = self.path.end - self.path.begin
        found: dict[str, float] = {}
        for piece, pieces in self.alike():
            whole = int(length[pieces].sum())
            for name, share in self(piece).items():
                found[name] = found.get(name, 0.0) + share * whole
        return found
