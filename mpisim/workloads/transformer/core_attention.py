"""Core attention: scores, softmax and their product with the values, as one operator.

It is the operator that selective recomputation drops (arXiv:2205.05198). Three ways to compute it:

- fused ("flash"): one kernel forward, one backward;
- eager: scores in memory, as Megatron-LM's `DotProductAttention` computes it. Products, softmax
  with scale and mask, dropout of the probabilities, and the copy that brings the heads of a token
  together again. Where operations are not fused, scale and mask are kernels, and heads are copied
  to where a batched product wants them, one after another (``permute`` and ``matmul``). The number
  of scores is heads × queries × keys of the sequence, whatever a mask hides;
- over a sequence that is spread over ranks: :mod:`.context_parallel`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mpisim.kernels.operations import BYTES, Attention, Gemm, GemmVariant, Precision, Softmax

from ..operators import Compute, Operator, Task
from .attention_shape import AttentionShape
from .context_parallel import CONTEXT_PARALLEL, SpreadAttention
from .pointwise import FP32, MASK_BYTES, broadcast, dropout_kernels, elementwise, widened
from .shapes import Shapes

__all__ = ["core_attention"]

MATRIX_UNIT_LOAD = 16
"""Bytes that matrix units load at a time."""

MIN_CAUSAL_SOFTMAX_KEYS, MAX_CAUSAL_SOFTMAX_KEYS = 17, 2048
"""Keys that Megatron-LM's causal softmax takes (16,384 at most since 2023)."""

CAUSAL_SOFTMAX_ROWS = 4
"""Rows of a thread block of it, of as many heads × sequences: it takes multiples of both."""


def core_attention(s: Shapes, name: str, shape: AttentionShape) -> Operator:
    """Queries, keys and values → each token's mixture of values.

    Parameters
    ----------
    s : Shapes
    name : str
    shape : AttentionShape
    """
    if s.plan.framework.kernels == "eager":
        return _eager_attention(s, name, shape)
    # Of fused attention the logarithm of each row's sum is kept; its output is the next input, but
    # for products that take it in another format.
    saved = BYTES["fp32"] * s.batch * shape.heads * shape.queries
    if s.quantised:
        result = BYTES["fp8"] if s.attention_format == "fp8" else s.element_size
        saved += result * s.batch * shape.queries * shape.output_width
    packed = shape.is_packed(s)
    repeated: list[Task] = []
    repeated_backward: list[Task] = []
    if s.plan.framework.repeats_heads and shape.kv_heads < shape.heads:
        whole = replace(shape, kv_heads=shape.heads)
        width = shape.key_value_width + whole.key_value_width
        traffic = s.element_size * s.batch * (shape.keys // s.grid.cp) * width
        repeated = [elementwise(f"{name} repeated heads", traffic)]
        repeated_backward = [elementwise(f"{name} repeated heads backward", traffic)]
        shape = whole
    if s.grid.cp > 1:
        forward, backward = CONTEXT_PARALLEL[s.plan.framework.cp_style](_spread(s, name, shape))
        return Operator(
            name,
            (*repeated, *forward),
            (*backward, *repeated_backward),
            saved=saved,
            selective=True,
        )

    def kernel(*, backward: bool = False) -> Attention:
        return shape.kernel(s, shape.queries, shape.keys, shape.causal, backward=backward)

    forward_steps: list[Task] = [Compute(name, kernel())]
    backward_steps: list[Task] = [Compute(f"{name} backward", kernel(backward=True))]
    if s.attention_format == "fp8":
        width = shape.queries * shape.query_width + shape.keys * shape.key_value_width
        forward_steps.insert(0, elementwise(f"{name} cast", _cast_traffic(s) * width))
        result = shape.queries * shape.output_width
        backward_steps.insert(0, elementwise(f"{name} gradient cast", _cast_traffic(s) * result))
    framework = s.plan.framework
    if not (framework.fused or framework.separate_projections or packed):
        # Queries, keys and values were cut out of one tensor: so is their gradient put together.
        width = s.batch * (shape.queries * shape.query_width + shape.keys * shape.key_value_width)
        backward_steps.append(
            elementwise(f"{name} concatenated gradients", 2 * s.element_size * width)
        )
    return Operator(
        name,
        (*repeated, *forward_steps),
        (*backward_steps, *repeated_backward),
        saved=saved,
        selective=True,
    )


def _spread(s: Shapes, name: str, shape: AttentionShape) -> SpreadAttention:
    """Attention of one rank over the context that it shares with others."""

    def kernels(
        queries: int, keys: int, causal: bool, backward: bool, ranks: int
    ) -> tuple[Compute, ...]:
        part = replace(shape, heads=shape.heads // ranks, kv_heads=max(1, shape.kv_heads // ranks))
        kernel = part.kernel(s, queries, keys, causal, backward=backward)
        return (Compute(f"{name} backward" if backward else name, kernel),)

    fused = s.plan.framework.fused
    return SpreadAttention(name, s.grid.cp, s.batch, s.element_size, shape, kernels, fused)


def _cast_traffic(s: Shapes) -> int:
    """Bytes read and written to cast one number of every sequence to fp8."""
    return s.batch * (s.element_size + BYTES["fp8"])


def _eager_attention(s: Shapes, name: str, shape: AttentionShape) -> Operator:
    """Queries, keys and values → their mixture, with the scores in memory.

    It keeps the softmax, and with dropout its mask and what it leaves: 5as²b bytes in 16-bit
    formats (arXiv:2205.05198).

    Matrix units load 16 bytes at a time. cuBLAS before CUDA 11.7 had hardly any kernel for batched
    products in 16 bits whose rows are no multiple of that, and took the CUDA cores: on A100s a
    batch of (1024, 1024) × (1024, 140) in bf16 ran at 12 TFLOP/s under CUDA 11.6 and at 86 under
    11.7 (github:pytorch/pytorch, issue 83272), and attention over 197 tokens took longer in fp16
    than in fp32 (github:facebookresearch/xformers, pull request 467). In one layout of the first
    fp16 reached 54. Here all of them run there (``framework.unaligned = "cores"``).

    With ``framework.scores_softmax = "causal"`` the softmax is Megatron-LM's
    ScaledUpperTriangMaskedSoftmax (megatron/fused_kernels/scaled_upper_triang_masked_softmax.h): of
    each row it reads what the mask leaves, and writes zeros behind. It takes scores in 16 bits of
    17 to 2,048 keys, as many queries, and a multiple of four heads × sequences
    (megatron/model/fused_softmax.py). Others are cast to fp32, multiplied by the number of the
    layer, masked, put through PyTorch's softmax and cast back.

    With ``"operations"`` it is what Megatron-Core's own attention does without Apex
    (megatron/core/transformer/dot_product_attention.py and megatron/core/fusions/fused_softmax.py,
    `forward_torch_softmax`, of release 0.16.1): the product scales scores (``baddbmm``), heads are
    read where they lie, and scores are cast to fp32, masked, put through PyTorch's softmax and cast
    back. A causal mask is made anew each time (`get_default_causal_mask`). Backward, the product of
    gradient and softmax is a kernel before the softmax's own (PyTorch,
    aten/src/ATen/native/cuda/SoftMax.cu), and the scale is that of queries' and keys' gradients.
    """
    sizes = _EagerSizes.of(s, shape)
    operations = s.plan.framework.scores_softmax == "operations"
    e, scores, drops = s.element_size, sizes.scores, s.model.dropout
    saved = (2 * e + MASK_BYTES if drops else e) * scores
    if operations and e != FP32:  # the softmax in fp32, what is multiplied, and the causal mask
        saved = (FP32 + e + (MASK_BYTES if drops else 0)) * scores
    if s.autocast and not operations:  # the softmax in fp32, and its copy for the product
        saved = (FP32 + e + (MASK_BYTES if drops else 0)) * scores
    if operations and shape.causal:
        saved += MASK_BYTES * shape.queries * shape.keys
    return Operator(
        name,
        tuple(_eager_forward(s, name, shape, sizes, operations)),
        tuple(_eager_backward(s, name, shape, sizes, operations)),
        saved=saved,
        selective=True,
    )


class _EagerSizes(NamedTuple):
    """Numbers of elements of eager attention.

    Attributes
    ----------
    batch : int
        Products of a batch: heads of all sequences.
    rows, scores : int
        Of all heads.
    inputs, output : int
        Queries, keys and values; results.
    copied : int
        Keys and values, read and repeated for the heads that share them; 0 where none do.
    """

    batch: int
    rows: int
    scores: int
    inputs: int
    output: int
    copied: int

    @classmethod
    def of(cls, s: Shapes, shape: AttentionShape) -> _EagerSizes:
        q, k = shape.queries, shape.keys
        batch = s.batch * shape.heads
        repeated = s.batch * k * shape.heads * (shape.head_size + shape.value_size)
        compact = s.batch * k * shape.key_value_width
        return cls(
            batch=batch,
            rows=batch * q,
            scores=batch * q * k,
            inputs=s.batch * (q * shape.query_width + k * shape.key_value_width),
            output=s.batch * q * shape.output_width,
            copied=compact + repeated if shape.kv_heads < shape.heads else 0,
        )


def _eager_forward(
    s: Shapes, name: str, shape: AttentionShape, sizes: _EagerSizes, operations: bool
) -> list[Task]:
    """Kernels forward: scores, softmax, dropout, context. `operations`: as Megatron-Core's own."""
    e, q, k, scores = s.element_size, shape.queries, shape.keys, sizes.scores
    separate = not s.plan.framework.fused and not operations
    steps: list[Task] = []
    if sizes.copied:
        steps.append(elementwise(f"{name} repeated heads", e * sizes.copied))
    if separate:
        steps.append(elementwise(f"{name} heads in batches", 2 * e * sizes.inputs))
    steps.append(_batched_product(s, f"{name} scores", shape, q, k, shape.head_size))
    if shape.relative_bias:
        steps.append(elementwise(f"{name} relative bias", 2 * e * scores + e * scores // s.batch))
    if separate:
        steps.append(elementwise(f"{name} scale", 2 * e * scores))
        steps.append(elementwise(f"{name} mask", 2 * e * scores))
    steps += _softmax(s, f"{name} softmax", shape)
    if s.model.dropout:
        steps += dropout_kernels(s, f"{name} dropout", scores, element=s.stream_size)
    steps.append(_batched_product(s, f"{name} context", shape, q, shape.value_size, k))
    steps.append(elementwise(f"{name} transposition", 2 * e * sizes.output))
    return steps


def _eager_backward(
    s: Shapes, name: str, shape: AttentionShape, sizes: _EagerSizes, operations: bool
) -> list[Task]:
    """Kernels backward: gradients of probabilities and values, scores, queries and keys."""
    e, q, k, scores = s.element_size, shape.queries, shape.keys, sizes.scores
    fused = s.plan.framework.fused
    separate = not fused and not operations

    def product(what: str, m: int, n: int, inner: int) -> Compute:
        return _batched_product(s, f"{name} {what} gradient", shape, m, n, inner)

    steps: list[Task] = []
    if separate:
        steps.append(elementwise(f"{name} transposition backward", 2 * e * sizes.output))
    steps.append(product("probabilities", q, k, shape.value_size))
    steps.append(product("values", k, shape.value_size, q))
    if s.model.dropout:
        steps += dropout_kernels(
            s, f"{name} dropout backward", scores, backward=True, element=s.stream_size
        )
    steps += _softmax(s, f"{name} softmax backward", shape, backward=True)
    if separate and shape.causal:
        # What a mask replaces has no gradient; one that is added leaves it as it is.
        steps.append(elementwise(f"{name} mask backward", 2 * e * scores))
    if separate:
        steps.append(elementwise(f"{name} scale backward", 2 * e * scores))
    if shape.relative_bias:
        bias = e * (scores + scores // s.batch)
        steps.append(elementwise(f"{name} relative bias gradient", bias))
    steps.append(product("queries", q, shape.head_size, k))
    if operations:
        scaled = 2 * e * sizes.rows * shape.head_size
        steps.append(elementwise(f"{name} queries scale", scaled))
    steps.append(product("keys", k, shape.head_size, q))
    if operations:
        scaled = 2 * e * sizes.batch * k * shape.head_size
        steps.append(elementwise(f"{name} keys scale", scaled))
    if sizes.copied:
        steps.append(elementwise(f"{name} repeated heads backward", e * sizes.copied))
    if not fused:
        steps.append(elementwise(f"{name} concatenated gradients", 2 * e * sizes.inputs))
    return steps


def _batched_product(
    s: Shapes, name: str, shape: AttentionShape, m: int, n: int, inner: int
) -> Compute:
    """Product (m, inner) × (inner, n) for each head of each sequence."""
    e = s.element_size
    widths = (shape.head_size, shape.value_size, shape.keys)
    misaligned = e == 2 and any(e * width % MATRIX_UNIT_LOAD for width in widths)
    on_cuda_cores = misaligned and s.plan.framework.unaligned == "cores"
    variant: GemmVariant | None = "cores" if on_cuda_cores else None
    dtype: Precision = "fp32" if on_cuda_cores else s.matmul_format
    batch = s.batch * shape.heads
    return Compute(
        name, Gemm(m, n, inner, batch, dtype=dtype, output=s.storage_format, variant=variant)
    )


def _softmax(s: Shapes, name: str, shape: AttentionShape, *, backward: bool = False) -> list[Task]:
    """Scores → probabilities, or their gradients, in the way that the plan says."""
    e, q, k, framework = s.element_size, shape.queries, shape.keys, s.plan.framework
    if framework.scores_softmax == "operations":
        return _softmax_by_operations(s, name, shape, backward=backward)
    rows = s.batch * shape.heads * q
    scores = rows * k
    if s.autocast and framework.fused:
        return [elementwise(name, ((2 * FP32 if backward else FP32) + e) * scores)]
    if s.autocast and s.storage_format == "fp16":
        # PyTorch's kernel takes fp16 and writes fp32, or the reverse (half_to_float).
        copy = elementwise(f"{name} cast", (e + FP32) * scores)
        wide = Compute(name, Softmax(rows, k, backward, "fp32"))
        return [copy, wide] if backward else [wide, copy]
    if widened(s, "softmax"):
        return [
            elementwise(f"{name} cast", (e + FP32) * scores),
            Compute(name, Softmax(rows, k, backward, "fp32")),
            elementwise(f"{name} cast back", (e + FP32) * scores),
        ]
    causal = shape.causal and shape.window is None
    wants_causal_kernel = framework.scores_softmax == "causal" and framework.fused and causal
    if not wants_causal_kernel or _fits_causal_softmax(s, shape):
        kernel = Softmax(rows, k, backward, s.storage_format, wants_causal_kernel)
        return [Compute(name, kernel)]
    softmax_fp32 = Compute(name, Softmax(rows, k, backward, "fp32"))
    cast = [elementwise(f"{name} cast", (e + FP32) * scores)] if e != FP32 else []
    scale_and_mask = [
        elementwise(f"{name} {step}", 2 * FP32 * scores) for step in ("scale", "mask")
    ]
    if backward:
        return [*cast, softmax_fp32, *reversed(scale_and_mask), *cast]
    return [*cast, *scale_and_mask, softmax_fp32, *cast]


def _fits_causal_softmax(s: Shapes, shape: AttentionShape) -> bool:
    """Whether Megatron-LM's causal softmax takes these scores (`is_kernel_available`)."""
    q, k = shape.queries, shape.keys
    return (
        s.element_size == 2
        and MIN_CAUSAL_SOFTMAX_KEYS <= k <= MAX_CAUSAL_SOFTMAX_KEYS
        and q == k
        and q % CAUSAL_SOFTMAX_ROWS == 0
        and s.batch * shape.heads % CAUSAL_SOFTMAX_ROWS == 0
    )


def _softmax_by_operations(
    s: Shapes, name: str, shape: AttentionShape, *, backward: bool
) -> list[Task]:
    """Scores in the format of matrices → their softmax in the same, computed in fp32 by PyTorch."""
    e, q, k = s.element_size, shape.queries, shape.keys
    rows = s.batch * shape.heads * q
    scores, masks = rows * k, q * k
    cast = [elementwise(f"{name} cast", (e + FP32) * scores)] if e != FP32 else []
    cast_back = [elementwise(f"{name} cast back", (e + FP32) * scores)] if e != FP32 else []
    mask = broadcast(f"{name} mask", 2 * FP32 * scores + MASK_BYTES * masks, scores)
    kernel = Compute(name, Softmax(rows, k, backward, "fp32"))
    if backward:
        product = elementwise(f"{name} product", 3 * FP32 * scores)
        return [*cast, product, kernel, *([mask] if shape.causal else []), *cast_back]
    making = [
        elementwise(f"{name} mask ones", FP32 * masks),
        elementwise(f"{name} mask triangle", 2 * FP32 * masks),
        elementwise(f"{name} mask cast", (FP32 + MASK_BYTES) * masks),
        mask,
    ]
    return [*cast, *(making if shape.causal else []), kernel, *cast_back]
