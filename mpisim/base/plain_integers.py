"""Mix-in by which numpy treats members of an integer enumeration as Python ints.

For numpy 2 a Python int has no type of its own beside an array: bytes compared with 1 stay bytes.
A member of an `enum.IntEnum` is of another class, which numpy makes an int64 of, and the array with
it: comparing a column of bytes takes eight times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["PlainInteger"]


class PlainInteger:
    """Mix-in for `enum.IntEnum` and `enum.IntFlag`: numpy treats members as Python ints.

    Examples
    --------
    >>> import enum
    >>> import numpy as np
    >>> class Bit(PlainInteger, enum.IntFlag):
    ...     LOW = 1
    >>> (np.array([1, 2], np.uint8) & Bit.LOW).dtype
    dtype('uint8')
    """

    if TYPE_CHECKING:

        def __int__(self) -> int: ...  # of the enumeration

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Apply a function of numpy to arrays and members, as if these were integers."""
        plain = [int(each) if isinstance(each, PlainInteger) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)
