"""Program files: a program as HDF5, and back, without loss.

::

    names                          row names
    table_labels                   one label a table
    tables/<i>/<column>            the columns of table i; attribute queue_depth
    tables/<i>/wait_index, wait_row
    communicators/index, members, names
    ranks/table, slot_index, slots, speed, start
                                   attributes jitter_spread, jitter_seed where there is jitter
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError, UsageError
from ..base.hdf5 import (
    create_file,
    open_file,
    read_attributes,
    read_column,
    read_texts,
    write_attributes,
    write_column,
    write_texts,
)
from .program import Communicators, Jitter, Program
from .table import COLUMNS, Table

if TYPE_CHECKING:
    from h5py import Group

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "mpisim-program"
VERSION = 1

UNITS = dict.fromkeys(("host", "launch", "launch_cost", "gap", "duration", "start"), "ps") | {
    "bytes": "bytes"
}
TABLE_COLUMNS: dict[str, type] = {**COLUMNS, "wait_index": np.int64, "wait_row": np.int32}
RANK_COLUMNS: dict[str, type] = {
    "table": np.int32,
    "slot_index": np.int64,
    "slots": np.int32,
    "speed": np.float64,
    "start": np.int64,
}


def save(program: Program, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a program to an HDF5 file.

    Local: call it on one process.

    Parameters
    ----------
    program : Program
        Whole: a partial program must be gathered first.
    path : str or Path
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If the file exists, or cannot be written; nothing is left behind.
    UsageError
        If the program is partial.

    Examples
    --------
    >>> save(program, "step.h5")                # doctest: +SKIP
    >>> load("step.h5").n_ranks                 # doctest: +SKIP
    8
    """
    if program.is_partial:
        raise UsageError(f"{path}: a program whose tables are spread over processes is not saved")
    with create_file(path, FORMAT, VERSION, overwrite=overwrite) as file:
        write_attributes(file, program.attributes)
        write_texts(file, "names", program.names)
        write_texts(file, "table_labels", [t.label for t in program.tables if t is not None])
        tables = file.create_group("tables")
        for i, table in enumerate(program.tables):
            group = tables.create_group(str(i))
            group.attrs["queue_depth"] = table.queue_depth  # type: ignore[union-attr]
            for column in TABLE_COLUMNS:
                write_column(group, column, getattr(table, column), UNITS.get(column))
        communicators = file.create_group("communicators")
        write_column(communicators, "index", program.communicators.index)
        write_column(communicators, "members", program.communicators.members)
        write_texts(communicators, "names", program.communicators.names)
        ranks = file.create_group("ranks")
        for column in RANK_COLUMNS:
            write_column(ranks, column, getattr(program, column), UNITS.get(column))
        if program.jitter is not None:
            ranks.attrs["jitter_spread"] = program.jitter.spread
            ranks.attrs["jitter_seed"] = np.uint64(program.jitter.seed)


def load(path: str | Path) -> Program:
    """Read a program from an HDF5 file.

    Local: every process may call it by itself.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Program

    Raises
    ------
    InputError
        If it is no program file, of a newer version, or damaged.
    ProgramError
        If its parts do not fit together.
    """
    with open_file(path, FORMAT, VERSION) as file:
        labels = read_texts(file, "table_labels")
        groups = _group(file, "communicators")
        ranks = _group(file, "ranks")
        columns: dict[str, Any] = {
            column: read_column(ranks, column, stored, UNITS.get(column))
            for column, stored in RANK_COLUMNS.items()
        }
        return Program(
            names=read_texts(file, "names"),
            tables=tuple(
                _read_table(_group(file, f"tables/{i}"), label) for i, label in enumerate(labels)
            ),
            communicators=Communicators(
                read_column(groups, "index", np.int64),
                read_column(groups, "members", np.int32),
                read_texts(groups, "names"),
            ),
            **columns,
            jitter=_read_jitter(ranks),
            attributes=read_attributes(file),
        )


def _read_table(group: Group, label: str) -> Table:
    columns: dict[str, Any] = {
        column: read_column(group, column, stored, UNITS.get(column))
        for column, stored in TABLE_COLUMNS.items()
    }
    return Table(**columns, queue_depth=int(group.attrs["queue_depth"]), label=label)


def _read_jitter(ranks: Group) -> Jitter | None:
    if "jitter_spread" not in ranks.attrs:
        return None
    return Jitter(float(ranks.attrs["jitter_spread"]), int(ranks.attrs["jitter_seed"]))


def _group(parent: Group, name: str) -> Group:
    group = parent.get(name)
    if group is None or not hasattr(group, "keys"):
        raise InputError(f"there is no group '{name}'")
    return group
