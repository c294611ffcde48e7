"""Memory events of a recorded trace → the addresses that the simulated allocator gives instead.

A trace tells which addresses came and went, not what lay around them when it began. So the
segments are taken to be what was touched at any time, all of it free at first but for blocks that
are freed without having been allocated; two things are then learnt, and both are counted:

- *ends*: a block that begins inside of what was taken for one hole begins a segment (of 2 MiB
  alignment, and no recorded block may span it);
- *tails*: of two holes that fit the larger was taken, so the smaller one was larger than what was
  ever touched of it: it is extended until it is, to a multiple of 2 MiB, but not into the next.

After each mistake the recorded address is taken, so that one mistake counts once.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mpisim.memory.blocks import Block, Pool
from mpisim.memory.caching_allocator import CachingAllocator

__all__ = ["Match", "match", "memory_events"]

MIB = 1 << 20
ALIGNED = 2 * MIB
MOST_PASSES = 60

Segments = list[tuple[int, int, bool]]
"""Begin, end, whether of the small pool."""


class Match(NamedTuple):
    """How many allocations got the recorded address, and what was learnt for that."""

    allocations: int
    equal: int
    segments: int
    ends: int
    tails: int


def memory_events(path: Path) -> list[tuple[int, int]]:
    """Return address and signed bytes of all allocations and frees of GPUs, in order."""
    with gzip.open(path) as file:
        trace = json.load(file)
    found = [e for e in trace["traceEvents"] if e.get("name") == "[memory]"]
    found = [e for e in found if e["args"].get("Device Type") == 1]
    found.sort(key=lambda e: e["ts"])
    return [(e["args"]["Addr"], e["args"]["Bytes"]) for e in found]


def match(events: list[tuple[int, int]], *, first_fit: bool = False) -> Match:
    """Recorded events → how many allocations are given the recorded address.

    With `first_fit` the lowest hole that is enough is expected in place of the smallest: a rule
    that PyTorch does not have, for comparison.
    """
    spans = {(address, address + abs(size)) for address, size in events}
    ends: set[int] = set()
    tails: dict[int, int] = {}
    best = Match(0, -1, 0, 0, 0)
    for _ in range(MOST_PASSES):
        segments = _segments(spans, ends, tails)
        count, equal, begun, short = _run(events, segments, spans, first_fit)
        if equal > best.equal:
            best = Match(count, equal, len(segments), len(ends), len(tails))
        begun = {
            each
            for each in begun - ends
            if each % ALIGNED == 0 and not any(lo < each < hi for lo, hi in spans)
        }
        if begun:
            ends |= begun
        else:
            more = [(lo, by) for lo, by in short.items() if by > tails.get(lo, 0)]
            if not more:
                break
            tails[more[0][0]] = more[0][1]
    return best


def _segments(spans: set[tuple[int, int]], ends: set[int], tails: dict[int, int]) -> Segments:
    """Return what was touched, cut where segments end, and extended by their tails."""
    whole: list[list[int]] = []
    for lo, hi in sorted(spans):
        small = hi - lo <= MIB
        if whole and lo <= whole[-1][1] and whole[-1][2] == small:
            whole[-1][1] = max(whole[-1][1], hi)
        else:
            whole.append([lo, hi, small])
    cut: Segments = []
    for lo, hi, small in whole:
        marks = [lo, *sorted(each for each in ends if lo < each < hi), hi]
        cut += [(a, b, bool(small)) for a, b in pairwise(marks)]
    found: Segments = []
    for i, (lo, hi, small) in enumerate(cut):
        following = cut[i + 1][0] if i + 1 < len(cut) else 1 << 62
        if lo in tails and not (small and hi % ALIGNED == 0):
            hi = min(-(-(hi + tails[lo]) // ALIGNED) * ALIGNED, following)
        found.append((lo, hi, small))
    return found


def _run(
    events: list[tuple[int, int]], segments: Segments, spans: set[tuple[int, int]], first_fit: bool
) -> tuple[int, int, set[int], dict[int, int]]:
    """Return allocations, equal ones, begins of segments, and segments with longer tails."""
    it = CachingAllocator()
    at = _restore(it, segments, _before(events))
    last = {hi: lo for lo, hi, _ in segments}
    touched = {lo: max(b for a, b in spans if lo <= a < hi) for lo, hi, _ in segments}
    count = equal = 0
    begun: set[int] = set()
    short: dict[int, int] = {}
    for address, size in events:
        if size < 0:
            it.free(at.pop(address))
            continue
        count += 1
        pool = it._small if size <= MIB else it._large
        free = pool.free.get(0, [])
        i = bisect_left(free, (size,))
        if first_fit and i < len(free):
            i = min(range(i, len(free)), key=lambda each: free[each][1])
        if i < len(free) and free[i][1] == address:
            at[address] = _carve(free[i][2], address, size) if first_fit else it.allocate(size)
            equal += 1
            if first_fit:
                it.allocated += size
                it.active += size
                it.requested += size
            continue
        hole = next(b for _, _, b in free if b.address <= address < b.address + b.size)
        if hole.address != address:
            begun.add(address)
        elif i < len(free) and free[i][1] + free[i][0] in last:
            end = free[i][1] + free[i][0]
            lacks = hole.size - free[i][0] + 1
            short.setdefault(last[end], end - touched[last[end]] + lacks)
        at[address] = _carve(hole, address, size)
        it.allocated += size
        it.active += size
        it.requested += size
    return count, equal, begun, short


def _before(events: list[tuple[int, int]]) -> dict[int, int]:
    """Return the blocks that are freed without having been allocated."""
    made: set[int] = set()
    found = {}
    for address, size in events:
        if size > 0:
            made.add(address)
        elif address in made:
            made.discard(address)
        else:
            found[address] = -size
    return found


def _restore(it: CachingAllocator, segments: Segments, used: dict[int, int]) -> dict[int, Block]:
    """Fill an allocator with free segments, of which some blocks are used."""
    found = {}
    addresses = sorted(used)
    for lo, hi, small in segments:
        pool = it._small if small else it._large
        hole = Block(0, hi - lo, pool, lo)
        pool.insert(hole)
        for address in addresses[bisect_left(addresses, lo) : bisect_left(addresses, hi)]:
            holes = (b for _, _, b in pool.free[0] if b.address <= address < b.address + b.size)
            found[address] = _carve(next(holes), address, used[address])
            it.allocated += used[address]
            it.active += used[address]
            it.requested += used[address]
        it._segments.reserved += hi - lo
    return found


def _carve(hole: Block, address: int, size: int) -> Block:
    """Allocate a part of a free block."""
    pool: Pool = hole.pool
    pool.erase(hole)
    previous, following = hole.previous, hole.next
    after = hole.address + hole.size - address - size
    block = Block(0, size, pool, address)
    if address > hole.address:
        before = Block(0, address - hole.address, pool, hole.address)
        before.link(previous, block)
        pool.insert(before)
        previous = before
    if after:
        rest = Block(0, after, pool, address + size)
        rest.link(block, following)
        pool.insert(rest)
        following = rest
    block.link(previous, following)
    block.allocated = True
    block.requested = size
    return block
