"""Blocks of the caching allocator, and the pools of free blocks.

Invariants. The blocks of a segment are a list, linked by `previous` and `next`, in the order of
their addresses, without holes. A block that is free and mapped is in `Pool.free` of its stream, one
that is not mapped in `Pool.unmapped`, one that is allocated or waits for a stream in neither. No
two neighbours are both free and mapped, nor both unmapped.
"""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["Block", "Expandable", "Pool", "can_grow_to", "is_idle", "mapped_range", "merge"]


class Expandable:
    """An expandable segment: address space, of which pages are mapped to memory."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, page: int, size: int) -> None:
        self.address = address
        self.page = page
        self.size = size


class Pool:
    """Free blocks, small or large, of each stream."""

    __slots__ = ("free", "searches", "small", "unmapped")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.searches = 0
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}

    def insert(self, block: Block) -> None:
        """Add a free block, in order of size and address."""
        block.age = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))

    def erase(self, block: Block) -> None:
        """Take a free block out, before it is used or joined."""
        free = self.free[block.stream]
        del free[bisect_left(free, (block.size, block.address))]

    def insert_unmapped(self, block: Block) -> None:
        """Add a block of an expandable segment that has no memory behind it."""
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def erase_unmapped(self, block: Block) -> None:
        """Take a block without memory out."""
        unmapped = self.unmapped[block.stream]
        del unmapped[bisect_left(unmapped, (block.address,))]


class Block:
    """A piece of a segment; `allocated` until it is freed, then free, part of a neighbour, or gone.

    Attributes
    ----------
    address, size : int
        Where it begins; bytes.
    requested : int
        Bytes that were asked for.
    stream : int
        Stream it belongs to, and may be given out on.
    """

    __slots__ = (
        "address",
        "age",
        "allocated",
        "expandable",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested",
        "size",
        "stream",
        "uses",
        "waiting",
    )

    def __init__(
        self,
        stream: int,
        size: int,
        pool: Pool,
        address: int,
        expandable: Expandable | None = None,
        *,
        mapped: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.stream = stream
        self.pool = pool
        self.allocated = False
        self.mapped = mapped
        self.previous: Block | None = None
        self.next: Block | None = None
        self.expandable = expandable
        self.uses: set[int] | None = None  # streams beside its own
        self.waiting = 0  # events that have not passed
        self.age = 0

    def link(self, previous: Block | None, following: Block | None) -> None:
        """Insert the block between two neighbours of its segment.

        Parameters
        ----------
        previous, following : Block or None
            None at the begin and the end of a segment.
        """
        self.previous, self.next = previous, following
        if previous is not None:
            previous.next = self
        if following is not None:
            following.previous = self

    @property
    def split(self) -> bool:
        """Whether it is a part of a segment."""
        return self.previous is not None or self.next is not None


def is_idle(block: Block) -> bool:
    """Whether a block is free or unmapped."""
    return not (block.allocated or block.waiting or block.uses)


def can_grow_to(block: Block) -> int:
    """Return the size that a block can grow to by mapping pages behind it."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def mapped_range(head: Block) -> list[Block]:
    """Return a block and the mapped ones behind it, in order."""
    blocks = [head]
    while (following := blocks[-1].next) is not None and following.mapped:
        blocks.append(following)
    return blocks


def merge(block: Block, other: Block | None) -> None:
    """Make a neighbour part of a block, if it is free and as mapped as that.

    Parameters
    ----------
    block : Block
        In no pool.
    other : Block or None
        Before it or behind it; None where the segment begins or ends.
    """
    if (
        other is None
        or other.allocated
        or other.waiting
        or other.uses
        or other.mapped is not block.mapped
    ):
        return
    if other.mapped:
        block.pool.erase(other)
    else:
        block.pool.erase_unmapped(other)
    if other is block.previous:
        block.address = other.address
        block.previous = other.previous
        if block.previous is not None:
            block.previous.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.previous = block
    block.size += other.size
