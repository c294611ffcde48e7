"""How the layers of a model are spread over the parts of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import InputError
from ..experiment.plan import Plan
from .operators import Layer, Network

__all__ = ["Part", "split"]

MOST_SHOWN = 16
"""Parts up to which a message writes their layers out."""


@dataclass(frozen=True)
class Part:
    """Consecutive layers of a model.

    Attributes
    ----------
    layers : tuple of Layer
    numbers : tuple of int
        Of each layer its number among the model's blocks; -1 for embedding and head.
    """

    layers: tuple[Layer, ...]
    numbers: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Number of layers that are neither embedding nor head."""
        return sum(number >= 0 for number in self.numbers)


def split(network: Network, plan: Plan, parts: int) -> list[Part]:
    """Spread a model's blocks evenly, or as ``plan.stages`` says; embeddings go first, heads last.

    Raises
    ------
    InputError
        If it does not come out even.
    """
    roles = [layer.role for layer in network.layers]
    blocks = roles.count("block")
    counts = list(plan.stages) or _even(blocks, plan, parts)
    if sum(counts) != blocks:
        raise InputError(
            f"plan.stages = {counts} adds up to {sum(counts)} layers; the model has {blocks}"
        )
    first = roles.index("block") if blocks else len(roles)
    number = 0
    found = []
    for part, count in enumerate(counts):
        begin, end = first + number, first + number + count
        layers = list(network.layers[begin:end])
        numbers = list(range(number, number + count))
        if part == 0:
            layers = [*network.layers[:first], *layers]
            numbers = [-1] * first + numbers
        if part == parts - 1:
            rest = network.layers[first + blocks :]
            layers += rest
            numbers += [-1] * len(rest)
        number += count
        found.append(Part(tuple(layers), tuple(numbers)))
    for part, each in enumerate(found):
        if not each.layers:
            raise InputError(f"part {part} of the pipeline has no layer; plan.stages = {counts}")
    return found


def _even(blocks: int, plan: Plan, parts: int) -> list[int]:
    extra = plan.account_for_embedding + plan.account_for_loss
    each, rest = divmod(blocks + extra, parts)
    if rest:
        counted = "1 layer" if blocks == 1 else f"{blocks} layers"
        if extra:
            counted += f" and {extra} for embedding and loss"
        uneven = [blocks // parts + (part < blocks % parts) for part in range(parts)]
        such = f", such as {uneven}" if min(uneven) > 0 and parts <= MOST_SHOWN else ""
        raise InputError(
            f"{counted} cannot be spread evenly over plan.pp × plan.vpp = {parts} parts of the "
            f"pipeline; give the layers of each in plan.stages{such}"
        )
    counts = [each] * parts
    counts[0] -= plan.account_for_embedding
    counts[-1] -= plan.account_for_loss
    return counts
