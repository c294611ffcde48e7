"""Operators of a trace → which is the gradient of which.

Autograd gives both one number; several operators may have it, and the names then decide. Lookups of
FBGEMM have none in older traces. They and their gradients are named by the optimizer, and numbers
of gradients rise in the order of the lookups: the last lookup is that of the gradient with the
largest number, and so on. Gradients of lookups that came before the recording are left over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

__all__ = ["EVALUATE", "Partners", "is_backward"]

EVALUATE = "autograd::engine::evaluate_function: "
"""Begins the name of what runs a gradient: the gradient itself lies inside."""

_NODE = "torch::autograd::CppNode<"
_LOOKUP = re.compile(r"fbgemm::.*_lookup_(?:(\w+?)_)?function")
_LOOKUP_GRADIENT = re.compile(r"SplitLookupFunction_(\w+?)_Op")
_DENSE = "dense"
"""Optimizer in the name of a gradient that none follows; its lookup's name has none there."""

_MIN_NAME_LENGTH = 6
"""Letters from which on a name that holds another is taken for the same operator."""


class Partners:
    """The forward operator of each gradient, and the gradient of each forward operator.

    Parameters
    ----------
    names : sequence of str
        Operators in order of begin.
    sequences : sequence of int
        Autograd's number of each; -1 without.
    """

    def __init__(self, names: Sequence[str], sequences: Sequence[int]) -> None:
        self.names, self.sequences = names, sequences
        self._forward: dict[int, list[int]] = {}
        self._gradient: dict[int, list[int]] = {}
        self._lookups, self._lookup_gradients = self._paired_lookups()
        for i, (name, sequence) in enumerate(zip(names, sequences)):
            if sequence < 0 or name.startswith(EVALUATE):
                continue
            (self._gradient if is_backward(name) else self._forward).setdefault(
                sequence, []
            ).append(i)

    def forward(self, gradient: int) -> int:
        """Position of a gradient → that of its forward operator; -1 if it is not there."""
        if _LOOKUP_GRADIENT.search(self.names[gradient]):
            return self._lookups.get(gradient, -1)
        return self._partner(self._forward, gradient)

    def gradient(self, forward: int) -> int:
        """Position of a forward operator → that of its gradient; -1 if it is not there."""
        if forward in self._lookup_gradients:
            return self._lookup_gradients[forward]
        return self._partner(self._gradient, forward)

    def _paired_lookups(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the lookup of each of FBGEMM's gradients, and the gradient of each lookup."""
        lookups: dict[str, list[int]] = {}
        gradients: dict[str, list[int]] = {}
        for i, name in enumerate(self.names):
            if forward := _LOOKUP.match(name):
                lookups.setdefault(forward[1] or _DENSE, []).append(i)
            elif not name.startswith(EVALUATE) and (node := _LOOKUP_GRADIENT.search(name)):
                gradients.setdefault(node[1].lower(), []).append(i)
        found: dict[int, int] = {}
        for optimizer, own in gradients.items():
            own.sort(key=lambda i: self.sequences[i], reverse=True)
            found.update(zip(own, reversed(lookups.get(optimizer, []))))
        return found, {lookup: gradient for gradient, lookup in found.items()}

    def _partner(self, among: dict[int, list[int]], one: int) -> int:
        stem = _stem(self.names[one])
        for i in among.get(self.sequences[one], ()):
            other = _stem(self.names[i])
            long = min(len(stem), len(other)) >= _MIN_NAME_LENGTH
            if stem == other or (long and (stem in other or other in stem)):
                return i
        return -1


@cache
def is_backward(name: str) -> bool:
    """Whether an operator's name is that of a gradient."""
    return name.startswith(_NODE) or name.rstrip("0123456789").endswith("Backward")


@cache
def _stem(name: str) -> str:
    """Operator, or its gradient → what both are called."""
    last = name.removeprefix(EVALUATE).removeprefix(_NODE).split("::")[-1]
    return last.rstrip("0123456789").removesuffix("Backward").replace("_", "").lower()
