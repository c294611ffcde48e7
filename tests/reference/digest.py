"""The digest, in Python's integers: `Timeline` → 32 hexadecimal digits.

The sum modulo 2**128 of a hash of every communication of every rank (kind and operation, bytes,
position on its communicator, size of the group, when its wire time began and ended) and of every
rank's end. A hash is two 64-bit words that differ in their seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpisim.program import Program

from .costs import operations_of
from .simulation import Timeline

__all__ = ["digest"]

MASK = (1 << 64) - 1
SEEDS = [
    (0x9E3779B97F4A7C15, 0x8CB92BA72F3D8DD7, 0x2545F4914F6CDD1D),
    (0xD1B54A32D192ED03, 0xAAAAAAAAAAAAAAAB, 0xDA942042E4DD58B5),
]
"""For the low and the high word: of rows, of sizes of groups, of ends of ranks."""


def digest(timeline: Timeline) -> str:
    """Return the digest of a run."""
    total = 0
    for shift, seeds in zip((0, 64), SEEDS, strict=True):
        for rank in range(timeline.program.n_ranks):
            total += sum(_hashes(timeline, timeline.program, rank, *seeds)) << shift
    return f"{total % (1 << 128):032x}"


def _hashes(
    timeline: Timeline, program: Program, rank: int, of_row: int, of_size: int, of_end: int
) -> Iterator[int]:
    table = program.table_of(rank)
    for row, (communicator, k) in operations_of(program, rank).items():
        state = of_row
        what = int(table.kind[row]) | int(table.operation[row]) << 8
        for word in (what, int(table.bytes[row]), k):
            state = _mix((state ^ (word & MASK)) + of_row)
        state += _mix(len(program.communicators.group(communicator)) ^ of_size)
        state = _mix((state & MASK) ^ (timeline.at["wire", rank, row] & MASK))
        yield _mix(state ^ (timeline.at["end", rank, row] & MASK))
    yield _mix((timeline.rank_end(rank) & MASK) ^ of_end)


def _mix(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)
