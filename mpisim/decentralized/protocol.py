"""The protocol of decentralized training: which updates of its neighbours a worker waits for.

After Hop (arXiv:1902.01064), as TrioSim restates it (doi:10.1145/3695053.3731082). Updates are
tagged with iteration and sender, and wait in queues of the receiver, so that a sender never waits
for a receiver. A worker's iteration is

    enter ─► forward, backward ─► send to receivers; wait for updates ─► average ─► optimizer

- *Backup workers*: of so many senders' updates an iteration need not have come.
- *Bounded staleness*: instead of this iteration's, updates of so many iterations before do.
- *Token queues*: a worker enters an iteration with a token of each of its receivers, which inserts
  one when it enters an iteration itself. As many as `max_gap` are there from the start, so that no
  worker is more iterations ahead of those that wait for its updates.
"""

from __future__ import annotations

from ..base.errors import InputError
from ..base.frozen import frozen
from .graphs import Graph

__all__ = ["Protocol"]


@frozen
class Protocol:
    """What a worker waits for before it goes on.

    Attributes
    ----------
    backup : int
        Senders whose updates an iteration goes on without, those that come last.
    staleness : int
        Iterations by which updates may be old.
    max_gap : int, optional
        Iterations by which a worker may be ahead of one that it sends to; without it there are no
        token queues.

    Raises
    ------
    InputError
        For negative numbers, and a gap of 0.
    """

    backup: int = 0
    staleness: int = 0
    max_gap: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("backup", 0), ("staleness", 0), ("max_gap", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} is {value}; allowed is {least} and more")

    def check(self, graph: Graph) -> None:
        """Refuse more backup workers than a worker can do without.

        Raises
        ------
        InputError
        """
        fewest = min(map(len, graph.senders))
        if self.backup >= fewest:
            worker = [len(each) for each in graph.senders].index(fewest)
            raise InputError(
                f"--backup is {self.backup}, but worker {worker} receives updates of {fewest} "
                f"workers; allowed is 0 to {fewest - 1}"
            )
