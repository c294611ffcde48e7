"""Transformer Engine → norms, products, casts, attention: its layers, and its kernels.

Traces have a layer as one operator. Its autograd functions (transformer_engine/pytorch/module) are
given their tensors one by one: ``_Linear`` weight and input, ``_LayerNormLinear`` input, norm and
weight, ``_LayerNormMLP`` input, norm and both weights. Which is which follows from their shapes.
That products run in fp8 is not to be seen in the types of these tensors: they are taken to run in
the type that is recorded.

Captures have the functions of ``transformer_engine_torch``, one by one, with operands in the types
that they are cast to. They are priced as generated programs are (`mpisim.workloads.transformer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..kernels.operations import (
    Attention,
    AttentionVariant,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
)
from .call import OperatorCall, TensorSpec
from .products import product
from .streams import by_bytes, stream
from .tensors import all_tensors, element_bytes, format_of, number, numbers, tensor, touched

__all__ = ["RULES", "looped"]

Kernels = tuple[Kernel, ...]
Rule = Callable[[OperatorCall], "Kernels | None"]


def _layer(*, backward: bool, normed: bool) -> Rule:
    """Return the rule of a layer, of one product or two."""

    def rule(call: OperatorCall) -> Kernels | None:
        given = call.inputs
        if backward:
            given = given[-1] if given and isinstance(given[-1], tuple) else ()
        tensors = tuple(all_tensors(given))
        found = _input_and_weights(tensors, two="MLP" in call.name)
        if found is None:
            return None
        x, weights = found
        return _kernels(x, weights, backward, normed)

    return rule


def _input_and_weights(
    tensors: tuple[TensorSpec, ...], two: bool
) -> tuple[TensorSpec, tuple[TensorSpec, ...]] | None:
    """Return the input, and the weights (out, in) of the products that follow each other."""
    large = [each for each in tensors if len(each.shape) >= 2 and each.elements]
    for x in sorted(large, key=lambda each: -len(each.shape)):
        width = x.shape[-1]
        weights: list[TensorSpec] = []
        for each in large:
            fits = len(each.shape) == 2 and each.shape[1] in (width, width // 2)
            if each is not x and fits and len(weights) < 1 + two:
                weights.append(each)
                width = each.shape[0]
        if len(weights) == 1 + two and weights[0].shape[1] == x.shape[-1]:
            return x, tuple(weights)
    return None


def _kernels(
    x: TensorSpec, weights: tuple[TensorSpec, ...], backward: bool, normed: bool
) -> Kernels:
    rows = x.elements // x.shape[-1]
    size = element_bytes(x.dtype)
    found: Kernels = ()
    if normed:
        found += (Norm(rows, x.shape[-1], kind="rms", backward=backward, dtype=format_of(x)),)
    for weight, following in zip(weights, (*weights[1:], None)):
        outputs, inputs = weight.shape
        if backward:
            found += product(x, rows, inputs, outputs)
            found += product(x, outputs, inputs, rows)
        else:
            found += product(x, rows, outputs, inputs)
        if following is not None:  # the activation, of a gate or without one
            between = size * rows * (outputs + following.shape[1])
            found += stream(between + (size * rows * following.shape[1] if backward else 0))
    return found


def gemm(call: OperatorCall) -> Kernels | None:
    """``generic_gemm(a, b, m, n, k, accumulate, variant)`` → a product."""
    a, (m, n, k) = tensor(call, 0), (number(call, i, 0) for i in (2, 3, 4))
    if a is None or not call.outputs or not isinstance(call.outputs[0], TensorSpec):
        return None
    accumulate = bool(number(call, 5, 0))
    found = product(a, m, n, k, output=call.outputs[0].dtype, accumulate=accumulate)
    variant = call.inputs[6] if len(call.inputs) > 6 else None
    return tuple(
        replace(each, variant=variant)  # type: ignore[arg-type]
        if isinstance(each, Gemm) and variant is not None
        else each
        for each in found
    )


_GROUPED = "transformer_engine::te_general_grouped_gemm"


def grouped(call: OperatorCall) -> Kernels | None:
    """``te_general_grouped_gemm(rows, matrices, splits, n, k, weight, accumulate, variant)``.

    One kernel for the products of all experts, which run beside each other on several streams of
    cuBLAS (``nvte_multi_tensor_gemm`` of transformer_engine/common/gemm/cublaslt_gemm.cu).
    """
    a, splits = tensor(call, 0), numbers(call, 2) or ()
    n, k = number(call, 3, 0), number(call, 4, 0)
    written = tuple(all_tensors(call.outputs))
    if a is None or not written:
        return None
    weight, accumulate = bool(number(call, 5, 0)), bool(number(call, 6, 0))
    rows, output = sum(splits), written[0].dtype
    groups = sum(1 for each in splits if each)
    if groups < 2:
        m, n, k = (n, k, rows) if weight else (rows, n, k)
        found = product(a, m, n, k, output=output, accumulate=accumulate)
    else:
        out = format_of(written[0])
        found = (
            GroupedGemm(
                rows, groups, n, k, dtype=format_of(a), output=out, accumulate=accumulate,
                weight=weight, ragged=not weight,
            ),
        )  # fmt: skip
    variant = call.inputs[7] if len(call.inputs) > 7 else None
    if variant is None:
        return found
    return tuple(replace(each, variant=variant) for each in found)  # type: ignore[call-arg]


def looped(call: OperatorCall) -> int:
    """Return how many launches a loop in compiled code makes for a call; 1 for others."""
    return max(1, sum(1 for each in numbers(call, 2) or () if each)) if call.name == _GROUPED else 1


READS = {"delayed": 1, "current": 2, "blocks": 1, "nvfp4": 3}
"""How often a cast reads its operand: once more where its largest number gives the scale; for NVFP4
see `mpisim.workloads.transformer.precision`."""


def quantize(call: OperatorCall) -> Kernels | None:
    """``quantize(x, scaling, bias)`` → one kernel that reads `x`, and writes it in each layout."""
    x, scaling = tensor(call, 0), call.inputs[1] if len(call.inputs) > 1 else None
    if x is None or not isinstance(scaling, str) or scaling not in READS:
        return None
    written = tuple(all_tensors(call.outputs))
    amount = READS[scaling] * touched(x) + sum(touched(each) for each in written)
    if not amount:
        return ()
    if scaling == "blocks":
        return (Elementwise(amount, variant="block_scales"),)
    return (Elementwise(amount, transposes=len(written) == 2),)


def transposition(call: OperatorCall) -> Kernels | None:
    """``fp8_transpose(x)`` → one kernel."""
    x = tensor(call, 0)
    return None if x is None else (Elementwise(max(1, 2 * touched(x)), transposes=True),)


def attention(*, backward: bool) -> Rule:
    """Return the rule of ``fused_attn_fwd(q, k, v, beginnings, layout, causal, window, kernel)``.

    Its backward is given the gradient first. Layouts are named by their dimensions (s: tokens of a
    sequence, b: sequences, t: tokens of all, h: heads, d: size). Causal is 1, or 2 for a mask that
    ends with the last key (``causal_bottom_right``): a query sees all keys but half of those that
    there are queries, in the mean.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        first = 1 if backward else 0
        q, k, v = (tensor(call, first + i) for i in range(3))
        if q is None or k is None or v is None or len(call.inputs) < first + 8:
            return None
        layout, causal, before, kernel = call.inputs[first + 4 : first + 8]
        if not isinstance(layout, str) or not isinstance(before, int):
            return None
        if layout == "thd":
            starts = tensor(call, first + 3)
            batch = max(1, starts.elements - 1) if starts is not None else 1
            queries, keys = (max(1, each.shape[0] // batch) for each in (q, k))
        else:
            tokens = layout.index("s")
            batch = q.shape[layout.index("b")]
            queries, keys = q.shape[tokens], k.shape[tokens]
        variant: AttentionVariant = "cudnn" if kernel == "cudnn" else "flash_2"
        if causal == 2 and queries < keys:
            keys, causal = keys - queries // 2, 0
        if not (q.elements and k.elements):
            return ()
        return (
            Attention(
                batch=batch,
                heads=q.shape[-2],
                kv_heads=k.shape[-2],
                queries=queries,
                keys=keys,
                head_size=q.shape[-1],
                value_size=v.shape[-1],
                causal=bool(causal),
                backward=backward,
                dtype=format_of(q),
                window=before + 1 if 0 <= before < keys - 1 else None,
                variant=variant,
            ),
        )

    return rule


def rows_moved(call: OperatorCall) -> Kernels | None:
    """``permute(x, places)`` and ``unpermute`` → rows read, and rows written, or added up."""
    x, outputs = tensor(call, 0), tuple(all_tensors(call.outputs))
    if x is None or not outputs:
        return None
    weights = tuple(all_tensors(call.inputs[2:3])) if len(outputs) > 1 else ()
    amount = touched(x) + sum(map(touched, (*weights, *outputs)))
    if not amount:
        return ()
    sums = call.name.endswith("unpermute")
    return (Elementwise(amount, variant="row_sums" if sums else "row_copies"),)


_ACTIVATIONS = ("gelu", "geglu", "qgelu", "qgeglu", "relu", "reglu", "srelu", "sreglu", "silu",
                "swiglu")  # fmt: skip
_STREAMED = (
    *_ACTIVATIONS,
    *(f"d{name}" for name in _ACTIVATIONS),
    "fused_rope_forward",
    "fused_rope_backward",
    "fused_amax_and_scale_update_after_reduction",
    "dequantize",
    "online_softmax",
    "cross_entropy",
    "element_mul",
    "make_row_id_map",
    "make_chunk_sort_map",
    "softmax_lse_correction",
    "flash_attn_fwd_out_correction",
)

RULES: dict[str, Rule] = {
    f"{name}{end}": _layer(backward=bool(end), normed="Norm" in name)
    for name in ("_Linear", "_LayerNormLinear", "_LayerNormMLP")
    for end in ("", "Backward")
} | {
    f"transformer_engine::{name}": rule
    for name, rule in {
        "generic_gemm": gemm,
        "te_general_grouped_gemm": grouped,
        "quantize": quantize,
        "fp8_transpose": transposition,
        "fused_attn_fwd": attention(backward=False),
        "fused_attn_bwd": attention(backward=True),
        "permute": rows_moved,
        "unpermute": rows_moved,
        **dict.fromkeys(_STREAMED, by_bytes),
    }.items()
}
"""Rules by the name of the autograd function, or of the library's function."""
