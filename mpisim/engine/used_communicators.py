"""Ranks that a process hosts → the communicators that concern it, and the slots bound to them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.frozen import frozen
from .fold import SimulatedRanks
from .lowering import LoweredTable
from .refine import ranges
from .tiling import SlotUses

__all__ = ["UsedCommunicators"]

Ints = NDArray[np.int64]


@frozen(eq=False)
class UsedCommunicators:
    """The `l` communicators that concern one process, and the `s` slots bound to them.

    Attributes
    ----------
    numbers : int64, shape (l,)
        Ascending: those on which a hosted rank communicates, and those whose flows are run here.
    members : int64, shape (l,)
        Hosted ranks that communicate on each.
    operations : int64, shape (l,)
        Communications of each.
    slot_index : int64, shape (h + 1,)
        The i-th hosted rank has the slots ``slot_index[i]`` to ``slot_index[i + 1]``.
    bound : int64, shape (s,)
        The communicator that each slot is bound to.
    slot_operations : int64, shape (s,)
        How many operations its rank does on each slot.
    place : int64, shape (s,)
        Where in `numbers` the communicator of a slot with operations is.
    """

    numbers: Ints
    members: Ints
    operations: Ints
    slot_index: Ints
    bound: Ints
    slot_operations: Ints
    place: Ints

    @classmethod
    def of(
        cls,
        simulated: SimulatedRanks,
        hosted: NDArray[np.int32],
        lowered: list[LoweredTable],
        table: NDArray[np.int32],
        owned: Ints,
        operations: Ints | None,
    ) -> UsedCommunicators:
        """Collect the communicators of hosted ranks, and those `owned`, whose flows run here.

        The operations of each simulated communicator are counted here unless they are given.
        """
        at, rank_of_slot = ranges(simulated.slot_index, hosted.astype(np.int64))
        slot_index = np.searchsorted(rank_of_slot, np.arange(len(hosted) + 1)).astype(np.int64)
        bound = simulated.slots[at]
        on_slot = _operations(lowered, table, slot_index)
        active = on_slot > 0
        numbers = distinct(np.concatenate([bound[active], owned]))
        place = np.searchsorted(numbers, bound).clip(max=max(len(numbers) - 1, 0))
        if operations is None:
            n_operations = np.zeros(len(numbers), np.int64)
            n_operations[place[active]] = on_slot[active]
        else:
            n_operations = operations[numbers]
        members = np.bincount(place[active], minlength=len(numbers))
        return cls(numbers, members, n_operations, slot_index, bound, on_slot, place)

    @cached_property
    def first_communication(self) -> Ints:
        """Number of the first communication of each communicator, shape (l + 1,)."""
        return np.concatenate([[0], np.cumsum(self.operations)])

    def by_slot(self, values: NDArray[Any], dtype: type) -> NDArray[Any]:
        """Values of communicators → of the slots bound to them; 0 where nothing is done."""
        active = self.slot_operations > 0
        found: NDArray[Any] = np.zeros(len(self.bound), dtype)
        found[active] = values[self.place[active]]
        return found

    def slot_uses(self, inside: NDArray[np.bool_]) -> SlotUses:
        """Return the slots with operations, for tiles; `inside`: all members are hosted here."""
        active = self.slot_operations > 0
        slot_owner = np.repeat(np.arange(len(self.slot_index) - 1), np.diff(self.slot_index))[
            active
        ]
        return SlotUses(
            rank=slot_owner,
            slot=np.flatnonzero(active) - self.slot_index[slot_owner],
            communicator=self.place[active],
            operations=self.slot_operations[active],
            inside=inside,
        )


def _operations(
    lowered: list[LoweredTable], table: NDArray[np.int32], slot_index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of operations on each slot of each rank, for all slots of all ranks."""
    operations = np.zeros(slot_index[-1], np.int64)
    for i, one in enumerate(lowered):
        on_slot = one.table.operations
        first = slot_index[:-1][table == i]
        operations[first[:, None] + np.arange(len(on_slot))] = on_slot
    return operations
