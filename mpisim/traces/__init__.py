"""Real traces: PyTorch Kineto files and execution traces, read into programs.

- `find_sources`, `Source`: which files are the traces of one job.
- `read_program`, `TraceProgram`, `RankFacts`: read them, each process its own ranks.
- `Lowered`: one rank's table and what was recorded of each row.
- `read_kineto`, `KinetoTrace`: one Kineto file as arrays.
- `export_kineto`: the other way, a simulated run as Kineto files.
"""

from .export import export_kineto
from .kineto import KinetoTrace, read_kineto
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
