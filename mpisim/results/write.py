"""Writing a results file, and one shard of its timeline a process: all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..engine.run import Run
from ..errors import DestinationError, InputError, OutputError
from ..files import check_output, hidden_name, reported
from ..hdf5 import CHUNK, create_column, created, write_attributes, write_column, write_texts
from ..parallel import agreed
from ..program import Program, Table
from ..topo import Network
from . import layout
from .collect import collect, gathered, shared_names
from .results import Results

if TYPE_CHECKING:
    from h5py import File, Group
    from mpi4py.MPI import Intracomm

__all__ = ["check_results_output", "write_results"]

OWN_ATTRIBUTES = frozenset(
    ("format", "format_version", "creator", "digest", "step_time", "seed", "experiment",
     "n_processes", "rounds", "mode", "recorded", "versions", "attributes", "wall", "said")
)  # fmt: skip
"""Root attributes that the writer fills; `attributes` of callers may not have these names."""

SHARD_NAME = re.compile(r"\d{4,}\.h5")


def check_results_output(path: str | Path, *, overwrite: bool = False) -> Path:
    """Check that a results file can be written, before the run that fills it.

    Local; see `mpisim.files.check_output`. The folder of shards is looked at too.

    Raises
    ------
    OutputError
        Naming the file or folder and what is wrong with it.
    """
    target = check_output(path, overwrite=overwrite)
    folder = shard_folder(target)
    if os.path.lexists(folder):
        if not overwrite:
            raise DestinationError(f"{folder}: exists already; remove it or name another file")
        strange = [] if folder.is_symlink() or not folder.is_dir() else os.listdir(folder)
        strange = [name for name in strange if not SHARD_NAME.fullmatch(name)]
        if strange or folder.is_symlink() or not folder.is_dir():
            raise DestinationError(f"{folder}: is not a folder of shards; remove it first")
    return target


def write_results(
    run: Run,
    path: str | Path,
    *,
    comm: Intracomm,
    timeline: bool = False,
    experiment: str = "",
    seed: int = 0,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    network: Network | None = None,
    step: int | None = None,
) -> Results | None:
    """Write the result of a run to an HDF5 file.

    **Collective.** With a timeline each process writes its own shard, ``PATH.shards/<process>.h5``;
    move the file and the folder together. All files appear when all are complete; an error on any
    process leaves nothing behind and is raised on all.

    Parameters
    ----------
    run : Run
    path : str or Path
        In a folder that all processes see.
    comm : mpi4py.MPI.Intracomm
        The processes that simulated.
    timeline : bool
        Write every row too.
    experiment, seed, attributes, network, step
        See `collect`.
    overwrite : bool
        Whether an earlier result of that name may be replaced.

    Returns
    -------
    Results or None
        What was written, on process 0; None on the others.

    Raises
    ------
    OutputError
        If it cannot be written.
    InputError
        If an attribute has a name that the file needs itself.

    Examples
    --------
    >>> write_results(run, "run.h5", comm=comm, timeline=True)      # doctest: +SKIP
    >>> with mpisim.open_results("run.h5") as results:              # doctest: +SKIP
    ...     print(results.step_time, results.timeline.rank(0)["begin"])
    """
    taken = sorted(OWN_ATTRIBUTES.intersection(attributes or {}))
    if taken:
        raise InputError(f"attribute '{taken[0]}' belongs to the results file; name it otherwise")
    results = collect(
        run, comm=comm, experiment=experiment, seed=seed, attributes=attributes, network=network,
        step=step,
    )  # fmt: skip
    with _staging(path, comm, overwrite) as (stage, publish):
        rows = None
        names: tuple[str, ...] = ()
        if timeline:
            names, numbers = shared_names(run.program, comm)
            with agreed(comm), _called(path, stage):
                if not stage.is_dir():
                    raise DestinationError(
                        f"{path}: process {comm.rank} does not see the folder that process 0 made; "
                        "name a file on a shared file system"
                    )
                _write_shard(run, stage / "shards" / f"{comm.rank:04d}.h5", numbers)
            count = sum(map(len, _simulated_tables(run)))
            rows = gathered(np.array([[count]], np.int64), comm)
        with agreed(comm), _called(path, stage):
            if results is not None:
                with created(stage / "main.h5", layout.FORMAT, layout.VERSION) as file:
                    _write_main(results, file)
                    if rows is not None:
                        shards = f"{check_output(path, overwrite=True).name}.shards"
                        _join_shards(results, run.program, file, shards, rows[:, 0], names)
                publish()
    return results


# --- all or nothing ------------------------------------------------------------------------------


def shard_folder(target: Path) -> Path:
    """The folder of the shards of a results file."""
    return target.with_name(target.name + ".shards")


@contextlib.contextmanager
def _staging(
    path: str | Path, comm: Intracomm, overwrite: bool
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Make a hidden folder beside `path` for all processes. **Collective** at its beginning.

    Yields the folder and a function that process 0 calls to give the files in it their names. The
    folder is gone at the end, whatever happened.
    """
    stage = target = Path()
    with agreed(comm):
        if comm.rank == 0:
            target = check_results_output(path, overwrite=overwrite)
            stage = hidden_name(target)
            with reported(path):
                (stage / "shards").mkdir(parents=True)
    if comm.size > 1:
        stage = Path(comm.bcast(os.fspath(stage), root=0))
    try:
        yield stage, lambda: _publish(stage, target, path)
    finally:
        if comm.rank == 0:
            shutil.rmtree(stage, ignore_errors=True)


def _publish(stage: Path, target: Path, path: str | Path) -> None:
    """Give a complete result its names; put back what was there if that fails half-way."""
    folder = shard_folder(target)
    moved = []  # (from, to), to be undone in reverse

    def move(source: Path, goal: Path) -> None:
        os.rename(source, goal)
        moved.append((source, goal))

    with reported(path):
        try:
            if folder.exists():
                move(folder, stage / "old shards")  # deleted with the stage
            if any((stage / "shards").iterdir()):
                move(stage / "shards", folder)
            os.replace(stage / "main.h5", target)
        except BaseException:
            for source, goal in reversed(moved):
                with contextlib.suppress(OSError):
                    os.rename(goal, source)
            raise


@contextlib.contextmanager
def _called(path: str | Path, stage: Path) -> Iterator[None]:
    """Say the name the user gave, in errors about a file of the stage."""
    try:
        yield
    except OutputError as error:
        raise type(error)(
            re.sub(re.escape(str(stage)) + r"[^:]*", str(path), str(error))
        ) from error


# --- the main file -------------------------------------------------------------------------------


def _write_main(results: Results, file: File) -> None:
    """Write everything but the timeline."""
    import h5py

    own = {
        "digest": results.digest,
        "step_time": results.step_time,
        "seed": results.seed,
        "experiment": results.experiment,
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
    _write_table(file.create_group("ranks"), results.ranks, layout.RANKS)
    _write_table(file.create_group("classes"), results.classes, layout.CLASSES)
    _write_table(file.create_group("steps"), results.steps, layout.STEPS)
    _write_table(file.create_group("kernels"), results.kernels, layout.KERNELS)
    _write_table(file.create_group("communications"), results.communications, layout.COMMUNICATIONS)
    groups = file.create_group("communicators")
    write_column(groups, "index", results.communicators.index)
    write_column(groups, "members", results.communicators.members)
    write_texts(groups, "names", results.communicators.names)
    links = file.create_group("links")
    _write_table(links, results.links.links, layout.LINKS)
    links.create_dataset(
        "utilisation", data=results.links.utilisation, track_times=False, compression=1
    )
    _write_table(file.create_group("link_sharing"), results.links.sharing, layout.LINK_SHARING)
    if results.critical_path is not None:
        path = file.create_group("critical_path")
        columns = {
            column: getattr(results.critical_path, column) for column in layout.CRITICAL_PATH
        }
        _write_table(path, columns, layout.CRITICAL_PATH)
        write_texts(path, "names", results.critical_path.names)
    if results.recorded is not None:
        steps = file.create_group("recorded_steps")
        _write_table(
            steps, {c: getattr(results.recorded, c) for c in layout.RECORDED_STEPS},
            layout.RECORDED_STEPS,
        )  # fmt: skip
        write_column(steps, "shown", np.array([results.recorded.shown_step], np.int32))
        write_column(steps, "whole", np.array([results.recorded.whole_ps]), "ps")


def _write_summary(results: Results, group: Group) -> None:
    """Write the few numbers that most look for, for tools that know nothing else of the file."""
    write_column(group, "step_time", np.int64(results.step_time_ps), "ps")
    write_column(group, "step_time_seconds", results.step_time, "s")
    write_column(group, "n_ranks", results.n_ranks)
    write_column(group, "n_rows", results.ranks["rows"].sum())
    for column in ("compute", "exposed", "exposed_waiting", "exposed_wire", "idle"):
        write_column(
            group, f"mean_{column}_seconds", results.ranks[column].mean() * 1e-12, "s",
            "mean over ranks",
        )  # fmt: skip


def _write_table(
    group: Group, columns: Mapping[str, NDArray[Any]], described: layout.Layout
) -> None:
    for name, (dtype, units) in described.items():
        if dtype is object:
            write_texts(group, name, columns[name].tolist())
        else:
            write_column(group, name, np.asarray(columns[name], dtype), units)


def _storable(value: Any) -> Any:
    """Make an attribute of what callers say: text, number, or list of texts or of integers."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        import h5py

        if value and all(isinstance(each, int) for each in value):
            return np.array(value, np.int64)
        texts = [_storable(str(each)) for each in value]
        return np.array(texts, h5py.string_dtype("utf-8")) if texts else h5py.Empty("S1")
    return value if isinstance(value, int | float | np.generic) else _storable(str(value))


# --- the timeline --------------------------------------------------------------------------------


def _simulated_tables(run: Run) -> list[Table]:
    """The tables of the ranks simulated here."""
    return [run.program.table_of(rank) for rank in run.hosted[run.simulated].tolist()]


def _write_shard(run: Run, path: Path, numbers: NDArray[np.int64]) -> None:
    """Write the rows of the ranks simulated here, rank after rank. No ranks, no file."""
    lengths = np.array([len(table) for table in _simulated_tables(run)], np.int64)
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    if not total:
        return
    with created(path, layout.SHARD_FORMAT, layout.VERSION) as file:
        file.attrs["digest"] = run.digest
        columns = {
            name: create_column(file, name, total, dtype, units)
            for name, (dtype, units) in layout.TIMELINE.items()
        }
        # A few ranks at a time: enough rows for whole chunks, and few enough for any memory.
        block = (ends - 1) // CHUNK
        at = 0
        for ranks in np.split(run.simulated, np.flatnonzero(np.diff(block)) + 1):
            parts = [_timeline_of(run, i, numbers) for i in ranks.tolist()]
            n = sum(len(part["begin"]) for part in parts)
            for name, column in columns.items():
                column[at : at + n] = np.concatenate([part[name] for part in parts])
            at += n


def _timeline_of(run: Run, i: int, numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
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


def _join_shards(
    results: Results,
    program: Program,
    file: File,
    folder: str,
    rows: NDArray[np.int64],
    names: tuple[str, ...],
) -> None:
    """Join the shards to one dataset a column, and say where each rank's rows are in it."""
    import h5py

    timeline = file.create_group("timeline")
    write_texts(timeline, "names", names)
    present = np.flatnonzero(rows)
    shards = timeline.create_group("shards")
    write_texts(shards, "file", [f"{folder}/{process:04d}.h5" for process in present])
    write_column(shards, "rows", rows[present])

    # A process writes its representatives in ascending order.
    few = results.classes["representative"]
    process, lengths = results.ranks["process"][few], results.ranks["rows"][few]
    order = np.argsort(process, kind="stable")
    offset = np.zeros(len(process), np.int64)
    offset[order] = np.cumsum(lengths[order]) - lengths[order]
    offset = offset[results.ranks["class"]]
    write_column(timeline, "rank_offset", offset, about="first row of each rank in the columns")
    write_column(timeline, "rank_rows", results.ranks["rows"], about="number of rows of each rank")
    write_column(timeline, "rank_slot_index", program.slot_index, about="index of rank_slots")
    write_column(
        timeline, "rank_slots", program.slots, about="communicator of each slot of each rank"
    )

    total = int(rows.sum())
    for name, (dtype, units) in layout.TIMELINE.items():
        if total:
            joined = h5py.VirtualLayout((total,), dtype)
            at = 0
            for number in present.tolist():
                # HDF5 reads % in these names as the start of a pattern.
                source = f"{folder}/{number:04d}.h5".replace("%", "%%")
                count = int(rows[number])
                joined[at : at + count] = h5py.VirtualSource(source, name, (count,), dtype)
                at += count
            dataset = timeline.create_virtual_dataset(name, joined)
        else:
            dataset = timeline.create_dataset(name, (0,), dtype)
        dataset.attrs["column"] = True
        if units is not None:
            dataset.attrs["units"] = units
