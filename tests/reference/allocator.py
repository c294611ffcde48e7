"""PyTorch's caching allocator by brute force: a list of segments, each a list of cells.

Written from c10/cuda/CUDACachingAllocator.cpp alone. Every search looks at every cell of every
segment; neighbours are found by position; what is free is never kept apart. Slow, and without any
structure in common with `mpisim.memory.caching_allocator`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpisim.memory.allocator_settings import AllocatorSettings

__all__ = ["Cells"]

MIB = 1 << 20
NEVER = 1 << 64


@dataclass
class Cell:
    size: int
    state: str  # "free", "used", "waiting", "unmapped"
    streams: set[int] = field(default_factory=set)
    since: int = 0


@dataclass
class Segment:
    number: int
    stream: int
    small: bool
    page: int  # of expandable segments; 0: from cudaMalloc
    cells: list[Cell]

    def begin(self, i: int) -> int:
        return sum(cell.size for cell in self.cells[:i])

    def tidy(self) -> None:
        """Make one cell of free ones side by side, and one of unmapped ones."""
        cells: list[Cell] = []
        for cell in self.cells:
            if cells and cell.state in ("free", "unmapped") and cells[-1].state == cell.state:
                cells[-1].size += cell.size
                cells[-1].since = max(cells[-1].since, cell.since)
            else:
                cells.append(cell)
        self.cells[:] = cells


class Cells:
    """The reference; `allocate` returns the segment's number and the offset, or None."""

    def __init__(self, settings: AllocatorSettings, capacity: int | None = None) -> None:
        self.settings = settings
        self.capacity = NEVER if capacity is None else capacity
        self.bounded = capacity is not None
        self.all: list[Segment] = []
        self.made = 0
        self.retries = 0
        self.calls = {True: 0, False: 0}
        self.passed: set[int] = set()

    @property
    def reserved(self) -> int:
        return sum(c.size for s in self.all for c in s.cells if c.state != "unmapped")

    @property
    def allocated(self) -> int:
        return sum(c.size for s in self.all for c in s.cells if c.state == "used")

    @property
    def allowed(self) -> int:
        share = self.settings.memory_fraction
        if share is None or share >= 1 or not self.bounded:
            return NEVER
        return int(share * self.capacity)

    def round(self, size: int) -> int:
        if size < 512:
            return 512
        at = 0
        while at < 15 and size >= 2 * MIB << at:
            at += 1
        parts = self.settings.roundup_power2_divisions[at]
        if parts > 1 and size > 512 * parts:
            low = 1
            while low * 2 <= size:
                low *= 2
            if low == size:
                return size
            step = low // parts
            if step == 0:
                return 2 * low
            return next(low + k * step for k in range(parts + 1) if low + k * step >= size)
        return next(n for n in (size // 512 * 512, size // 512 * 512 + 512) if n >= size)

    def allocate(self, request: int, stream: int) -> tuple[int, int] | None:
        self.complete(self.passed)
        self.passed = set()
        size = self.round(request)
        small = size <= MIB
        collects = self.settings.garbage_collection_threshold > 0 and self.allowed < NEVER
        self.calls[small] += collects
        found = self.best(size, stream, small)
        if found is None:
            if collects:
                self.collect()
            found = self.driver(size, stream, small)
            if found is None and self.release_some(size, stream, small):
                found = self.driver(size, stream, small)
            if found is None:
                self.release_all()
                self.retries += 1
                found = self.driver(size, stream, small)
            if found is None:
                return None
        segment, i = found
        cell = segment.cells[i]
        offset = segment.begin(i)
        left = cell.size - size
        if small or self.settings.expandable_segments:
            split = left >= 512
        else:
            split = size < self.settings.max_split_size and left > MIB
        if split:
            rest = Cell(left, "free", since=self.calls[small])
            segment.cells[i : i + 1] = [Cell(size, "used"), rest]
        else:
            segment.cells[i] = Cell(cell.size, "used")
        return segment.number, offset

    def cell(self, place: tuple[int, int]) -> Cell:
        segment = next(s for s in self.all if s.number == place[0])
        return next(
            c
            for i, c in enumerate(segment.cells)
            if segment.begin(i) == place[1] and c.state == "used"
        )

    def free(self, place: tuple[int, int]) -> None:
        cell = self.cell(place)
        cell.state = "waiting" if cell.streams else "free"
        segment = next(s for s in self.all if s.number == place[0])
        cell.since = self.calls[segment.small]
        self.tidy(segment, cell)

    def use(self, place: tuple[int, int], stream: int) -> None:
        segment = next(s for s in self.all if s.number == place[0])
        if stream != segment.stream:
            self.cell(place).streams.add(stream)

    def synchronize(self, stream: int) -> None:
        """Note that blocks freed up to now need not wait for a stream: at the next allocation."""
        for segment in self.all:
            for cell in segment.cells:
                if cell.state == "waiting" and stream in cell.streams:
                    cell.streams.discard(stream)
        self.passed.add(stream)

    def complete(self, _: set[int]) -> None:
        for segment in self.all:
            for cell in list(segment.cells):
                if cell.state == "waiting" and not cell.streams:
                    cell.state = "free"
                    cell.since = self.calls[segment.small]
                    self.tidy(segment, cell)

    def tidy(self, segment: Segment, cell: Cell) -> None:
        if cell.state == "free":
            segment.tidy()

    def empty_cache(self) -> None:
        self.release_all()

    # --- choices ---

    def candidates(self, stream: int, small: bool) -> list[tuple[int, int, int, Segment]]:
        """Free cells of a pool: size, segment, position, by size and then by age of the segment."""
        return sorted(
            (
                (cell.size, segment.number, i, segment)
                for segment in self.all
                if segment.stream == stream and segment.small == small
                for i, cell in enumerate(segment.cells)
                if cell.state == "free"
            ),
            key=lambda each: each[:3],
        )

    def best(self, size: int, stream: int, small: bool) -> tuple[Segment, int] | None:
        fitting = [each for each in self.candidates(stream, small) if each[0] >= size]
        if not fitting:
            return None
        if fitting[0][3].page:
            if self.settings.expandable_segments:

                def room(each: tuple[int, int, int, Segment]) -> int:
                    cells, i = each[3].cells, each[2]
                    behind = cells[i + 1] if i + 1 < len(cells) else None
                    more = behind.size if behind and behind.state == "unmapped" else 0
                    return cells[i].size + more

                while (
                    len(fitting) > 1 and fitting[0][3].page and room(fitting[1]) < room(fitting[0])
                ):
                    fitting.pop(0)
            else:
                fitting = [each for each in fitting if not each[3].page]
                if not fitting:
                    return None
        found = fitting[0]
        limit = self.settings.max_split_size
        if size < limit <= found[0]:
            return None
        if size >= limit and found[0] >= size + self.settings.max_non_split_rounding:
            return None
        return found[3], found[2]

    def driver(self, size: int, stream: int, small: bool) -> tuple[Segment, int] | None:
        if size <= MIB:
            whole = 2 * MIB
        elif size < 10 * MIB:
            whole = self.settings.large_segment_size
        else:
            whole = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.reserved + whole > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self.expand(size, stream, small)
        if self.reserved + whole > self.capacity:
            return None
        self.all.append(Segment(self.made, stream, small, 0, [Cell(whole, "free")]))
        self.made += 1
        return self.all[-1], 0

    def expand(self, size: int, stream: int, small: bool) -> tuple[Segment, int] | None:
        for segment in self.all:
            if not segment.page or segment.stream != stream or segment.small != small:
                continue
            for i, cell in enumerate(segment.cells):
                if cell.state != "unmapped":
                    continue
                first = i - 1 if i and segment.cells[i - 1].state == "free" else i
                last, room = first, 0
                while (
                    room < size
                    and last < len(segment.cells)
                    and segment.cells[last].state in ("free", "unmapped")
                ):
                    room += segment.cells[last].size
                    last += 1
                if room >= size:
                    return self.map(segment, first, size)
        page = 2 * MIB if small else self.settings.large_segment_size
        space = self.capacity + self.capacity // 8 if self.bounded else 1 << 46
        space = (space + page - 1) // page * page
        if space < size:
            return None
        self.all.append(Segment(self.made, stream, small, page, [Cell(space, "unmapped")]))
        self.made += 1
        return self.map(self.all[-1], 0, size)

    def map(self, segment: Segment, first: int, size: int) -> tuple[Segment, int] | None:
        begin = segment.begin(first)
        while True:
            i = next(
                k
                for k in range(len(segment.cells))
                if segment.begin(k) + segment.cells[k].size > begin
            )
            cell = segment.cells[i]
            have = cell.size if cell.state == "free" else 0
            if have >= size:
                return segment, i
            gap = i if cell.state == "unmapped" else i + 1
            empty = segment.cells[gap]
            pages = -(-min(size - have, empty.size) // segment.page)
            if self.reserved + pages * segment.page > self.capacity:
                return None
            parts = [Cell(pages * segment.page, "free", since=self.calls[segment.small])]
            if empty.size > pages * segment.page:
                parts.append(Cell(empty.size - pages * segment.page, "unmapped"))
            segment.cells[gap : gap + 1] = parts
            segment.tidy()

    # --- giving back ---

    def release_some(self, size: int, stream: int, small: bool) -> bool:
        limit = self.settings.max_split_size
        if limit >= NEVER - 1:
            return False
        wanted = max(size, limit)
        free = self.candidates(stream, small)
        large = [each for each in free if each[0] >= wanted]
        if large and not large[0][3].page:
            self.all.remove(large[0][3])
            return True
        released = 0
        for length, _, _, segment in reversed([each for each in free if each[0] < wanted]):
            if released >= wanted or length < limit:
                break
            if not segment.page:
                released += length
                self.all.remove(segment)
        return released >= wanted

    def release_all(self) -> None:
        for segment in self.all:
            for cell in segment.cells:
                if cell.state == "waiting":
                    cell.state = "free"
                    cell.streams = set()
                    cell.since = self.calls[segment.small]
            segment.tidy()
        for segment in list(self.all):
            if not segment.page:
                if len(segment.cells) == 1 and segment.cells[0].state == "free":
                    self.all.remove(segment)
                continue
            cells: list[Cell] = []
            at = 0
            for cell in segment.cells:
                begin = -(-at // segment.page) * segment.page
                end = (at + cell.size) // segment.page * segment.page
                if cell.state == "free" and begin < end:
                    for length, state in (
                        (begin - at, "free"),
                        (end - begin, "unmapped"),
                        (at + cell.size - end, "free"),
                    ):
                        if length:
                            cells.append(Cell(length, state, since=self.calls[segment.small]))
                else:
                    cells.append(cell)
                at += cell.size
            segment.cells = cells
            segment.tidy()
            if len(segment.cells) == 1 and segment.cells[0].state == "unmapped":
                self.all.remove(segment)

    def collect(self) -> None:
        bound = int(self.settings.garbage_collection_threshold * self.allowed)
        wanted = self.reserved - bound
        if wanted <= 0:
            return
        whole = [
            segment
            for segment in self.all
            if not segment.small and len(segment.cells) == 1 and segment.cells[0].state == "free"
        ]

        def age(segment: Segment) -> int:
            return self.calls[False] - segment.cells[0].since

        total, freed = 0, True
        left = list(whole)
        while total < wanted and freed and left:
            mean = sum(age(segment) for segment in left) / len(left)
            freed = False
            for segment in [s for s in left if not s.page and age(s) >= mean]:
                total += segment.cells[0].size
                self.all.remove(segment)
                left.remove(segment)
                freed = True
