"""Communicators of a pipeline stage → the groups by which SimAI numbers its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np

from ..base.errors import InputError
from ..program import Kind, Operation, Phase, Program, Table

__all__ = ["KINDS", "MIN_BYTES", "StageGroups"]

KINDS = {
    Operation.ALL_REDUCE: "ALLREDUCE",
    Operation.ALL_GATHER: "ALLGATHER",
    Operation.REDUCE_SCATTER: "REDUCESCATTER",
    Operation.ALL_TO_ALL: "ALLTOALL",
}
"""Communications of SimAI's layers."""

_REDUCTIONS = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)

MIN_BYTES = 1024
"""Bytes below which a message is left out, as SimAI does with metadata and barriers."""


class StageGroups:
    """Sizes of tensor and expert parallelism that the groups of a stage's first rank fit.

    SimAI's ranks are ``tp + TP·dp`` in a stage, of which `expert` data-parallel ones in a row share
    experts.

    Parameters
    ----------
    program : Program
    stage : range
        Its ranks.

    Raises
    ------
    InputError
        If ranks of the stage communicate in other groups.
    """

    def __init__(self, program: Program, stage: range) -> None:
        first = stage[0]
        table = program.table_of(first)
        collective = table.is_communication & (table.kind == Kind.COLLECTIVE)
        large = collective & (table.bytes >= MIN_BYTES)
        bound = program.slots_of(first)
        self._members = {
            slot: tuple(sorted(program.communicators.group(int(bound[slot]))))
            for slot in sorted(set(table.slot[collective].tolist()))
        }
        self._stage = stage
        n = len(stage)
        sending = {self._members[slot] for slot in set(table.slot[large].tolist())}
        wanted = {each for each in sending if len(each) > 1 and self._within(each)}
        # What forward passes reduce are parts of results, of tensor-parallel ranks.
        reduces = large & (table.phase == Phase.FORWARD) & np.isin(table.operation, _REDUCTIONS)
        summing = {self._members[slot] for slot in set(table.slot[reduces].tolist())} & wanted
        strange = wanted
        fits = []
        for tensor, expert in _divisors(n):
            kinds = {
                tuple(first + each for each in members): kind
                for kind, members in reversed(_groups_of(n, tensor, expert))
            }
            left = wanted - set(kinds)
            if not left:
                fits.append((tensor, expert, kinds))
            strange = min(strange, left, key=len)
        if not fits:
            self._refuse(min(strange, key=len))
        self.tensor, self.expert, self._kinds = next(
            (fit for fit in fits if all(fit[2][each] == "TP" for each in summing)), fits[0]
        )

    def _within(self, members: tuple[int, ...]) -> bool:
        return members[0] >= self._stage[0] and members[-1] <= self._stage[-1]

    def _refuse(self, strange: tuple[int, ...]) -> NoReturn:
        raise InputError(
            f"ranks {', '.join(map(str, strange[:8]))}{', …' if len(strange) > 8 else ''} "
            "communicate: with the other groups of this program they are no tensor-, expert- and "
            "data-parallel groups as SimAI numbers ranks"
        )

    def kind(self, program: Program, table: Table, row: int) -> str | None:
        """Communication → what SimAI calls its group; None where there is nothing to send.

        Parameters
        ----------
        program : Program
        table : Table
            Of the stage's first rank.
        row : int
            Of the communication.

        Raises
        ------
        InputError
            For an operation that SimAI does not have.
        """
        operation = Operation(table.operation[row])
        if table.bytes[row] < MIN_BYTES:
            return None
        if Kind(table.kind[row]) != Kind.COLLECTIVE or operation not in KINDS:
            name = program.names[table.name[row]]
            raise InputError(
                f"row {row} ({name}): SimAI's layers have no {operation.name.lower()}; "
                f"allowed: {', '.join(each.name.lower() for each in KINDS)}"
            )
        members = self._members[int(table.slot[row])]
        return None if len(members) == 1 else self._kinds[members]

    def crosses(self, table: Table, row: int) -> bool:
        """Row → whether it is a collective communication, however small, with other stages' ranks.

        Parameters
        ----------
        table : Table
            Of the stage's first rank.
        row : int
        """
        if table.kind[row] != Kind.COLLECTIVE:
            return False
        return not self._within(self._members[int(table.slot[row])])


def _divisors(n: int) -> Iterator[tuple[int, int]]:
    """Yield sizes of tensor and expert parallelism, those without experts first."""
    for expert in (each for each in range(1, n + 1) if n % each == 0):
        for tensor in (each for each in range(1, n // expert + 1) if n // expert % each == 0):
            yield tensor, expert


def _groups_of(n: int, tensor: int, expert: int) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Ranks of a stage, and sizes → the groups of its first rank by kind, from 0."""
    return (
        ("TP", tuple(range(tensor))),
        ("EP", tuple(range(0, tensor * expert, tensor))),
        ("DP", tuple(range(0, n, tensor))),
        ("DP_EP", tuple(range(0, n, tensor * expert))),
    )
