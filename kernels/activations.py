"""Activation functions of feed-forward blocks, and the elementary operations they are composed of.

Every function is one kernel bound by memory where it is fused or has a kernel of its own, whatever
it computes. A framework that composes it of its elementary operations launches a kernel for each.

To add a function, write its name in `ActivationName` and its entry in `ACTIVATIONS`; models take
both from here. If the entry has operations, its name belongs in `ComposedActivation`, too: they are
launched where ``framework.primitive`` names it and ``framework.fused`` is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from mpisim.base.frozen import frozen

__all__ = ["ACTIVATIONS", "ActivationFunction", "ActivationName", "ComposedActivation"]

ActivationName = Literal["gelu", "relu", "swiglu", "geglu"]
"""Values of ``model.activation``."""

ComposedActivation = Literal["gelu"]
"""Those of them that ``framework.primitive`` can name: they have operations."""

Operations = tuple[tuple[str, int], ...]
"""Of each operation what it computes, and how many tensors of the result's size it reads and
writes together."""


@frozen
class ActivationFunction:
    """Properties of an activation function that models and kernels depend on.

    Attributes
    ----------
    gated : bool
        Whether it takes a gate and a value for each result: two matrices on the way in.
    forward, backward : tuple of (str, int)
        Elementary operations where a framework composes it (``framework.primitive``); both empty
        where none is known to.
    """

    gated: bool = False
    forward: Operations = ()
    backward: Operations = ()


ACTIVATIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {
        # x · (1 + tanh(c · (x + 0.044715 x³))) / 2 in TensorFlow's operations, and their gradients:
        # ``gelu`` of modeling.py (github:google-research/bert).
        "gelu": ActivationFunction(
            forward=(
                ("power", 2),
                ("cube", 2),
                ("argument", 3),
                ("scale", 2),
                ("tanh", 2),
                ("shift", 2),
                ("half", 2),
                ("product", 3),
            ),
            backward=(
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
            ),
        ),
        "relu": ActivationFunction(),
        "swiglu": ActivationFunction(gated=True),
        "geglu": ActivationFunction(gated=True),
    }
)
