"""Casts of operands to the format of the products: fp8, NVFP4.

An operand is read and written once in each layout that products need: on Hopper they take fp8 only
where both run along k, so that what gradients of weights read is kept transposed, too
(``plan.fp8_transposed``). Where scales come from (``plan.fp8_scaling``) decides how often it is
read: from steps before ("delayed") or from blocks of 32 elements ("blocks", MXFP8) once; from the
whole operand ("current") once more before.

Transformer Engine (transformer_engine/pytorch/module) fuses a cast with delayed scaling into the
norm before a matrix split by columns (``layernorm_fwd_fp8``; with others the norm's output is cast
behind it), and turns what was gathered or made so, in one layout, when the gradient of the weights
needs it (``fp8_transpose`` of ``ln_out_total`` and ``grad_output``). Blocks are scaled along the
layout they are written in: both are made at once, and nothing is turned.

With ``plan.fp8_casts`` "compiled" a compiler fuses the search of the largest value with what makes
an operand (torchao, XLA).
"""

from __future__ import annotations

from collections.abc import Iterator

from mpisim.kernels.operations import Elementwise

from ..operators import Compute
from .shapes import Shapes

__all__ = ["cast", "normed_cast", "turned", "turned_input", "weight_cast"]


def cast(
    s: Shapes, name: str, elements: int, *, made: bool = False, gathered: bool = False
) -> Compute:
    """Cast an operand.

    To NVFP4 it is read three times: for the largest values as it is and after the random Hadamard
    transform of 16 × 16 blocks, to be written as it is, and to be written transformed and
    transposed for the gradients of weights (Transformer Engine, NVFP4BlockScaling, and
    hadamard_transform in transformer_engine/common).

    Parameters
    ----------
    s : Shapes
    name : str
    elements : int
    made : bool
        Whether an elementwise kernel has just made it, as most gradients: outside of Transformer
        Engine that kernel finds the largest value where operations are fused, and both layouts are
        written at once, not in passes of their own.
    gathered : bool
        Whether it is gathered afterwards.
    """
    reads, layouts = 1, 2
    if s.linear == "nvfp4":
        reads = 3
    elif _by_engine(s):
        reads = 2 if s.plan.fp8_scaling == "current" else 1
        layouts = 1 if _turns(s, gathered) or not _both(s) else 2
    elif s.plan.fp8_scaling == "current" and not (made and s.plan.fused):
        reads = 3
    traffic = reads * s.element * elements + layouts * s.operand(elements)
    return Compute(f"{name} cast", Elementwise(traffic, transposes=layouts == 2))


def normed_cast(s: Shapes, name: str, elements: int) -> Iterator[Compute]:
    """Cast what a norm has made, the input of a matrix split by columns."""
    if not _in_norm(s):
        yield cast(s, name, elements, gathered=s.sequence_parallel)


def turned_input(
    s: Shapes, name: str, elements: int, after: tuple[str, ...] = ()
) -> Iterator[Compute]:
    """Turn the input of a matrix split by columns, for the gradient of the matrix."""
    if _by_engine(s) and _turns(s, s.sequence_parallel or _in_norm(s)):
        yield _turn(s, name, elements, after)


def turned(s: Shapes, name: str, elements: int) -> Iterator[Compute]:
    """Turn what was gathered in one layout, for the gradient of a matrix."""
    if s.quantised and (s.sequence_second or (_by_engine(s) and _turns(s, s.sequence_parallel))):
        yield _turn(s, name, elements)


def weight_cast(
    s: Shapes, name: str, elements: int, *, backward: bool = False
) -> Iterator[Compute]:
    """Cast a matrix for the pass at hand; forward its largest value is found before."""
    if s.plan.fp8_weight_casts:
        reads = 1 if backward or s.plan.fp8_scaling == "delayed" else 2
        traffic = reads * s.element * elements + s.operand(elements)
        what = f"{name} weight cast{' backward' if backward else ''}"
        yield Compute(what, Elementwise(traffic, transposes=backward))


def _by_engine(s: Shapes) -> bool:
    """Whether Transformer Engine casts."""
    return s.plan.fp8_casts == "transformer-engine"


def _both(s: Shapes) -> bool:
    """Whether two layouts are needed."""
    return s.plan.fp8_transposed or s.plan.fp8_scaling == "blocks"


def _turns(s: Shapes, one_layout: bool) -> bool:
    """Whether what is there in one layout is turned later."""
    whole = s.linear == "fp8" and s.plan.fp8_scaling != "blocks"
    return one_layout and whole and s.plan.fp8_transposed


def _in_norm(s: Shapes) -> bool:
    """Whether norms write fp8."""
    return s.linear == "fp8" and _by_engine(s) and s.plan.fp8_scaling == "delayed" and s.plan.fused


def _turn(s: Shapes, name: str, elements: int, after: tuple[str, ...] = ()) -> Compute:
    traffic = 2 * s.operand(elements)
    what = f"{name} transposition"
    return Compute(what, Elementwise(traffic, transposes=True), weight=True, after=after)
