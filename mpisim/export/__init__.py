"""Runs → files of other tools: Kineto traces, Perfetto traces, CSV, Chakra execution traces.

- `read_kept`, `simulate_again`, `RunAgain`: a results file → its run.
- `export_run`: a run → a file or a folder.

Read in this order: `again` (the run), `ranks` (which ranks), `notes` (what is said of a row beside
its times), `counters` (memory and links over time), `path` (the critical path), `passes` (which
passes a GPU was in), `events` (all of a rank, as `mpisim.traces.export_events` has it), `perfetto`
and `table` (as bytes), `parts` (bytes of all processes → one file), `write` (all of it). Kineto
traces are written by `mpisim.traces.export`, Chakra's by `mpisim.formats.chakra_write`.
"""

from .again import Kept, RunAgain, read_kept, simulate_again
from .write import FORMATS, export_run

__all__ = ["FORMATS", "Kept", "RunAgain", "export_run", "read_kept", "simulate_again"]
