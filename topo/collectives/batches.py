"""Measurements sorted into batches: one curve, one operation, one group, on one platform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

from ..nccl import Shape
from .calibration import Regime
from .halves import Split, Unit, halves
from .measurement import Measurement
from .platforms import Platform, platform_of, shape_of

__all__ = ["Batch", "batches", "select"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that differ in size alone.

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
        """Whether its group stands inside a node or across nodes."""
        return "inside" if self.shape.nodes == 1 else "across"


def batches(
    rows: Iterable[Measurement], where: Callable[[Measurement], Platform] = platform_of
) -> tuple[list[Batch], Counter[str]]:
    """Sort measurements, in the order in which their curves are met.

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
    split = halves(units)
    sorted_rows = zip(units, found.values(), strict=True)
    return [_batch(*each, split[unit]) for unit, each in sorted_rows], skipped


def select(
    batches: Iterable[Batch], *, split: str = "all", grades: Iterable[str] = ()
) -> list[Batch]:
    """Return the batches of a half (``"all"``: both) and of some grades (none named: all)."""
    wanted = {each.upper() for each in grades}
    return [
        each
        for each in batches
        if split in ("all", each.split) and (not wanted or each.grade in wanted)
    ]


def _unit(platform: Platform, row: Measurement) -> Unit:
    return Unit(row.file, platform.name, row.setup or row.curve)


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
