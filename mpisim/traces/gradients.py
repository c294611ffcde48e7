"""Operators of a trace → which is the gradient of which.

Autograd gives both one number; several operators may have it, and the names then decide. Operators
of FBGEMM have none in older traces: a lookup and its gradient are both named by the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

__all__ = ["EVALUATE", "Partners", "is_backward"]

EVALUATE = "autograd::engine::evaluate_function: "
"""Begins the name of what runs a gradient: the gradient itself lies inside."""

_NODE = "torch::autograd::CppNode<"
_LOOKUP = "SplitLookupFunction_"
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
        self._lookups = [i for i, name in enumerate(names) if name.startswith("fbgemm::")]
        self._lookups = [i for i in self._lookups if "lookup" in names[i]]
        for i, (name, sequence) in enumerate(zip(names, sequences)):
            if sequence < 0 or name.startswith(EVALUATE):
                continue
            (self._gradient if is_backward(name) else self._forward).setdefault(
                sequence, []
            ).append(i)

    def forward(self, gradient: int) -> int:
        """Position of a gradient → that of its forward operator; -1 if it is not there."""
        name = self.names[gradient]
        if _LOOKUP in name:
            optimizer = name.split(_LOOKUP)[1].split("_Op")[0].lower()
            return next((i for i in self._lookups if f"_{optimizer}" in f"_{self._bare(i)}"), -1)
        return self._partner(self._forward, gradient)

    def gradient(self, forward: int) -> int:
        """Position of a forward operator → that of its gradient; -1 if it is not there."""
        return self._partner(self._gradient, forward)

    def _bare(self, lookup: int) -> str:
        return self.names[lookup].removeprefix("fbgemm::")

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
