"""Arrays → blocks of base64 that a browser unpacks, small because neighbours are similar.

An array of whole numbers becomes differences to its predecessor (where those are smaller), folded
to natural numbers (0, -1, 1, -2 → 0, 1, 2, 3), split into planes (all lowest bytes, then all next
ones, up to the highest that is not zero everywhere), deflated. Rows of equal layers then repeat
byte by byte, and high planes are long runs of zeros. ``assets/data.js`` does the reverse.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns"]

AT_MOST_PLAIN = 48
"""Elements that an array may have to be written as a list of numbers."""
COMPRESSION_LEVEL = 6
"""Of zlib; higher ones take twice as long for 1 % less."""
SAMPLED_ELEMENTS = 1 << 15
"""Elements by which it is decided whether differences are smaller than values."""


class Columns:
    """Blocks of the columns of one page, in the order in which they were added."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        """Base64 of deflated planes; ASCII."""

    def add(self, values: NDArray[Any], *, after: NDArray[Any] | None = None) -> Any:
        """Array → what stands in its place in the JSON of the page.

        Parameters
        ----------
        values : integers, booleans or floats[N]
        after : integers[N], optional
            `values[i]` is written as its distance from `values[i - 1] + after[i - 1]`: of begins,
            the durations.

        Returns
        -------
        list or dict
            A short array as a list of numbers (None for what is not finite); otherwise the number
            of the block, the count of elements, bytes of each and how they are written.

        Raises
        ------
        TypeError
            If the array is neither of integers, booleans nor floats, or has several dimensions.
        """
        if values.ndim != 1 or values.dtype.kind not in "iubf":
            raise TypeError(f"columns are lists of numbers, not {values.dtype} {values.shape}")
        if len(values) <= AT_MOST_PLAIN and after is None:
            return [each if np.isfinite(each) else None for each in values.tolist()]
        if values.dtype.kind == "f":
            kind = "f4" if values.dtype.itemsize <= 4 else "f8"
            return self._block(values.astype(f"<{kind}"), {"type": kind})
        numbers = values.astype(np.int64)
        least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        note: dict[str, Any] = {"type": "i4" if least >= -(2**31) and most < 2**31 else "i8"}
        if after is not None:
            expected = numbers[:-1] + after[:-1].astype(np.int64)
            numbers = np.concatenate([numbers[:1], numbers[1:] - expected])
            note["delta"] = "after"
        elif _differences_are_smaller(numbers):
            numbers = np.diff(numbers, prepend=np.int64(0))
            note["delta"] = "before"
        if len(numbers) and numbers.min() < 0:
            numbers = (numbers << 1) ^ (numbers >> 63)
            note["signed"] = True
        return self._block(numbers.astype("<u8", copy=False), note)

    def _block(self, values: NDArray[Any], note: dict[str, Any]) -> dict[str, Any]:
        """Append the bytes of an array, all lowest ones first, and say where and how."""
        count = len(values)
        planes = np.ascontiguousarray(values).view(np.uint8).reshape(count, values.dtype.itemsize).T
        if values.dtype.kind == "u":
            most = int(values.max()) if count else 0
            planes = planes[: max(1, (most.bit_length() + 7) // 8)]
        packed = zlib.compress(np.ascontiguousarray(planes).tobytes(), COMPRESSION_LEVEL)
        self.blocks.append(base64.b64encode(packed).decode())
        return {
            "$column": len(self.blocks) - 1,
            "count": count,
            "planes": len(planes),
            **note,
        }


def _differences_are_smaller(values: NDArray[np.int64]) -> bool:
    """Integers[N] → whether a part of them deflates to fewer bytes as differences."""
    part = values[:SAMPLED_ELEMENTS]
    sizes = [
        len(zlib.compress(np.ascontiguousarray(each.view(np.uint8).reshape(-1, 8).T).tobytes(), 1))
        for each in (part, np.diff(part, prepend=np.int64(0)))
    ]
    return sizes[1] < sizes[0]
