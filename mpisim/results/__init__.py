"""Results: what a run found out, collected from all processes, written to a file, read again.

- `write_results`: collect and write, one HDF5 file a run.
- `open_results`: read a file; needs no MPI.
- `collect`: the same `Results` in memory, without a file.
- `rank_steps`: how long each step took on each rank.
"""

from .collect import collect
from .read import open_results
from .results import SECONDS, Results, Timeline
from .steps import rank_steps
from .write import write_results

__all__ = [
    "SECONDS",
    "Results",
    "Timeline",
    "collect",
    "open_results",
    "rank_steps",
    "write_results",
]
