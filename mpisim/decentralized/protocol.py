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
- *Skipping iterations*: a worker that is behind all of its receivers, as their tokens tell, goes on
  with a later iteration, at most one that all of them have entered: they no longer wait for updates
  of those before. It renews its parameters by the average of the last one that it skips, whose
  updates it waits for as in any, computes nothing and sends nothing but the tokens.
"""

from __future__ import annotations

from ..base.errors import InputError
from ..base.frozen import frozen
from .graphs import Graph

__all__ = ["Protocol"]


@frozen
class Protocol:
    """Rules by which a worker goes on: backup workers, staleness, token queues, skipping.

    Attributes
    ----------
    backup : int
        Senders whose updates an iteration goes on without, those that come last.
    staleness : int
        Iterations by which updates may be old.
    max_gap : int, optional
        Iterations by which a worker may be ahead of one that it sends to; without it there are no
        token queues.
    skip : int
        Most iterations that a worker skips at once.

    Raises
    ------
    InputError
        For negative numbers, a gap of 0, and skipping where nobody gets ahead of a worker or knows
        it: without backup workers or tokens, or with stale updates.
    """

    backup: int = 0
    staleness: int = 0
    max_gap: int | None = None
    skip: int = 0

    def __post_init__(self) -> None:
        for name, least in (("backup", 0), ("staleness", 0), ("max_gap", 1), ("skip", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} is {value}; allowed is {least} and more")

        if self.skip and (not self.backup or self.staleness or (self.max_gap or 0) < 2):
            raise InputError(
                f"--skip is {self.skip}; workers skip iterations with --backup of 1 and more, "
                "--max-gap of 2 and more, whose tokens tell how far the others are, and without "
                "--staleness"
            )

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
