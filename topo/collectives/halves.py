"""Halves of a table's curves: what is fitted, and what is kept for testing."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

__all__ = ["TEST", "TRAIN", "Split", "Unit", "halves"]

Split = Literal["train", "test"]
TRAIN: Split = "train"
TEST: Split = "test"


class Unit(NamedTuple):
    """What goes to one half together: the runs of one set-up.

    Attributes
    ----------
    table : str
        The file. Tables are halved each by itself, so that what else is read does not matter.
    platform : str
    setup : str
        Operation, group, data type, version and settings.
    """

    table: str
    platform: str
    setup: str


def halves(units: Iterable[Unit]) -> dict[Unit, Split]:
    """Return the half of each unit: of every platform of a table every other one is for testing.

    Which comes first depends on a CRC-32 of the names, not on the order of rows. A platform with a
    single unit is for training.

    Examples
    --------
    >>> found = halves(Unit("a.csv", "dgx", f"all_reduce, {n} GPUs") for n in (2, 4, 8))
    >>> sorted(found.values())
    ['test', 'train', 'train']
    """
    found: dict[Unit, Split] = {}
    platforms: dict[tuple[str, str], set[Unit]] = {}
    for unit in units:
        platforms.setdefault((unit.table, unit.platform), set()).add(unit)
    for members in platforms.values():
        ordered = sorted(members, key=lambda unit: (_crc(unit), unit))
        found |= {unit: (TRAIN, TEST)[i % 2] for i, unit in enumerate(ordered)}
    return found


def _crc(unit: Unit) -> int:
    return zlib.crc32(f"{unit.platform} | {unit.setup}".encode())
