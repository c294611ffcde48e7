"""Communication graphs: number of workers → who sends updates to whom.

Those of Hop (arXiv:1902.01064) as TrioSim restates them (doi:10.1145/3695053.3731082): a
*ring-based* graph is a ring in both directions and an edge from each worker to its most distant
one; a *double ring* two of them, joined worker to worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

from ..base.errors import InputError, one_of
from ..base.files import read_text
from ..base.frozen import frozen

__all__ = ["GRAPHS", "Graph", "find_graph"]

Edge = tuple[int, int]

COMMENT = "#"


@frozen
class Graph:
    """Directed edges between workers.

    Attributes
    ----------
    workers : int
    edges : tuple of (int, int)
        Sender and receiver of updates, ascending.

    Raises
    ------
    InputError
        For fewer than two workers, an edge to a worker that is not there or to itself, or a worker
        that sends or receives nothing.
    """

    workers: int
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise InputError(f"decentralized training needs 2 workers or more, not {self.workers}")
        for edge in self.edges:
            if not all(0 <= each < self.workers for each in edge):
                raise InputError(
                    f"the edge {edge[0]} {edge[1]} names a worker that is not there; there are "
                    f"0 to {self.workers - 1}"
                )
            if edge[0] == edge[1]:
                raise InputError(f"the edge {edge[0]} {edge[1]} leads from a worker to itself")
        for what, neighbours in (("receives", self.senders), ("sends", self.receivers)):
            lonely = [worker for worker, each in enumerate(neighbours) if not each]
            if lonely:
                raise InputError(f"worker {lonely[0]} {what} no update: it has no such edge")

    @classmethod
    def of(cls, workers: int, edges: Iterable[Edge]) -> Graph:
        """Number of workers, edges in any order → graph; repeated edges count once."""
        return cls(workers, tuple(sorted(set(edges))))

    @cached_property
    def senders(self) -> tuple[tuple[int, ...], ...]:
        """For each worker those that send to it, ascending."""
        return self._neighbours(1, 0)

    @cached_property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """For each worker those that it sends to, ascending."""
        return self._neighbours(0, 1)

    def _neighbours(self, of: int, other: int) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in range(self.workers)]
        for edge in self.edges:
            found[edge[of]].append(edge[other])
        return tuple(tuple(each) for each in found)


def _ring(n: int) -> Iterator[Edge]:
    """Both directions round a ring."""
    for i in range(n):
        yield i, (i + 1) % n
        yield (i + 1) % n, i


def _ring_based(n: int) -> Iterator[Edge]:
    """A ring in both directions, and both directions between the workers farthest apart."""
    yield from _ring(n)
    for i in range(n):
        yield i, (i + n // 2) % n
        yield (i + n // 2) % n, i


def _double_ring(n: int) -> Iterator[Edge]:
    """Two ring-based graphs of half of the workers, joined worker to worker."""
    if n % 2:
        raise InputError(f"a double-ring has an even number of workers, not {n}")
    half = n // 2
    for first in (0, half):
        yield from ((first + a, first + b) for a, b in _ring_based(half))
    for i in range(half):
        yield i, half + i
        yield half + i, i


def _complete(n: int) -> Iterator[Edge]:
    """Everyone to everyone."""
    yield from ((a, b) for a in range(n) for b in range(n))


GRAPHS: dict[str, Callable[[int], Iterable[Edge]]] = {
    "ring": _ring,
    "ring-based": _ring_based,
    "double-ring": _double_ring,
    "complete": _complete,
}
"""Name of a graph → its edges for a number of workers; those to oneself are dropped."""


def find_graph(name: str, workers: int) -> Graph:
    """Name of `GRAPHS`, or path of a file of edges → graph of so many workers. Local.

    Parameters
    ----------
    name : str
        A file has an edge a line, ``SENDER RECEIVER``; what follows a ``#`` is a comment.
    workers : int

    Raises
    ------
    InputError
        For an unknown name, a file that cannot be read, or edges as of `Graph`.
    """
    if name in GRAPHS:
        if workers < 2:
            raise InputError(f"decentralized training needs 2 workers or more, not {workers}")
        return Graph.of(workers, (edge for edge in GRAPHS[name](workers) if edge[0] != edge[1]))
    if not Path(name).is_file():
        raise InputError(f"--graph is {name!r}, which is no file{one_of(name, GRAPHS)}")
    try:
        return Graph.of(workers, _edges(name))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _edges(path: str) -> Iterator[Edge]:
    """Read a file of edges."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.partition(COMMENT)[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise InputError(
                f"line {number} is {line.strip()!r}; an edge is two numbers of workers, "
                "SENDER RECEIVER"
            )
        yield int(words[0]), int(words[1])
