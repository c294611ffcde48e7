"""Ranges of ranks or nodes in experiments: ``"0-7,16"`` → numbers."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError

__all__ = ["parse_ranges", "ranges_text"]


def parse_ranges(text: str, key: str, what: str, count: int | None = None) -> list[int]:
    """Text → the numbers it names, ascending.

    Parameters
    ----------
    text : str
        Numbers and ranges, both ends included, with commas between them.
    key : str
        Of the experiment, for messages.
    what : str
        What is numbered: "rank".
    count : int, optional
        There are those from 0 to ``count - 1``; not checked if not given.

    Raises
    ------
    InputError
        If it cannot be read, or names what there is not.

    Examples
    --------
    >>> parse_ranges("0-2,8", "speeds", "rank")
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(
                f'{key}: {text!r} does not name {what}s; write them as "3" or "0-7,16"'
            )
        low, high = int(first), int(last or first)
        if low > high:
            raise InputError(f"{key}: {text!r}: {part.strip()!r} ends before it begins")
        if count is not None and high >= count:
            raise InputError(
                f"{key}: {text!r} names {what} {high}; there are {what}s 0 to {count - 1}"
            )
        if high - low > 10_000_000:
            raise InputError(f"{key}: {text!r} names {high - low + 1:,} {what}s")
        found.update(range(low, high + 1))
    return sorted(found)


def ranges_text(numbers: Sequence[int], most: int = 12) -> str:
    """Ascending numbers → the text that names them; of many ranges the first ones.

    Parameters
    ----------
    numbers : sequence of int
    most : int
        Ranges that are written out.

    Examples
    --------
    >>> ranges_text([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [f"{low}" if low == high else f"{low}-{high}" for low, high in parts]
    return ",".join(texts[:most]) + (",…" if len(texts) > most else "")
