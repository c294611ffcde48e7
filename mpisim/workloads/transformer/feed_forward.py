"""The feed-forward half of a block."""

from __future__ import annotations

from dataclasses import replace

from ..operators import Operator
from .again import again
from .pointwise import activation, dropout_add, norm
from .separate import separate_linears
from .shapes import Shapes
from .tensor_parallel import column_linear, row_linear

__all__ = ["feed_forward", "two_matrices"]


def feed_forward(s: Shapes) -> tuple[Operator, ...]:
    """Norm, two matrices with a non-linearity between them, and the sum with what came in."""
    model = s.model
    before = norm(s, "feed-forward norm", s.shared, model.hidden, residual=True)
    modules = s.plan.recompute_modules
    matrices = two_matrices(
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
        *again(s, "mlp", *matrices),
        *again(s, "layernorm", before),
        dropout_add(s, "feed-forward dropout add", bias=model.bias),
    )


def two_matrices(
    s: Shapes, name: str, width: int, *, bias: bool, keeps_input: bool = True
) -> tuple[Operator, ...]:
    """A matrix up, the non-linearity, and a matrix down.

    Parameters
    ----------
    s : Shapes
    name : str
    width : int
        Inner features of this rank.
    bias : bool
        Of the matrix up, added with the non-linearity; that of the matrix down comes later.
    keeps_input : bool
        False where another operator keeps the same input.
    """
    model = s.model
    into = width * (2 if model.gated else 1)
    if model.gated and s.separate_projections:
        first = separate_linears(
            s, name, {f"{name} gate": width, f"{name} value": width}, keeps_input=keeps_input
        )
    else:
        first = (column_linear(s, f"{name} in", model.hidden, into, keeps_input=keeps_input),)
    return (
        *first,
        activation(s, f"{name} {model.activation}", s.tokens, width, bias=bias),
        row_linear(s, f"{name} out", width, model.hidden),
    )
