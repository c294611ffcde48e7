"""The caching allocator: closed forms, PyTorch's own tests, and a reference by brute force."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.allocator import Cells

from mpisim.base.errors import InputError
from mpisim.memory.allocations import Action, Allocations, holders, replay
from mpisim.memory.allocator_settings import AllocatorSettings, parse_settings
from mpisim.memory.blocks import Block
from mpisim.memory.caching_allocator import CachingAllocator, OutOfMemoryError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def gpu(conf: str = "", capacity: int | None = None) -> CachingAllocator:
    return CachingAllocator(parse_settings(conf), capacity)


# --- closed forms ---


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB is not split off
        (33 * MIB + 5, 34 * MIB, 34 * MIB),
    ],
)
def test_first_allocation(size: int, block: int, segment: int) -> None:
    it = gpu()
    assert it.allocate(size).size == block
    assert (it.allocated, it.requested, it.reserved) == (block, size, segment)


def test_small_ones_share_a_segment() -> None:
    it = gpu()
    blocks = [it.allocate(512) for _ in range(4096)]
    assert (it.segments, it.reserved) == (1, 2 * MIB)
    assert np.diff([block.address for block in blocks]).tolist() == [512] * 4095
    it.allocate(1)
    assert it.segments == 2


def test_best_fit_takes_the_smallest_that_is_enough() -> None:
    it = gpu()
    sizes = (40, 24, 32, 24)
    blocks = [it.allocate(size * MIB) for size in sizes]
    first = [block.address for block in blocks]
    for block in blocks:
        it.free(block)
    assert it.allocate(23 * MIB).address == first[1]
    assert it.allocate(23 * MIB).address == first[3]
    assert it.allocate(23 * MIB).address == first[2]
    assert it.reserved == sum(sizes) * MIB


def test_neighbours_become_one_block() -> None:
    it = gpu()
    a, b, c = (it.allocate(5 * MIB) for _ in range(3))
    it.allocate(4 * MIB)
    it.free(a)
    it.free(c)
    it.free(b)
    assert it.allocate(15 * MIB).address == a.address
    assert it.reserved == 20 * MIB


def test_streams_share_nothing() -> None:
    it = gpu()
    it.free(it.allocate(30 * MIB, 1))
    it.allocate(30 * MIB, 2)
    assert it.reserved == 60 * MIB


def test_a_block_waits_for_the_streams_that_use_it() -> None:
    it = gpu()
    block = it.allocate(30 * MIB, 1)
    it.record_stream(block, 1)  # its own: nothing to wait for
    it.record_stream(block, 7)
    it.free(block)
    assert (it.allocated, it.active) == (0, 30 * MIB)
    it.allocate(30 * MIB, 1)
    assert it.reserved == 60 * MIB
    it.synchronize(7)
    assert it.allocate(30 * MIB, 1).address == block.address
    assert it.reserved == 60 * MIB


def test_memory_that_is_short_ends_the_wait() -> None:
    it = gpu(capacity=50 * MIB)
    block = it.allocate(30 * MIB, 1)
    it.record_stream(block, 7)
    it.free(block)
    it.allocate(40 * MIB, 1)
    assert (it.retries, it.reserved) == (1, 40 * MIB)


def test_split_segments_cannot_be_given_back() -> None:
    """The case that expandable segments are for."""
    for conf, goes in (("", False), ("expandable_segments:True", True)):
        it = gpu(conf, 100 * MIB)
        blocks = [it.allocate(4 * MIB) for _ in range(25)]
        for i, block in enumerate(blocks):
            if i % 5:
                it.free(block)
        if goes:
            assert it.allocate(16 * MIB).size == 16 * MIB
            with pytest.raises(OutOfMemoryError):
                it.allocate(24 * MIB)
        else:
            it.allocate(16 * MIB)
            with pytest.raises(OutOfMemoryError) as caught:
                it.allocate(24 * MIB)
            assert caught.value.free == 0
            assert caught.value.reserved == 100 * MIB


def test_expandable_segments_grow_by_pages() -> None:
    it = gpu("expandable_segments:True")
    a = it.allocate(30 * MIB)
    assert (it.reserved, it.segments) == (40 * MIB, 1)
    b = it.allocate(30 * MIB)
    assert b.address == a.address + 30 * MIB
    assert (it.reserved, it.segments) == (60 * MIB, 1)
    it.allocate(KIB)
    assert (it.reserved, it.segments) == (62 * MIB, 2)
    it.free(a)
    it.empty_cache()
    assert it.reserved == 42 * MIB  # of its 30 MiB one page of 20 is free as a whole
    it.free(b)
    it.empty_cache()
    assert it.reserved == 2 * MIB


# --- what PyTorch's own tests (test/test_cuda.py) find on GPUs ---


def test_max_split_expandable() -> None:
    it = gpu("expandable_segments:False,max_split_size_mb:40", GIB)
    share = "per_process_memory_fraction:0.1171875"  # 120 MiB
    fixed = parse_settings(f"expandable_segments:False,max_split_size_mb:40,{share}")
    expandable = parse_settings(f"expandable_segments:True,max_split_size_mb:40,{share}")
    it.settings = fixed
    a = it.allocate(40 * MIB)
    it.settings = expandable
    b = it.allocate(40 * MIB)
    it.settings = fixed
    c = it.allocate(40 * MIB)
    with pytest.raises(OutOfMemoryError):
        it.allocate(40 * MIB)
    for block in (a, b, c):
        it.free(block)
    assert it.allocate(120 * MIB).size == 120 * MIB


def test_garbage_collect_expandable() -> None:
    it = gpu("", GIB)
    share = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.1171875"
    it.settings = parse_settings(f"expandable_segments:False,{share}")
    a = it.allocate(40 * MIB)
    it.settings = parse_settings(f"expandable_segments:True,{share}")
    b = it.allocate(40 * MIB)
    it.free(a)
    it.free(b)
    assert it.allocate(80 * MIB).size == 80 * MIB


def test_garbage_is_what_has_not_been_used_for_long() -> None:
    it = gpu("garbage_collection_threshold:0.5,per_process_memory_fraction:0.15625", GIB)  # 160 MiB
    blocks = [it.allocate(size * MIB) for size in (40, 42, 44)]
    for block in blocks:
        it.free(block)
    for size in (42, 42, 44, 44):
        it.free(it.allocate(size * MIB))
    it.allocate(60 * MIB)  # over 80 MiB: the oldest first, then the older of two
    assert it.reserved == (44 + 60) * MIB


@pytest.mark.parametrize("divisions", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("size", [84 * MIB, 400 * MIB, 1_000_003, 5 * MIB + 1, 2**31 + 512])
def test_roundup_power2_divisions(divisions: int, size: int) -> None:
    power = 1
    while power < size:
        power *= 2
    expected = float(power)
    if power != size:
        expected = power / 2
        while expected < size:
            expected += power / 2 / divisions
    if divisions == 1:  # rounds to 512 bytes, as without
        expected = -(-size // 512) * 512
    assert gpu(f"roundup_power2_divisions:{divisions}").rounded(size) == expected


def test_roundup_of_intervals() -> None:
    """torch_npu's test of the same option writes down what each interval gets."""
    conf = parse_settings("roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]")
    assert conf.roundup_power2_divisions == (1, 1, 1, 1, 0, 0, 4, 8, 2, *[16] * 7)
    assert [conf.divisions(size * MIB) for size in (8, 63, 64, 200, 300, 511, 512, 4096)] == [
        *(1, 0, 4, 8, 2, 2, 16, 16)
    ]


# --- the settings ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expandable_segment:True", "did you mean 'expandable_segments'"),
        ("expandable_segments:true", "allowed: True, False"),
        ("expandable_segments", "no option:value"),
        ("max_split_size_mb:19", "must be 20 or more"),
        ("max_split_size_mb:many", "whole number of MiB"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("garbage_collection_threshold:x", "must be a number"),
        ("per_process_memory_fraction:2", "from 0 to 1"),
        ("backend:cudaMallocAsync", "native"),
        ("roundup_power2_divisions:3", "power of 2"),
        ("roundup_power2_divisions:[256:3]", "power of 2"),
        ("roundup_power2_divisions:[256]", "MiB:divisions"),
        ("roundup_power2_divisions:[256:1", "bracket"),
        ("large_segment_size_mb:10", "more than 10"),
        ("max_split_size_mb:100,", "there is no option ''"),
    ],
)
def test_wrong_settings(text: str, said: str) -> None:
    with pytest.raises(InputError, match=r"PYTORCH_CUDA_ALLOC_CONF: ") as caught:
        parse_settings(text)
    assert said in str(caught.value)


def test_settings() -> None:
    assert parse_settings("") == AllocatorSettings()
    conf = parse_settings(
        "max_split_size_mb:128, garbage_collection_threshold:0.8,pinned_use_background_threads:True"
    )
    assert (conf.max_split_size, conf.garbage_collection_threshold) == (128 * MIB, 0.8)
    assert parse_settings("large_segment_size_mb:64").max_non_split_rounding == 64 * MIB


# --- the reference ---

SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 512, 10 * MIB, 20 * MIB, 40 * MIB, 44 * MIB]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate"] * 5 + ["free"] * 4 + ["use", "pass", "empty"]),
        SIZES,
        st.integers(0, 2),
        st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=120,
)
CONFS = st.sampled_from(
    [
        "",
        "max_split_size_mb:40",
        "max_split_size_mb:20,max_non_split_rounding_mb:30",
        "expandable_segments:True",
        "expandable_segments:True,large_segment_size_mb:32",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:8,4:2,16:1,>:16]",
        "garbage_collection_threshold:0.6,per_process_memory_fraction:0.75",
        "garbage_collection_threshold:0.5,max_split_size_mb:30,per_process_memory_fraction:0.9",
        "expandable_segments:True,max_split_size_mb:30,per_process_memory_fraction:0.9",
    ]
)


@settings(max_examples=300, deadline=None)
@given(STEPS, CONFS, st.sampled_from([None, 96 * MIB, 250 * MIB, 600 * MIB]), st.booleans())
def test_equals_the_reference(
    steps: list[tuple[str, int, int, int]], conf: str, capacity: int | None, switches: bool
) -> None:
    chosen = parse_settings(conf)
    it, slow = CachingAllocator(chosen, capacity), Cells(chosen, capacity)
    other = parse_settings("expandable_segments:True")
    live: list[tuple[Block, tuple[int, int]]] = []
    numbers: dict[int, int] = {}
    for i, (what, size, stream, pick) in enumerate(steps):
        if switches and i and i % 40 == 0:
            it.settings, slow.settings = other, other
            other = chosen if other is not chosen else other
        if what == "allocate":
            expected = slow.allocate(size, stream)
            if expected is None:
                with pytest.raises(OutOfMemoryError):
                    it.allocate(size, stream)
            else:
                block = it.allocate(size, stream)
                base = numbers.setdefault(expected[0], block.address - expected[1])
                assert block.address - base == expected[1]
                live.append((block, expected))
        elif what == "pass":
            it.synchronize(stream)
            slow.synchronize(stream)
        elif what == "empty":
            it.empty_cache()
            slow.empty_cache()
        elif live:
            block, place = live[pick % len(live)]
            if what == "use":
                it.record_stream(block, stream)
                slow.use(place, stream)
            else:
                live.remove((block, place))
                it.free(block)
                slow.free(place)
        assert (it.reserved, it.allocated, it.retries) == (
            slow.reserved,
            slow.allocated,
            slow.retries,
        )
    check(it, [block for block, _ in live])
    addresses = list(numbers.values())
    assert len(set(addresses)) == len(addresses)


def check(it: CachingAllocator, live: list[Block]) -> None:
    """Check the invariants that the module states."""
    segments = it.segments_of_blocks(live)
    assert sum(block.size for blocks in segments for block in blocks) == it.reserved
    assert sum(block.size for block in live) == it.allocated
    for blocks in segments:
        for a, b in pairwise(blocks):
            assert a.address + a.size == b.address
            assert a.next is b
            assert b.previous is a
            assert any(each.allocated or each.waiting for each in (a, b))


# --- tables of allocations ---


def test_lifetimes() -> None:
    table = Allocations.of_lifetimes(
        begin=[0, 1, 1, 2],
        end=[1, 2, -1, 2],
        size=[100, 30 * MIB, 0, 5],
        label=[0, 1, 1, -1],
        labels=["a", "b"],
    )
    assert (
        table.action.tolist()
        == [Action.ALLOCATE] * 2 + [Action.FREE, Action.ALLOCATE] + [Action.FREE] * 2
    )
    assert table.block.tolist() == [0, 1, 0, 2, 1, 2]
    usage = replay(table)
    assert usage.allocated.tolist() == [
        512,
        30 * MIB + 512,
        30 * MIB,
        30 * MIB + 512,
        512,
        0,
    ]
    assert usage.peak_reserved == 32 * MIB
    assert usage.peak_requested == 30 * MIB + 100
    assert (usage.segments, usage.retries, usage.driver_calls) == (2, 0, 2)
    assert [(each.label, each.bytes) for each in holders(table, 1)] == [
        ("b", 30 * MIB),
        ("a", 100),
    ]
    assert [(each.label, each.bytes) for each in holders(table, 3)] == [("b", 30 * MIB), ("", 5)]


def test_events() -> None:
    """A storage that is resized is there twice for a moment; numbers may come again."""
    table = Allocations.of_events(
        tensor=[8, 9, 8, 9, 9], size=[512, 2048, 1024, 0, 100], stream=[0, 3, 0, 0, 0]
    )
    assert table.block.tolist() == [0, 1, 2, 0, 1, 3]
    assert table.stream.tolist() == [0, 3, 0, 0, 0, 0]
    usage = replay(table)
    assert usage.allocated.tolist() == [512, 2560, 3584, 3072, 1024, 1536]
    assert usage.peak_reserved == 4 * MIB
    assert len(Allocations.of_events([], [])) == 0
    with pytest.raises(InputError, match="row 1 frees tensor 4, which is not there"):
        Allocations.of_events([3, 4], [1, 0])
    with pytest.raises(InputError, match="2 tensors, but 1 of size"):
        Allocations.of_events([3, 4], [1])


def test_exhausted() -> None:
    table = Allocations.of_lifetimes([0, 1, 2], [-1, -1, -1], [30 * MIB] * 3)
    usage = replay(table, capacity=64 * MIB)
    assert usage.failure is not None
    assert len(usage.reserved) == 2
    assert usage.failure.free == 4 * MIB


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (([0], [1, 2], [3]), "1 of begin, but 2 of end"),
        (([0, 5], [1, 4], [3, 3]), "row 1 is freed before"),
        (([0], [1], [-3]), "row 0 is negative"),
    ],
)
def test_wrong_lifetimes(columns: tuple[list[int], list[int], list[int]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Allocations.of_lifetimes(*columns)


def test_freed_twice() -> None:
    table = Allocations.of_lifetimes([0], [1], [3])
    double = Allocations(
        np.array([0, 1, 1], np.int8),
        np.zeros(3, np.int64),
        np.array([3, 0, 0]),
        np.zeros(3, np.int64),
        np.zeros(3, np.int64),
        np.full(3, -1, np.int32),
    )
    assert len(replay(table).reserved) == 2
    with pytest.raises(InputError, match="row 2 frees block 0, which is not there"):
        replay(double)
