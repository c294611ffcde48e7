"""Memory that the caching allocator has from the driver: segments, whole or mapped page by page.

As in c10/cuda/CUDACachingAllocator.cpp, with the same names for what is done. Addresses are those
of a driver that never gives one twice; among blocks of equal size PyTorch takes the one of the
segment that was made first, which is the one of the lowest address here.
"""

from __future__ import annotations

from collections.abc import Callable

from .allocator_settings import AllocatorSettings
from .blocks import Block, Expandable, Pool, is_idle, merge

__all__ = ["LARGE_ROUNDING", "SMALL_SEGMENT", "Recorder", "Segments"]

SMALL_SEGMENT = 2 << 20
"""Size of the small pool's segments (kSmallBuffer)."""

LARGE_ROUNDING = 2 << 20
"""Segments of large requests have a multiple of this (kRoundLarge)."""

FIRST_ADDRESS = 1 << 45
UNBOUNDED = 1 << 46
"""Bytes of address space of an expandable segment where the memory has no bound."""

Recorder = Callable[[str, int, int, int], None]
"""Called with what happened, an address, bytes and a stream, as PyTorch's memory snapshots say it:
``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``, ``segment_free``,
``segment_map``, ``segment_unmap``, ``oom``."""


class Segments:
    """Segments of one GPU's allocator.

    Parameters
    ----------
    capacity : int, optional
        Bytes that the driver can give; by default there is no bound.
    device : int, optional
        Bytes of the GPU, of which `AllocatorSettings.memory_fraction` is a share; by default
        `capacity`.
    recorder : callable, optional
        Told all that happens.

    Attributes
    ----------
    reserved : int
        Bytes of all segments.
    count : int
        Segments from cudaMalloc, and expandable ones.
    driver_calls : int
        cudaMalloc, cudaFree, and mappings of memory to address space.
    """

    def __init__(
        self, capacity: int | None, device: int | None = None, recorder: Recorder | None = None
    ) -> None:
        self.capacity = capacity
        self.device = capacity if device is None else device
        self.recorder = recorder
        self.reserved = self.count = self.driver_calls = 0
        self._next_address = FIRST_ADDRESS

    def block(
        self, settings: AllocatorSettings, pool: Pool, size: int, segment: int, stream: int
    ) -> Block | None:
        """Request → free block with memory behind it (`alloc_block`), in no pool.

        Parameters
        ----------
        settings : AllocatorSettings
        pool : Pool
            That the block belongs to.
        size, segment : int
            Bytes that are requested, rounded; bytes of a segment from cudaMalloc for them.
        stream : int

        Returns
        -------
        Block or None
            None where the driver has no memory.
        """
        allowed = self.allowed(settings)
        if allowed is not None and self.reserved + segment > allowed:
            return None
        if settings.expandable_segments:
            return self._expanded(settings, pool, size, stream)
        if self.capacity is not None and self.reserved + segment > self.capacity:
            return None
        block = Block(stream, segment, pool, self._new_addresses(segment))
        self.reserved += segment
        self.count += 1
        self.driver_calls += 1
        if self.recorder is not None:
            self.recorder("segment_alloc", block.address, segment, stream)
        return block

    def _new_addresses(self, size: int) -> int:
        address = self._next_address
        self._next_address += -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        return address

    def allowed(self, settings: AllocatorSettings) -> int | None:
        """Return the bytes that the process may reserve, if it is given a share of the GPU."""
        share = settings.memory_fraction
        if share is None or share >= 1 or self.device is None:
            return None
        return int(share * self.device)

    def reservable(self, settings: AllocatorSettings) -> int:
        """Return the bytes that can be reserved."""
        bounds = [each for each in (self.capacity, self.allowed(settings)) if each is not None]
        return min(bounds, default=UNBOUNDED)

    def release(self, block: Block) -> None:
        """Give a segment back (`release_block`)."""
        block.pool.erase(block)
        self.reserved -= block.size
        self.count -= 1
        self.driver_calls += 1
        if self.recorder is not None:
            self.recorder("segment_free", block.address, block.size, block.stream)

    def forget(self, block: Block) -> None:
        """No longer count an expandable segment, whose one block has no memory behind it.

        Parameters
        ----------
        block : Block
            In the pool of those that are not mapped.
        """
        block.pool.erase_unmapped(block)
        self.count -= 1

    def _expanded(
        self, settings: AllocatorSettings, pool: Pool, size: int, stream: int
    ) -> Block | None:
        """Map memory behind free blocks until they hold a request."""
        block = self._expandable_block(settings, pool, size, stream)
        if block is None or (not block.mapped and not self._map(block, min(block.size, size))):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.erase(block)
        return block

    def _expandable_block(
        self, settings: AllocatorSettings, pool: Pool, size: int, stream: int
    ) -> Block | None:
        """Return the first block with room for a request behind it (`find_expandable_block`)."""
        for _, block in pool.unmapped.get(stream, ()):
            first = block
            if block.previous is not None and is_idle(block.previous):
                first = block.previous
            room = 0
            each: Block | None = first
            while room < size and each is not None and is_idle(each):
                room += each.size
                each = each.next
            if room >= size:
                return first
        page = SMALL_SEGMENT if pool.small else settings.large_segment_size
        device = self.device
        space = UNBOUNDED if device is None else device + device // 8
        space = -(-space // page) * page
        if space < size:
            return None
        segment = Expandable(self._new_addresses(space), page, space)
        block = Block(stream, space, pool, segment.address, segment, mapped=False)
        pool.insert_unmapped(block)
        self.count += 1
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Give memory to the begin of a block (`map_block`)."""
        segment = block.expandable
        assert segment is not None
        mapped = -(-size // segment.page) * segment.page
        if self.capacity is not None and self.reserved + mapped > self.capacity:
            return False
        pool = block.pool
        pool.erase_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(
                block.stream,
                block.size - mapped,
                pool,
                block.address + mapped,
                segment,
                mapped=False,
            )
            rest.link(block, block.next)
            pool.insert_unmapped(rest)
            block.size = mapped
        if self.recorder is not None:
            self.recorder("segment_map", block.address, mapped, block.stream)
        merge(block, block.previous)
        merge(block, block.next)
        pool.insert(block)
        self.reserved += mapped
        self.driver_calls += 1
        return True

    def unmap(self, block: Block) -> None:
        """Give back the pages of a free block that it fills (`unmap_block`)."""
        segment = block.expandable
        assert segment is not None
        page, pool = segment.page, block.pool
        begin = segment.address + -(-(block.address - segment.address) // page) * page
        end = block.address + block.size
        end -= (end - segment.address) % page
        if begin >= end:
            return
        pool.erase(block)
        before, after = begin - block.address, block.address + block.size - end
        if before:
            part = Block(block.stream, before, pool, block.address, segment)
            part.link(block.previous, block)
            pool.insert(part)
        if after:
            part = Block(block.stream, after, pool, end, segment)
            part.link(block, block.next)
            pool.insert(part)
        block.address, block.size, block.mapped = begin, end - begin, False
        merge(block, block.previous)
        merge(block, block.next)
        pool.insert_unmapped(block)
        self.reserved -= end - begin
        self.driver_calls += 1
        if self.recorder is not None:
            self.recorder("segment_unmap", begin, end - begin, block.stream)
