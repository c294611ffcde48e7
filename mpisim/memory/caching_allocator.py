"""PyTorch's caching allocator for CUDA: allocations and frees → blocks and reserved memory.

Block by block the rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.9 and later, with the same
names for what they do). What the hardware decides is an input: when another stream has done with a
block (`synchronize`), and how much memory there is. Which free block a request gets, what is split
and joined, and when cached memory goes back to the driver is here; what the driver gives and takes
is in `.segments`.

Not simulated: private pools (CUDA graphs, `torch.cuda.MemPool`), and `cudaMallocAsync`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

from ..base.errors import MpisimError
from .allocator_settings import AllocatorSettings
from .blocks import Block, Pool, can_grow_to, mapped_range, merge
from .segments import LARGE_ROUNDING, SMALL_SEGMENT, Recorder, Segments

__all__ = ["CachingAllocator", "OutOfMemoryError"]

LEAST_BLOCK = 512
"""Sizes are multiples of this (kMinBlockSize)."""

MAX_SMALL_REQUEST = 1 << 20
"""Requests of at most this size come from the small pool (kSmallSize)."""

LEAST_LARGE = 10 << 20
"""Requests of at least this size get a segment of their own (kMinLargeAlloc)."""


class OutOfMemoryError(MpisimError):
    """Failure of an allocation: no memory is left.

    Attributes
    ----------
    size : int
        Bytes that the driver was asked for.
    free : int
        Bytes that it has left.
    allocated, reserved : int
        Bytes allocated, and reserved, at that moment.
    """

    def __init__(self, size: int, free: int, allocated: int, reserved: int) -> None:
        super().__init__(
            f"out of memory: {size:,} bytes asked for, {free:,} free, {allocated:,} allocated, "
            f"{reserved - allocated:,} reserved and not allocated"
        )
        self.size = size
        self.free = free
        self.allocated = allocated
        self.reserved = reserved


class CachingAllocator:
    """One GPU's allocator.

    Parameters
    ----------
    settings : AllocatorSettings
        May be changed while it is used, as PyTorch's may.
    capacity : int, optional
        Bytes that the driver can give; by default there is no bound.
    device : int, optional
        Bytes of the GPU, of which `AllocatorSettings.memory_fraction` is a share; by default
        `capacity`.
    recorder : callable, optional
        Told all that happens.

    Attributes
    ----------
    allocated, requested, active : int
        Bytes of blocks that are allocated; what was asked for of those that are active; of blocks
        that are allocated or wait for a stream.
    retries : int
        Allocations for which all cached memory was given back (`num_alloc_retries`).

    Examples
    --------
    >>> gpu = CachingAllocator()
    >>> block = gpu.allocate(1000)
    >>> gpu.allocated, gpu.reserved
    (1024, 2097152)
    >>> gpu.free(block)
    >>> gpu.allocated, gpu.reserved
    (0, 2097152)
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity: int | None = None,
        device: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.recorder = recorder
        self.allocated = self.requested = self.active = self.retries = 0
        self._segments = Segments(capacity, device, recorder)
        self._small, self._large = Pool(True), Pool(False)
        self._waiting: dict[int, deque[Block]] = {}
        self._passed: dict[int, int] = {}

    @property
    def capacity(self) -> int | None:
        """Bytes that the driver can give; None: no bound."""
        return self._segments.capacity

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return self._segments.reserved

    @property
    def segments(self) -> int:
        """Segments from cudaMalloc, and expandable ones."""
        return self._segments.count

    @property
    def driver_calls(self) -> int:
        """Calls of cudaMalloc and cudaFree, and mappings of memory to address space."""
        return self._segments.driver_calls

    # --- what programs do ---

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Bytes and stream → block (`malloc`).

        Parameters
        ----------
        size : int
            Bytes that the program asks for; the block has them rounded up.
        stream : int
            CUDA stream that the program allocates on.

        Raises
        ------
        OutOfMemoryError
            If memory is left neither in the cache nor by the driver.
        """
        if self._passed:
            self._process_events()
        rounded = self.rounded(size)
        pool = self._small if rounded <= MAX_SMALL_REQUEST else self._large
        settings = self.settings
        block = self._free_block(pool, rounded, stream)
        if block is None:
            block = self._new_block(pool, rounded, stream)
        remaining = block.size - rounded
        if pool.small or settings.expandable_segments:
            splits = remaining >= LEAST_BLOCK
        else:
            splits = rounded < settings.max_split_size and remaining > MAX_SMALL_REQUEST
        if splits:
            rest = block
            block = Block(stream, rounded, pool, rest.address, rest.expandable)
            previous = block.previous = rest.previous
            if previous is not None:
                previous.next = block
            block.next = rest
            rest.previous = block
            rest.address += rounded
            rest.size = remaining
            pool.insert(rest)
        block.allocated = True
        block.requested = size
        self.allocated += block.size
        self.active += block.size
        self.requested += size
        if self.recorder is not None:
            self.recorder("alloc", block.address, size, stream)
        return block

    def free(self, block: Block) -> None:
        """Free a block; where other streams have used it, it waits for them."""
        block.allocated = False
        self.allocated -= block.size
        if self.recorder is not None:
            self.recorder("free_requested", block.address, block.requested, block.stream)
        if block.uses:
            for stream in sorted(block.uses):
                self._waiting.setdefault(stream, deque()).append(block)
            block.waiting = len(block.uses)
            block.uses = None
        else:
            self._free(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses a block (`torch.Tensor.record_stream`).

        Parameters
        ----------
        block : Block
            Allocated; once freed, it waits for that stream.
        stream : int
        """
        if stream != block.stream:
            if block.uses is None:
                block.uses = set()
            block.uses.add(stream)

    def synchronize(self, stream: int) -> None:
        """Note that a stream has finished all work submitted before the latest free of a block.

        The next allocation finds that out, as PyTorch does.
        """
        if stream in self._waiting:
            self._passed[stream] = len(self._waiting[stream])

    def empty_cache(self) -> None:
        """Give all memory back that is not in use (`torch.cuda.empty_cache`)."""
        self._passed = {stream: len(blocks) for stream, blocks in self._waiting.items()}
        self._process_events()
        self._release_blocks(self._large)
        self._release_blocks(self._small)

    def rounded(self, size: int) -> int:
        """Return the size of the block that a request of so many bytes gets (`round_size`)."""
        if size < LEAST_BLOCK:
            return LEAST_BLOCK
        divisions = self.settings.divisions(size)
        if divisions > 1 and size > LEAST_BLOCK * divisions:
            if size & (size - 1) == 0:
                return size
            floor = 1 << (size.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1)
            if step == 0:
                return floor << 1
            return -(-size // step) * step
        return (size + (LEAST_BLOCK - 1)) & -LEAST_BLOCK

    def segments_of_blocks(self, active: Iterable[Block]) -> list[list[Block]]:
        """Return the mapped blocks of each segment, all in the order of their addresses.

        An expandable segment is there once for each range of it that is mapped.

        Parameters
        ----------
        active : iterable of Block
            Blocks that are allocated and not freed.
        """
        free = (
            each[2]
            for pool in (self._small, self._large)
            for blocks in pool.free.values()
            for each in blocks
        )
        waiting = (block for blocks in self._waiting.values() for block in blocks)
        heads = {
            block.address: block
            for block in (*active, *free, *waiting)
            if block.previous is None or not block.previous.mapped
        }
        return [mapped_range(heads[address]) for address in sorted(heads)]

    # --- free blocks ---

    def _free_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Take the best fit out of the cache (`get_free_block`)."""
        settings = self.settings
        if (
            settings.garbage_collection_threshold > 0
            and self._segments.allowed(self.settings) is not None
        ):
            pool.searches += 1
        free = pool.free.get(stream)
        if not free:
            return None
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        block = free[at][2]
        if block.expandable is not None:
            if settings.expandable_segments:
                # A block that can grow counts as what it can grow to.
                while (
                    block.expandable is not None
                    and at + 1 < len(free)
                    and can_grow_to(free[at + 1][2]) < can_grow_to(block)
                ):
                    at += 1
                    block = free[at][2]
            else:
                while block.expandable is not None:
                    at += 1
                    if at == len(free):
                        return None
                    block = free[at][2]
        limit = settings.max_split_size
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + settings.max_non_split_rounding:
            return None
        del free[at]
        return block

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block:
        """Have the driver make a block, after giving back what is cached where it must be."""
        if (
            self.settings.garbage_collection_threshold > 0
            and self._segments.allowed(self.settings) is not None
        ):
            self._collect_garbage()
        if size <= MAX_SMALL_REQUEST:
            segment = SMALL_SEGMENT
        elif size < LEAST_LARGE:
            segment = self.settings.large_segment_size
        else:
            segment = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        block = self._segments.block(self.settings, pool, size, segment, stream)
        if block is None and self._release_available(pool, size, stream):
            block = self._segments.block(self.settings, pool, size, segment, stream)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._segments.block(self.settings, pool, size, segment, stream)
        if block is None:
            free = max(self._segments.reservable(self.settings) - self.reserved, 0)
            if self.recorder is not None:
                self.recorder("oom", free, size, stream)
            raise OutOfMemoryError(segment, free, self.allocated, self.reserved)
        return block

    def _free(self, block: Block) -> None:
        """Put a block that nobody uses into the cache, together with free neighbours."""
        if self.recorder is not None:
            self.recorder("free_completed", block.address, block.requested, block.stream)
        self.active -= block.size
        self.requested -= block.requested
        merge(block, block.previous)
        merge(block, block.next)
        block.pool.insert(block)

    def _process_events(self) -> None:
        """Free blocks whose streams have passed."""
        for stream, passed in self._passed.items():
            blocks = self._waiting[stream]
            for _ in range(passed):
                block = blocks.popleft()
                block.waiting -= 1
                if not block.waiting:
                    self._free(block)
            if not blocks:
                del self._waiting[stream]
        self._passed = {}

    # --- giving back ---

    def _release_blocks(self, pool: Pool) -> None:
        """Give back all segments, and all pages, that are free as a whole."""
        blocks = [each[2] for stream in sorted(pool.free) for each in pool.free[stream]]
        for block in blocks:
            if block.expandable is None and not block.split:
                self._segments.release(block)
        for block in blocks:
            if block.expandable is not None:
                self._segments.unmap(block)
                if not block.mapped and not block.split:
                    self._segments.forget(block)

    def _release_available(self, pool: Pool, size: int, stream: int) -> bool:
        """Give back blocks too large to be split, only as many as a request takes.

        `release_available_cached_blocks`: one that is large enough, or else the largest ones.
        """
        limit = self.settings.max_split_size
        if limit == AllocatorSettings.max_split_size:
            return False
        wanted = max(size, limit)
        free = pool.free.get(stream, [])
        at = bisect_left(free, (wanted,))
        if at < len(free) and free[at][2].expandable is None:
            self._segments.release(free[at][2])
            return True
        released = 0
        for block in [each[2] for each in reversed(free[:at])]:
            if released >= wanted or block.size < limit:
                break
            if block.expandable is None:
                released += block.size
                self._segments.release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Give back segments that have not been used for long (`garbage_collect_cached_blocks`)."""
        allowed = self._segments.allowed(self.settings)
        if allowed is None:
            return
        threshold = int(self.settings.garbage_collection_threshold * allowed)
        wanted = self.reserved - threshold
        if wanted <= 0:
            return
        pool = self._large
        whole = [
            each[2]
            for stream in sorted(pool.free)
            for each in pool.free[stream]
            if not each[2].split
        ]
        total = sum(pool.searches - block.age for block in whole)
        count = len(whole)
        whole = [block for block in whole if block.expandable is None]
        reclaimed, freed = 0, True
        while reclaimed < wanted and freed and count:
            mean = total / count
            freed = False
            kept = []
            for block in whole:
                if pool.searches - block.age >= mean:
                    freed = True
                    reclaimed += block.size
                    total -= pool.searches - block.age
                    count -= 1
                    self._segments.release(block)
                else:
                    kept.append(block)
            whole = kept
