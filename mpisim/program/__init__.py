"""Programs: every rank's kernels, copies, CPU work and communications, in order.

Read in this order:

- `table`: `Table`, an ordered list of rows, shared by all ranks that execute the same operations.
- `program`: `Program`, tables with the ranks bound to them and `Communicators`; `Jitter`, random
  factors on kernels; `gather`, which makes a partial program whole.
- `table_builder`, `builder`: `TableBuilder` appends row by row (`columns_of` takes arrays),
  `ProgramBuilder` tables, communicators and ranks.
- `matching`: `check_matching` refuses communications that differ between members.
- `store`: `save` and `load`, program files (HDF5).
- `show`, `draw`: a program as text, and as a picture.

The vocabulary of rows (`Kind`, `Operation`, `Phase`, `Flag`) is that of `mpisim.base.kinds`.
"""

from ..base.kinds import Flag, Kind, Operation, Phase
from .builder import ProgramBuilder
from .matching import check_matching, signatures
from .program import KEPT_STEP, Communicators, Jitter, Names, Program, gather
from .store import load, save
from .table import COLUMNS, UNPRICED, Table
from .table_builder import Mark, TableBuilder, columns_of

__all__ = [
    "COLUMNS",
    "KEPT_STEP",
    "UNPRICED",
    "Communicators",
    "Flag",
    "Jitter",
    "Kind",
    "Mark",
    "Names",
    "Operation",
    "Phase",
    "Program",
    "ProgramBuilder",
    "Table",
    "TableBuilder",
    "check_matching",
    "columns_of",
    "gather",
    "load",
    "save",
    "signatures",
]
