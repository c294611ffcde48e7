"""The engine: simulated ranks, hosted by MPI processes, advance their clocks until all have ended.

- `simulate`: run a program.
- `Run`: what a process knows after a run; `Rows`: what the rows of one rank did; `Binding`: why a
  row began when it did.
- `Classes`, `Apart`: which ranks were simulated for which, and what tells classes apart.
- `CriticalPath`, `PieceKind`: the chain of pieces that ends last.
- `Settled`: what a run leaves to others, of programs that differ in times alone.
- `block_placement`: which process hosts which rank, unless told otherwise.

Where to read: `dataflow` is the executor, `settled` and `plan` what comes before it starts,
`_core` how ranks advance, `exchange` what processes tell each other, `fold` when ranks are
simulated once, `rows` how what every row did is found again after a run, `memory_needed` whether a
run fits.
"""

from .dataflow import simulate
from .placement import block_placement
from .rows import Rows
from .run import Apart, Binding, Classes, CriticalPath, PieceKind, Run
from .settled import Settled

__all__ = [
    "Apart",
    "Binding",
    "Classes",
    "CriticalPath",
    "PieceKind",
    "Rows",
    "Run",
    "Settled",
    "block_placement",
    "simulate",
]
