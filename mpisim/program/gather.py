"""Make a partial program whole again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .builder import Names
from .program import Program
from .table import Table

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["gather"]


def gather(program: Program, comm: Intracomm) -> Program | None:
    """Collect the tables that other processes hold. **Collective.**

    Parameters
    ----------
    program : Program
        Whole or partial; names may differ between processes.
    comm : mpi4py.MPI.Intracomm
        The processes that hold it.

    Returns
    -------
    Program or None
        The whole program on process 0; None on the others. A table that several processes hold
        is taken from the first.
    """
    if comm.size == 1:
        return program
    held = {n: table for n, table in enumerate(program.tables) if table is not None}
    parts = comm.gather((program.names, held), root=0)
    if parts is None:
        return None
    names = Names()
    tables: list[Table | None] = [None] * len(program.tables)
    for own_names, own_tables in parts:
        number = np.array([names[text] for text in own_names], np.int32)
        for n, table in own_tables.items():
            if tables[n] is None:
                tables[n] = table.replace(name=number[table.name])
    return program.replace(names=tuple(names), tables=tuple(tables))
