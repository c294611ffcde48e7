"""NCCL's choices of algorithm → traffic patterns on links, with the highest rate of each.

A *pattern* is an operation with an algorithm: an all-reduce by rings, an all-gather by rings
dimension by dimension. What a communication loads on links depends on the pattern and on the bytes,
but not on the protocol.

Two sizes of one operation may take different algorithms, so a group that does one operation may
need several patterns, and one pattern has several rates; the highest of them is what links are
compared with.

>>> from mpisim.topo.nccl import Nccl, System
>>> node = System("hopper", 8, "nvswitch", link_bandwidth=370.8e9)
>>> group = Shape.regular(1, 8, node)
>>> patterns = AlgorithmPatterns(Nccl(node), dimensions=False)
>>> [pattern.algorithm for pattern in patterns.of_operations(1 << Operation.ALL_REDUCE, group)]
['ring', 'nvls', 'tree']
>>> patterns.of_operations(1 << Operation.BROADCAST, group)
[Pattern(operation=<Operation.BROADCAST: 4>, algorithm='ring')]
"""

from __future__ import annotations

from mpisim.base.kinds import Operation

from .link_library import CollectiveLibrary
from .nccl import Choice, Shape
from .network import rate_of
from .traffic.grid_order import BY_DIMENSION
from .traffic.patterns import Pattern

__all__ = ["AlgorithmPatterns"]

PROBED_SIZES = tuple(1 << bits for bits in range(10, 37, 2))
"""Sizes at which the highest rate of an algorithm is sought."""

_OPERATIONS_WITHOUT_LINKS = (Operation.NONE, Operation.BARRIER, Operation.UNKNOWN)


class AlgorithmPatterns:
    """The patterns of a library.

    Parameters
    ----------
    library : Nccl or LinkLibrary
    dimensions : bool
        Whether what it does by rings goes dimension by dimension where a group can.
    """

    def __init__(self, library: CollectiveLibrary, dimensions: bool) -> None:
        self.library = library
        self._dimensions = dimensions
        self._of_operation: dict[tuple[Operation, Shape], tuple[Pattern, ...]] = {}
        self._highest: dict[tuple[Operation, Shape], dict[Pattern, int]] = {}

    def of_choice(self, operation: Operation, choice: Choice) -> Pattern:
        """Return the pattern that carries out a choice.

        Parameters
        ----------
        operation : Operation
        choice : Choice
            Of the library, for that operation.
        """
        return self._of_algorithm(operation, choice.algorithm)

    def _of_algorithm(self, operation: Operation, algorithm: str) -> Pattern:
        by_dimension = self._dimensions and algorithm == "ring" and operation in BY_DIMENSION
        return Pattern(operation, "dimensions" if by_dimension else algorithm)

    def of_operations(self, operations: int, shape: Shape) -> list[Pattern]:
        """Return the patterns that a group may use for some operations, each once.

        Parameters
        ----------
        operations : int
            The sum of 1 << `Operation`; -1: any, but sends among more than two ranks.
        shape : Shape
            Of the group; one of a single rank uses none.
        """
        if shape.ranks == 1:
            return []
        if operations < 0:  # not stated
            operations = sum(1 << operation for operation in Operation)
            if shape.ranks > 2:
                operations &= ~(1 << Operation.SEND_RECV)
        if operations >> Operation.BARRIER & 1:
            operations |= 1 << Operation.ALL_REDUCE
        found: dict[Pattern, None] = {}
        for operation in Operation:
            if operation in _OPERATIONS_WITHOUT_LINKS or not operations >> operation & 1:
                continue
            found |= dict.fromkeys(self._patterns_of(operation, shape))
        return list(found)

    def _patterns_of(self, operation: Operation, shape: Shape) -> tuple[Pattern, ...]:
        """Return the patterns that a group may use for an operation; some twice."""
        key = (operation, shape)
        if key not in self._of_operation:
            choices = self.library.candidates(operation, 1 << 20, shape)
            self._of_operation[key] = tuple(self.of_choice(operation, each) for each in choices)
        return self._of_operation[key]

    def highest_rate(self, pattern: Pattern, shape: Shape) -> int:
        """Return the highest rate at which an algorithm moves its payload, whatever the size.

        Parameters
        ----------
        pattern : Pattern
        shape : Shape
            Of a group that may use it.

        Returns
        -------
        int
            As `rate_of` of bytes of the full buffer per second.
        """
        key = (pattern.operation, shape)
        if key not in self._highest:
            highest = self.library.highest_bandwidths(pattern.operation, PROBED_SIZES, shape)
            self._highest[key] = {
                self._of_algorithm(pattern.operation, algorithm): rate_of(bandwidth)
                for algorithm, bandwidth in highest.items()
            }
        return self._highest[key][pattern]
