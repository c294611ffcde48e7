"""Recorded traces (PyTorch Kineto, execution traces, Nsight Systems) → programs.

- `find_sources`, `Source`: which files are the traces of one job.
- `read_program`, `TraceProgram`, `RankFacts`: read them, each process its own ranks.
- `Lowered`: one rank's table and what was recorded of each row.
- `read_kineto`, `KinetoTrace`: one Kineto file as arrays.
- `export_kineto`: the other way, a simulated run as Kineto files.

Read in this order: `sources` (which files), `kineto` (arrays of one rank's trace), `kineto_file`
and `nsys` (a file → these), `host`, `communications` (what the arrays say of CPU calls and of
communication kernels), `waits`, `inferred_waits`, `timing`, `overheads` (dependencies and latencies
of one rank), `lower` (one rank → a table), `clocks`, `matching`, `assemble` (all ranks → a
program), `read` (all of it).
`et*`, `link`, `dependencies`, `kernel_order` read PyTorch execution traces, with which the order of
a replay is checked; `export*` write traces; `show` describes a file.
"""

from .export import export_kineto
from .kineto import KinetoTrace
from .kineto_file import read_kineto
from .lower import Lowered
from .read import RankFacts, TraceProgram, read_program
from .sources import Source, find_sources

__all__ = [
    "KinetoTrace",
    "Lowered",
    "RankFacts",
    "Source",
    "TraceProgram",
    "export_kineto",
    "find_sources",
    "read_kineto",
    "read_program",
]
