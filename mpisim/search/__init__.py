"""Search: an experiment and what to vary in it → the best plans, each simulated.

    [search] ─► space ─► candidates ─► bound (least time a step can take) ─► memory ─► simulation
                                                          └──────── ranking, front, store ◄──┘

Read in this order:

- `space`: what is to be varied, with `automatic` (values for ``"auto"``) and `balance` (uneven
  shares of GPUs of several kinds).
- `records`: what is known of each candidate; `budget`: what it costs; `store`: both as a file.
- `bound`: how fast a candidate could be at best, from `layer_bounds` (of each layer), with
  `pipeline_bound` (all passes of a pipeline).
- `explore`: judges and simulates candidates over MPI processes, best first.
- `traced_space`, `traced`: the same over a trace, where every valid candidate is simulated.
- `answer`: the best, with `pareto` (the front), `finalists` (each in full), `limits` (what was left
  out, and why) and `picture`.
- `starting_candidates`, `starting_plan`: a plan to start from, that fits: the bound and memory
  alone.
- `profiling`: what has to be timed once to know all plans, and what that costs.
- `sharding`: where embedding tables are best.
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
