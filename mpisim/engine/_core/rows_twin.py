"""The rows of a rank after a run, in plain Python: what `rows` compiles.

Once it is known when communications began and ended, nothing blocks: a rank's rows follow from its
table, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .twin import BATCH, HOST, JOIN, KERNEL, NEVER, PLAIN

__all__ = ["fingerprint", "rows_of"]

BY_HOST, BY_STREAM, BY_WAIT, BY_QUEUE = 0, 1, 2, 128
LAST_WAIT = 125  # a uint8 counts no further below the bit BY_QUEUE
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def rows_of(
    code: Any,
    durations: NDArray[np.int64],
    start: int,
    met_start: NDArray[np.int64],
    met_end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], int]:
    """Return begin, end, wire and binding of the rows of a rank, and its clock after them.

    Parameters
    ----------
    code : mpisim.engine.lowering.LoweredTable
    durations : int64, shape (n,)
        Of the rows, in ps.
    start : int
        When the host began, in ps.
    met_start, met_end : int64, shape (m,)
        When the wire time of each communication began, and when it ended here, in ps; in the order
        of `code.communications`.

    Returns
    -------
    begin, end, wire : int64, shape (n,)
        As in `mpisim.engine.rows.Rows`, in ps.
    binding : uint8, shape (n,)
    host_end : int
    """
    column = {name: code.instructions[name].tolist() for name in code.instructions.dtype.names}
    operands, starts, ends = code.operands.tolist(), met_start.tolist(), met_end.tolist()
    value = [NEVER] * code.n_registers
    found: list[tuple[int, int, int, int]] = []
    clock, ready, of_kernel, met = start, NEVER, BY_HOST, 0
    for row, duration in enumerate(durations.tolist()):
        opcode, target = column["opcode"][row], column["target"][row]
        first_wait, n_leading = column["first_wait"][row], column["n_leading"][row]
        waits = [value[r] for r in operands[first_wait : first_wait + column["n_waits"][row]]]
        host, binding, queued = clock + column["host"][row], BY_HOST, 0
        if opcode <= BATCH:
            stream, ready = column["stream"][row], NEVER
            if n_leading > (stream >= 0) and value[operands[first_wait - n_leading]] > host:
                host, queued = value[operands[first_wait - n_leading]], BY_QUEUE
            if stream >= 0:
                ready, binding = value[stream], BY_STREAM
            ready, binding = _latest(waits, ready, binding)
            if ready > NEVER:  # there is something on the device that it follows
                ready += column["gap"][row]
            if host + column["launch"][row] > ready:
                ready, binding = host + column["launch"][row], BY_HOST
            clock = host + column["launch_cost"][row]
            of_kernel = binding
        if opcode in (PLAIN, KERNEL):
            value[target] = ready + duration
            found.append((ready, ready + duration, ready, binding | queued))
        elif opcode <= JOIN:
            end = ends[met]
            value[target] = max(end, value[target]) if opcode == JOIN else end
            found.append((ready, end, starts[met], of_kernel | queued))
            met += 1
        elif opcode == HOST:
            found.append((clock, host, clock, BY_HOST))
            clock = host
        else:
            end, binding = _latest(waits, NEVER, BY_HOST)
            if host > end:  # device before host where both are last
                end, binding = host, BY_HOST
            end += column["launch_cost"][row]
            found.append((clock, end, clock, binding))
            clock = end
    begin, end, wire, why = np.array(found, np.int64).reshape(-1, 4).T.copy()
    return begin, end, wire, why.astype(np.uint8), clock


def fingerprint(start: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[int, int]:
    """Return 128 bits that differ where two ranks of one table did not meet at the same times.

    Unlike what the digest takes from a rank, it tells which communication had which times. It is a
    sum of products of times, each shifted by a number of its place (the NH hash of Black et al.,
    *UMAC*, CRYPTO 1999): ranks that differ agree in it once in 2^64 cases.

    Parameters
    ----------
    start, end : int64, shape (m,)
        ps.

    Returns
    -------
    low, high : int
        64 bits each.
    """
    total = 0
    for i, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True), 1):
        key = _mix(i * GOLDEN & MASK)
        total += (first + key & MASK) * (last + key * GOLDEN & MASK)
    return total & MASK, total >> 64 & MASK


def _latest(waits: list[int], time: int, binding: int) -> tuple[int, int]:
    """Return the latest of `time` and the waits, and its binding; the first if several are."""
    for i, end in enumerate(waits):
        if end > time:
            time, binding = end, BY_WAIT + min(i, LAST_WAIT)
    return time, binding


def _mix(x: int) -> int:
    """Scramble a word: see mpisim/engine/digest.py."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)
