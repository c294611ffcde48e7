"""DeepSpeed's ZeRO stages and FSDP: exact lists, worked by hand."""

from __future__ import annotations

import pytest
from sharing import layer, stepped, told

from mpisim.base.errors import InputError
from mpisim.workloads.data_parallel.buckets import ChunkParameter
from mpisim.workloads.data_parallel.zero3 import FetchLimits, fetches
from mpisim.workloads.operators import Parameter

NET = (layer("embedding", 8), layer("a", 40, 6), layer("b", 40, 6), layer("head", 8))
FORWARD = [f"{name} forward" for name in ("embedding", "a0", "a1", "b0", "b1", "head")]
BACKWARD = [f"{name} backward" for name in ("head", "b1", "b0", "a1", "a0", "embedding")]
COPY_IN, COPY_OUT = "copy gradient into bucket", "copy gradient from bucket"
GATHER = "parameter all-gather"
NORM = [
    "convert gradients",
    "gradient norm",
    "gradient norm all-reduce [dp 4] < gradient norm",
    "read gradient norm < gradient norm all-reduce",
    "wait for gradient norm < read gradient norm",
    "clip gradients",
    "adam",
    "convert weights",
]


# --- DeepSpeed ----------------------------------------------------------------------------------

# bf16, 50 elements a bucket: head 8, b1 6; b0 40, a1 6; a0 40, embedding 8: each closes before the
# gradient that would not fit.
STAGE_2 = [
    "head backward",
    COPY_IN,
    "b1 backward",
    COPY_IN,
    "b0 backward",
    "gradient all-reduce [dp 28] < b0 backward",
    COPY_IN,
    "a1 backward",
    COPY_IN,
    "a0 backward",
    "gradient all-reduce [dp 92] < a0 backward",
    COPY_IN,
    "embedding backward",
    COPY_IN,
    f"gradient all-reduce [dp 96] < {COPY_IN}",
    "wait for gradients < gradient all-reduce, gradient all-reduce, gradient all-reduce",
]


def test_deepspeed_without_zero_reduces_after_the_backward() -> None:
    # In the order of registration, closed by the parameter that exceeds 50: 8 + 40 + 6, 40 + 6 + 8.
    rows = told(stepped(NET, 2, dp_style="deepspeed", bucket=100).program)
    assert rows == [
        *FORWARD,
        *BACKWARD,
        COPY_IN,
        COPY_IN,
        COPY_IN,
        f"gradient all-reduce [dp 108] < {COPY_IN}",
        "scale gradients < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        COPY_OUT,
        COPY_IN,
        COPY_IN,
        COPY_IN,
        f"gradient all-reduce [dp 108] < {COPY_IN}",
        "scale gradients < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        COPY_OUT,
        "convert gradients",
        "gradient norm",
        "read gradient norm",
        *NORM[4:],
    ]


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_reduces_in_the_last_micro_batch_and_zero_2_in_every_one(stage: int) -> None:
    plan = {"dp_style": "deepspeed", "zero": stage, "bucket": 100, "global_batch": 4}
    rows = told(stepped(NET, 2, **plan).program)
    first = BACKWARD if stage == 1 else STAGE_2
    # 108 elements are a multiple of 2 × 2 ranks: no padding.
    assert rows == [
        *FORWARD,
        *first,
        *FORWARD,
        *STAGE_2,
        *NORM,
        f"{GATHER} [dp 216] < convert weights",
    ]


def test_zero_1_without_overlap_reduces_after_the_backward() -> None:
    plan = {"dp_style": "deepspeed", "zero": 1, "bucket": 100, "overlap_dp": False}
    rows = told(stepped(NET, 2, **plan).program)
    # In the order of registration: 8 + 40; 6 + 40; 6 + 8.
    assert rows[: -len(NORM) - 1] == [
        *FORWARD,
        *BACKWARD,
        COPY_IN,
        COPY_IN,
        f"gradient all-reduce [dp 96] < {COPY_IN}",
        f"{COPY_IN} < gradient all-reduce",
        COPY_IN,
        f"gradient all-reduce [dp 92] < {COPY_IN}",
        f"{COPY_IN} < gradient all-reduce",
        COPY_IN,
        f"gradient all-reduce [dp 28] < {COPY_IN}",
    ]


def test_zero_1_pads_what_it_gathers() -> None:
    # 2 × 8 ranks: 108 elements become 112; each rank updates 14, rounded up.
    done = stepped(NET, 8, dp_style="deepspeed", zero=1)
    assert told(done.program)[-1] == f"{GATHER} [dp 224] < convert weights"


def parameters(*sizes: int) -> list[ChunkParameter]:
    return [ChunkParameter(Parameter(f"p{i}", size), i, 0, i) for i, size in enumerate(sizes)]


def played(
    uses: list[list[ChunkParameter]], limits: FetchLimits
) -> list[tuple[list[int], list[int]]]:
    """The numbers of the parameters gathered now and ahead, module by module."""
    return [
        ([each.number for each in fetch.now], [each.number for each in fetch.ahead])
        for fetch in fetches(uses, limits)
    ]


def test_zero_3_gathers_for_each_module_where_nothing_is_kept() -> None:
    a, b, c = parameters(10, 20, 30)
    uses = [[a], [b], [c], [c], [b], [a]]
    nothing = FetchLimits(ahead=0, live=10**9, reuse=0, persistent=0)
    assert played(uses, nothing) == [([number], []) for number in (0, 1, 2, 2, 1, 0)]


def test_zero_3_gathers_ahead_until_the_budget_is_reached() -> None:
    a, b, c = parameters(10, 20, 30)
    uses = [[a], [b], [c], [c], [b], [a]]
    # The first module gathers b (20 of 15) ahead; the second c; from then on the queue has come to
    # c's second use, for which it stays.
    ahead = FetchLimits(ahead=15, live=10**9, reuse=0, persistent=0)
    assert played(uses, ahead) == [([0], [1]), ([], [2]), ([], [1]), ([], [0]), ([], []), ([], [])]


def test_zero_3_keeps_what_is_used_again_soon_and_what_is_small() -> None:
    a, b, c = parameters(10, 20, 30)
    uses = [[a], [b], [c], [c], [b], [a]]
    # c is used next; b after 60 elements; a after 20 + 60 + 20 = 100.
    soon = FetchLimits(ahead=0, live=10**9, reuse=61, persistent=0)
    assert played(uses, soon) == [([0], []), ([1], []), ([2], []), ([], []), ([], []), ([0], [])]
    small = FetchLimits(ahead=0, live=10**9, reuse=0, persistent=10)
    assert played(uses, small)[0] == ([], []) == played(uses, small)[-1]


def test_zero_3_gathers_nothing_ahead_beyond_what_may_live() -> None:
    a, b, c = parameters(10, 20, 30)
    uses = [[a], [b], [c]]
    full = FetchLimits(ahead=100, live=10, reuse=0, persistent=0)
    assert played(uses, full) == [([0], []), ([1], []), ([2], [])]


def test_zero_3_of_a_small_network() -> None:
    # 200,001 elements, padded to 200,002 on two ranks. All is used again within 1e9 elements, so
    # the backward finds everything gathered; norms stay whole and are gathered after the optimizer.
    big = (layer("a", 200_001, 10), layer("b", 200_001, 11))
    rows = told(stepped(big, 2, dp_style="deepspeed", zero=3).program)
    assert rows == [
        f"{GATHER} [dp 400004]",
        f"{GATHER} [dp 400004]",
        f"a0 forward < {GATHER}",
        f"a1 forward < {GATHER}",
        "b0 forward",
        "b1 forward",
        "b1 backward",
        COPY_IN,
        "b0 backward",
        COPY_IN,
        "a1 backward",
        COPY_IN,
        "a0 backward",
        COPY_IN,
        # 10, 12 and twice 200,002 elements in one bucket
        f"gradient reduce-scatter [dp 800052] < {COPY_IN}",
        "wait for gradients < gradient reduce-scatter",
        *NORM,
        f"{GATHER} [dp 44] < convert weights",
    ]


def test_mics_reduces_shards_over_replicas_in_the_last_micro_batch() -> None:
    net = (layer("a", 200_000),)
    plan = {"dp_style": "deepspeed", "zero": 3, "zero_group": 2, "global_batch": 8}
    rows = told(stepped(net, 4, **plan).program)
    backward = [
        "a backward",
        COPY_IN,
        f"gradient reduce-scatter [shard 400000] < {COPY_IN}",
    ]
    forward = [f"{GATHER} [shard 400000]", f"a forward < {GATHER}"]
    assert rows[: rows.index("convert gradients")] == [
        *forward,
        *backward,
        "wait for gradients < gradient reduce-scatter",
        *forward,
        *backward,
        "gradient shard all-reduce [replica 200000] < gradient reduce-scatter",
        "wait for gradients < gradient reduce-scatter, gradient shard all-reduce",
    ]


def test_deepspeed_knows_groups_with_stage_3_only() -> None:
    with pytest.raises(InputError, match=r"plan.zero_group is 2, but zero is 1"):
        stepped(NET, 4, dp_style="deepspeed", zero=1, zero_group=2)


def test_a_group_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="zero_group is 3, which does not divide the 4 ranks"):
        stepped(NET, 4, dp_style="fsdp", zero=3, zero_group=3)


# --- FSDP ---------------------------------------------------------------------------------------

OUT, IN = "copy parameters out", "copy gradients in"
SCATTER = "gradient reduce-scatter"
FSDP_END = [
    # The two before the last were waited for when the next gradients were copied.
    f"gradient norm < {SCATTER}, {SCATTER}, {SCATTER}",
    "gradient norm all-reduce [dp 4] < gradient norm",
    "clip gradients < gradient norm all-reduce",
    "adam",
]


def test_fsdp_gathers_as_fast_as_memory_allows_and_before_it_reduces() -> None:
    assert told(stepped(NET, 2, zero=3).program) == [
        f"{GATHER} [dp 32]",  # the root: embedding and head
        f"{OUT} < {GATHER}",
        "embedding forward",
        f"{GATHER} [dp 92]",
        f"{OUT} < {GATHER}",
        "a0 forward",
        "a1 forward",
        f"{GATHER} [dp 92] < {OUT}",  # the root's
        f"{OUT} < {GATHER}",
        "b0 forward",
        "b1 forward",
        "head forward",
        "head backward",
        f"{GATHER} [dp 92]",
        f"{OUT} < {GATHER}",
        f"{GATHER} [dp 92] < {OUT}",
        "b1 backward",
        "b0 backward",
        IN,
        f"{SCATTER} [dp 92] < {IN}",
        f"{OUT} < {GATHER}",
        "a1 backward",
        "a0 backward",
        f"{IN} < {SCATTER}",
        f"{SCATTER} [dp 92] < {IN}",
        "embedding backward",
        f"{IN} < {SCATTER}",
        f"{SCATTER} [dp 32] < {IN}",
        *FSDP_END,
    ]


def test_what_fsdp_copies_is_read_and_written_once() -> None:
    # 46 elements of a block; gathered in bf16, reduced in fp32.
    done = stepped(NET, 2, zero=3, precision_gradients="fp32")
    program = done.program
    table = program.table_of(0)
    taken = {OUT: set(), IN: set()}
    for row, name in enumerate(program.names[each] for each in table.name):
        if name in taken:
            taken[name].add(int(table.duration[row]))  # one ps a byte
    assert taken == {OUT: {16 * (2 + 2), 46 * (2 + 2)}, IN: {16 * (2 + 4), 46 * (2 + 4)}}


def test_collectives_of_fsdp_share_the_stream_of_their_communicator() -> None:
    # arXiv:2304.11277, section 3.3.2: one process group, whose collectives run sequentially.
    table = stepped(NET, 2, zero=3).program.table_of(0)
    assert len(set(table.stream[table.is_communication].tolist())) == 1


@pytest.mark.parametrize("plan", [{"zero": 2}, {"zero": 3, "reshard_after_forward": False}])
def test_fsdp_that_stays_gathered(plan: dict[str, object]) -> None:
    rows = told(stepped(NET, 2, **plan, global_batch=4).program)
    backward = [
        "head backward",
        "b1 backward",
        "b0 backward",
        IN,
        f"{SCATTER} [dp 92] < {IN}",
        "a1 backward",
        "a0 backward",
        f"{IN} < {SCATTER}",
        f"{SCATTER} [dp 92] < {IN}",
        "embedding backward",
        f"{IN} < {SCATTER}",
        f"{SCATTER} [dp 32] < {IN}",
    ]
    forward = rows[: rows.index("head backward")]
    assert len(forward) == 12
    # Every micro-batch reduces, and the next starts to gather when that is done.
    scatters = ", ".join([SCATTER] * 3)
    again = [*forward]
    again[0] = f"{GATHER} [dp 32] < {SCATTER}, {SCATTER}, {IN}, {SCATTER}"
    again[1] = f"{OUT} < {scatters}, {GATHER}"
    assert rows == [*forward, *backward, *again, *backward, *FSDP_END]


def test_fsdp_without_overlap_waits_for_everything() -> None:
    rows = told(stepped(NET, 2, zero=3, overlap_dp=False).program)
    assert rows[:11] == [
        f"{GATHER} [dp 32]",
        f"{OUT} < {GATHER}",
        "embedding forward",
        f"{GATHER} [dp 92] < embedding forward",
        f"{OUT} < {GATHER}",
        "a0 forward",
        "a1 forward",
        f"{GATHER} [dp 92] < a1 forward",
        f"{OUT} < {GATHER}",
        "b0 forward",
        "b1 forward",
    ]
    assert f"{GATHER} [dp 92] < {IN}, {SCATTER}" in rows


def test_units_of_several_blocks() -> None:
    rows = told(stepped(NET, 2, zero=3, wrap_layers=2).program)
    assert [row for row in rows if row.startswith(GATHER)] == [
        f"{GATHER} [dp 32]",
        f"{GATHER} [dp 184]",
        f"{GATHER} [dp 184]",
    ]


@pytest.mark.parametrize(
    ("chunks", "gathers"),
    [
        # Embedding, two blocks and the head; backward the blocks and the embedding again.
        (1, ["embedding", "block", "block", "head", "block", "block", "embedding"]),
        # The head also for the parts of the loss, and for the norm that is with it.
        (4, ["embedding", "block", "block", "head", "head", "head", "block", "block", "embedding"]),
    ],
)
def test_units_of_the_ends(chunks: int, gathers: list[str]) -> None:
    rows = told(stepped(NET, 2, zero=3, end_units=True, loss_chunks=chunks).program)
    sizes = {"embedding": 16, "block": 92, "head": 16}
    found = [row.partition("]")[0] + "]" for row in rows if row.startswith(GATHER)]
    assert found == [f"{GATHER} [dp {sizes[unit]}]" for unit in gathers]
    assert sum("gradient accumulation" in row for row in rows) == chunks - 1
    assert sum(row.startswith(SCATTER) for row in rows) == 4


def test_parameters_are_padded_each() -> None:
    # 8 and 8, 40 and 6 elements on 8 ranks: 16 and 48; on 16 ranks 32 and 64.
    for ranks, root, block in ((8, 32, 96), (16, 64, 128)):
        rows = told(stepped(NET, ranks, zero=3).program)
        gathers = [row.split("[dp ")[1] for row in rows if row.startswith(GATHER)]
        assert [each.split("]")[0] for each in gathers] == [str(root)] + [str(block)] * 4


def test_more_units_ahead() -> None:
    net = tuple(layer(name, 10) for name in "abcd")
    rows = told(stepped(net, 2, zero=3, prefetch=2).program)
    gather, out = f"{GATHER} [dp 20]", f"{OUT} < {GATHER}"
    after = f"{gather} < {OUT}"
    assert rows[: rows.index("d backward")] == [
        gather,
        out,
        gather,
        "a forward",
        out,
        after,
        "b forward",
        out,
        after,
        "c forward",
        out,
        "d forward",
        gather,
        out,
        after,
        after,
    ]


def test_without_prefetching_a_unit_is_gathered_when_it_is_needed() -> None:
    net = tuple(layer(name, 10) for name in "abc")
    rows = told(stepped(net, 2, zero=3, prefetch=0).program)
    gather, out = f"{GATHER} [dp 20]", f"{OUT} < {GATHER}"
    assert rows[:13] == [
        gather,
        out,
        "a forward",
        f"{gather} < a forward",
        out,
        "b forward",
        f"{gather} < b forward",
        out,
        "c forward",
        f"{gather} < c forward",
        out,
        "c backward",
        IN,
    ]


def test_hybrid_sharding_reduces_shards_over_replicas() -> None:
    net = (layer("a", 10), layer("b", 10))
    rows = told(stepped(net, 4, zero=3, zero_group=2).program)
    gather, out = f"{GATHER} [shard 20]", f"{OUT} < {GATHER}"
    shard = f"gradient shard all-reduce [replica 10] < {SCATTER}"
    assert rows == [
        gather,
        out,
        "a forward",
        gather,
        out,
        "b forward",
        gather,
        out,
        f"{gather} < {OUT}",
        "b backward",
        IN,
        f"{SCATTER} [shard 20] < {IN}",
        shard,
        out,
        "a backward",
        f"{IN} < {SCATTER}",
        f"{SCATTER} [shard 20] < {IN}",
        shard,
        f"gradient norm < {SCATTER}, gradient shard all-reduce, "
        f"{SCATTER}, gradient shard all-reduce",
        "gradient norm all-reduce [shard 4] < gradient norm",
        "clip gradients < gradient norm all-reduce",
        "adam",
    ]


def test_experts_are_sharded_over_the_ranks_that_hold_them() -> None:
    net = (layer("a", 40, Parameter("expert", 100, expert=True)),)
    rows = told(stepped(net, 4, dp_style="fsdp", zero=3, ep=2).program)
    assert rows[:4] == [
        f"{GATHER} [dp 80]",
        f"{GATHER} [edp 200]",
        f"{OUT} < {GATHER}, {GATHER}",
        OUT,
    ]
    assert f"{SCATTER} [dp 80] < {IN}" in rows
    assert f"{SCATTER} [edp 200] < {IN}" in rows


def test_units_in_one_buffer_are_not_copied() -> None:
    net = (layer("a", 40), layer("b", 40))
    steps = (stepped(net, 4, dp_style="fsdp", zero=3, flat_shards=flat) for flat in (False, True))
    apart, flat = ([row.partition(" <")[0] for row in told(step.program)] for step in steps)
    copies = [row for row in apart if row.startswith("copy ")]
    assert copies
    assert sorted(flat) == sorted(row for row in apart if row not in copies)
