"""Measurements → batches of one curve, operation, group and platform; train and test halves.

Curves are split into a half that is fitted and a half that is kept for testing, by a CRC-32 of
their names: the split does not depend on the order of rows or on what else is read.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from ..nccl import Shape
from ..nccl.shape import Regime
from .measurement import Measurement
from .platforms import Platform, platform_of, shape_of

__all__ = ["TEST", "TRAIN", "Batch", "Split", "SplitUnit", "batches", "select", "train_test_split"]

Split = Literal["train", "test"]

TRAIN: Split = "train"

TEST: Split = "test"


class SplitUnit(NamedTuple):
    """The unit of a split: the runs of one set-up go to one half together.

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


def train_test_split(units: Iterable[SplitUnit]) -> dict[SplitUnit, Split]:
    """Units → their halves: of every platform of a table every other unit is for testing.

    Which comes first depends on a CRC-32 of the names, not on the order of rows. A platform with a
    single unit is for training.

    Examples
    --------
    >>> setups = [f"all_reduce, {n} GPUs" for n in (2, 4, 8)]
    >>> found = train_test_split(SplitUnit("a.csv", "dgx", setup) for setup in setups)
    >>> sorted(found.values())
    ['test', 'train', 'train']
    """
    found: dict[SplitUnit, Split] = {}
    platforms: dict[tuple[str, str], set[SplitUnit]] = {}
    for unit in units:
        platforms.setdefault((unit.table, unit.platform), set()).add(unit)
    for members in platforms.values():
        ordered = sorted(members, key=lambda unit: (_crc(unit), unit))
        found |= {unit: (TRAIN, TEST)[i % 2] for i, unit in enumerate(ordered)}
    return found


def _crc(unit: SplitUnit) -> int:
    return zlib.crc32(f"{unit.platform} | {unit.setup}".encode())


@frozen(eq=False)
class Batch:
    """Measurements that differ in size alone.

    Attributes
    ----------
    platform : Platform
    operation : Operation
    shape : Shape
    settings : tuple of (str, str)
        ``NCCL_*`` variables.
    library, curve, grade : str
    split : str
        The half that its curve belongs to, of the curves that were sorted with it.
    bytes : float64, shape (n,)
        Of the full buffer.
    seconds : float64, shape (n,)
    rows : tuple of Measurement
    """

    platform: Platform
    operation: Operation
    shape: Shape
    settings: tuple[tuple[str, str], ...]
    library: str
    curve: str
    grade: str
    split: Split
    bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    rows: tuple[Measurement, ...]

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def regime(self) -> Regime:
        """Whether its group is inside a node or across nodes."""
        return "inside" if self.shape.nodes == 1 else "across"


def batches(
    rows: Iterable[Measurement], where: Callable[[Measurement], Platform] = platform_of
) -> tuple[list[Batch], Counter[str]]:
    """Sort measurements, into batches, in the order of their curves.

    Parameters
    ----------
    rows : iterable of Measurement
    where : callable
        From a measurement to the platform that it was taken on.

    Returns
    -------
    list of Batch
    Counter
        Rows that have no platform or no shape: how many, by reason.
    """
    found: dict[object, tuple[Platform, Shape, list[Measurement]]] = {}
    skipped: Counter[str] = Counter()
    for row in rows:
        try:
            if row.gpus == 1:
                raise InputError("a group of one GPU")
            platform = where(row)
            key = (
                row.file,
                row.curve,
                row.operation,
                row.gpus,
                row.nodes,
                row.settings,
                platform.name,
            )
            if key not in found:
                found[key] = (platform, shape_of(row, platform), [])
        except InputError as reason:
            skipped[str(reason)] += 1
            continue
        found[key][2].append(row)
    units = [_unit(platform, rows[0]) for platform, _, rows in found.values()]
    split = train_test_split(units)
    sorted_rows = zip(units, found.values(), strict=True)
    return [_batch(*each, split[unit]) for unit, each in sorted_rows], skipped


def select(
    batches: Iterable[Batch], *, split: str = "all", grades: Iterable[str] = ()
) -> list[Batch]:
    """Batches, half, grades → batches of these; ``"all"``: both halves; no grade: all.

    Parameters
    ----------
    batches : iterable of Batch
    split : str
        ``"train"``, ``"test"``, or ``"all"`` (the default).
    grades : iterable of str
        Of the measurements, in upper or lower case; by default all.

    Returns
    -------
    list of Batch
        In the order given.
    """
    wanted = {each.upper() for each in grades}
    return [
        each
        for each in batches
        if split in ("all", each.split) and (not wanted or each.grade in wanted)
    ]


def _unit(platform: Platform, row: Measurement) -> SplitUnit:
    return SplitUnit(row.file, platform.name, row.setup or row.curve)


def _batch(platform: Platform, shape: Shape, rows: list[Measurement], split: Split) -> Batch:
    first = rows[0]
    return Batch(
        platform=platform,
        operation=first.operation,
        shape=shape,
        settings=first.settings,
        library=first.library,
        curve=first.curve,
        grade=first.grade,
        split=split,
        bytes=np.array([row.bytes for row in rows], np.float64),
        seconds=np.array([row.seconds for row in rows], np.float64),
        rows=tuple(rows),
    )
