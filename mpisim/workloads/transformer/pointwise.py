"""Operators between the matrix products: norms, positions, activations, dropout and residuals.

Fused, each is one kernel, as in Apex, Transformer Engine and Megatron-LM's compiled functions;
otherwise each operation that PyTorch would launch is. Sizes count every operand once. Biases are
added where a matrix product ends (``torch.addmm`` calls cuBLASLt with a bias as epilogue), unless
the tp group's sums are reduced in between, or by a kernel of their own (``plan.bias_kernels``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mpisim.kernels.operations import BYTES, Elementwise, Norm, NormVariant

from ..operators import Compute, Operator, Parameter, Step
from .gradients import accumulate
from .shapes import Shapes

__all__ = [
    "MASK",
    "activation",
    "branch",
    "dropout",
    "dropout_add",
    "dropped",
    "norm",
    "rotate",
    "stream",
]

MASK = 1
"""Bytes of an element of a dropout mask."""
FP32 = BYTES["fp32"]

GELU = (
    ("power", 2),
    ("cube", 2),
    ("argument", 3),
    ("scale", 2),
    ("tanh", 2),
    ("shift", 2),
    ("half", 2),
    ("product", 3),
)
GELU_BACKWARD = (
    ("product backward", 3),
    ("input gradient", 3),
    ("half backward", 2),
    ("tanh backward", 3),
    ("scale backward", 2),
    ("cube backward", 2),
    ("square", 2),
    ("cube gradient", 2),
    ("power backward", 3),
    ("gradient sum", 4),
)
"""x · (1 + tanh(c · (x + 0.044715 x³))) / 2 in TensorFlow's operations (``gelu`` of BERT's
modeling.py), and their gradients: tensors each reads and writes."""


def stream(name: str, traffic: int) -> Compute:
    """A kernel that streams `traffic` bytes through memory."""
    return Compute(name, Elementwise(traffic))


def norm(
    s: Shapes,
    name: str,
    rows: int,
    columns: int,
    *,
    residual: bool = False,
    kept: bool = True,
    of_heads: bool = False,
) -> Operator:
    """A layer or RMS norm.

    Parameters
    ----------
    s : Shapes
    name : str
    rows, columns : int
        Vectors to normalise, and their elements.
    residual : bool
        Whether the input goes on past the block, too: the gradients of both ways are added.
    kept : bool
        False where another operator keeps the same input.
    of_heads : bool
        Whether each rank of a tp group normalises vectors of its own heads.

    Returns
    -------
    Operator
    """
    kind, size, e = s.model.norm, rows * columns, s.element
    variant: NormVariant | None = "persistent" if s.plan.persistent_norms else None
    whole = Norm(rows, columns, kind=kind, dtype=s.stored, variant=variant)
    forward: list[Step] = [Compute(name, whole)]
    backward: list[Step] = [Compute(f"{name} backward", replace(whole, backward=True))]
    if not s.plan.fused:
        if kind == "rms":
            forward = [
                stream(f"{name} cast", (e + FP32) * size),
                stream(f"{name} square", 2 * FP32 * size),
                stream(f"{name} mean", FP32 * size),
                stream(f"{name} root", 2 * FP32 * rows),
                stream(f"{name} scale", 2 * FP32 * size),
                stream(f"{name} round", (FP32 + e) * size),
                stream(f"{name} weight", 2 * e * size),
            ]
            backward = [
                stream(f"{name} weight backward", 2 * e * size),
                stream(f"{name} round backward", (e + FP32) * size),
                stream(f"{name} scale backward", 2 * FP32 * size),
                stream(f"{name} root backward", 2 * FP32 * size),
                stream(f"{name} square backward", 2 * FP32 * size),
                stream(f"{name} sum backward", 3 * FP32 * size),
                stream(f"{name} cast backward", (FP32 + e) * size),
            ]
        backward.append(stream(f"{name} weight gradient", 2 * e * size))
    parameters = [
        Parameter(f"{name} {what}", columns, replicated=True, partial=of_heads)
        for what in (("weight", "bias") if kind == "layer" else ("weight",))
    ]
    for parameter in parameters:
        backward += accumulate(s, parameter.name, parameter.size)
    if residual:
        backward += _add_gradients(s, f"{name} residual", size)
    saved = e * size if kept else 0
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), saved)


def _add_gradients(s: Shapes, name: str, size: int) -> Iterator[Compute]:
    """Add the gradients of a tensor of `size` elements that went two ways."""
    yield stream(f"{name} gradient sum", 3 * s.element * size)


def branch(s: Shapes, name: str, size: int) -> Operator:
    """A tensor that goes two ways, whose gradients are added before it."""
    return Operator(f"{name} branch", (), tuple(_add_gradients(s, name, size)))


def activation(s: Shapes, name: str, rows: int, width: int, *, bias: bool = False) -> Operator:
    """The non-linearity of a feed-forward block, with the bias of the matrix before it.

    Parameters
    ----------
    s : Shapes
    name : str
    rows : int
        Tokens.
    width : int
        Features out; a gated one takes twice as many in.
    bias : bool

    Returns
    -------
    Operator
    """
    gated, e = s.model.gated, s.element
    size = rows * width
    inputs = 2 * size if gated else size
    forward: list[Step] = [stream(name, e * (inputs + size))]
    backward: list[Step] = [stream(f"{name} backward", e * (2 * inputs + size))]
    kept = e * inputs
    if not s.plan.fused:
        apart = bias and s.plan.bias_kernels
        forward = [stream(f"{name} bias", 2 * e * inputs)] if apart else []
        if "gelu" in s.plan.primitive and s.model.activation == "gelu":
            forward += [stream(f"{name} {what}", n * e * size) for what, n in GELU]
            backward = [stream(f"{name} {what}", n * e * size) for what, n in GELU_BACKWARD]
        else:
            forward.append(stream(name, 2 * e * size))
            backward = [stream(f"{name} backward", 3 * e * size)]
        if gated:
            forward.append(stream(f"{name} gate", 3 * e * size))
            backward = [
                stream(f"{name} gate backward", 3 * e * size),
                stream(f"{name} value backward", 3 * e * size),
                *backward,
                stream(f"{name} concatenation", 2 * e * inputs),
            ]
    parameters = []
    if bias:
        columns = inputs // rows
        backward.append(stream(f"{name} bias gradient", e * inputs))
        backward += accumulate(s, f"{name} bias", columns)
        parameters.append(Parameter(f"{name} bias", columns))
    if s.plan.activation_fp8:
        kept, cast = BYTES["fp8"] * inputs, (e + BYTES["fp8"]) * inputs
        forward.append(stream(f"{name} input cast", cast))
        backward.insert(0, stream(f"{name} input cast back", cast))
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), kept)


def dropout_add(s: Shapes, name: str, *, bias: bool) -> Operator:
    """What ends a block: bias, dropout and the residual, on this rank's share of the sequence."""
    e, h, drops = s.element, s.model.hidden, s.model.dropout
    size = s.shared * h
    mask = MASK if drops else 0
    if s.plan.fused:
        forward: list[Step] = [stream(name, (3 * e + mask) * size)]
    else:
        apart = bias and (s.grid.tp > 1 or s.plan.bias_kernels)
        forward = [stream(f"{name} bias", 2 * e * size)] if apart else []
        if drops:
            forward += dropped(s, f"{name} dropout", size)
        forward.append(stream(name, 3 * e * size))
    # Without dropout both ways take the gradient as it is.
    backward: list[Step] = [stream(f"{name} backward", (2 * e + mask) * size)] if drops else []
    parameters = []
    if bias:
        backward.append(stream(f"{name} bias gradient", e * size))
        backward += accumulate(s, f"{name} bias", h)
        parameters.append(Parameter(f"{name} bias", h, replicated=True))
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), mask * size)


def dropout(s: Shapes, name: str, size: int) -> Operator:
    """Dropout of `size` elements, alone."""
    backward = dropped(s, f"{name} backward", size, backward=True)
    return Operator(name, tuple(dropped(s, name, size)), tuple(backward), (), MASK * size)


def dropped(s: Shapes, name: str, size: int, *, backward: bool = False) -> Iterator[Compute]:
    """The kernels of dropout: one, or TensorFlow's operations (``tf.nn.dropout`` of 1.15)."""
    e = s.element
    if "dropout" not in s.plan.primitive:
        yield stream(name, (2 * e + MASK) * size)
    elif backward:
        yield stream(name, 3 * e * size)
        yield stream(f"{name} scale", 2 * e * size)
    else:
        yield stream(f"{name} random numbers", e * size)
        yield stream(f"{name} comparison", (e + MASK) * size)
        yield stream(f"{name} scale", 2 * e * size)
        yield stream(f"{name} mask", (MASK + e) * size)
        yield stream(name, 3 * e * size)


def rotate(s: Shapes, parts: Iterable[tuple[str, int]]) -> Iterator[Compute]:
    """Rotary positions (arXiv:2104.09864), forward or backward, which are alike.

    As products of complex numbers in fp32 they are three kernels also where others are fused:
    torch.compile has no code for complex numbers and calls PyTorch's kernel.

    Parameters
    ----------
    s : Shapes
    parts : iterable of (str, int)
        Names of kernels, and elements rotated.
    """
    e = s.element
    for name, size in parts:
        if s.plan.rotary == "complex":
            yield stream(f"{name} cast", (e + FP32) * size)
            yield stream(f"{name} product", 2 * FP32 * size)
            yield stream(f"{name} round", (FP32 + e) * size)
        elif s.plan.fused:
            yield stream(name, 2 * e * size)
        else:
            yield stream(f"{name} cosine", 2 * e * size)
            yield stream(f"{name} negation", e * size)
            yield stream(f"{name} concatenation", 2 * e * size)
            yield stream(f"{name} sine", 2 * e * size)
            yield stream(f"{name} sum", 3 * e * size)
