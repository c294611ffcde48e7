"""Writing the timeline: every row of the ranks that were simulated, process after process.

Each process packs the rows of its ranks, and process 0 joins the parts in one file, whole chunks as
they come: packing is most of the work.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.hdf5 import CHUNK, build_file, copy_part, create_column, write_column, write_texts
from ..engine.run import Run
from ..program import Program, Table
from . import layout
from .results import Results

if TYPE_CHECKING:
    from h5py import File, Group
    from mpi4py.MPI import Intracomm

__all__ = ["write_timeline"]

MESSAGE = 1 << 28
"""Bytes of one message; MPI counts up to 2^31 - 1."""


def write_timeline(
    run: Run,
    results: Results | None,
    file: File | None,
    names: tuple[str, ...],
    numbers: NDArray[np.int64],
    comm: Intracomm,
) -> None:
    """Write the group ``timeline`` of a results file. **Collective.**

    Parameters
    ----------
    run : Run
    results : Results or None
        On process 0; None on the others.
    file : h5py.File or None
        On process 0, to be written to.
    names : tuple of str
        Of rows, on all processes.
    numbers : int64, shape (len(run.program.names),)
        Which of them each name of this process is.
    comm : mpi4py.MPI.Intracomm
        The processes that simulated.
    """
    tables = [run.program.table_of(rank) for rank in run.hosted[run.simulated].tolist()]
    own = sum(map(len, tables))
    counts = [own] if comm.size == 1 else comm.allgather(own)
    first = np.cumsum([0, *counts])
    if file is None or results is None:
        if own:
            _send(_packed(run, tables, numbers, int(first[comm.rank]) % CHUNK), comm)
        return
    timeline = file.create_group("timeline")
    _write_index(results, run.program, timeline, names)
    for name, (stored, units) in layout.TIMELINE.items():
        create_column(timeline, name, int(first[-1]), stored, units).attrs["column"] = True
    _fill(timeline, run, tables, numbers)
    for process in range(1, comm.size):
        if counts[process]:
            _join(timeline, int(first[process]), _received(process, comm))


def _write_index(
    results: Results, program: Program, timeline: Group, names: tuple[str, ...]
) -> None:
    """Write where each rank's rows are, and what its slots stand for."""
    # A process writes its representatives in ascending order.
    few = results.classes["representative"]
    process, lengths = results.ranks["process"][few], results.ranks["rows"][few]
    order = np.argsort(process, kind="stable")
    offset = np.zeros(len(process), np.int64)
    offset[order] = np.cumsum(lengths[order]) - lengths[order]
    offset = offset[results.ranks["class"]]
    write_texts(timeline, "names", names)
    for name, values, about in (
        ("rank_offset", offset, "first row of each rank in the columns"),
        ("rank_rows", results.ranks["rows"], "number of rows of each rank"),
        ("rank_slot_index", program.slot_index, "index of rank_slots"),
        ("rank_slots", program.slots, "communicator of each slot of each rank"),
    ):
        write_column(timeline, name, values, about=about)


# --- the rows of one process ----------------------------------------------------------------------


def _packed(run: Run, tables: list[Table], numbers: NDArray[np.int64], pad: int) -> memoryview:
    """Return the rows of the ranks simulated here as an HDF5 file, behind some that are empty."""
    total = pad + sum(map(len, tables))
    with build_file(layout.FORMAT, layout.VERSION) as (part, image):
        for name, (stored, _) in layout.TIMELINE.items():
            create_column(part, name, total, stored)
        part.attrs["pad"] = pad
        _fill(part, run, tables, numbers, pad)
    return image.getbuffer()


def _fill(
    group: Group, run: Run, tables: list[Table], numbers: NDArray[np.int64], at: int = 0
) -> None:
    """Write the rows of the ranks simulated here to columns, rank after rank."""
    ends = at + np.cumsum([len(table) for table in tables])
    # A few ranks at a time: enough rows for whole chunks, and few enough for any memory.
    block = (ends - 1) // CHUNK
    for ranks in np.split(run.simulated, np.flatnonzero(np.diff(block)) + 1):
        parts = [_rows_of(run, i, numbers) for i in ranks.tolist()]
        n = sum(len(part["begin"]) for part in parts)
        for name in layout.TIMELINE:
            if n:
                group[name][at : at + n] = np.concatenate([part[name] for part in parts])
        at += n


def _rows_of(run: Run, i: int, numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The columns of the timeline of the i-th rank hosted here."""
    rank, rows = int(run.hosted[i]), run.rows(i)
    table = run.program.table_of(rank)
    bound = np.append(run.program.slots_of(rank), -1)  # slot -1 reads the -1 at the end
    own: dict[str, NDArray[Any]] = {
        "begin": rows.begin,
        "end": rows.end,
        "wire": rows.wire,
        "binding": rows.binding,
        "name": numbers[table.name],
        "communicator": bound[table.slot],
    }
    return {name: own[name] if name in own else getattr(table, name) for name in layout.TIMELINE}


# --- between processes ----------------------------------------------------------------------------


def _join(timeline: Group, first: int, image: bytearray) -> None:
    """Copy the rows of another process behind those that are there."""
    import h5py

    with h5py.File(io.BytesIO(image), "r") as part:
        pad = int(part.attrs["pad"])
        for name in layout.TIMELINE:
            copy_part(timeline[name], first, part[name], pad)


def _send(image: memoryview, comm: Intracomm) -> None:
    """Send bytes to process 0, which calls `_received`."""
    comm.send(len(image), dest=0)
    for at in range(0, len(image), MESSAGE):
        comm.Send(np.frombuffer(image[at : at + MESSAGE], np.uint8), dest=0)


def _received(process: int, comm: Intracomm) -> bytearray:
    """Return what a process sends by `_send`."""
    image = bytearray(comm.recv(source=process))
    for at in range(0, len(image), MESSAGE):
        part = np.frombuffer(image, np.uint8)[at : at + MESSAGE]
        comm.Recv(part, source=process)
    return image
