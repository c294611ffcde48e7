"""Tensor and sequence parallelism: steps worked out by hand, and published volumes."""

from __future__ import annotations

from collections.abc import Iterable

import published_formulas
import pytest
from transformers import communications, lines, model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.program import Operation
from mpisim.workloads.operators import Communicate, Compute, Task

# 8 tokens of 16 features, 4 heads of 4, 64 inner features; two ranks.
TINY = model("gpt", layers=1, hidden=16, heads=4, seq_len=8, vocab=256)

HIDDEN = 8 * 16 * 2
"""Bytes of all tokens in bf16."""


def test_a_matrix_split_by_columns_all_reduces_its_input_gradient() -> None:
    matrix = operator(network(TINY, plan(tp=2, sp=False)), "qkv")
    assert lines(matrix.forward) == ["qkv: 8 x 24 x 16 bf16"]
    assert lines(matrix.backward) == [
        "qkv input gradient: 8 x 16 x 24 bf16",
        f"qkv input gradient all-reduce: AR tp {HIDDEN} => reduced",
        "qkv weight gradient: 24 x 16 x 8 bf16 += (weight)",
        f"qkv bias gradient accumulation: {24 * (2 + 4 + 4)} bytes (weight)",
    ]


def test_older_frameworks_reduce_after_both_gradients_and_add_in_a_kernel_of_its_own() -> None:
    old = plan(tp=2, sp=False, overlap_dgrad=False, fused_wgrad=False)
    assert lines(operator(network(TINY, old), "qkv").backward) == [
        "qkv input gradient: 8 x 16 x 24 bf16",
        "qkv weight gradient: 24 x 16 x 8 bf16 (weight)",
        f"qkv weight gradient accumulation: {24 * 16 * (2 + 4 + 4)} bytes (weight)",
        f"qkv input gradient all-reduce: AR tp {HIDDEN}",
        f"qkv bias gradient accumulation: {24 * (2 + 4 + 4)} bytes (weight)",
    ]


def test_with_sequence_parallelism_it_gathers_its_input_twice() -> None:
    matrix = operator(network(TINY, plan(tp=2)), "qkv")
    assert lines(matrix.forward) == [f"qkv all-gather: AG tp {HIDDEN}", "qkv: 8 x 24 x 16 bf16"]
    assert lines(matrix.backward) == [
        f"qkv all-gather: AG tp {HIDDEN} => gathered (weight)",
        "qkv input gradient: 8 x 16 x 24 bf16",
        f"qkv input gradient reduce-scatter: RS tp {HIDDEN} => reduced",
        "qkv weight gradient: 24 x 16 x 8 bf16 += after gathered (weight)",
        f"qkv bias gradient accumulation: {24 * (2 + 4 + 4)} bytes (weight)",
    ]


def test_a_matrix_split_by_rows() -> None:
    matrix = operator(network(TINY, plan(tp=2, sp=False)), "feed-forward out")
    assert lines(matrix.forward) == [
        "feed-forward out: 8 x 16 x 32 bf16",
        f"feed-forward out all-reduce: AR tp {HIDDEN}",
    ]
    assert lines(matrix.backward) == [
        "feed-forward out input gradient: 8 x 32 x 16 bf16",
        "feed-forward out weight gradient: 16 x 32 x 8 bf16 += (weight)",
    ]


def test_with_sequence_parallelism_its_result_is_scattered() -> None:
    matrix = operator(network(TINY, plan(tp=2)), "feed-forward out")
    assert lines(matrix.forward) == [
        "feed-forward out: 8 x 16 x 32 bf16",
        f"feed-forward out reduce-scatter: RS tp {HIDDEN}",
    ]
    assert lines(matrix.backward) == [
        f"feed-forward out gradient all-gather: AG tp {HIDDEN}",
        "feed-forward out input gradient: 8 x 32 x 16 bf16",
        "feed-forward out weight gradient: 16 x 32 x 8 bf16 += (weight)",
    ]


def test_one_rank_communicates_nothing() -> None:
    for layer in network(TINY, plan()).layers:
        assert communications(layer) == communications(layer, backward=True) == []


def test_a_block_without_sequence_parallelism() -> None:
    embedding, block, head = network(TINY, plan(tp=2, sp=False)).layers
    assert communications(block) == 2 * [("AR", "tp", HIDDEN)]
    assert communications(block, backward=True) == 2 * [("AR", "tp", HIDDEN)]
    assert communications(embedding) == [("AR", "tp", HIDDEN)]
    assert communications(embedding, backward=True) == []
    # Cross-entropy: the maximum, then the target's score and the sum together; fp32.
    assert communications(head) == [("AR", "tp", 8 * 4), ("AR", "tp", 2 * 8 * 4)]
    assert communications(head, backward=True) == [("AR", "tp", HIDDEN)]


def test_a_block_with_sequence_parallelism() -> None:
    embedding, block, head = network(TINY, plan(tp=2)).layers
    gather, scatter = ("AG", "tp", HIDDEN), ("RS", "tp", HIDDEN)
    assert communications(block) == [gather, scatter] * 2
    # Gradient of the row-split matrix, input of the column-split one, its gradient.
    assert communications(block, backward=True) == [gather, gather, scatter] * 2
    # Positions are added to the whole sequence; then each rank keeps its share.
    assert communications(embedding) == [("AR", "tp", HIDDEN)]
    assert communications(embedding, backward=True) == [gather]
    assert communications(head)[0] == gather
    assert communications(head, backward=True) == [gather, scatter]


def test_without_positions_to_add_the_embedding_is_scattered_at_once() -> None:
    llama = model("llama", layers=1, hidden=16, heads=4, seq_len=8, vocab=256)
    embedding = network(llama, plan(tp=2)).layers[0]
    assert communications(embedding) == [("RS", "tp", HIDDEN)]
    assert communications(embedding, backward=True) == [("AG", "tp", HIDDEN)]


def test_cross_entropy_step_by_step_has_three_all_reduces() -> None:
    loss = operator(network(TINY, plan(tp=2, fused=False)), "loss")
    names = [step.name for step in loss.forward if isinstance(step, Communicate)]
    assert names == [f"loss {what} all-reduce" for what in ("maximum", "target", "sum")]
    assert {step.bytes for step in loss.forward if isinstance(step, Communicate)} == {8 * 4}


def test_cross_entropy_alone_may_be_fused() -> None:
    def loss(**keys: bool) -> tuple[Task, ...]:
        return operator(network(TINY, plan(tp=2, **keys)), "loss").forward

    assert loss(fused=False, fused_loss=True) == loss()
    assert loss(fused_loss=False) == loss(fused=False)


def test_one_kernel_may_compute_loss_and_gradient() -> None:
    """Scores of 8 tokens and 256 entries in 2 bytes: read once, and their gradient written."""
    loss = operator(network(TINY, plan(loss_gradient="forward")), "loss")
    assert lines(loss.forward) == [f"loss: {2 * 2 * 8 * 256} bytes"]
    assert loss.backward == ()
    shared = network(TINY, plan(tp=2, loss_gradient="forward"))
    assert operator(shared, "loss") == operator(network(TINY, plan(tp=2)), "loss")


def test_a_loss_of_compiled_functions() -> None:
    """Scores of 8 tokens and 128 entries: to fp32, exponentials in place, shares in place."""
    head = operator(network(TINY, plan(tp=2, compiled_loss=True)), "loss")
    size = 8 * 128
    assert lines(head.forward) == [
        f"loss maximum: {6 * size} bytes",
        "loss maximum all-reduce: AR tp 32",
        f"loss exponential: {8 * size} bytes",
        "loss target and sum all-reduce: AR tp 64",
        f"loss softmax: {8 * size} bytes",
    ]
    assert lines(head.backward) == [f"loss backward: {6 * size} bytes"]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_volumes_are_the_published_ones(tp: int) -> None:
    gpt = model("gpt", layers=3, hidden=128, heads=8, seq_len=64, vocab=1024)
    volume = published_formulas.tensor_parallel_bytes(gpt, 2 * 64, layers=3)

    def total(sp: bool, *operations: str) -> int:
        blocks = network(gpt, plan(tp=tp, sp=sp, micro_batch=2)).of_role("block")
        return sum(
            size
            for block in blocks
            for backward in (False, True)
            for operation, _, size in communications(block, backward=backward)
            if operation in operations
        )

    assert total(False, "AR") == volume
    assert total(True, "RS") == volume
    # As many, and the inputs that were kept in shares once more: two of four in each layer.
    assert total(True, "AG") == volume + volume // 2
    assert total(True, "AR") == total(False, "AG", "RS") == 0


# --- chunks that overlap with their communication -------------------------------------------------


def test_gather_and_multiply_in_chunks() -> None:
    matrix = operator(network(TINY, plan(tp=4, overlap_tp=True)), "feed-forward in")
    share = HIDDEN // 4
    assert lines(matrix.forward) == [
        f"feed-forward in exchange: ring tp {share} => chunk 1",
        "feed-forward in chunk: 2 x 16 x 16 bf16",
        f"feed-forward in exchange: ring tp {share} => chunk 2 after chunk 1",
        "feed-forward in chunk: 2 x 16 x 16 bf16 after chunk 1",
        f"feed-forward in exchange: ring tp {share} => chunk 3 after chunk 2",
        "feed-forward in chunk: 2 x 16 x 16 bf16 after chunk 2",
        "feed-forward in chunk: 2 x 16 x 16 bf16 after chunk 3",
    ]
    # Its two exchanges backward are beside a whole product each as it is.
    whole = operator(network(TINY, plan(tp=4)), "feed-forward in")
    assert matrix.backward == whole.backward


def test_chunks_in_pairs() -> None:
    """Neighbours swap theirs first; then half as many products of twice the rows."""
    found = plan(tp=4, overlap_tp=True, overlap_tp_pairs=True)
    matrix = operator(network(TINY, found), "feed-forward in")
    share = 2 * 2 * 16
    assert lines(matrix.forward) == [
        f"feed-forward in exchange: ring tp {share}",
        f"feed-forward in exchange: ring tp {2 * share} => chunk 1",
        "feed-forward in chunk: 4 x 16 x 16 bf16",
        "feed-forward in chunk: 4 x 16 x 16 bf16 after chunk 1",
    ]


def test_chunks_sent_to_their_ranks() -> None:
    found = plan(tp=2, overlap_tp=True, overlap_tp_scatter="ring")
    matrix = operator(network(TINY, found), "attention output")
    assert lines(matrix.forward) == [
        "attention output chunk: 4 x 16 x 8 bf16",
        "attention output exchange: ring tp 128 => sum 1",
        "attention output chunk: 4 x 16 x 8 bf16",
        "attention output sum: 384 bytes after sum 1",
    ]


def test_parts_in_fp8() -> None:
    found = plan(tp=2, overlap_tp=True, overlap_tp_fp8=True, precision="fp8")
    matrix = operator(network(TINY, found), "attention output")
    sizes = [step.bytes for step in matrix.forward if hasattr(step, "bytes")]
    assert sizes == [2 * 16] * 4


@pytest.mark.parametrize(
    ("keys", "copied"),
    [
        ({"overlap_tp_scatter": "ring"}, True),  # use_ce of Transformer Engine
        ({"sp_style": "pytorch", "dp_style": "fsdp", "zero": 3}, True),  # symmetric memory
        ({"dp_style": "fsdp", "zero": 3}, False),  # XLA: send and receive of NCCL
    ],
    ids=str,
)
def test_who_moves_chunks(keys: dict[str, object], copied: bool) -> None:
    found = network(TINY, plan(tp=4, overlap_tp=True, **keys))
    for name in ("feed-forward in", "attention output"):
        steps = [each for each in operator(found, name).forward if isinstance(each, Communicate)]
        assert {(each.operation, each.copy_engine) for each in steps} == {
            (Operation.SEND_RECV, copied)
        }


def test_multiply_and_scatter_in_chunks() -> None:
    # Transformer Engine: 4 parts, each reduce-scattered beside the product of the next.
    matrix = operator(network(TINY, plan(tp=2, overlap_tp=True)), "attention output")
    assert lines(matrix.forward) == [
        line
        for part in range(4)
        for line in (
            "attention output chunk: 2 x 16 x 8 bf16",
            f"attention output reduce-scatter: RS tp {HIDDEN // 4} => part {part}",
        )
    ]
    # As many as the share of a rank can be cut into: 4 tokens of each of 2, 2 of each of 4.
    (first, *_) = operator(network(TINY, plan(tp=4, overlap_tp=True)), "attention output").forward
    assert lines([first]) == ["attention output chunk: 4 x 16 x 4 bf16"]


def test_multiply_and_scatter_round_the_ring() -> None:
    asynchronous = plan(tp=2, overlap_tp=True, dp_style="fsdp", zero=3)
    matrix = operator(network(TINY, asynchronous), "attention output")
    share = HIDDEN // 2
    assert lines(matrix.forward) == [
        "attention output chunk: 4 x 16 x 8 bf16",
        f"attention output exchange: ring tp {share} => sum 1",
        "attention output chunk: 4 x 16 x 8 bf16",
        f"attention output sum: {3 * share} bytes after sum 1",
    ]
    assert lines(matrix.backward) == [
        f"attention output input gradient exchange: ring tp {share} => chunk 1",
        "attention output input gradient chunk: 4 x 8 x 16 bf16",
        "attention output input gradient chunk: 4 x 8 x 16 bf16 after chunk 1",
        # Each micro-batch is reduced: nothing is added to those before.
        "attention output weight gradient: 16 x 8 x 8 bf16 (weight)",
    ]


# --- number formats ------------------------------------------------------------------------------


def test_fp8_gathers_one_byte_an_element_and_scatters_two() -> None:
    fp8 = network(TINY, plan(tp=2, precision="fp8"))
    matrix = operator(fp8, "qkv")
    # With scales of steps before, the norm casts.
    assert lines(matrix.forward) == [
        f"qkv all-gather: AG tp {HIDDEN // 2}",
        "qkv: 8 x 24 x 16 fp8",
    ]
    assert lines(matrix.backward)[:5] == [
        f"qkv gradient cast: {8 * 24 * (2 + 1 + 1)} bytes",
        f"qkv all-gather: AG tp {HIDDEN // 2} => gathered (weight)",
        "qkv input gradient: 8 x 16 x 24 fp8",
        f"qkv input gradient reduce-scatter: RS tp {HIDDEN} => reduced",
        f"qkv transposition: {8 * 16 * 2} bytes after gathered (weight)",
    ]
    # Scores of the vocabulary and attention stay in bf16.
    assert lines(operator(fp8, "logits").forward)[1].endswith("bf16")


def test_scores_of_the_vocabulary_in_fp8() -> None:
    """`fp8_output_proj` of Megatron-LM: all three products, whose operands are cast."""
    head = operator(network(TINY, plan(precision="fp8", precision_logits="fp8")), "logits")
    forward = [line for line in lines(head.forward) if line.startswith("logits: ")]
    assert forward == ["logits: 8 x 256 x 16 fp8"]
    gradients = [line for line in lines(head.backward) if " gradient: " in line]
    assert sum(" x " in line for line in gradients) == 2
    assert not [line for line in gradients if " x " in line and line.endswith("bf16")]
    with pytest.raises(InputError, match="logits is 'fp8', but products is 'bf16'"):
        plan(precision_logits="fp8")


@pytest.mark.parametrize(
    ("keys", "normed", "made", "sent", "turned"),
    [
        # Bytes an element to cast the input of a matrix split by columns, the gradient of its
        # output, and the gradient of what a matrix split by rows makes, which is gathered; then
        # whether what was gathered is turned. Of what is gathered the largest value is known.
        ({"fp8_scaling": "delayed"}, 0, 2 + 2, 2 + 1, True),
        ({"fp8_scaling": "delayed", "fp8_transposed": False}, 0, 2 + 1, 2 + 1, False),
        ({"fp8_scaling": "current"}, 2 + 1, 2 + 2 + 2, 2 + 1, True),
        ({"fp8_scaling": "current", "fp8_transposed": False}, 3, 5, 3, False),
        ({"fp8_scaling": "blocks", "fp8_transposed": False}, 4, 4, 4, False),
    ],
    ids=str,
)
def test_casts_to_fp8(
    keys: dict[str, object], normed: int, made: int, sent: int, turned: bool
) -> None:
    fp8 = network(TINY, plan(tp=2, precision="fp8", **keys))
    columns, rows = operator(fp8, "qkv"), operator(fp8, "attention output")
    steps = lines([*columns.forward, *columns.backward, *rows.backward])
    expected = [f"qkv cast: {normed * 4 * 16} bytes"] if normed else []
    expected.append(f"qkv gradient cast: {made * 8 * 24} bytes")
    if turned:
        expected.append(f"qkv transposition: {2 * 8 * 16} bytes after gathered (weight)")
    expected.append(f"attention output gradient cast: {sent * 4 * 16} bytes")
    if turned:
        expected.append(f"attention output gradient transposition: {2 * 8 * 16} bytes (weight)")
    assert [each for each in steps if " cast:" in each or "transposition" in each] == expected


def test_nvfp4_reads_three_times_to_cast() -> None:
    # For the largest values, to be written as it is, and transposed; 4 bits and a sixteenth of 8.
    nvfp4 = network(TINY, plan(tp=2, precision="nvfp4"))
    matrix = operator(nvfp4, "qkv")
    assert lines(operator(nvfp4, "attention output").forward)[0] == (
        f"attention output cast: {8 * 8 * 3 * 2 + 2 * 8 * 8 * 9 // 16} bytes"
    )
    assert lines(matrix.forward) == [
        f"qkv largest value: {4 * 16 * 2} bytes",
        "qkv scale all-reduce: AR tp 4",
        f"qkv cast: {4 * 16 * 2 * 2 + 2 * 4 * 16 * 9 // 16} bytes",
        f"qkv all-gather: AG tp {8 * 16 * 9 // 16}",
        "qkv: 8 x 24 x 16 nvfp4",
    ]
    assert matrix.saved == 4 * 16 * 9 // 16 + 2 * 8 * 24  # and queries, keys and values in bf16
    assert lines(operator(nvfp4, "logits").forward)[1].endswith("bf16")


@pytest.mark.parametrize(
    ("keys", "search", "alone"),
    [
        # Small kernels beside the search of a largest value that ranks share, beside the cast
        # behind it, and beside a cast that finds the value itself.
        ({"precision": "fp8", "fp8_scaling": "current"}, (1, 1), 3),
        ({"precision": "nvfp4"}, (1, 0), 2),
    ],
    ids=str,
)
def test_one_scale_of_what_ranks_gather(
    keys: dict[str, object], search: tuple[int, int], alone: int
) -> None:
    """`with_amax_reduction` of Transformer Engine's quantizers, with sequence parallelism."""
    made = network(TINY, plan(tp=2, **keys))
    columns, rows = operator(made, "qkv"), operator(made, "attention output")
    for steps, name in ((columns.forward, "qkv"), (rows.backward, "attention output gradient")):
        first, reduction, cast = steps[:3]
        assert [first.name, reduction.name, cast.name] == [
            f"{name} largest value",
            f"{name} scale all-reduce",
            f"{name} cast",
        ]
        assert isinstance(first, Compute)
        assert isinstance(cast, Compute)
        assert (first.calls, cast.calls) == search
    for steps in (columns.backward, rows.forward):
        assert isinstance(steps[0], Compute)
        assert steps[0].name.endswith(" cast")
        assert steps[0].calls == alone
    for without in (plan(tp=2, sp=False, **keys), plan(**keys), plan(tp=2, precision="fp8")):
        steps = (*operator(network(TINY, without), "qkv").forward,)
        assert not [each for each in steps if each.name.endswith(("largest value", "all-reduce"))]


def test_kernels_that_put_scales_of_nvfp4_in_order() -> None:
    """Two behind each cast, one for each layout (`scales_apart`)."""
    for apart in (False, True):
        matrix = operator(
            network(TINY, plan(precision="nvfp4", scales_apart=apart)), "attention output"
        )
        casts = [
            each
            for each in (*matrix.forward, *matrix.backward)
            if isinstance(each, Compute) and each.name.endswith(" cast")
        ]
        assert len(casts) == 2  # of what enters, and of the gradient
        for each in casts:
            assert each.launches == (3 if apart else 1)
            assert isinstance(each.kernel, Elementwise)
            assert each.kernel.variant == ("scales_apart" if apart else None)


@pytest.mark.parametrize(("precision", "element"), [("fp32", 4), ("tf32", 4), ("fp16", 2)])
def test_activations_have_the_precision_of_the_plan(precision: str, element: int) -> None:
    matrix = operator(network(TINY, plan(tp=2, precision=precision)), "qkv")
    assert lines(matrix.forward) == [
        f"qkv all-gather: AG tp {8 * 16 * element}",
        f"qkv: 8 x 24 x 16 {precision}",
    ]


def test_gradients_of_weights_are_added_where_the_framework_keeps_them() -> None:
    def backward(**keys: object) -> list[str]:
        return lines(operator(network(TINY, plan(**keys)), "feed-forward out").backward)[1:]

    size = 16 * 64
    assert backward() == ["feed-forward out weight gradient: 16 x 64 x 8 bf16 += (weight)"]
    separate = "feed-forward out weight gradient: 16 x 64 x 8 bf16 (weight)"
    added = "feed-forward out weight gradient accumulation"
    assert backward(fused=False) == [separate, f"{added}: {size * (2 + 4 + 4)} bytes (weight)"]
    assert backward(dp_style="ddp") == [separate, f"{added}: {size * 3 * 2} bytes (weight)"]
    assert backward(dp_style="ddp", global_batch=1) == [separate]
    # DeepSpeed's BF16_Optimizer: in every micro-batch a copy in fp32, which is added.
    widened = [
        separate,
        f"feed-forward out weight gradient cast: {size * (2 + 4)} bytes (weight)",
        f"{added}: {size * 3 * 4} bytes (weight)",
    ]
    assert backward(dp_style="deepspeed", precision_gradients="fp32") == widened
    assert backward(dp_style="deepspeed", precision_gradients="fp32", global_batch=1) == widened
    assert backward(dp_style="deepspeed") == [separate, f"{added}: {size * 3 * 2} bytes (weight)"]


def test_gradients_in_fp8_have_split_sums() -> None:
    for keys, variant in (({}, "split"), ({"fp8_split_sums": False}, None)):
        found = network(TINY, plan(tp=2, precision="fp8", **keys))
        matrix = operator(found, "qkv")
        assert products(matrix.forward) == [None]
        assert products(matrix.backward) == [variant, variant]
        # Scores are multiplied in bf16.
        assert products(operator(found, "logits").backward) == [None, None]


def products(steps: Iterable[Task]) -> list[str | None]:
    """Variants of the products among steps."""
    kernels = [step.kernel for step in steps if isinstance(step, Compute)]
    return [kernel.variant for kernel in kernels if isinstance(kernel, Gemm)]
