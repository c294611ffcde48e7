"""Writing a results file: all of it or nothing.

The file is complete in memory before a byte is written. The timeline has every row of the ranks
that were simulated, process after process: each process packs the rows of its ranks, and process 0
joins the parts in one file, whole chunks as they come, since packing is most of the work.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.files import check_output, write_whole
from ..base.hdf5 import CHUNK, build_file
from ..base.hdf5_data import copy_part, create_column, write_attributes, write_column, write_texts
from ..engine.run import Run
from ..mpi.parallel import collective_errors, progress
from ..program import Program, Table
from ..topo import Network
from . import schema
from .collect import collect, shared_names
from .results import Results
from .sensitivities import Sensitivities
from .step_parts import StepParts

if TYPE_CHECKING:
    from h5py import File, Group
    from mpi4py.MPI import Intracomm

    from ..engine.repetition import Repetition

__all__ = ["write_results"]

RESERVED_ATTRIBUTES = frozenset(
    (
        "format",
        "format_version",
        "creator",
        "digest",
        "step_time",
        "seed",
        "experiment",
        "origin",
        "n_processes",
        "rounds",
        "mode",
        "recorded",
        "versions",
        "attributes",
        "wall",
        "said",
    )
)
"""Root attributes that the writer fills; no attribute of a caller may have these names."""


_MAX_MESSAGE = 1 << 28
"""Bytes of one message; MPI counts up to 2^31 - 1."""


def write_results(
    run: Run,
    path: str | Path,
    *,
    comm: Intracomm,
    timeline: bool = False,
    experiment: str = "",
    origin: str = "",
    seed: int = 0,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    network: Network | None = None,
    step: int | None = None,
    repetition: Repetition | None = None,
    sensitivities: Sensitivities | None = None,
    stated: Callable[[Results], Mapping[str, Any]] | None = None,
) -> Results | None:
    """Write the result of a run to an HDF5 file.

    **Collective.** Process 0 writes one file; with a timeline the others send it their rows. The
    file appears when it is complete; an error leaves nothing behind and is raised on all.

    Parameters
    ----------
    run : Run
    path : str or Path
        In a folder that process 0 sees.
    comm : mpi4py.MPI.Intracomm
        The processes that simulated.
    timeline : bool
        Write every row too.
    experiment, seed, attributes, network, step, repetition, sensitivities, stated
        See `collect`. With a repetition there is no timeline of the whole step.
    origin : str
        What it can be simulated again from; see `Results`.
    overwrite : bool
        Whether an earlier result of that name may be replaced.

    Returns
    -------
    Results or None
        What was written, on process 0; None on the others.

    Raises
    ------
    OutputError
        If it cannot be written, or if there is a file of that name, be it one that another program
        made in the meantime, which is not to be replaced.
    InputError
        If an attribute has a reserved name.

    Examples
    --------
    >>> write_results(run, "run.h5", comm=comm, timeline=True)      # doctest: +SKIP
    >>> with mpisim.open_results("run.h5") as results:              # doctest: +SKIP
    ...     print(results.step_time, results.timeline.rank(0)["begin"])
    """
    taken = sorted(RESERVED_ATTRIBUTES.intersection(attributes or {}))
    if taken:
        raise InputError(f"attribute '{taken[0]}' belongs to the results file; name it otherwise")
    results = collect(
        run,
        comm=comm,
        experiment=experiment,
        seed=seed,
        attributes=attributes,
        network=network,
        step=step,
        repetition=repetition,
        sensitivities=sensitivities,
        stated=stated,
    )
    results = None if results is None else replace(results, origin=origin)
    with collective_errors(comm):
        if results is not None:
            check_output(path, overwrite=overwrite)
    names, numbers = shared_names(run.program, comm) if timeline else ((), np.zeros(0, np.int64))
    # Complete in memory before a byte is written: all errors from here on are about the file.
    with ExitStack() as stack:
        file = image = None
        if results is not None:
            file, image = stack.enter_context(build_file(schema.FORMAT, schema.VERSION))
            _write_main(results, file)
        if timeline:
            _write_timeline(run, results, file, names, numbers, comm)
        if file is not None:
            file.close()
        with progress(comm, f"writing {path}"), collective_errors(comm):
            if image is not None:
                with write_whole(path, overwrite=overwrite) as target:
                    target.write(image.getbuffer())
    return None if results is None else replace(results, path=Path(path))


# --- the main file --------------------------------------------------------------------------------


def _write_main(results: Results, file: File) -> None:
    """Write all groups but the timeline."""
    import h5py

    own = {
        "digest": results.digest,
        "step_time": results.step_time,
        "seed": results.seed,
        "experiment": results.experiment,
        "origin": results.origin,
        "n_processes": results.n_processes,
        "rounds": results.rounds,
        "mode": results.mode,
        "recorded": True,  # of this version; some files had only the ends of ranks
    }
    versions = {**results.versions, "h5py": h5py.__version__, "HDF5": h5py.version.hdf5_version}
    for name, value in {**own, **results.attributes}.items():
        file.attrs[name] = _storable(value)
    file.attrs["said"] = [_storable(name) for name in results.attributes] or h5py.Empty("S1")
    for group, texts in (("versions", versions), ("program", results.program)):
        write_attributes(file.create_group(group), texts)
    wall = file.create_group("wall")
    for phase, seconds in results.wall.items():
        write_column(wall, phase, np.float64(seconds), "s")
    _write_summary(results, file.create_group("summary"))
    _write_table(file.create_group("ranks"), results.ranks, schema.RANKS)
    _write_table(file.create_group("classes"), results.classes, schema.CLASSES)
    _write_table(file.create_group("steps"), results.steps, schema.STEPS)
    _write_table(file.create_group("kernels"), results.kernels, schema.KERNELS)
    _write_table(file.create_group("communications"), results.communications, schema.COMMUNICATIONS)
    groups = file.create_group("communicators")
    write_column(groups, "index", results.communicators.index)
    write_column(groups, "members", results.communicators.members)
    write_texts(groups, "names", results.communicators.names)
    links = file.create_group("links")
    _write_table(links, results.links.links, schema.LINKS)
    links.create_dataset(
        "utilisation", data=results.links.utilisation, track_times=False, compression=1
    )
    _write_table(file.create_group("link_sharing"), results.links.sharing, schema.LINK_SHARING)
    if results.parts is not None:
        _write_parts(results.parts, file.create_group("parts"))
    if results.critical_path is not None:
        path = file.create_group("critical_path")
        columns = {
            column: getattr(results.critical_path, column) for column in schema.CRITICAL_PATH
        }
        _write_table(path, columns, schema.CRITICAL_PATH)
        write_texts(path, "names", results.critical_path.names)
    if results.sensitivities is not None:
        found = results.sensitivities._asdict()
        _write_table(
            file.create_group("sensitivities"),
            {schema.SENSITIVITY_FIELDS[name]: np.array(found[name]) for name in found},
            schema.SENSITIVITIES,
        )
    if results.recorded is not None:
        steps = file.create_group("recorded_steps")
        _write_table(
            steps,
            {c: getattr(results.recorded, c) for c in schema.RECORDED_STEPS},
            schema.RECORDED_STEPS,
        )
        write_column(steps, "shown", np.array([results.recorded.shown_step], np.int32))
        write_column(steps, "whole", np.array([results.recorded.whole_ps]), "ps")


def _write_parts(parts: StepParts, group: Group) -> None:
    """Write the parts of the step, and how long each class of ranks spent on each."""
    _write_table(group, {"name": np.array(parts.names, object), "kind": parts.kinds}, schema.PARTS)
    group.create_dataset("time", data=parts.times, track_times=False, compression=1)
    group["time"].attrs["units"] = "ps"


def _write_summary(results: Results, group: Group) -> None:
    """Write the main figures once more, for tools that know nothing else of the file."""
    write_column(group, "step_time", np.int64(results.step_time_ps), "ps")
    write_column(group, "step_time_seconds", results.step_time, "s")
    write_column(group, "n_ranks", results.n_ranks)
    write_column(group, "n_rows", results.ranks["rows"].sum())
    for column in ("compute", "exposed", "exposed_waiting", "exposed_wire", "idle"):
        write_column(
            group,
            f"mean_{column}_seconds",
            results.ranks[column].mean() * 1e-12,
            "s",
            "mean over ranks",
        )


def _write_table(
    group: Group, columns: Mapping[str, NDArray[Any]], described: schema.ColumnTypes
) -> None:
    for name, (stored, units) in described.items():
        if stored is object:
            write_texts(group, name, columns[name].tolist())
        else:
            write_column(group, name, columns[name], units, stored=stored)


def _storable(value: Any) -> Any:
    """Value of an attribute → one that HDF5 stores: text, number, list of texts or of integers."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        import h5py

        if value and all(isinstance(each, int) for each in value):
            return np.array(value, np.int64)
        texts = [_storable(str(each)) for each in value]
        return np.array(texts, h5py.string_dtype("utf-8")) if texts else h5py.Empty("S1")
    return value if isinstance(value, int | float | np.generic) else _storable(str(value))


# --- the timeline ---------------------------------------------------------------------------------


def _write_timeline(
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
        Index into `names` of each name of this process.
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
    for name, (stored, units) in schema.TIMELINE.items():
        create_column(timeline, name, int(first[-1]), stored, units).attrs["column"] = True
    _fill(timeline, run, tables, numbers)
    for process in range(1, comm.size):
        if counts[process]:
            _join(timeline, int(first[process]), _received(process, comm))


def _write_index(
    results: Results, program: Program, timeline: Group, names: tuple[str, ...]
) -> None:
    """Write the offset of each rank's rows, and the communicators of its slots."""
    # A process writes its representatives in ascending order.
    representative = results.classes["representative"]
    process = results.ranks["process"][representative]
    lengths = results.ranks["rows"][representative]
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


# --- the timeline: rows of one process ------------------------------------------------------------


def _packed(run: Run, tables: list[Table], numbers: NDArray[np.int64], pad: int) -> memoryview:
    """Return the rows of the ranks simulated here as an HDF5 file, after `pad` empty ones."""
    total = pad + sum(map(len, tables))
    with build_file(schema.FORMAT, schema.VERSION) as (part, image):
        for name, (stored, _) in schema.TIMELINE.items():
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
        for name in schema.TIMELINE:
            if n:
                group[name][at : at + n] = np.concatenate([part[name] for part in parts])
        at += n


def _rows_of(run: Run, i: int, numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the columns of the timeline of the i-th rank hosted here."""
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
    return {name: own[name] if name in own else getattr(table, name) for name in schema.TIMELINE}


# --- the timeline: between processes --------------------------------------------------------------


def _join(timeline: Group, first: int, image: bytearray) -> None:
    """Append the rows of another process."""
    import h5py

    with h5py.File(io.BytesIO(image), "r") as part:
        pad = int(part.attrs["pad"])
        for name in schema.TIMELINE:
            copy_part(timeline[name], first, part[name], pad)


def _send(image: memoryview, comm: Intracomm) -> None:
    """Send bytes to process 0, which calls `_received`."""
    comm.send(len(image), dest=0)
    for at in range(0, len(image), _MAX_MESSAGE):
        comm.Send(np.frombuffer(image[at : at + _MAX_MESSAGE], np.uint8), dest=0)


def _received(process: int, comm: Intracomm) -> bytearray:
    """Receive the bytes that a process sends by `_send`."""
    image = bytearray(comm.recv(source=process))
    for at in range(0, len(image), _MAX_MESSAGE):
        part = np.frombuffer(image, np.uint8)[at : at + _MAX_MESSAGE]
        comm.Recv(part, source=process)
    return image
