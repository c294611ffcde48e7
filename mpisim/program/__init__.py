"""Programs: what every rank does, in which order, and with whom it communicates.

- `Program`: tables, ranks bound to them, communicators.
- `Table`: an ordered list of rows shared by all ranks that do the same things.
- `Communicators`: ordered groups of global ranks.
- `ProgramBuilder`, `TableBuilder`, `Names`: write one row by row; `columns_of`: from arrays.
- `Kind`, `Operation`, `Phase`, `Flag`: the vocabulary of rows.
- `gather`: make a partial program whole again.
- `Jitter`: random factors on kernels.
- `check_matching`, `signatures`: do the communications of all ranks match?
- `save`, `load`: program files (HDF5).
- `UNPRICED`: the duration of a communication that a cost model is to price.
"""

from ..base.kinds import Flag, Kind, Operation, Phase
from .builder import Names, ProgramBuilder, TableBuilder, columns_of
from .gather import gather
from .jitter import Jitter
from .matching import check_matching, signatures
from .program import Communicators, Program
from .store import load, save
from .table import COLUMNS, UNPRICED, Table

__all__ = [
    "COLUMNS",
    "UNPRICED",
    "Communicators",
    "Flag",
    "Jitter",
    "Kind",
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
