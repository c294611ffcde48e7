"""Decentralized training: workers that exchange updates with their neighbours alone.

    experiment ─► one worker's step ─┐
    graph, protocol ─────────────────┴─► program ─► runs until the updates that workers went on
                                                    with are those that came first ─► comparison

Read in this order.

``graphs``
    Who sends updates to whom.
``protocol``
    What a worker waits for: backup workers, bounded staleness, token queues, skipped iterations
    (Hop, arXiv:1902.01064).
``program``
    A worker's step, graph and protocol → a `Program` of some iterations.
``decisions``
    The program → the same with what workers decided.
``simulation``
    The program → when each worker did what, exactly.
``comparison``
    An experiment → the iteration with and without the protocol, for random bandwidths.
``text``, ``store``
    A comparison as text and JSON, and as a file.
"""

from .comparison import Comparison, compare_protocols
from .graphs import GRAPHS, Graph, find_graph
from .program import WorkerStep, decentralized_program
from .protocol import Protocol
from .simulation import WorkerTimeline, simulate_decentralized

__all__ = [
    "GRAPHS",
    "Comparison",
    "Graph",
    "Protocol",
    "WorkerStep",
    "WorkerTimeline",
    "compare_protocols",
    "decentralized_program",
    "find_graph",
    "simulate_decentralized",
]
