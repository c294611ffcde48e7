"""Matrices with one input that stay apart: queries, keys and values; gate and value.

torchtitan, MaxText and Hugging Face have a matrix each where Megatron-LM has one. The products are
smaller, the gradients of their input are added up, and selective recomputation tells them apart.
With tensor parallelism as PyTorch has it, their input is gathered once, and its gradient reduced
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..operators import Operator
from .pointwise import branch
from .shapes import Shapes
from .tensor_parallel import column_linear, gathered_input

__all__ = ["separate_linears"]


def separate_linears(
    s: Shapes,
    name: str,
    widths: Mapping[str, int],
    *,
    bias: bool = False,
    kept: bool = False,
    keeps_input: bool = True,
) -> tuple[Operator, ...]:
    """Return matrices that take the same hidden states, split by columns.

    Parameters
    ----------
    s : Shapes
    name : str
        Of all of them.
    widths : mapping of str to int
        Features out by name of the matrix.
    bias, keeps_input
        As in `column_linear`.
    kept : bool
        Whether whatever follows keeps the results, and does not count them itself.
    """
    hidden = s.model.hidden
    if s.sequence_second:
        found = [gathered_input(s, name, hidden, len(widths))]
        for each, width in widths.items():
            keep = s.element * s.tokens * width if kept else 0
            found.append(
                column_linear(
                    s, each, hidden, width, bias=bias, keep=keep, keeps_input=False, gathered=True
                )
            )
        return tuple(found)
    found = [branch(s, name, s.shared * hidden)] * (len(widths) - 1)
    for i, (each, width) in enumerate(widths.items()):
        keep = s.element * s.tokens * width if kept else 0
        matrix = column_linear(
            s, each, hidden, width, bias=bias, keep=keep, keeps_input=keeps_input and not i
        )
        if i:  # the input has been cast for the first
            forward = tuple(step for step in matrix.forward if step.name != f"{each} cast")
            matrix = replace(matrix, forward=forward)
        found.append(matrix)
    return tuple(found)
