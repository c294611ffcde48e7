"""Calls of operators → kernels, beside numpy's shapes and sizes and counting by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.numbers import number
from mpisim.kernels.operations import Convolution, Copy, Elementwise, Embedding, Gemm, Kernel
from mpisim.operators import Argument, OperatorCall, TensorSpec, kernels_of
from mpisim.operators.collectives import is_collective
from mpisim.operators.table import TABLE
from mpisim.operators.temporaries import temporary_bytes
from mpisim.operators.tensors import DTYPES, broadcast, torch_dtype

SIZES = st.integers(1, 9)
SHAPES = st.lists(st.sampled_from([1, 1, 3, 5]), max_size=4).map(tuple)


def of(name: str, *inputs: Argument, out: TensorSpec | None = None) -> tuple[Kernel, ...]:
    """Name and inputs → kernels of a call that the table must know."""
    launched = kernels_of(OperatorCall(name, inputs, () if out is None else (out,)))
    assert launched.known, name
    return launched.kernels


def half(*shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec("bfloat16", shape, strides)


def whole(*shape: int) -> TensorSpec:
    return TensorSpec("int64", shape)


@given(SHAPES, SHAPES)
def test_results_have_the_shape_that_numpy_gives(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        return
    assert broadcast([a, b]) == expected
    moved = sum(np.zeros(shape, np.float32).nbytes for shape in (a, b, expected))
    single = [TensorSpec("float32", shape) for shape in (a, b)]
    (kernel,) = of("aten::mul", *single)
    assert kernel.traffic == moved


@given(SIZES, SIZES, SIZES, SIZES)
def test_products_multiply_as_often_as_loops_do(m: int, n: int, k: int, batch: int) -> None:
    count = 2 * np.einsum("bmk,bkn->bmn", np.ones((batch, m, k)), np.ones((batch, k, n))).sum()
    (kernel,) = of("aten::bmm", half(batch, m, k), half(batch, k, n))
    assert kernel.flops == count
    for name, *inputs in (
        ("aten::mm", half(m, k), half(k, n)),
        ("aten::addmm", half(n), half(m, k), half(k, n)),
        ("aten::linear", half(m, k), half(n, k)),
        ("aten::matmul", half(m, k), half(k, n)),
    ):
        (kernel,) = of(name, *inputs)
        assert kernel.flops * batch == count
        assert kernel.traffic == 2 * (m * k + k * n + m * n)


@given(SIZES, SIZES, SIZES)
def test_rows_of_an_odd_length_have_kernels_of_their_own(m: int, n: int, k: int) -> None:
    def begin_at_words(*shape: int) -> bool:
        rows = np.zeros((3, *shape), np.float16)
        places = [step for step, size in zip(rows.strides[:-1], rows.shape) if size > 1]
        return all(step % 4 == 0 or (step == 2 and shape[-1] == 1) for step in places)

    inputs = half(3, m, k), half(3, k, n)
    (kernel,) = of("aten::bmm", *inputs)
    assert isinstance(kernel, Gemm)
    aligned = all(begin_at_words(*sides) for sides in ((m, k), (k, n))) and (n == 1 or n % 2 == 0)
    assert kernel.variant == (None if aligned else "unaligned")
    # A transposed view of an aligned matrix has its own rows, not those of its shape.
    turned = half(8, 5, strides=(1, 8))
    assert of("aten::mm", half(5, 8), half(8, 6)) == (Gemm(5, 6, 8),)
    assert of("aten::mm", turned, half(5, 6)) == (Gemm(8, 6, 5),)
    (single,) = of("aten::mm", TensorSpec("float32", (5, 7)), TensorSpec("float32", (7, 3)))
    assert isinstance(single, Gemm)
    assert single.variant is None


def test_what_lies_alike_is_gone_through_as_one_dimension() -> None:
    """Images whose channels are last, a transposed matrix; not one of each, nor part of a row."""
    last = half(2, 8, 5, 5, strides=(200, 1, 40, 8))
    first = half(2, 8, 5, 5, strides=(200, 25, 5, 1))
    holes = half(8, 4, strides=(8, 1))
    turned = half(8, 5, strides=(1, 8))
    for operands, indexed in (
        ((last, last), 0),
        ((turned, turned), 0),
        ((first, first), 0),
        ((last, first), 400),
        ((holes, holes), 32),
        ((turned, half(8, 5, strides=(5, 1))), 40),
    ):
        (kernel,) = of("aten::add", *operands)
        assert isinstance(kernel, Elementwise)
        assert (kernel.indexed or 0) == indexed
        (cloned,) = of("aten::copy_", *operands)
        assert isinstance(cloned, Elementwise if indexed else Copy)


@given(SIZES, SIZES, st.integers(3, 9), st.sampled_from([1, 3]), st.sampled_from([1, 2]))
def test_convolutions_multiply_as_often_as_loops_do(
    inputs: int, outputs: int, side: int, filter_: int, stride: int
) -> None:
    x, weight = half(2, inputs, side, side), half(outputs, inputs, filter_, filter_)
    pad = filter_ // 2
    places = len(range(0, side + 2 * pad - filter_ + 1, stride))
    count = 2 * 2 * places**2 * outputs * inputs * filter_**2
    pair = (stride, stride), (pad, pad), (1, 1)
    forward = of("aten::convolution", x, weight, None, *pair, False, (0, 0), 1)
    turned = [2 * 2 * 2 * n for n in (inputs * side**2, outputs * places**2)]
    turned = [size for size, channels in zip(turned, (inputs, outputs)) if channels > 4]
    assert [each.traffic for each in forward if not each.flops] == turned
    assert sum(each.flops for each in forward) == count
    assert of("aten::cudnn_convolution", x, weight, pair[1], pair[0], pair[2], 1) == forward
    gradient = half(2, outputs, places, places)
    back = of(
        "aten::convolution_backward",
        *(gradient, x, weight, None, *pair, False, (0, 0), 1, (True, True, False)),
    )
    assert [each.flops for each in back if each.flops] == [count, count]


def test_tf32_needs_channels_in_fours() -> None:
    for channels, formats in ((3, ["fp32"]), (4, ["tf32"]), (6, ["fp32"]), (8, ["tf32"])):
        x, weight = (
            TensorSpec("float32", shape) for shape in ((2, channels, 9, 9), (8, channels, 3, 3))
        )
        found = of("aten::convolution", x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        assert [each.dtype for each in found if isinstance(each, Convolution)] == formats
        # Nothing is turned for an image that is convolved as it lies.
        assert (len(found) > 1) == (formats == ["tf32"])


def test_filters_that_are_not_square_are_counted() -> None:
    strides = (800, 1, 8)  # channels last: nothing is turned
    (kernel,) = of(
        "aten::convolution",
        *(half(4, 8, 100, strides=strides), half(16, 8, 5), None, (1,), (2,), (1,), False, (0,), 1),
    )
    assert kernel.flops == 2 * 4 * 16 * 100 * 8 * 5


@given(st.integers(1, 3), SIZES, st.integers(1, 64), st.booleans())
def test_attention_multiplies_what_the_mask_leaves(
    batch: int, heads: int, tokens: int, causal: bool
) -> None:
    size = 16
    q = half(batch, heads, tokens, size)
    (kernel,) = of("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, causal, False)
    scores = tokens * tokens / 2 if causal else tokens * tokens
    assert kernel.flops == 2 * 2 * batch * heads * scores * size
    packed = half(batch * tokens, heads, size)
    starts = TensorSpec("int32", (batch + 1,))
    forward = of("flash_attn::_flash_attn_varlen_forward", *[packed] * 3, *[starts] * 2,
                 tokens, tokens, 0.0, 1.0, causal)  # fmt: skip
    assert forward == (kernel,)
    (back,) = of("FlashAttnVarlenFuncBackward", packed, (packed, packed, packed, starts, starts))
    (causal_forward,) = of("FlashAttnVarlenFunc", packed, packed, packed, starts, starts)
    assert back.flops * 2 == causal_forward.flops * 5


def test_copies_are_of_memory_where_both_lie_alike() -> None:
    lying, turned = half(64, 32, strides=(32, 1)), half(64, 32, strides=(1, 64))
    assert of("aten::copy_", lying, lying) == (Copy(64 * 32 * 2),)
    assert of("aten::copy_", lying, turned) == (Elementwise(2 * 64 * 32 * 2, indexed=64 * 32),)
    wide = TensorSpec("float32", (64, 32), (32, 1))
    assert of("aten::_to_copy", lying, out=wide) == (Elementwise(64 * 32 * (2 + 4)),)


def test_what_is_broadcast_by_strides_is_read_once() -> None:
    row = half(64, 32, strides=(0, 1))
    assert of("aten::add", half(64, 32), row) == (
        Elementwise(2 * (2 * 64 * 32 + 32), indexed=64 * 32),
    )


def test_batches_of_products_with_vectors_stream() -> None:
    def fp32(*sizes: int) -> TensorSpec:
        return TensorSpec("float32", sizes)

    vectors = Elementwise(4 * 64 * (32 * 16 + 16 + 32))
    assert of("aten::bmm", fp32(64, 32, 16), fp32(64, 16, 1)) == (vectors,)
    assert of("aten::bmm", fp32(64, 1, 16), fp32(64, 16, 32)) == (vectors,)
    outer = Elementwise(4 * 64 * (32 + 32 + 32 * 32))
    assert of("aten::bmm", fp32(64, 32, 1), fp32(64, 1, 32)) == (outer,)
    (tiled,) = of("aten::mm", fp32(32, 16), fp32(16, 1))
    assert isinstance(tiled, Gemm)


def test_tables_of_fbgemm() -> None:
    """The shapes of a recorded call: 3 tables of width 16, 128 samples, 768 lookups."""
    floats = [TensorSpec("float32", (n,)) for n in (0, 640649648, 0)]
    ints = [TensorSpec("int32", (3,)), whole(3), TensorSpec("int32", (4,))]
    rest = (48, 16, whole(4), 24, whole(768), whole(385), 0)
    inputs = (*floats, TensorSpec("float32", (0, 0)), *ints, *rest)
    out = TensorSpec("float32", (128, 48))
    (kernel,) = of("fbgemm::split_embedding_codegen_lookup_adagrad_function", *inputs, out=out)
    assert kernel == Embedding(768, 16, 640649648 // 16, pooling=2, dtype="fp32", outputs=384)
    back = of("torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>", out, inputs)
    assert back[-1] == replace(kernel, backward=True, sorts=False)
    # 26 bits of 40,040,603 rows would take four passes; 768 keys are sorted in one block.
    assert sum(each.traffic == 2 * 768 * 12 for each in back) == 1
    # Row-wise Adagrad keeps a number for each of 1,000 rows, here of one table.
    floats = [TensorSpec("float32", (n,)) for n in (0, 96000, 0)]
    ints = [TensorSpec("int32", (1,)), whole(1), TensorSpec("int32", (2,))]
    rest = (96, 96, whole(2), 10, whole(61072), whole(8193), 0)
    states = [TensorSpec("float32", (n,)) for n in (1000, 0)]
    inputs = (*floats, TensorSpec("float32", (0, 0)), *ints, *rest, *states)
    name = "fbgemm::split_embedding_codegen_lookup_{}_function"
    (kernel,) = of(name.format("rowwise_adagrad"), *inputs)
    assert kernel == Embedding(61072, 96, 1000, pooling=7, dtype="fp32", outputs=8192)
    # A profile of these sizes has a sort of two passes (10 bits), and two sorts where lookups have
    # weights.
    out = TensorSpec("float32", (8192, 96))
    node = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    weights = TensorSpec("float32", (61072,))
    for forward, sorts in ((inputs, 1), ((*inputs, weights), 2)):
        back = of(node, out, forward)
        assert sum(getattr(each, "variant", None) == "sort_passes" for each in back) == 2 * sorts
    assert not kernels_of(OperatorCall(name.format("adagrad"), inputs)).known


def test_a_warp_a_sample_checks_and_permutes_indices() -> None:
    """FBGEMM on 976 tables and 1,024 samples: three loads one after another for each of a million.

    An A100 holds 64 warps a multiprocessor, and half of them where each thread has 57 registers:
    3 x 0.36 us for each turn of 108 x 32 samples. Recorded: 605 us.
    """
    samples, found = 976 * 1024, 15_814_688
    rows, indices, offsets = whole(976), whole(found), whole(samples + 1)
    checked = of("fbgemm::bounds_check_indices", rows, indices, offsets, 1, whole(1), None)
    waiting = Elementwise(8 * (found + samples + 1), loads=2 * 3 * samples)
    assert checked == (Elementwise(8), waiting)
    lengths, values = TensorSpec("int32", (976, 1024)), TensorSpec("int32", (found,))
    permuted = of("fbgemm::permute_2D_sparse_data", whole(976), lengths, values, None)
    assert permuted[-1] == Elementwise(2 * 4 * found, loads=3 * samples)
    model = Analytical(find_gpu("a100-sxm-40gb"))
    turns = samples / (108 * 32)
    expected = turns * 3 * number("reduction_step") * 1e12
    assert model.estimate(waiting).duration == pytest.approx(expected, rel=0.01)


def test_pooled_embeddings_are_permuted_in_one_pass() -> None:
    pooled = TensorSpec("float32", (1024, 320))
    node = "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<…> >"
    for name in ("fbgemm::permute_pooled_embs_auto_grad", node):
        assert of(name, pooled, whole(4)) == (Elementwise(2 * 4 * 1024 * 320),)


def test_adam_of_8_bits_touches_all_state() -> None:
    numbers, blocks = 1 << 20, 1 << 12  # a scale for 256 numbers of each state
    weight, state, scales = half(numbers), TensorSpec("uint8", (numbers,)), (blocks,)
    of_scales, code = TensorSpec("float32", scales), TensorSpec("float32", (256,))
    (kernel,) = of(
        "bitsandbytes::optimizer_update_8bit_blockwise",
        *("adam", weight, weight, state, state, 0.9, 0.95, 0.0, 0.0, 1e-8, 1, 1e-3),
        *(code, code, of_scales, of_scales, 0.0, 1.0, False),
    )
    once = numbers * 2 + 2 * numbers + 2 * 4 * (blocks + 256)  # parameter, states, scales, codes
    assert kernel.traffic == 2 * once + 2 * numbers  # read and written; the gradient is read


def test_fused_adam_touches_all_state() -> None:
    weights, moments = (half(1000), half(24)), (TensorSpec("float32", (1024,)),)
    kernels = of("aten::_fused_adamw_", weights, weights, moments, moments, (), ())
    assert sum(each.traffic for each in kernels) == 1024 * (2 * 2 + 2 + 2 * 4 * 2)


@pytest.mark.parametrize("tensors", [1, 36, 37, 400])
def test_lists_are_split_over_launches(tensors: int) -> None:
    values = (TensorSpec("float32", (10,)),) * tensors
    kernels = of("aten::_foreach_add_", values, values, 1)
    assert len(kernels) == math.ceil(tensors / 64)
    assert sum(each.traffic for each in kernels) == pytest.approx(tensors * 10 * 4 * 3, abs=10)


def test_copies_of_lists_between_types() -> None:
    # fully_shard casts gradients of bf16 as it puts them where they are reduced.
    (kernel,) = of("aten::_foreach_copy_", (TensorSpec("float32", (1000,)),), (half(1000),), False)
    assert kernel.traffic == 1000 * (4 + 2)


@given(SIZES, SIZES, SIZES, st.booleans())
def test_layers_of_transformer_engine(rows: int, width: int, inner: int, gate: bool) -> None:
    width, inner = 2 * width + 3, 64 * inner  # told apart by their shapes
    x, first = half(rows, 1, width), half(inner * (1 + gate), width)
    second = half(width, inner)
    forward = 2 * rows * width * first.shape[0]
    (own,) = of("_Linear", first, x, half(first.shape[0]))
    assert own.flops == forward
    norm, same = of("_LayerNormLinear", x, half(width), half(width), first)
    assert (norm.traffic, same) == (2 * 2 * rows * width, own)
    given_ = (x, half(width), half(width), first, half(inner), second, half(width))
    both = forward + 2 * rows * width * inner
    assert sum(each.flops for each in of("_LayerNormMLP", *given_)) == both
    assert sum(each.flops for each in of("_LayerNormMLPBackward", x, given_)) == 2 * both


def test_kernels_allocate_for_themselves() -> None:
    q, k = half(2, 32, 1000, 96), half(2, 8, 1000, 96)
    call = OperatorCall("aten::_scaled_dot_product_flash_attention_backward", (q, q, k, k, q))
    sums = 2 * 32 * 1024 * (96 + 1) * 4  # of 1,000 tokens rounded up, in fp32
    assert temporary_bytes(call) == sums + 2 * (2 * 1000 * 32 * 96) * 2
    turned = [half(2, 1000, heads, 96) for heads in (32, 32, 8, 8)]
    same = OperatorCall("aten::_flash_attention_backward", tuple(turned))
    assert temporary_bytes(same) == temporary_bytes(call)
    assert temporary_bytes(OperatorCall("aten::sort", (half(100), -1, False))) == 1000
    assert temporary_bytes(OperatorCall("aten::embedding_dense_backward", (q, whole(64)))) == 2048
    assert temporary_bytes(OperatorCall("aten::add", (q, q))) == 0


def test_views_and_collectives_launch_nothing() -> None:
    assert of("aten::view", half(2, 3)) == ()
    assert of("c10d::allreduce_", (half(2, 3),)) == ()
    assert is_collective("c10d::_allgather_base_")
    assert not is_collective("aten::add")


def test_concatenations_place_what_is_not_dense_one_by_one() -> None:
    dense = half(4, 6, strides=(6, 1)), half(4, 2, strides=(2, 1))
    turned = half(4, 6, strides=(1, 4)), dense[1]
    size = 2 * 2 * 4 * 8
    for parts, along, indexed in (
        (dense, 1, None),
        (turned, 1, 32),
        (turned, -1, 32),
        ((half(4, 6), half(4, 2)), 1, 32),  # no strides were recorded
        ((half(6, 4), half(2, 4)), 0, None),
    ):
        assert of("aten::cat", parts, along) == (Elementwise(size, indexed=indexed),)
    # Of a list that was not recorded the result tells.
    assert of("aten::cat", (), 3, out=half(4, 8)) == (Elementwise(size, indexed=32),)


def test_copies_of_fully_shard_are_one_kernel_whatever_their_sizes() -> None:
    """262.7 million numbers would be 13 kernels of `_foreach_copy_`."""
    whole_, parts = half(128256 * 2048 + 2048), (half(128256, 2048), half(2048))
    moved = Elementwise(2 * 2 * (128256 * 2048 + 2048))
    assert of("aten::split_with_sizes_copy", whole_, (128256 * 2048, 2048), 1, parts) == (moved,)
    assert of("aten::_chunk_cat", parts, 0, 8, whole_) == (moved,)
    assert len(of("aten::_foreach_copy_", parts, parts)) == 13


def test_unknown_operators_move_their_bytes() -> None:
    found = kernels_of(OperatorCall("my::op", (half(3, 4), 2, (half(5),)), (half(6),)))
    assert not found.known
    assert found.kernels == (Elementwise(2 * (12 + 5 + 6)),)
    assert kernels_of(OperatorCall("triton::fused", (half(8),))).kernels == (Elementwise(16),)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_rule_stands_what_was_recorded_badly(name: str) -> None:
    """Nothing, an empty tensor, tensors without dimensions, lists: never an exception."""
    empty, point = half(0, 4), TensorSpec("float32", ())
    for inputs in ((), (empty,) * 12, (point,) * 12, ((half(4),),) * 12, (3,) * 12, (half(2, 3),)):
        for outputs in ((), (empty,), (point,)):
            kernels_of(OperatorCall(name, inputs, outputs))


SPECS = st.builds(
    TensorSpec, st.sampled_from(["bfloat16", "float32", "int64", "bool"]), SHAPES | st.just((0, 3))
)
ARGUMENTS = st.recursive(
    SPECS | st.none() | st.integers(-3, 9) | st.just(0.5) | st.just("none"),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=6,
)


@given(
    st.sampled_from(sorted(TABLE)), st.lists(ARGUMENTS, max_size=13), st.lists(SPECS, max_size=2)
)
def test_no_arguments_break_a_rule(
    name: str, inputs: list[Argument], outputs: list[TensorSpec]
) -> None:
    launched = kernels_of(OperatorCall(name, tuple(inputs), tuple(outputs)))
    assert all(each.traffic >= 0 for each in launched.kernels)


def test_types_of_elements_have_one_name() -> None:
    assert {torch_dtype(name) for name in DTYPES} == set(DTYPES)
    assert torch_dtype("c10::Float8_e4m3fn") == "float8_e4m3fn"
    assert torch_dtype("TensorList") is None
