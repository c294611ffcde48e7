"""The parameters a model chunk holds, and where in the chunk they stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..operators import Layer, Parameter

__all__ = ["Held", "held", "of_kind"]


@dataclass(frozen=True)
class Held:
    """A parameter and the operator it belongs to.

    Attributes
    ----------
    parameter : Parameter
    layer, operator : int
        The layer in the chunk, and the operator in the layer.
    number : int
        Among the chunk's parameters, in the order of registration.
    """

    parameter: Parameter
    layer: int
    operator: int
    number: int

    @property
    def size(self) -> int:
        """Elements this rank holds."""
        return self.parameter.size

    @property
    def expert(self) -> bool:
        """Whether it belongs to a routed expert."""
        return self.parameter.expert

    @property
    def place(self) -> tuple[int, int]:
        """Layer and operator; the backward comes through the places in descending order."""
        return self.layer, self.operator


def held(layers: Sequence[Layer]) -> tuple[Held, ...]:
    """Return the parameters of a chunk in the order of registration, but for local ones.

    A matrix that two layers of the chunk share (tied embeddings without a pipeline) is registered
    once, with the first: its gradient is complete when the backward has come there. What this rank
    alone holds (`Parameter.local`) is left out.
    """
    found: list[Held] = []
    tied: set[int] = set()
    for i, layer in enumerate(layers):
        for j, operator in enumerate(layer.operators):
            for parameter in operator.parameters:
                if parameter.local or (parameter.tied and parameter.size in tied):
                    continue
                if parameter.tied:
                    tied.add(parameter.size)
                found.append(Held(parameter, i, j, len(found)))
    return tuple(found)


def of_kind(parameters: Iterable[Held], expert: bool) -> list[Held]:
    """Return the dense parameters, or those of experts."""
    return [each for each in parameters if each.expert is expert]
