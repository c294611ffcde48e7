"""Number formats of linear layers: casts of operands, accumulators and gradient buffers.

Operands
    In fp8 and NVFP4 an operand is cast before it is multiplied, read and written once in each
    layout that products need: on Hopper they take fp8 only where both run along k, so that what
    gradients of weights read is kept transposed, too (``framework.fp8_transposed``). Where scales
    come from (``plan.precision.fp8_scaling``) decides how often it is read: from steps before
    ("delayed") or from blocks of 32 elements ("blocks", MXFP8) once; from the whole operand
    ("current") once more.

    With "current", as with NVFP4, Transformer Engine launches small kernels beside it: one that
    sets the largest value to 0, with "current" one that makes the scale of it (``quantize_impl``
    of transformer_engine/pytorch/csrc/quantizer.cpp; transformer_engine/common/recipe/
    current_scaling.cu, hadamard_transform). Where ranks gather what each has of a sequence, all
    need one scale: the largest value is all-reduced over the tp group (``with_amax_reduction`` of
    inputs of matrices split by columns and gradients of those split by rows, in
    ``_customize_quantizers_float8_current_scaling`` and ``_customize_quantizers_nvfp4`` of
    transformer_engine/pytorch/module/linear.py).

    Transformer Engine (transformer_engine/pytorch/module) fuses a cast with delayed scaling into
    the norm before a matrix split by columns (``layernorm_fwd_fp8``; with others the norm's output
    is cast behind it), and transposes what was gathered or cast in one layout when the gradient of
    the weights needs it (``fp8_transpose`` of ``ln_out_total`` and ``grad_output``). Blocks are
    scaled along the layout they are written in: both are made at once, and nothing is transposed
    (``cast_mxfp8_2D`` of transformer_engine/common, a kernel with a variant of its own).
    With ``framework.fp8_casts`` "compiled" a compiler fuses the search of the largest value with
    what makes an operand (torchao, XLA).

Accumulators
    Forward, cuBLAS's fast accumulation serves; products in fp8 that make gradients keep their sums
    in fp32 (split accumulators, :mod:`mpisim.kernels.operations.GemmVariant`). Products of operands
    with scales of blocks have a variant of their own, too.

Gradient buffers
    Megatron-LM adds every micro-batch to a buffer of its own (``main_grad``), fp32 by default:
    matrix products straight from the kernel (``gradient_accumulation_fusion``, since 2022),
    everything else by one addition a parameter. PyTorch keeps gradients in the weights' format and
    adds only from the second micro-batch on; where there are several, that addition is counted for
    each. FSDP reduces gradients instead, or adds up those of units (:mod:`..data_parallel.fsdp`).
    DeepSpeed's BF16_Optimizer copies the gradients of every micro-batch to fp32 and adds the copies
    up (``update_hp_grads`` of deepspeed/runtime/bf16_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from mpisim.kernels.operations import BYTES, Elementwise, Gemm, GroupedGemm

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Task
from .autocast import autocast_copy
from .shapes import Shapes

__all__ = [
    "accumulate_gradient",
    "cast",
    "cast_names",
    "cast_norm_output",
    "cast_share",
    "cast_weight",
    "casts_together",
    "split_accumulators",
    "transpose_column_input",
    "transpose_gathered",
    "weight_gradient",
]

SEARCH_KERNELS = 2
"""That find a largest value: one sets it to 0, one reads the operand."""

SCALE_KERNELS = 1
"""That make a scale of it."""

# --- casts of operands --------------------------------------------------------------------------


def cast(s: Shapes, name: str, elements: int, *, after_kernel: bool = False) -> Compute:
    """Operand in the storage format → operand in the format of the products, one kernel.

    To NVFP4 it is read three times: for the largest values as it is and after the random Hadamard
    transform of 16 × 16 blocks, to be written as it is, and to be written transformed and
    transposed for the gradients of weights (Transformer Engine, NVFP4BlockScaling, and
    hadamard_transform in transformer_engine/common). With ``framework.scales_apart`` a kernel for
    each layout follows that puts its scales in order.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the operand.
    elements : int
    after_kernel : bool
        Whether an elementwise kernel has just made it, as most gradients: outside of Transformer
        Engine that kernel finds the largest value where operations are fused, and both layouts are
        written at once, not in passes of their own.
    """
    return _cast(s, name, elements, after_kernel=after_kernel)


def _cast(
    s: Shapes,
    name: str,
    elements: int,
    *,
    after_kernel: bool = False,
    gathered: bool = False,
    found: bool = False,
) -> Compute:
    """As `cast`; if `gathered`, in one layout: the other is made after the all-gather.

    With `found` the largest value is known.
    """
    reads, layouts, calls = 1, 2, 0
    if _scales_blocks(s):
        traffic = s.element_size * elements + 2 * s.operand_bytes(elements)
        return Compute(f"{name} cast", Elementwise(traffic, variant="block_scales"))
    if s.linear_format == "nvfp4":
        reads = 2 if found else 3
        traffic = reads * s.element_size * elements + layouts * s.operand_bytes(elements)
        apart = s.plan.framework.scales_apart
        return Compute(
            f"{name} cast",
            Elementwise(traffic, transposes=True, variant="scales_apart" if apart else None),
            launches=1 + layouts if apart else 1,
            calls=0 if found or not _by_transformer_engine(s) else SEARCH_KERNELS,
        )
    if _by_transformer_engine(s):
        if s.plan.precision.fp8_scaling == "current":
            reads = 1 if found else 2
            calls = SCALE_KERNELS + (0 if found else SEARCH_KERNELS)
        layouts = 1 if _transposes_later(s, gathered) or not _needs_both_layouts(s) else 2
    elif s.plan.precision.fp8_scaling == "current" and not (
        after_kernel and s.plan.framework.fused
    ):
        reads = 3
    traffic = reads * s.element_size * elements + layouts * s.operand_bytes(elements)
    return Compute(f"{name} cast", Elementwise(traffic, transposes=layouts == 2), calls=calls)


def cast_share(
    s: Shapes, name: str, elements: int, *, after_kernel: bool = False
) -> Iterator[Task]:
    """This rank's share of a sequence → operand that the tp group's ranks gather, in one scale.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the operand.
    elements : int
        Of the share; without sequence parallelism, of all.
    after_kernel : bool
        As in `cast`.
    """
    scaled = s.linear_format == "nvfp4" or s.plan.precision.fp8_scaling == "current"
    shared = s.sequence_parallel and scaled and _by_transformer_engine(s)
    if shared:
        search, reduction, _ = cast_names(name)
        yield Compute(search, Elementwise(s.element_size * elements), calls=SEARCH_KERNELS - 1)
        yield Communicate(reduction, Operation.ALL_REDUCE, "tp", BYTES["fp32"])
    yield _cast(
        s, name, elements, after_kernel=after_kernel, gathered=s.sequence_parallel, found=shared
    )


def cast_names(name: str) -> tuple[str, str, str]:
    """Name of an operand → those of the steps that may cast it: search, reduction, cast."""
    return f"{name} largest value", f"{name} scale all-reduce", f"{name} cast"


def casts_together(s: Shapes) -> bool:
    """Precision of a plan → whether one kernel casts the rows of all experts.

    "Currently only have fused kernel for FP8 delayed scaling" (``multi_tensor_quantize_impl`` of
    transformer_engine/pytorch/csrc/extensions/cast.cpp). To NVFP4, grouped kernels find the largest
    values and cast since Transformer Engine 2.11 and 2.12 (January and February 2026; its pull
    requests 2351 and 2411, ``split_quantize_nvfp4_impl``); releases before are not told apart.
    """
    delayed = s.linear_format == "fp8" and s.plan.precision.fp8_scaling == "delayed"
    return (delayed or s.linear_format == "nvfp4") and _by_transformer_engine(s)


def cast_norm_output(s: Shapes, name: str, elements: int) -> Iterator[Task]:
    """Output of a norm → operand of a matrix split by columns; nothing where the norm casts.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the operand.
    elements : int
        Of the operand on this rank.
    """
    if not _norm_casts(s):
        yield from cast_share(s, name, elements)


def cast_weight(
    s: Shapes, name: str, elements: int, *, backward: bool = False
) -> Iterator[Compute]:
    """Weights → operand for one pass; forward their largest value is found before.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the matrix.
    elements : int
    backward : bool
        Whether the pass is the backward, which takes the matrix transposed.
    """
    if s.plan.framework.fp8_weight_casts:
        reads = 1 if backward or s.plan.precision.fp8_scaling == "delayed" else 2
        traffic = reads * s.element_size * elements + s.operand_bytes(elements)
        what = f"{name} weight cast{' backward' if backward else ''}"
        yield Compute(what, Elementwise(traffic, transposes=backward))


def transpose_column_input(
    s: Shapes, name: str, elements: int, after: tuple[str, ...] = ()
) -> Iterator[Compute]:
    """Cast input of a matrix split by columns → its transpose, for the gradient of the matrix.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the operand.
    elements : int
    after : tuple of str
        Tokens of communications that bring the operand.
    """
    if _by_transformer_engine(s) and _transposes_later(s, s.sequence_parallel or _norm_casts(s)):
        yield _transposition(s, name, elements, after)


def transpose_gathered(s: Shapes, name: str, elements: int) -> Iterator[Compute]:
    """Operand gathered in one layout → its transpose, for the gradient of a matrix.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the operand.
    elements : int
        Of the gathered operand.
    """
    if s.quantised and (
        s.gathers_batch_first
        or (_by_transformer_engine(s) and _transposes_later(s, s.sequence_parallel))
    ):
        yield _transposition(s, name, elements)


def _transposition(s: Shapes, name: str, elements: int, after: tuple[str, ...] = ()) -> Compute:
    """One kernel that transposes an operand."""
    traffic = 2 * s.operand_bytes(elements)
    what = f"{name} transposition"
    return Compute(what, Elementwise(traffic, transposes=True), weight=True, after=after)


def _by_transformer_engine(s: Shapes) -> bool:
    """Whether Transformer Engine casts."""
    return s.plan.framework.fp8_casts == "transformer-engine"


def _scales_blocks(s: Shapes) -> bool:
    """Whether Transformer Engine casts to MXFP8."""
    blocks = s.linear_format == "fp8" and s.plan.precision.fp8_scaling == "blocks"
    return blocks and _by_transformer_engine(s)


def _needs_both_layouts(s: Shapes) -> bool:
    """Whether products take an operand in two layouts."""
    return s.plan.framework.fp8_transposed or s.plan.precision.fp8_scaling == "blocks"


def _transposes_later(s: Shapes, one_layout: bool) -> bool:
    """Whether an operand that exists in one layout is transposed when it is needed."""
    whole = s.linear_format == "fp8" and s.plan.precision.fp8_scaling != "blocks"
    return one_layout and whole and s.plan.framework.fp8_transposed


def _norm_casts(s: Shapes) -> bool:
    """Whether norms write fp8 themselves."""
    return (
        s.linear_format == "fp8"
        and _by_transformer_engine(s)
        and s.plan.precision.fp8_scaling == "delayed"
        and s.plan.framework.fused
    )


# --- accumulators -------------------------------------------------------------------------------


def split_accumulators(s: Shapes, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators → the same with fp8 gradients summed in split accumulators, if the plan says so.

    With scales of blocks (MXFP8) all products in fp8, forward and backward, are those that read
    such scales (`_product_of_blocks`); their sums are fp32 as they are.

    Parameters
    ----------
    s : Shapes
    operators : tuple of Operator
        Of a layer.
    """
    if s.linear_format != "fp8":
        return operators
    if s.plan.precision.fp8_scaling == "blocks":
        return tuple(
            replace(
                each,
                forward=tuple(_product_of_blocks(s, step) for step in each.forward),
                backward=tuple(_product_of_blocks(s, step) for step in each.backward),
            )
            for each in operators
        )
    if not s.plan.precision.fp8_split_sums:
        return operators
    return tuple(
        replace(each, backward=tuple(_fp8_variant(step, "split") for step in each.backward))
        for each in operators
    )


def _product_of_blocks(s: Shapes, step: Task) -> Task:
    """Product in fp8 → the same with block scales, and the kernel that reorders the scales.

    Products read scales in an order of their own. Transformer Engine's call of cuBLAS launches a
    kernel for each operand whose scales are not yet in it (``swizzle_scales_for_gemm`` of
    transformer_engine/pytorch/csrc/extensions/gemm.cpp), for those of all experts together (its
    pull request 2019): weights, until 2.18 (pull request 3093), and with ``framework.scales_apart``
    what was cast, too, as before its pull request 2486 of December 2025. They take 1 to 4 µs on a
    GB200 (pull request 3519), which counts as the gap before them alone. Tokens that are gathered
    in fp8 keep theirs in the other order; a kernel for these is left out.
    """
    found = _fp8_variant(step, "blocks")
    if found is step or not isinstance(found, Compute) or not _by_transformer_engine(s):
        return found
    if s.plan.framework.fp8_transposed:  # Hopper's products read scales of blocks as they are
        return found
    if isinstance(found.kernel, GroupedGemm) and s.plan.experts == "fused":
        return found
    weights = 0 if found.weight else 1
    cast = 2 - weights if s.plan.framework.scales_apart else 0
    return replace(found, calls=found.calls + weights + cast)


def _fp8_variant(step: Task, variant: Literal["split", "blocks"]) -> Task:
    if not isinstance(step, Compute):
        return step
    kernel = step.kernel
    if isinstance(kernel, Gemm | GroupedGemm) and kernel.dtype == "fp8":
        return replace(step, kernel=replace(kernel, variant=variant))
    return step


# --- gradient buffers ---------------------------------------------------------------------------


def accumulate_gradient(
    s: Shapes, name: str, size: int, *, narrow: bool = True
) -> Iterator[Compute]:
    """Gradient of `size` elements → its addition to those of the micro-batches before.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the parameter.
    size : int
        Elements of the gradient.
    narrow : bool
        Whether the pass read the parameter in 16 bits. With autocast it read a copy, and the
        gradient is cast to fp32 first; norms and embeddings read parameters as they are.
    """
    if s.autocast and narrow:
        yield autocast_copy(s, f"{name} gradient", size)
    if s.is_megatron:
        traffic = s.element_size + 2 * BYTES[s.gradient_format]
    elif s.upcasts_gradients:
        wide = BYTES[s.gradient_format]
        widened = Elementwise((s.element_size + wide) * size)
        yield Compute(f"{name} gradient cast", widened, weight=True)
        traffic = 3 * wide
    elif s.accumulates_gradients and not s.shards_gradients:
        traffic = 3 * BYTES[s.plan.parameter_format]
    else:
        return
    yield Compute(f"{name} gradient accumulation", Elementwise(traffic * size), weight=True)


def weight_gradient(
    s: Shapes,
    name: str,
    tokens: int,
    n: int,
    k: int,
    *,
    after: tuple[str, ...] = (),
    linear: bool = True,
) -> Iterator[Compute]:
    """Inputs and output gradients → gradient of a matrix (k, n), added to the micro-batches before.

    Parameters
    ----------
    s : Shapes
    name : str
        Name of the matrix.
    tokens, n, k : int
        Rows of both operands; features of the gradients and of the inputs.
    after : tuple of str
        Tokens of communications that bring the inputs.
    linear : bool
        Whether the product is in the format of linear layers.
    """
    name = f"{name} weight gradient"
    dtype = s.linear_format if linear else s.matmul_format
    if s.is_megatron and s.plan.framework.fuses_wgrad:
        gemm = Gemm(n, k, tokens, dtype=dtype, output=s.gradient_format, accumulate=True)
        yield Compute(name, gemm, weight=True, after=after)
    else:
        gemm = Gemm(n, k, tokens, dtype=dtype, output=s.storage_format)
        yield Compute(name, gemm, weight=True, after=after)
        yield from accumulate_gradient(s, name.removesuffix(" gradient"), n * k)
