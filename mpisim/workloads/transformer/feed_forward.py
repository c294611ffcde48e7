"""The feed-forward half of a block, and its activation functions.

`mlp`, the two matrices and what is between them, serves dense blocks and shared experts;
`activation` serves routed experts and BERT's head, too. The functions themselves are listed in
:mod:`mpisim.kernels.activations`, where a further one is added.
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.kernels.activations import ACTIVATIONS
from mpisim.kernels.operations import BYTES, Copy, Elementwise

from ..operators import Await, Compute, Operator, Parameter, Task
from .autocast import autocast_copies
from .module_options import recompute_module
from .pointwise import FP32, added_bias, broadcast, dropout_add, elementwise, norm, widened
from .precision import accumulate_gradient
from .shapes import Shapes
from .tensor_parallel import column_linear, row_linear, separate_linears

__all__ = ["activation", "clamp_inputs", "feed_forward", "mlp"]

CLAMP_OFFSET_COPY = "copy offset"
"""Name of the copy of the values' offset to the GPU, see `clamp_inputs`."""


def feed_forward(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → hidden states: norm, two matrices with an activation between, residual."""
    model = s.model
    before = norm(s, "feed-forward norm", s.sharded_tokens, model.hidden, residual=True)
    modules = s.plan.recompute.modules
    matrices = mlp(
        s,
        "feed-forward",
        model.ffn // s.grid.tp,
        bias=model.bias,
        keeps_input="layernorm" not in modules or "mlp" in modules,
    )
    if "mlp" in modules:  # their input is all that is kept
        matrices = (matrices[0], *(replace(each, saved=0) for each in matrices[1:]))
    return (
        before,
        *matrices,
        *recompute_module(s, "mlp", *matrices),
        *recompute_module(s, "layernorm", before),
        dropout_add(s, "feed-forward dropout add", bias=model.bias),
    )


def mlp(
    s: Shapes, name: str, width: int, *, bias: bool, keeps_input: bool = True
) -> tuple[Operator, ...]:
    """Hidden states → hidden states: a matrix up, an activation function, a matrix down.

    Megatron-LM's `MLP` (megatron/core/transformer/mlp.py).

    Parameters
    ----------
    s : Shapes
    name : str
    width : int
        Inner features of this rank.
    bias : bool
        Whether the matrix up has a bias, added with the activation; that of the matrix down comes
        with dropout and residual.
    keeps_input : bool
        False where another operator keeps the same input.
    """
    model = s.model
    features = width * (2 if model.gated else 1)
    if model.gated and s.separate_projections:
        first = separate_linears(
            s, name, {f"{name} gate": width, f"{name} value": width}, keeps_input=keeps_input
        )
    else:
        first = (column_linear(s, f"{name} in", model.hidden, features, keeps_input=keeps_input),)
    return (
        *first,
        activation(s, f"{name} {model.activation}", s.tokens, width, bias=bias),
        row_linear(s, f"{name} out", width, model.hidden),
    )


def activation(s: Shapes, name: str, rows: int, width: int, *, bias: bool = False) -> Operator:
    """Features of the first matrix → features of the second: the activation function and a bias.

    Fused, one kernel (megatron/core/fusions: fused_bias_gelu.py, fused_bias_swiglu.py); else
    PyTorch's operations, or those that `ACTIVATIONS` has it composed of.

    Parameters
    ----------
    s : Shapes
    name : str
    rows : int
        Tokens.
    width : int
        Features out; a gated function takes twice as many in.
    bias : bool
        Whether the bias of the matrix before is added here.
    """
    gated, e = s.model.gated, s.element_size
    size = rows * width
    inputs = 2 * size if gated else size
    forward: list[Task] = [elementwise(name, e * (inputs + size))]
    backward: list[Task] = [elementwise(f"{name} backward", e * (2 * inputs + size))]
    kept = e * inputs
    if not s.plan.framework.fused:
        bias_kernel = bias and s.plan.framework.bias_kernels
        forward = [added_bias(s, name, inputs)] if bias_kernel else []
        composed = ACTIVATIONS[s.model.activation]
        # With autocast operations that a function is composed of, ``pow`` first, are in fp32.
        wide = widened(s, "activation") or (
            s.autocast and s.model.activation in s.plan.framework.primitive
        )
        one = (FP32 if wide else e) * size
        own: list[Task] = [elementwise(name, 2 * one)]
        backward = [elementwise(f"{name} backward", 3 * one)]
        if composed.forward and s.model.activation in s.plan.framework.primitive:
            own = [elementwise(f"{name} {what}", n * one) for what, n in composed.forward]
            backward = [elementwise(f"{name} {what}", n * one) for what, n in composed.backward]
        if wide:
            cast = (e + FP32) * size
            own = [
                elementwise(f"{name} cast", cast),
                *own,
                elementwise(f"{name} cast back", cast),
            ]
            backward = [
                elementwise(f"{name} gradient cast", cast),
                *backward,
                elementwise(f"{name} gradient cast back", cast),
            ]
        forward += own
        if gated:
            forward.append(elementwise(f"{name} gate", 3 * e * size))
            backward = [
                elementwise(f"{name} gate backward", 3 * e * size),
                elementwise(f"{name} value backward", 3 * e * size),
                *backward,
            ]
            if not s.separate_projections:  # gradients of both go to one matrix
                backward.append(elementwise(f"{name} concatenation", 2 * e * inputs))
    parameters = []
    if bias:
        columns = inputs // rows
        forward = [*autocast_copies(s, {f"{name} bias": columns}), *forward]
        sums = Elementwise.column_sums(e, rows, columns)
        backward.append(Compute(f"{name} bias gradient", sums))
        backward += accumulate_gradient(s, f"{name} bias", columns)
        parameters.append(Parameter(f"{name} bias", columns))
    if s.plan.precision.fp8_activations:
        kept, cast = BYTES["fp8"] * inputs, (e + BYTES["fp8"]) * inputs
        forward.append(elementwise(f"{name} input cast", cast))
        backward.insert(0, elementwise(f"{name} input cast back", cast))
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), kept)


def clamp_inputs(s: Shapes, activation: Operator, size: int) -> Operator:
    """Gated activation of `size` results → the same with its inputs clamped (``swiglu_limit``).

    As in gpt-oss. Megatron-LM does so outside of the fused activation
    (``megatron/core/fusions/fused_bias_geglu.py``, `weighted_bias_quick_geglu_impl`): both halves
    are clamped and joined again, and the offset of the values, a number, is made a tensor on the
    GPU. That copy from the host's memory makes the CPU wait for all that it has launched. Halves of
    rows are not dense, so that PyTorch finds the place of each element by division. What the
    activation keeps is kept twice: as it came, and clamped; where it runs again backward
    (``moe_act``), once, as it came.

    Parameters
    ----------
    s : Shapes
    activation : Operator
        Of a gated function, see `activation`.
    size : int
        Elements of its result.
    """
    name, e = activation.name, s.element_size
    return replace(
        activation,
        forward=(
            broadcast(f"{name} clamp gate", 2 * e * size, size),
            broadcast(f"{name} clamp values", 2 * e * size, size),
            elementwise(f"{name} concatenation", 4 * e * size),
            Compute(CLAMP_OFFSET_COPY, Copy(e, "host")),
            Await("wait for offset", CLAMP_OFFSET_COPY),
            *activation.forward,
        ),
        backward=(
            *activation.backward,
            broadcast(f"{name} clamp values backward", 3 * e * size, size),
            broadcast(f"{name} clamp gate backward", 3 * e * size, size),
            elementwise(f"{name} concatenation backward", 4 * e * size),
        ),
        saved=(1 if "moe_act" in s.plan.recompute.modules else 2) * activation.saved,
    )
