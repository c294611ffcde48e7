"""Search: an experiment and what to vary in it → the best plans, each simulated.

    [search] ─► space ─► candidates ─► bound (least time a step can take) ─► memory ─► simulation
                                                          └──────── ranking, front, store ◄──┘

`space` reads what is to be varied, `bound` proves how fast a candidate could be at best, `explore`
judges and simulates them over MPI processes, best first, and `store` keeps what is known.
"""

from .answer import Answer, answer
from .explore import explore
from .space import SearchSpace, read_search
from .store import read_store, write_store

__all__ = [
    "Answer",
    "SearchSpace",
    "answer",
    "explore",
    "read_search",
    "read_store",
    "write_store",
]
