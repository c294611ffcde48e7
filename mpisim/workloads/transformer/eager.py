"""Attention with its scores in memory, as Megatron-LM's `DotProductAttention` computes it.

Products, softmax with scale and mask, dropout of the probabilities, and the copy that brings the
heads of a token together again. Where operations are not fused, scale and mask are kernels, and
heads are copied to where a batched product wants them, one after another (``permute`` and
``matmul``). The number of scores is heads × queries × keys of the sequence,
whatever a mask hides.

Matrix units load 16 bytes at a time. cuBLAS before CUDA 11.7 had hardly any kernel for batched
products in 16 bits whose rows are no multiple of that, and took the CUDA cores: on A100s a batch of
(1024, 1024) × (1024, 140) in bf16 ran at 12 TFLOP/s under CUDA 11.6 and at 86 under 11.7
(github:pytorch/pytorch, issue 83272), and attention over 197 tokens took longer in fp16 than in
fp32 (github:facebookresearch/xformers, pull request 467). In one layout of the first fp16 reached
54. Here all of them run there (``plan.unaligned = "cores"``).

With ``plan.scores_softmax = "causal"`` the softmax is Megatron-LM's ScaledUpperTriangMaskedSoftmax
(megatron/fused_kernels/scaled_upper_triang_masked_softmax.h): of each row it reads what the mask
leaves, and writes zeros behind. It takes scores in 16 bits of 17 to 2,048 keys, as many queries,
and a multiple of four heads x sequences (megatron/model/fused_softmax.py). Others are cast to fp32,
multiplied by the number of the layer, masked, put through PyTorch's softmax and cast back.
"""

from __future__ import annotations

from mpisim.kernels.operations import Gemm, GemmVariant, Precision, Softmax

from ..operators import Compute, Operator, Step
from .heads import Heads
from .pointwise import FP32, MASK, dropped, stream
from .shapes import Shapes

__all__ = ["eager_attention"]

LOADED = 16
"""Bytes that matrix units load at a time."""

LONGEST = 2048
"""Keys that Megatron-LM's causal softmax takes (16,384 since 2023)."""

TOGETHER = 4
"""Rows of a thread block of it, of as many heads x sequences: it takes multiples."""


def eager_attention(s: Shapes, name: str, heads: Heads) -> Operator:
    """Return the operator.

    Keeps the softmax, and with dropout its mask and what it leaves: 5as²b bytes in 16-bit formats.
    """
    e, drops, fused = s.element, s.model.dropout, s.plan.fused
    q, k = heads.queries, heads.length
    batch = s.batch * heads.heads
    rows, scores = batch * q, batch * q * k
    repeated = s.batch * k * heads.heads * (heads.head + heads.value)
    compact = s.batch * k * heads.key_value_width
    grouped = heads.kv_heads < heads.heads
    output = s.batch * q * heads.output_width
    widths = (heads.head, heads.value, k)
    odd = e == 2 and any(e * width % LOADED for width in widths)
    cores = odd and s.plan.unaligned == "cores"
    variant: GemmVariant | None = "cores" if cores else None
    dtype: Precision = "fp32" if cores else s.product

    def product(what: str, m: int, n: int, inner: int) -> Compute:
        return Compute(
            f"{name} {what}",
            Gemm(m, n, inner, batch, dtype=dtype, output=s.stored, variant=variant),
        )

    whole = heads.causal and heads.window is None
    causal = s.plan.scores_softmax == "causal" and fused and whole
    taken = e == 2 and 16 < k <= LONGEST and q == k and q % 4 == 0 and batch % TOGETHER == 0

    def softmax(what: str, *, backward: bool = False) -> list[Step]:
        if not causal or taken:
            return [Compute(f"{name} {what}", Softmax(rows, k, backward, s.stored, causal))]
        wide = Compute(f"{name} {what}", Softmax(rows, k, backward, "fp32"))
        cast = [stream(f"{name} {what} cast", (e + FP32) * scores)] if e != FP32 else []
        around = [stream(f"{name} {what} {step}", 2 * FP32 * scores) for step in ("scale", "mask")]
        if backward:
            return [*cast, wide, *reversed(around), *cast]
        return [*cast, *around, wide, *cast]

    forward: list[Step] = []
    if grouped:
        forward.append(stream(f"{name} repeated heads", e * (compact + repeated)))
    inputs = s.batch * (q * heads.query_width + k * heads.key_value_width)
    if not fused:
        forward.append(stream(f"{name} heads in batches", 2 * e * inputs))
    forward.append(product("scores", q, k, heads.head))
    if heads.relative_bias:
        forward.append(stream(f"{name} relative bias", 2 * e * scores + e * scores // s.batch))
    if not fused:
        forward.append(stream(f"{name} scale", 2 * e * scores))
        forward.append(stream(f"{name} mask", 2 * e * scores))
    forward += softmax("softmax")
    if drops:
        forward += dropped(s, f"{name} dropout", scores)
    forward.append(product("context", q, heads.value, k))
    forward.append(stream(f"{name} transposition", 2 * e * output))

    backward: list[Step] = []
    if not fused:
        backward.append(stream(f"{name} transposition backward", 2 * e * output))
    backward.append(product("probabilities gradient", q, k, heads.value))
    backward.append(product("values gradient", k, heads.value, q))
    if drops:
        backward += dropped(s, f"{name} dropout backward", scores, backward=True)
    backward += softmax("softmax backward", backward=True)
    if not fused and heads.causal:
        # What a mask replaces has no gradient; one that is added leaves it as it is.
        backward.append(stream(f"{name} mask backward", 2 * e * scores))
    if not fused:
        backward.append(stream(f"{name} scale backward", 2 * e * scores))
    if heads.relative_bias:
        backward.append(stream(f"{name} relative bias gradient", e * (scores + scores // s.batch)))
    backward.append(product("queries gradient", q, heads.head, k))
    backward.append(product("keys gradient", k, heads.head, q))
    if grouped:
        backward.append(stream(f"{name} repeated heads backward", e * (compact + repeated)))
    if not fused:
        backward.append(stream(f"{name} concatenated gradients", 2 * e * inputs))
    kept = 2 * e + MASK if drops else e
    return Operator(name, tuple(forward), tuple(backward), saved=kept * scores, selective=True)
