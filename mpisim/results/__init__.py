"""Results: what is known after a run, collected from all processes, written to a file, read again.

Public names: `write_results` writes one HDF5 file a run, `open_results` reads it (needs no MPI),
`collect` makes the same `Results` in memory, `rank_steps` is how long each step took on each rank.

Read in this order:

- `results`: `Results` and its `Timeline`.
- `collect`: the parts of all processes → one result, by `accounting` (time of each rank by what it
  did), `step_parts` (the same by name, for each class of ranks), `step_times` (steps of ranks and
  of recorded jobs) and `link_use` (use of shared links).
- `sensitivities`: what the step of a prediction depends on; `tornado`: steps with other hardware.
- `schema`: groups, columns, types and units of a file; `write` and `read`: a result as such a file.
"""

from .collect import collect
from .read import open_results
from .results import SECONDS, Results, Timeline
from .sensitivities import Sensitivities
from .step_parts import PartKind, StepParts
from .step_times import rank_steps
from .write import write_results

__all__ = [
    "SECONDS",
    "PartKind",
    "Results",
    "Sensitivities",
    "StepParts",
    "Timeline",
    "collect",
    "open_results",
    "rank_steps",
    "write_results",
]
