"""Runs → files of other tools: Kineto traces, Perfetto traces, CSV, Chakra execution traces.

- `read_kept`, `resimulate`, `ResimulatedRun`: a results file → its run; `kept_experiment`: → its
  experiment.
- `export_run`: a run → a file or a folder.

Read in this order: `resimulate` (the run), `ranks` (which ranks), `row_arguments` (the arguments of
a row's event), `operators` (the operators that kernels were launched in), `events` (all of a rank,
as `mpisim.traces.export_events` has it, with counters and the critical path), `perfetto` and
`table` (as bytes), `parts` (bytes of all processes → one file), `write` (all of it). Kineto traces
are written by `mpisim.traces.export`, Chakra's by `mpisim.formats.chakra_write`.
"""

from .resimulate import Kept, ResimulatedRun, kept_experiment, read_kept, resimulate
from .write import FORMATS, export_run

__all__ = [
    "FORMATS",
    "Kept",
    "ResimulatedRun",
    "export_run",
    "kept_experiment",
    "read_kept",
    "resimulate",
]
