"""Layers: operators with what is handed on and what is kept."""

from __future__ import annotations

from typing import Literal

from ..operators import Layer, Operator
from .shapes import Shapes

__all__ = ["Role", "layer"]

Role = Literal["embedding", "block", "head"]


def layer(
    s: Shapes, name: str, operators: tuple[Operator, ...], role: Role = "block", *, beside: int = 0
) -> Layer:
    """Return a layer whose input and output are hidden states.

    Parameters
    ----------
    s : Shapes
    name : str
    operators : tuple of Operator
    role : {"embedding", "block", "head"}
    beside : int
        Bytes handed on beside its own output.
    """
    output = s.element * s.shared * s.model.hidden
    return Layer(name, operators, role, output + beside, output)
