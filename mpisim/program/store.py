"""Program ↔ HDF5 file, without loss.

::

    names                          row names
    tables/label, n_rows, queue_depth
    rows/<column>                  the columns of all tables, one table after another
    rows/n_waits                   number of rows that each row waits for
    waits/row                      their numbers, counted within the table
    communicators/index, members, names
    ranks/table, slot_index, slots, speed, start
                                   attributes jitter_spread, jitter_seed where there is jitter

There can be a table for every rank of thousands: each column is one data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, UsageError
from ..base.hdf5 import create_file, open_file
from ..base.hdf5_data import (
    read_attributes,
    read_column,
    read_texts,
    write_attributes,
    write_column,
    write_texts,
)
from .program import RANK_COLUMNS, Communicators, Jitter, Program
from .table import COLUMNS, Table

if TYPE_CHECKING:
    from h5py import Group

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "mpisim-program"
VERSION = 2

UNITS = dict.fromkeys(("host", "launch", "launch_cost", "gap", "duration", "start"), "ps") | {
    "bytes": "bytes"
}
N_ROWS, QUEUE_DEPTH, N_WAITS = "n_rows", "queue_depth", "n_waits"


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
        _write_tables(file, [table for table in program.tables if table is not None])
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
        If it is no program file, of another version, or damaged.
    ProgramError
        If its parts do not fit together.
    """
    with open_file(path, FORMAT, VERSION) as file:
        found = file.attrs["format_version"]
        if found < VERSION:
            raise InputError(
                f"was written by an older mpisim (format version {found}; this one reads "
                f"{VERSION}); save or import the program again"
            )
        groups = _group(file, "communicators")
        ranks = _group(file, "ranks")
        columns: dict[str, Any] = {
            column: read_column(ranks, column, stored, UNITS.get(column))
            for column, stored in RANK_COLUMNS.items()
        }
        return Program(
            names=read_texts(file, "names"),
            tables=tuple(_read_tables(file)),
            communicators=Communicators(
                read_column(groups, "index", np.int64),
                read_column(groups, "members", np.int32),
                read_texts(groups, "names"),
            ),
            **columns,
            jitter=_read_jitter(ranks),
            attributes=read_attributes(file),
        )


def _write_tables(file: Group, tables: Sequence[Table]) -> None:
    group = file.create_group("tables")
    write_texts(group, "label", [table.label for table in tables])
    write_column(group, N_ROWS, np.array([len(table) for table in tables], np.int64))
    write_column(group, QUEUE_DEPTH, np.array([table.queue_depth for table in tables], np.int64))
    rows, waits = file.create_group("rows"), file.create_group("waits")
    for column, stored in COLUMNS.items():
        write_column(rows, column, _joined(tables, column, stored), UNITS.get(column))
    counts = [np.diff(table.wait_index) for table in tables]
    write_column(rows, N_WAITS, np.concatenate([np.empty(0, np.int64), *counts]))
    write_column(waits, "row", _joined(tables, "wait_row", np.int32))


def _joined(tables: Sequence[Table], column: str, stored: type) -> NDArray[Any]:
    """Return a column of all tables, one after another."""
    found = [getattr(table, column) for table in tables]
    return np.concatenate([np.empty(0, stored), *found])


def _read_tables(file: Group) -> Iterator[Table]:
    group, rows = _group(file, "tables"), _group(file, "rows")
    n_rows = read_column(group, N_ROWS, np.int64)
    labels = read_texts(group, "label", len(n_rows))
    depths = read_column(group, QUEUE_DEPTH, np.int64, length=len(n_rows))
    n_waits = read_column(rows, N_WAITS, np.int64)
    awaited = read_column(_group(file, "waits"), "row", np.int32)
    for where, counts, total in (
        (f"tables/{N_ROWS}", n_rows, len(n_waits)),
        (f"rows/{N_WAITS}", n_waits, len(awaited)),
    ):
        if ((counts < 0) | (counts > total)).any() or counts.sum() != total:
            raise InputError(f"{where}: the file is damaged: these should be {total} together")
    columns = {
        column: read_column(rows, column, stored, UNITS.get(column), len(n_waits))
        for column, stored in COLUMNS.items()
    }
    row_index, wait_index = (np.concatenate([[0], np.cumsum(each)]) for each in (n_rows, n_waits))
    ends, wait_ends = row_index.tolist(), wait_index[row_index].tolist()
    for i, (label, depth) in enumerate(zip(labels, depths.tolist(), strict=True)):
        first, last = ends[i : i + 2]
        begin, end = wait_ends[i : i + 2]
        parts: dict[str, Any] = {name: values[first:last] for name, values in columns.items()}
        yield Table(
            **parts,
            wait_index=wait_index[first : last + 1] - begin,
            wait_row=awaited[begin:end],
            queue_depth=depth,
            label=label,
        )


def _read_jitter(ranks: Group) -> Jitter | None:
    if "jitter_spread" not in ranks.attrs:
        return None
    return Jitter(float(ranks.attrs["jitter_spread"]), int(ranks.attrs["jitter_seed"]))


def _group(parent: Group, name: str) -> Group:
    group = parent.get(name)
    if group is None or not hasattr(group, "keys"):
        raise InputError(f"there is no group '{name}'")
    return group
