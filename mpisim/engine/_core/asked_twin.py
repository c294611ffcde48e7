"""What the communications of a table ask for, in plain Python: what `asked` compiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...program import UNPRICED, Flag, Table

__all__ = ["overlapping_slots", "requested_prices"]


def requested_prices(
    table: Table,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return rows without a duration, and which of them ask for the same.

    Those do that agree in slot, operation, bytes, and time beside the price.

    Returns
    -------
    rows : int32, shape (m,)
    which : int32, shape (m,)
        Of each, a number from 0, in the order of the first that ask for it.
    first : int32, shape (k,)
        The first row that asks for each.
    """
    longer = np.zeros(len(table), np.int64) if table.longer is None else table.longer
    rows = np.flatnonzero(table.is_communication & (table.duration == UNPRICED))
    first: dict[tuple[int, ...], tuple[int, int]] = {}
    which = []
    for row in rows.tolist():
        columns = (table.slot, table.operation, table.bytes, longer)
        number, _ = first.setdefault(tuple(int(c[row]) for c in columns), (len(first), row))
        which.append(number)
    firsts = [row for _, row in first.values()]
    return rows.astype(np.int32), np.array(which, np.int32), np.array(firsts, np.int32)


def overlapping_slots(table: Table) -> NDArray[np.bool_]:
    """Return on which slots more than one operation may be under way, as far as this rank goes.

    That is so where one does not follow the other on its stream, and where the rank goes ahead: it
    need not wait for the others, or does not know how long they take.

    Returns
    -------
    bool, shape (n_slots,)
    """
    several = np.zeros(table.n_slots, bool)
    kernel = np.cumsum((table.flags & Flag.JOINED) == 0)  # a number for each launch
    last: dict[int, int] = {}
    for row in np.flatnonzero(table.is_communication).tolist():
        slot = int(table.slot[row])
        before = last.get(slot, row)
        goes_ahead = table.flags[row] & Flag.EAGER or table.duration[row] != UNPRICED
        apart = table.stream[before] != table.stream[row] or kernel[before] == kernel[row]
        several[slot] |= bool(goes_ahead or (apart and before != row))
        last[slot] = row
    return several
