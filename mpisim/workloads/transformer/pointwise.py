"""Memory-bound operators between the matrix products: norms, rotary positions, dropout, residuals.

Fused, each is one kernel, as in Apex, Transformer Engine and Megatron-LM's compiled functions;
otherwise each operation that PyTorch would launch is. Sizes count every operand once. Biases are
added where a matrix product ends (``torch.addmm`` calls cuBLASLt with a bias as epilogue), unless
the tp group's sums are reduced in between, or by a kernel of their own
(``framework.bias_kernels``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mpisim.kernels.operations import BYTES, Elementwise, Norm, NormVariant

from ..operators import Compute, Operator, Parameter, Task
from .autocast import autocast_copies, autocast_copy
from .precision import accumulate_gradient
from .shapes import Shapes

__all__ = [
    "MASK_BYTES",
    "added_bias",
    "branch",
    "broadcast",
    "dropout",
    "dropout_add",
    "dropout_kernels",
    "elementwise",
    "norm",
    "rotary_kernels",
    "widened",
]

MASK_BYTES = 1
"""Of an element of a dropout mask."""
FP32 = BYTES["fp32"]

COMPOSED_NORM: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = (
    (
        ("mean", 1),
        ("squared difference", 2),
        ("variance", 1),
        ("inverse", 1),
        ("product", 3),
        ("mean product", 2),
        ("shift", 2),
        ("sum", 3),
    ),
    (
        ("shift gradient", 2),
        ("offset gradient", 1),
        ("mean product backward", 3),
        ("mean gradient", 1),
        ("inverse gradient of the mean", 2),
        ("product backward", 3),
        ("inverse gradient", 3),
        ("inverse gradient sum", 3),
        ("inverse backward", 2),
        ("variance gradient", 1),
        ("scale product", 2),
        ("scale gradient", 1),
        ("spread of the variance", 3),
        ("twice the gradient", 2),
        ("difference", 2),
        ("squared difference backward", 3),
        ("spread of the mean", 3),
        ("gradient sum", 4),
    ),
)
"""Layer normalisation of TensorFlow 1 (``tf.contrib.layers.layer_norm``: ``tf.nn.moments`` and
``tf.nn.batch_normalization``), forward and backward: kernels, and how many tensors as large as the
input each reads and writes."""


def elementwise(name: str, traffic: int) -> Compute:
    """A kernel that moves `traffic` bytes through memory.

    Parameters
    ----------
    name : str
    traffic : int
        Bytes read and written.
    """
    return Compute(name, Elementwise(traffic))


def broadcast(name: str, traffic: int, elements: int) -> Compute:
    """One of PyTorch's kernels whose operands are broadcast or not dense.

    Where they lie is divided out of the number of each element (TensorIterator's offsets), which
    takes longer than memory does where that is fast.

    Parameters
    ----------
    name : str
    traffic : int
        Bytes read and written.
    elements : int
        Of the result.
    """
    return Compute(name, Elementwise(traffic, indexed=elements))


def added_bias(s: Shapes, name: str, elements: int) -> Compute:
    """Kernel that adds a bias to features, where no product or fused kernel includes it.

    Parameters
    ----------
    s : Shapes
    name : str
        Of what it is added to.
    elements : int
        Of the result.
    """
    traffic = 2 * s.element_size * elements
    if s.plan.framework.broadcast_biases:
        return broadcast(f"{name} bias", traffic, elements)
    return elementwise(f"{name} bias", traffic)


def widened(s: Shapes, what: str) -> bool:
    """Whether automatic mixed precision keeps an operation in fp32.

    PyTorch's does so by its lists (:mod:`.autocast`), others as ``framework.widened`` says.

    Parameters
    ----------
    s : Shapes
    what : {"norm", "softmax", "activation"}
    """
    framework = s.plan.framework
    if s.autocast:
        return what != "activation"
    return what in framework.widened and not framework.fused and s.element_size < FP32


def norm(
    s: Shapes,
    name: str,
    rows: int,
    columns: int,
    *,
    residual: bool = False,
    keeps_input: bool = True,
    per_head: bool = False,
    casts: bool = True,
) -> Operator:
    """Rows → normalised rows: a layer or RMS norm.

    Fused it is one kernel of Apex or Transformer Engine; else the operations of PyTorch, those of
    an RMS norm as in LLaMA's reference code and Hugging Face's (``LlamaRMSNorm``).

    Parameters
    ----------
    s : Shapes
    name : str
    rows, columns : int
        Vectors, and elements of each.
    residual : bool
        Whether the input also goes past the block: the gradients of both ways are added.
    keeps_input : bool
        False where another operator keeps the same input.
    per_head : bool
        Whether each rank of a tp group normalises vectors of its own heads.
    casts : bool
        Whether a product reads all of the result, for which autocast casts it.
    """
    kind, size, e = s.model.norm, rows * columns, s.element_size
    wide = widened(s, "norm")
    casts = wide and not s.plan.framework.fused and (casts or not s.autocast)
    stored = "fp32" if wide else s.storage_format
    variant: NormVariant | None = "persistent" if s.plan.framework.persistent_norms else None
    adds = residual and _adds_in_norms(s)
    fused = Norm(rows, columns, kind=kind, dtype=stored, variant=variant, residual=adds)
    forward: list[Task] = [Compute(name, fused)]
    backward: list[Task] = [Compute(f"{name} backward", replace(fused, backward=True))]
    if not s.plan.framework.fuses_norms:
        if kind == "rms":
            forward = [
                elementwise(f"{name} cast", (e + FP32) * size),
                elementwise(f"{name} square", 2 * FP32 * size),
                elementwise(f"{name} mean", FP32 * size),
                elementwise(f"{name} root", 2 * FP32 * rows),
                elementwise(f"{name} scale", 2 * FP32 * size),
                elementwise(f"{name} round", (FP32 + e) * size),
                elementwise(f"{name} weight", 2 * e * size),
            ]
            backward = [
                elementwise(f"{name} weight backward", 2 * e * size),
                elementwise(f"{name} round backward", (e + FP32) * size),
                elementwise(f"{name} scale backward", 2 * FP32 * size),
                elementwise(f"{name} root backward", 2 * FP32 * size),
                elementwise(f"{name} square backward", 2 * FP32 * size),
                elementwise(f"{name} sum backward", 3 * FP32 * size),
                elementwise(f"{name} cast backward", (FP32 + e) * size),
            ]
            if s.autocast:  # the input is fp32 already, and so is the result
                forward = [*forward[1:-2], elementwise(f"{name} weight", 2 * FP32 * size)]
                backward = [
                    elementwise(f"{name} weight backward", 2 * FP32 * size),
                    *backward[2:-1],
                ]
        if kind == "layer" and "norm" in s.plan.framework.primitive:
            one = BYTES[stored] * size
            forward = [elementwise(f"{name} {what}", n * one) for what, n in COMPOSED_NORM[0]]
            backward = [elementwise(f"{name} {what}", n * one) for what, n in COMPOSED_NORM[1]]
        else:
            backward.append(elementwise(f"{name} weight gradient", 2 * BYTES[stored] * size))
    if casts:
        forward.append(elementwise(f"{name} output cast", (FP32 + e) * size))
        backward.insert(0, elementwise(f"{name} output cast backward", (e + FP32) * size))
    parameters = [
        Parameter(f"{name} {what}", columns, replicated=True, partial=per_head)
        for what in (("weight", "bias") if kind == "layer" else ("weight",))
    ]
    for parameter in parameters:
        backward += accumulate_gradient(s, parameter.name, parameter.size, narrow=False)
    if residual and not adds:
        backward += _add_gradients(f"{name} residual", size, BYTES[stored])
    saved = s.stream_size * size if keeps_input else 0
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), saved)


def _adds_in_norms(s: Shapes) -> bool:
    """Whether kernels of norms add up the residual stream, and its gradients.

    Each block has as many norms as sums. The sum before a norm is that of the block before, so that
    in a network the first norm adds nothing, and the final norm does: here it is the reverse, which
    makes the same number of the same kernels.
    """
    framework = s.plan.framework
    wide = widened(s, "norm")
    return framework.residual_norms and framework.fuses_norms and not s.model.dropout and not wide


def branch(s: Shapes, name: str, size: int) -> Operator:
    """A tensor of `size` elements that is used twice: backward its two gradients are added.

    Parameters
    ----------
    s : Shapes
    name : str
    size : int
        Elements.
    """
    element = FP32 if widened(s, "norm") else s.element_size
    return Operator(f"{name} branch", (), tuple(_add_gradients(name, size, element)))


def _add_gradients(name: str, size: int, element: int) -> Iterator[Compute]:
    """Two gradients of `size` elements of `element` bytes → their sum."""
    yield elementwise(f"{name} gradient sum", 3 * element * size)


def dropout_add(s: Shapes, name: str, *, bias: bool) -> Operator:
    """Output of half a block and its input → input of the next half: bias, dropout and residual.

    Works on this rank's share of the sequence. Fused it is one kernel, Megatron-LM's
    ``bias_dropout_add`` (megatron/core/fusions/fused_bias_dropout.py), or the next norm's
    (``framework.residual_norms``).

    Parameters
    ----------
    s : Shapes
    name : str
    bias : bool
        Whether the bias of the matrix before it is added here.
    """
    e, h, drops = s.element_size, s.model.hidden, s.model.dropout
    size = s.sharded_tokens * h
    mask = MASK_BYTES if drops else 0
    adds = _adds_in_norms(s)
    forward: list[Task] = []
    if s.plan.framework.fused:
        forward += [] if adds else [elementwise(name, (e + 2 * s.stream_size + mask) * size)]
    else:
        if bias and (s.grid.tp > 1 or s.plan.framework.bias_kernels):
            forward.append(added_bias(s, name, size))
        if drops:
            forward += dropout_kernels(s, f"{name} dropout", size)
        stream = FP32 if widened(s, "norm") else e
        forward += [] if adds else [elementwise(name, (e + 2 * stream) * size)]
    # Without dropout both ways take the gradient as it is; a fused kernel casts it.
    backward: list[Task] = [elementwise(f"{name} backward", (2 * e + mask) * size)] if drops else []
    if widened(s, "norm") and not s.plan.framework.fused:
        backward.insert(0, elementwise(f"{name} gradient cast", (FP32 + e) * size))
    parameters = []
    if bias:
        forward = [*autocast_copies(s, {f"{name} bias": h}), *forward]
        sums = Elementwise.column_sums(e, s.sharded_tokens, h)
        backward.append(Compute(f"{name} bias gradient", sums))
        backward += accumulate_gradient(s, f"{name} bias", h)
        parameters.append(Parameter(f"{name} bias", h, replicated=True))
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), mask * size)


def dropout(s: Shapes, name: str, size: int) -> Operator:
    """Elements of the residual stream → the same with some set to zero; keeps the mask.

    Parameters
    ----------
    s : Shapes
    name : str
    size : int
        Elements.
    """
    element = s.stream_size
    forward = dropout_kernels(s, name, size, element=element)
    backward = dropout_kernels(s, f"{name} backward", size, backward=True, element=element)
    return Operator(name, tuple(forward), tuple(backward), (), MASK_BYTES * size)


def dropout_kernels(
    s: Shapes, name: str, size: int, *, backward: bool = False, element: int | None = None
) -> Iterator[Compute]:
    """The kernels of dropout of `size` elements.

    One, or TensorFlow's operations (``tf.nn.dropout`` of 1.15) where ``framework.primitive`` has
    them.

    Parameters
    ----------
    s : Shapes
    name : str
    size : int
        Elements.
    backward : bool
        Whether it is the way back, which applies the mask again.
    element : int, optional
        Bytes of an element, if not as of an activation.
    """
    e = s.element_size if element is None else element
    if "dropout" not in s.plan.framework.primitive:
        yield elementwise(name, (2 * e + MASK_BYTES) * size)
    elif backward:
        yield elementwise(name, 3 * e * size)
        yield elementwise(f"{name} scale", 2 * e * size)
    else:
        yield elementwise(f"{name} random numbers", e * size)
        yield elementwise(f"{name} comparison", (e + MASK_BYTES) * size)
        yield elementwise(f"{name} scale", 2 * e * size)
        yield elementwise(f"{name} mask", (MASK_BYTES + e) * size)
        yield elementwise(name, 3 * e * size)


def rotary_kernels(s: Shapes, parts: Iterable[tuple[str, int]]) -> Iterator[Compute]:
    """The kernels of rotary positions (arXiv:2104.09864), the same forward and backward.

    As products of complex numbers in fp32 (``framework.rotary``) they are three kernels also where
    others are fused: torch.compile has no code for complex numbers and calls PyTorch's kernel.
    Sines and cosines are broadcast over heads, what is negated is half of each vector.

    Parameters
    ----------
    s : Shapes
    parts : iterable of (str, int)
        Names of tensors, and their elements.
    """
    e = s.element_size
    for name, size in parts:
        if s.plan.framework.rotary == "complex":
            yield elementwise(f"{name} cast", (e + FP32) * size)
            yield elementwise(f"{name} product", 2 * FP32 * size)
            yield elementwise(f"{name} round", (FP32 + e) * size)
        elif s.plan.framework.fused and s.plan.framework.rotary == "real":
            yield elementwise(name, 2 * e * size)
        else:
            wide = s.stream_size  # of sines, and of what is multiplied by them
            yield broadcast(f"{name} cosine", (e + wide) * size, size)
            yield broadcast(f"{name} negation", e * size, size // 2)
            yield elementwise(f"{name} concatenation", 2 * e * size)
            yield broadcast(f"{name} sine", (e + wide) * size, size)
            yield elementwise(f"{name} sum", 3 * wide * size)
            if s.autocast:
                yield autocast_copy(s, name, size)
