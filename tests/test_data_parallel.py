"""DDP and Megatron-LM's data parallelism: exact lists, worked by hand."""

from __future__ import annotations

import pytest
from plans import plan_of
from sharing import layer, stepped, told

from mpisim.program import Operation
from mpisim.workloads.data_parallel import make_strategy
from mpisim.workloads.data_parallel.buckets import buckets_closed_after, chunk_parameters
from mpisim.workloads.data_parallel.megatron import Megatron
from mpisim.workloads.grid import Grid, Groups
from mpisim.workloads.operators import Layer, Parameter

NET = (layer("embedding", 8), layer("a", 40, 6), layer("b", 40, 6), layer("head", 8))
FORWARD = [f"{name} forward" for name in ("embedding", "a0", "a1", "b0", "b1", "head")]
BACKWARD = [f"{name} backward" for name in ("head", "b1", "b0", "a1", "a0", "embedding")]
COPY_IN, COPY_OUT = "copy gradient into bucket", "copy gradient from bucket"
END = [
    "read gradient norm",
    "wait for gradient norm < read gradient norm",
    "clip gradients",
    "adam",
    "convert weights",
]


def megatron(layers: tuple[Layer, ...], stage: int = 0, **plan: object) -> Megatron:
    """The strategy of one stage that holds these layers."""
    made = plan_of(**{"global_batch": 64, **plan})  # type: ignore[arg-type]
    groups = Groups(Grid.of(made, (made.dp or 1) * made.pp), made.zero_group)
    found = make_strategy(made, [layers], groups, stage=stage)
    assert isinstance(found, Megatron)
    return found


# --- DDP ----------------------------------------------------------------------------------------


def test_buckets_as_pytorch_cuts_them() -> None:
    # torch._C._distributed_c10d._compute_bucket_assignment_by_size of fp32 tensors of
    # 1048576, 2048, 1048576, 2048, 1048576, 2048 bytes with limits of 1 MiB gives
    # [[0], [1, 2], [3, 4], [5]] (run with PyTorch 2.2).
    sizes = [262144, 512, 262144, 512, 262144, 512]
    parameters = chunk_parameters([layer("a", *sizes)])
    buckets = buckets_closed_after(parameters, [262144, 262144])
    numbers = [[each.number for each in bucket.parameters] for bucket in buckets]
    assert numbers == [[0], [1, 2], [3, 4], [5]]
    assert [bucket.size for bucket in buckets] == [262144, 262656, 262656, 512]


def test_ddp_reduces_full_buckets_beside_the_backward() -> None:
    # bf16, 50 elements a bucket: head 8, b1 6, b0 40 are 54; a1 6, a0 40, embedding 8 are 54.
    program = stepped(NET, 2, dp_style="ddp", bucket=100).program
    assert told(program) == [
        *FORWARD,
        "head backward",
        COPY_IN,
        "b1 backward",
        COPY_IN,
        "b0 backward",
        COPY_IN,
        f"gradient all-reduce [dp 108] < {COPY_IN}",
        "a1 backward",
        COPY_IN,
        "a0 backward",
        COPY_IN,
        "embedding backward",
        COPY_IN,
        f"gradient all-reduce [dp 108] < {COPY_IN}",
        f"{COPY_OUT} < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        f"{COPY_OUT} < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        "adam",
        "convert weights",
    ]


def test_ddp_reduces_in_the_last_micro_batch_alone() -> None:
    rows = told(stepped(NET, 2, dp_style="ddp", bucket=100, global_batch=6).program)
    passes = [*FORWARD, *BACKWARD]
    assert rows[: 2 * len(passes)] == 2 * passes
    assert sum("all-reduce [" in row for row in rows) == 2


def test_ddp_without_overlap_reduces_at_the_end() -> None:
    rows = told(stepped(NET, 2, dp_style="ddp", bucket=100, overlap_dp=False).program)
    at = rows.index("embedding backward")
    assert rows[at + 1 :] == [
        COPY_IN,
        f"gradient all-reduce [dp 108] < {COPY_IN}",
        f"{COPY_OUT} < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        f"gradient all-reduce [dp 108] < {COPY_OUT}",
        f"{COPY_OUT} < gradient all-reduce",
        COPY_OUT,
        COPY_OUT,
        "adam",
        "convert weights",
    ]


def test_ddp_first_bucket_is_small_unless_a_size_is_given() -> None:
    # fp32: 1 MiB are 262,144 elements, 25 MiB 6,553,600.
    net = (layer("a", 3_000_000, 3_000_000, 3_000_000), layer("b", 200_000, 200_000))
    program = stepped(net, 2, dp_style="ddp", precision="fp32").program
    sizes = [row for row in told(program) if "all-reduce [" in row]
    assert [row.split(" <")[0] for row in sizes] == [
        "gradient all-reduce [dp 1600000]",  # both of b
        "gradient all-reduce [dp 36000000]",  # a2, a1, a0: two are 6.0 million, not yet enough
    ]


def test_ddp_on_one_rank_does_nothing() -> None:
    assert told(stepped(NET, 1, dp_style="ddp").program) == [
        *FORWARD,
        *BACKWARD,
        "adam",
        "convert weights",
    ]


def test_zero_redundancy_optimizer_broadcasts_every_parameter() -> None:
    # Greedy, largest first, to the rank with the least: 40 | 40; 8 | 8; 6 | 6. Each updates 54.
    done = stepped(NET, 2, dp_style="ddp", zero=1)
    rows = told(done.program)
    at = rows.index("convert weights")
    assert rows[at + 1 :] == [
        f"parameter broadcast [dp {size}] < convert weights" for size in (80, 16, 12, 80, 16, 12)
    ]
    found = make_strategy(
        done.layout.experiment.plan, [NET], Groups(done.layout.grid), transformer=False
    )
    assert found.updated_parameters == 54


# --- Megatron-LM --------------------------------------------------------------------------------


def test_megatron_reduces_buckets_in_fp32_beside_the_backward() -> None:
    # 25 elements close a bucket: head 8, b1 6, b0 40; a1 6, a0 40; embedding 8.
    assert told(stepped(NET, 2, dp_style="megatron", bucket=100).program) == [
        "zero gradients",
        *FORWARD,
        "head backward",
        "b1 backward",
        "b0 backward",
        "scale gradients",
        "gradient all-reduce [dp 216] < scale gradients",
        "a1 backward",
        "a0 backward",
        "scale gradients",
        "gradient all-reduce [dp 184] < scale gradients",
        "embedding backward",
        "scale gradients",
        "gradient all-reduce [dp 32] < scale gradients",
        "gradient norm < gradient all-reduce, gradient all-reduce, gradient all-reduce",
        *END,
    ]


def test_nccl_divides_where_it_averages() -> None:
    rows = told(
        stepped(NET, 2, dp_style="megatron", overlap_dp=False, average_in_collective=True).program
    )
    assert rows[: len(FORWARD) + len(BACKWARD) + 2] == [
        "zero gradients",
        *FORWARD,
        *BACKWARD,
        "gradient all-reduce [dp 432] < embedding backward",
    ]


def test_megatron_without_overlap_reduces_one_buffer_at_the_end() -> None:
    rows = told(stepped(NET, 2, dp_style="megatron", overlap_dp=False, bucket=100).program)
    assert rows == [
        "zero gradients",
        *FORWARD,
        *BACKWARD,
        "scale gradients",
        "gradient all-reduce [dp 432] < scale gradients",
        "gradient norm < gradient all-reduce",
        *END,
    ]


def test_distributed_optimizer_with_overlap() -> None:
    # Parameters start at multiples of 64, buckets end at multiples of 128, 100 elements close one:
    # head 0-8, b1 64-70, b0 128-168 -> 256; a1 256-262, a0 320-360: 104 -> 384; embedding -> 512.
    rows = told(stepped(NET, 2, dp_style="megatron", zero=1, bucket=400).program)
    gather = "parameter all-gather"
    assert rows == [
        "zero gradients",
        # The first module gathers the last bucket and waits; the others follow, one ahead.
        f"{gather} [dp 256] < zero gradients",
        f"{gather} [dp 256] < zero gradients, {gather}",
        f"embedding forward < {gather}",
        f"{gather} [dp 512] < {gather}, embedding forward",
        f"a0 forward < {gather}",
        "a1 forward",
        f"b0 forward < {gather}",
        "b1 forward",
        "head forward",
        "head backward",
        "b1 backward",
        "b0 backward",
        "scale gradients",
        "gradient reduce-scatter [dp 1024] < scale gradients",
        "a1 backward",
        "a0 backward",
        "scale gradients",
        "gradient reduce-scatter [dp 512] < scale gradients",
        "embedding backward",
        "scale gradients",
        "gradient reduce-scatter [dp 512] < scale gradients",
        "gradient norm < gradient reduce-scatter, gradient reduce-scatter, gradient reduce-scatter",
        "gradient norm all-reduce [instance 4] < gradient norm",
        "read gradient norm < gradient norm all-reduce",
        *END[1:],
    ]


def test_distributed_optimizer_without_overlap() -> None:
    rows = told(stepped(NET, 2, dp_style="megatron", zero=1, overlap_dp=False).program)
    # 0-8, 64-70, 128-168, 192-198, 256-296, 320-328 -> 384 elements in one bucket.
    assert rows == [
        "zero gradients",
        *FORWARD,
        *BACKWARD,
        "scale gradients",
        "gradient reduce-scatter [dp 1536] < scale gradients",
        "gradient norm < gradient reduce-scatter",
        "gradient norm all-reduce [instance 4] < gradient norm",
        "read gradient norm < gradient norm all-reduce",
        *END[1:],
        "parameter all-gather [dp 768] < convert weights",
    ]


@pytest.mark.parametrize(
    ("plan", "gathered"),
    [
        ({"fp8_params": True, "fp8_scaling": "delayed"}, [2 * 128, 1 * 256, 2 * 384]),
        ({"fp8_params": True, "fp8_scaling": "current"}, [2 * 128, 1 * 256, 2 * 384]),
        ({"fp8_params": True, "fp8_scaling": "blocks"}, [2 * 128, 2 * 256, 2 * 384]),
        ({"fp8_params": False}, [2 * 128, 2 * 256, 2 * 384]),
    ],
    ids=str,
)
def test_weights_of_products_in_fp8_are_gathered_in_fp8(
    plan: dict[str, object], gathered: list[int]
) -> None:
    """Those of the block; embedding and head multiply in 16 bits."""
    net = (layer("embedding", 128), layer("a", 256), layer("head", 384))
    keys = {"dp_style": "megatron", "zero": 1, "bucket": 100, "precision": "fp8", **plan}
    table = stepped(net, 2, **keys).program.table_of(0)
    assert table.bytes[table.operation == Operation.ALL_GATHER].tolist() == gathered


def test_only_the_last_backward_reduces_and_only_the_first_forward_gathers() -> None:
    rows = told(stepped(NET, 2, dp_style="megatron", zero=1, bucket=400, global_batch=6).program)
    gathers = [i for i, row in enumerate(rows) if row.startswith("parameter all-gather")]
    scatters = [i for i, row in enumerate(rows) if row.startswith("gradient reduce-scatter")]
    firsts = [i for i, row in enumerate(rows) if row.startswith("head forward")]
    lasts = [i for i, row in enumerate(rows) if row.startswith("head backward")]
    assert max(gathers) < firsts[0]
    assert min(scatters) > lasts[2]
    assert (len(gathers), len(scatters)) == (3, 3)


@pytest.mark.parametrize(("dp", "limit"), [(8, 40_000_000), (64, 64_000_000)])
def test_default_bucket_of_megatron(dp: int, limit: int) -> None:
    # max(40,000,000, 1,000,000 × dp) elements, reached with the parameter that crosses it.
    net = (layer("a", *[10_000_000] * 20),)
    sizes = [bucket.size for bucket in megatron(net, dp=dp).buckets.values()]
    assert sizes[0] == -(-limit // 10_000_000) * 10_000_000
    assert sum(sizes) == 200_000_000


def test_later_stages_have_one_bucket() -> None:
    plan = {"dp": 2, "pp": 2, "bucket": 100}
    assert len(megatron(NET, stage=0, **plan).buckets) == 3
    assert len(megatron(NET, stage=1, **plan).buckets) == 1


def test_tied_embeddings_have_a_bucket_of_their_own_in_a_pipeline() -> None:
    # So that both stages spread them alike (_does_param_require_new_bucket).
    tied = Parameter("words", 256, tied=True)
    net = (layer("embedding", tied, 8), layer("a", 40))
    for pp, sizes in ((2, [128, 256]), (1, [384])):
        found = megatron(net, dp=2, pp=pp, zero=1)
        assert [bucket.size for bucket in found.buckets.values()] == sizes


def test_experts_have_buckets_and_ranks_of_their_own() -> None:
    # dp 4, ep 2: an expert is held by two ranks, the rest by four.
    expert = Parameter("expert", 100, expert=True)
    net = (layer("a", 40, expert), layer("b", 40, expert))
    rows = told(stepped(net, 4, dp_style="megatron", ep=2).program)
    at = rows.index("a0 backward")
    assert rows[at - 3 :] == [
        # The experts are complete with the first of layer a's operators, in reverse.
        "a1 backward",
        "scale gradients",
        "gradient all-reduce [edp 800] < scale gradients",
        "a0 backward",
        "scale gradients",
        "gradient all-reduce [dp 320] < scale gradients",
        "gradient norm < gradient all-reduce, gradient all-reduce",
        *END[:2],
        "gradient norm",
        "gradient norm all-reduce [emodel 4] < gradient norm",
        "read gradient norm < gradient norm all-reduce",
        *END[1:],
    ]


def test_distributed_optimizer_of_several_instances() -> None:
    # Of 4 ranks each two share an optimizer: reduce-scatter among two, all-reduce of the half.
    rows = told(stepped(NET, 4, dp_style="megatron", zero=1, zero_group=2).program)
    at = rows.index("scale gradients")
    assert rows[at + 1 : at + 4] == [
        "gradient reduce-scatter [shard 1536] < scale gradients",
        "gradient shard all-reduce [replica 768] < scale gradients",
        "gradient norm < gradient reduce-scatter, gradient shard all-reduce",
    ]
    assert "gradient norm all-reduce [instance 4] < gradient norm" in rows
    table = stepped(NET, 4, dp_style="megatron", zero=1, zero_group=2).program.table_of(0)
    reductions = table.stream[table.bytes == 1536], table.stream[table.bytes == 768]
    assert set(reductions[0].tolist()) <= set(reductions[1].tolist())  # one stream, in order


def test_interleaved_chunks_are_gathered_and_reduced_whole() -> None:
    # pp 2 × vpp 3 on 4 ranks, dp 2: stage 0 holds layers 0, 2 and 4.
    net = tuple(layer(f"l{i}", 128) for i in range(6))
    plan = {"pp": 2, "vpp": 3, "schedule": "interleaved", "zero": 1, "global_batch": 4}
    told_all = told(stepped(net, 4, dp_style="megatron", **plan).program)
    rows = [row.split(" <")[0] for row in told_all]
    rows = [row for row in rows if not row.startswith(("send", "receive"))]
    gather, scatter = "parameter all-gather [dp 256]", "gradient reduce-scatter [dp 512]"
    assert rows[: rows.index("gradient norm")] == [
        *["zero gradients"] * 3,
        gather,
        gather,  # of two chunks at once
        "l0 forward",
        "l0 forward",
        gather,  # of the third, when the second begins
        "l2 forward",
        "l2 forward",
        "l4 forward",
        "l4 forward",
        "l4 backward",
        "l4 backward",
        "scale gradients",
        scatter,
        "l2 backward",
        "l2 backward",
        "scale gradients",
        scatter,
        "l0 backward",
        "l0 backward",
        "scale gradients",
        scatter,
    ]
    assert "l0 forward < parameter all-gather" in told_all
