"""Engine: program, network → `Run`, the start and end of every row of every rank.

Each MPI process hosts some of the simulated ranks and advances their clocks row by row; processes
exchange messages where ranks on different processes communicate, until all ranks have ended.

Public names:

- `simulate`: runs a program and returns a `Run`.
- `Rows`, `Binding`: start and end of the rows of one rank, and the input each row waited for last.
- `EquivalenceClasses`, `SplitReason`: classes of equivalent ranks, of which one is simulated.
- `CriticalPath`, `PieceKind`: the chain of rows and waits that determines the step time.
- `RunSetup`: setup shared by runs of programs that differ in durations alone. `SetupCache`: parts
  of it shared by runs of different programs on one network.
- `block_placement`: ranks placed on processes in contiguous blocks.

Read in this order:

- `dataflow`: the executor, a page that calls everything else; `run` and `rows`: its outcome.
- `run_setup`: everything computed before a clock moves: `fold` (equivalence classes, by `refine`),
  `placement`, `contention` and `routes` (links that communications share); `setup_cache`: the parts
  that several programs have in common.
- `cost`: durations of rows; `duration_factors`: speed and jitter; `memory_needed`: does it fit?
- `lowering`: table → instructions; `tiling`: ranks side by side; `core_input`: input of a core;
  `used_communicators`, `distribution`: communicators, ranks and communications of each process.
  `_core` advances ranks over their rows.
- `relaxation`: communications that share links, by passes of dataflow.
- `exchange`: messages and windows between processes; `deadlock`: which operations block ranks.
- `critical_path`, `last_arrivals`, `flows`, `digest`: derived from a finished run.
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
