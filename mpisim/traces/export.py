"""Simulated run → Kineto traces, one file a rank.

The files open in Perfetto and chrome://tracing, and in every tool that reads PyTorch's profiles;
`mpisim replay` reads them back.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from ..base.errors import DestinationError, InputError
from ..base.files import hidden_name, os_errors_reported, rename_into_place
from ..mpi.parallel import collective_errors
from ..program import Program
from .export_communications import Around, Communicator, Event, RankRun
from .export_events import CPU, GPU, THREAD, rank_events

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..engine.run import Run

__all__ = ["Added", "check_export", "export_kineto", "rank_run"]

EPOCH = 1_767_225_600
"""Seconds since 1970 at which exported runs begin (1 January 2026): files are reproducible."""
_NAME = re.compile(r"kineto_rank\d+\.json\.gz")
_LEVEL = 4
"""Of compression: higher ones take several times as long for a few percent."""
_PIECE = 10_000
"""Events that are put into text at a time."""


class Added(NamedTuple):
    """What a rank's file has besides what its program says.

    Attributes
    ----------
    row_arguments : callable, optional
        Launch of a row, by its first row → further arguments of its operation on the device.
    step : int, optional
        Number of the profiled step that all rows are, where tables know of no steps.
    events : sequence of Event
        Further events, such as counters; `ts` and `dur` in ps.
    around : mapping of int to sequence of Around
        Operators and modules around launches, by row.
    """

    row_arguments: Callable[[int], Event] | None = None
    step: int | None = None
    events: Sequence[Event] = ()
    around: Mapping[int, Sequence[Around]] = {}


def export_kineto(
    program: Program,
    run: Run,
    folder: str | Path,
    *,
    ranks: Sequence[int] | None = None,
    chosen: Collection[int] | None = None,
    added: Callable[[int, int], Added] | None = None,
    clock_offset: Mapping[int, int] | None = None,
    style: Literal["new", "old"] = "new",
    overwrite: bool = False,
    comm: Intracomm | None = None,
) -> list[Path]:
    """Write one Kineto trace a rank, ``kineto_rankN.json.gz``. **Collective** if `comm` is given.

    A trace cannot say everything that a program can. CPU time behind the last call of a rank
    shows only as the end of a profiled step; the sizes of a batch of sends and receives only on
    their operators; and a row that waits for nothing of its own batch, stream or host looks like
    any other. In the old style, what waits for what is left to be inferred.

    Parameters
    ----------
    program : Program
    run : Run
        Of this program.
    folder : str or Path
        Created if need be; its parent must exist.
    ranks : sequence of int, optional
        Global rank of every simulated rank, for file names and groups; by default the same.
    chosen : collection of int, optional
        Ranks of the program that are written; by default all. A file says how many the job has.
    added : callable, optional
        Entry of `Run.hosted`, and rank of the program → what its file has besides.
    clock_offset : mapping of int to int, optional
        By global rank: what its clock shows too much, in ps. All of its file is shifted by it.
    style : {"new", "old"}
        ``"new"``: ns resolution, groups and sizes on communications, both ends of event waits on
        record. ``"old"``: as before 2024, whole µs and none of these.
    overwrite : bool
        Whether exported traces in the folder may be replaced.
    comm : mpi4py.MPI.Intracomm, optional
        The processes of the run; each writes the ranks that it hosted.

    Returns
    -------
    list of Path
        The files written by this process.

    Raises
    ------
    InputError
        If `ranks`, `clock_offset` or `style` do not fit.
    OutputError
        If the folder cannot be written or holds traces already. No file is left then.
    """
    folder = Path(folder)
    ranks = list(range(program.n_ranks)) if ranks is None else list(ranks)
    offset = dict(clock_offset or {})
    with _agreed(comm):
        _check(program, ranks, offset, style)
        prepares = comm is None or comm.rank == 0
        makes = prepares and not folder.exists()
        replaced = _prepare(folder, overwrite) if prepares else []
    hidden: dict[Path, Path] = {}
    new: list[Path] = []
    try:
        with _agreed(comm):
            for i, index in enumerate(run.hosted.tolist()):
                if chosen is not None and index not in chosen:
                    continue
                target = folder / f"kineto_rank{ranks[index]}.json.gz"
                hidden[target] = hidden_name(target)
                more = Added() if added is None else added(i, index)
                top, events = _content(program, run, i, ranks, more, offset, style == "old")
                with os_errors_reported(target), hidden[target].open("wb") as file:
                    _write(file, top, events)
        with _agreed(comm):
            for target, written in hidden.items():
                with os_errors_reported(target):
                    rename_into_place(written, target, target, overwrite=overwrite)
                    new.append(target)
        with _agreed(comm):
            all_ranks = range(len(ranks)) if chosen is None else chosen
            written_now = {f"kineto_rank{ranks[index]}.json.gz" for index in all_ranks}
            for path in replaced:  # of ranks that are not written now
                if path.name not in written_now:
                    with os_errors_reported(path):
                        path.unlink()
    except BaseException:
        for written in (*hidden.values(), *([] if overwrite else new)):
            with contextlib.suppress(OSError):
                written.unlink(missing_ok=True)
        if makes:
            with contextlib.suppress(OSError):  # files of other processes may still be there
                folder.rmdir()
        raise
    return list(hidden)


def _agreed(comm: Intracomm | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if comm is None else collective_errors(comm)


def _check(program: Program, ranks: list[int], offset: Mapping[int, int], style: str) -> None:
    """Refuse arguments that do not fit each other."""
    if style not in ("new", "old"):
        raise InputError(f"style {style!r} is not known; there are 'new' and 'old'")
    if len(set(ranks)) != program.n_ranks or len(ranks) != program.n_ranks:
        raise InputError(
            f"'ranks' has {len(ranks)} entries, {len(set(ranks))} of them different; "
            f"the program has {program.n_ranks} ranks"
        )
    for rank in offset:
        if rank not in ranks:
            raise InputError(f"clock offset of rank {rank}, which is not in the program")


def check_export(folder: str | Path, *, overwrite: bool = False) -> list[Path]:
    """Check that traces can be written to a folder, before the work that makes them. Local.

    Parameters
    ----------
    folder : str or Path
        Need not exist; its parent must.
    overwrite : bool
        Whether files named as exported traces may be there.

    Returns
    -------
    list of Path
        Exported traces that are there and may be replaced.

    Raises
    ------
    OutputError
        If it is no folder, cannot be made or written, or holds traces already.
    """
    folder = Path(folder)
    with os_errors_reported(folder):
        there = os.path.lexists(folder)
        if there and not folder.is_dir():
            raise DestinationError(
                f"{folder}: is not a folder; name another for the exported traces"
            )
        if not there and not folder.parent.is_dir():
            raise DestinationError(f"{folder}: there is no folder {folder.parent}")
        if not os.access(folder if there else folder.parent, os.W_OK | os.X_OK):
            raise DestinationError(f"{folder}: is not writable")
        present = (
            [p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz"))] if there else []
        )
        present.sort()
    foreign = [p for p in present if not (overwrite and _NAME.fullmatch(p.name))]
    if foreign:
        raise DestinationError(
            f"{folder}: holds {foreign[0].name} already; name another folder or empty it"
        )
    return present


def _prepare(folder: Path, overwrite: bool) -> list[Path]:
    """Make the folder, and return the traces in it, which are to be replaced."""
    present = check_export(folder, overwrite=overwrite)
    with os_errors_reported(folder):
        folder.mkdir(exist_ok=True)
    return present


def rank_run(
    program: Program, run: Run, i: int, ranks: Sequence[int], added: Added | None = None
) -> RankRun:
    """Return the i-th rank hosted here, as its events are made of it. Local.

    Parameters
    ----------
    program : Program
    run : Run
        Of this program.
    i : int
        Entry of `Run.hosted`.
    ranks : sequence of int
        Global rank of every simulated rank.
    added : Added, optional
    """
    index = int(run.hosted[i])
    groups = [
        Communicator(str(c), tuple(ranks[r] for r in program.communicators.group(c)))
        for c in program.slots_of(index).tolist()
    ]
    rows, more = run.rows(i), added or Added()
    return RankRun(
        ranks[index],
        program.table_of(index),
        program.names,
        groups,
        int(program.start[index]),
        rows.begin,
        rows.end,
        more.row_arguments,
        more.step,
        more.around,
    )


def _content(
    program: Program,
    run: Run,
    i: int,
    ranks: list[int],
    added: Added,
    offset: Mapping[int, int],
    old: bool,
) -> tuple[Event, list[Event]]:
    """What is at the top of one rank's file, and its events."""
    of = rank_run(program, run, i, ranks, added)
    number, groups, index = of.number, of.groups, int(run.hosted[i])
    names = program.communicators.names
    events = [*rank_events(of, old), *added.events]
    _in_microseconds(events, offset.get(number, 0), old)
    streams = sorted({event["tid"] for event in events if event["pid"] == GPU and "tid" in event})
    size = _world_size(program, ranks)
    described = dict(zip(program.slots_of(index).tolist(), groups, strict=True))
    info: Event = {"backend": "nccl", "rank": number, "world_size": size}
    if not old:
        info |= {
            "pg_count": len(groups),
            "pg_config": [
                {
                    "pg_name": group.name,
                    "pg_desc": names[c],
                    "backend_config": "cuda:nccl",
                    "pg_size": len(group.members),
                    "ranks": group.members,
                }
                for c, group in described.items()
            ],
        }
    device = {"id": GPU, "name": "simulated GPU"}
    top: Event = {"schemaVersion": 1, "deviceProperties": [device], "record_shapes": 1}
    if size > 1:
        top["distributedInfo"] = info
    if not old:
        top |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": EPOCH * 1_000_000_000}
    top["traceName"] = f"kineto_rank{number}.json.gz"
    return top, [*_labels(number, streams), *events]


def _write(file: BinaryIO, top: Event, events: list[Event]) -> None:
    """Write one rank's file, a piece at a time."""
    import orjson

    # Spaces as Kineto has them: HolisticTraceAnalysis looks for '"rank": 3' in the text.
    head = json.dumps(top)
    # Without name and time: equal files for equal runs.
    packed = gzip.GzipFile("", "wb", _LEVEL, file, mtime=0)
    packed.write(f'{head[:-1]}, "traceEvents": ['.encode())
    for at in range(0, len(events), _PIECE):
        text = orjson.dumps(events[at : at + _PIECE], option=orjson.OPT_SERIALIZE_NUMPY)
        packed.write((b"," if at else b"") + text[1:-1])
    packed.write(b"]}")
    packed.close()


def _world_size(program: Program, ranks: list[int]) -> int:
    """Ranks of the job, of which a trace program may hold only some."""
    world_size = program.attributes.get("world_size", "")
    return max(program.n_ranks, max(ranks) + 1, int(world_size) if world_size.isdigit() else 0)


def _in_microseconds(events: list[Event], offset: int, old: bool) -> None:
    """Turn times in ps into µs as files have them: ns resolution, or whole µs since 1970."""
    unit, scale = (1_000_000, 1) if old else (1_000, 1_000)
    epoch = EPOCH * 1_000_000 if old else 0
    for event in events:
        begin = event["ts"] + offset
        first = begin // unit
        event["ts"] = epoch + first if old else first / scale
        if "dur" in event:
            length = (begin + event["dur"]) // unit - first
            event["dur"] = length if old else length / scale


def _labels(number: int, streams: list[int]) -> list[Event]:
    """Names of processes and threads for viewers."""

    def label(what: str, pid: int, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}

    found = [
        label("process_name", CPU, 0, name=f"rank {number}"),
        label("process_labels", CPU, 0, labels="CPU"),
        label("process_sort_index", CPU, 0, sort_index=0),
        label("thread_name", CPU, THREAD, name="calls"),
        label("process_name", GPU, 0, name=f"rank {number}"),
        label("process_labels", GPU, 0, labels="GPU"),
        label("process_sort_index", GPU, 0, sort_index=1),
    ]
    return found + [label("thread_name", GPU, s, name=f"stream {s}") for s in streams if s >= 0]
