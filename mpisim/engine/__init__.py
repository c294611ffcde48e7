"""The engine: simulated ranks, hosted by MPI processes, advance their clocks until all have ended.

Public names: `simulate` runs a program and returns a `Run`; `Rows` and `Binding` are what the rows
of one rank did and why they began when they did; `EquivalenceClasses` and `SplitReason` which ranks
were simulated for which; `CriticalPath` and `PieceKind` the chain that ends last; `RunSetup` what
runs of programs that differ in durations alone can share, `SetupCache` what those of other programs
on the same network can; `block_placement` a placement.

Read in this order:

- `dataflow`: the executor, a page that calls everything else; `run` and `rows`: its outcome.
- `run_setup`: what is worked out before a clock moves: `fold` (equivalence classes, by `refine`),
  `placement`, `contention` and `routes` (links that communications share); `setup_cache`: what of
  it several programs have in common.
- `cost`: durations of rows; `duration_factors`: speed and jitter; `memory_needed`: does it fit?
- `lowering`: a table as instructions; `tiling`: ranks side by side; `core_input`: what a core gets;
  `distribution`: which process simulates what. `_core` advances ranks over their rows.
- `relaxation`: communications that share links, by passes of dataflow.
- `exchange`: messages and windows between processes; `deadlock`: which operations block ranks.
- `critical_path`, `last_arrivals`, `flows`, `digest`: what is derived from a run.
- `periodic_window`, `repetition`: a step of many rounds from two short ones that are periodic.
- `steady_rounds`: the time of a step of many rounds, from one short one that is periodic.
"""

from .critical_path import CriticalPath, PieceKind
from .dataflow import simulate
from .fold import EquivalenceClasses, SplitReason
from .placement import block_placement
from .rows import Binding, Rows
from .run import Run
from .run_setup import RunSetup
from .setup_cache import SetupCache

__all__ = [
    "Binding",
    "CriticalPath",
    "EquivalenceClasses",
    "PieceKind",
    "Rows",
    "Run",
    "RunSetup",
    "SetupCache",
    "SplitReason",
    "block_placement",
    "simulate",
]
