"""Blocks that several stages of a pipeline use: written by the first, moved for the others.

Stages hold layers of the same kinds. What their passes write differs in the numbers of the layers,
and in those of slots and streams where a stage first used them in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program import COLUMNS
from .blocks import Block
from .slots import Slots

__all__ = ["Shelf"]

_PLACE = {name: i for i, name in enumerate(COLUMNS)}


class _Kept(NamedTuple):
    block: Block
    layer: int
    used: dict[tuple[str, str], int]  # numbers of the slots and streams that it uses


class Shelf:
    """The blocks of one step, by what they hold."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    def block(self, key: Hashable, layer: int, slots: Slots, write: Callable[[], Block]) -> Block:
        """Return a block: as another table has it, or a new one.

        Parameters
        ----------
        key : hashable
            All that decides what is written, but for what follows.
        layer : int
            What the numbers of the block's layers are counted from.
        slots : Slots
            Of the table. Slots and streams are numbered as if the block were written.
        write : callable
            Writes it.
        """
        kept = self._kept.get(key)
        if kept is None:
            before = len(slots.asked)
            block = write()
            used = {each: slots.number(*each) for each in slots.asked[before:]}
            self._kept[key] = _Kept(block, layer, used)
            return block
        values = kept.block.values.copy()
        numbers = values[:, _PLACE["layer"]]
        numbers[numbers >= 0] += layer - kept.layer
        for column in ("slot", "stream"):
            old = [number for (what, _), number in kept.used.items() if what == column]
            new = [slots.number(*each) for each in kept.used if each[0] == column]
            if old != new:
                values[:, _PLACE[column]] = _renumbered(values[:, _PLACE[column]], old, new)
        return replace(kept.block, values=values)


def _renumbered(values: NDArray[np.int64], old: list[int], new: list[int]) -> NDArray[np.int64]:
    """Replace numbers; those not listed (none, and the stream of kernels) stay."""
    found = values.copy()
    for number, other in zip(old, new, strict=True):
        found[values == number] = other
    return found
