"""CUDA graphs: what is issued while one is captured → items that each replay of it records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.frozen import frozen
from .recording import Completed, Item, Wait

__all__ = ["CapturedGraph", "GraphUnderCapture"]


@frozen
class CapturedGraph:
    """A graph, whose items, and waits for items, have numbers from its first on.

    Attributes
    ----------
    items : tuple of Item
    completed : tuple of Completed
    optimizer : object or None
        That makes a step in it.
    """

    items: tuple[Item, ...] = ()
    completed: tuple[Completed, ...] = ()
    optimizer: object = None


@dataclass
class GraphUnderCapture:
    """What was recorded before a graph, and the optimizer that makes a step in it.

    Attributes
    ----------
    items, completed, allocations : int
        So many before.
    last : dict of int to Wait
        Ends of streams.
    pending : dict of int to list of Wait
        What streams wait for.
    optimizer : object or None
    """

    items: int
    completed: int
    allocations: int
    last: dict[int, Wait]
    pending: dict[int, list[Wait]]
    optimizer: object = None

    def issued(self, items: Sequence[Item], completed: Sequence[Completed]) -> CapturedGraph:
        """What was recorded in all, the graph included → the graph.

        Parameters
        ----------
        items : sequence of Item
        completed : sequence of Completed
        """
        begin = self.items
        found = []
        for item in items[begin:]:
            if item.stream >= 0:
                waits = (Wait(each.stream, each.item - begin) for each in item.waits)
                found.append(item._replace(waits=tuple(each for each in waits if each.item >= 0)))
            else:  # numbers of items stay what waits say
                found.append(item._replace(waits=()))
        done = (each._replace(item=each.item - begin) for each in completed[self.completed :])
        return CapturedGraph(tuple(found), tuple(done), self.optimizer)
