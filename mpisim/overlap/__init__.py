"""Computing and communication at the same time: how much each slows the other.

``ranks_of(case, network)``
    The ranks of a case with the model of slowdown that its experiment asks for.
``with_slowdown(ranks, runner, mode, comm, most)``, ``Outcome``
    The run in which what overlaps is slower.
``Overlap``
    What a prediction says of it.

Where to read: `timeline` is the formula of one rank, `passes` the loop around it.
"""

from .model import ranks_of
from .passes import Outcome, with_slowdown
from .said import Overlap

__all__ = ["Outcome", "Overlap", "ranks_of", "with_slowdown"]
