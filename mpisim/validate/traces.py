"""Recorded traces → replayed steps beside the recorded ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..mpi.parallel import collective_errors, progress
from ..replay import Replay, TraceJob, read_job, replay
from ..traces.sources import is_folder
from .cases import Case, Validation

__all__ = ["TraceResult", "validate_traces"]


@frozen
class TraceResult:
    """One trace: a job of one rank or more, or the reason why it was skipped."""

    name: str
    job: TraceJob | None
    replay: Replay | None
    skipped: str = ""

    @property
    def kind(self) -> str:
        """ "multi-rank", "one rank of a job" or "one GPU"."""
        assert self.job is not None
        if len(self.job.sources) > 1:
            return "multi-rank"
        return "one rank of a job" if self.job.traces.world_size > 1 else "one GPU"


def trace_folders(paths: list[str]) -> list[tuple[str, list[Path]]]:
    """Paths → the traces under them: a name and its files or folder each.

    A folder with subfolders is one trace a subfolder; a folder without is one trace; so is a file.

    Raises
    ------
    TraceError
        If a path does not exist, cannot be read or is an empty folder.
    """
    found: list[tuple[str, list[Path]]] = []
    for text in paths:
        path = Path(text)
        if not is_folder(path):
            found.append((path.name, [path]))
            continue
        try:
            everything = sorted(path.iterdir())
        except OSError as error:
            raise TraceError(f"{path}: the folder cannot be read ({error.strerror})") from None
        if not everything:
            raise TraceError(f"{path}: is empty; it must hold a folder or a file for each trace")
        inside = [p for p in everything if p.is_dir()]
        found += [(p.name, [p]) for p in inside] or [(path.resolve().name, [path])]
    return found


def _reason(error: InputError) -> str:
    """Error → why a trace was not replayed, without its path."""
    text = str(error)
    if "no GPU kernels" in text:
        return "no GPU kernels"
    if "no Kineto trace" in text or "not a Kineto trace" in text:
        return "not a Kineto trace"
    return text.partition(": ")[2] or text


def validate_traces(paths: list[str], comm: Any) -> Iterator[TraceResult]:
    """Replay every trace under some paths. **Collective.**

    Parameters
    ----------
    paths : list of str
        Folders (one trace a subfolder) or files.
    comm : mpi4py.MPI.Comm

    Yields
    ------
    TraceResult
        One a trace, in order of name; the same on every process. A trace that cannot be replayed
        is yielded with the reason.

    Raises
    ------
    TraceError
        If a path does not exist.
    """
    folders: list[tuple[str, list[Path]]] = []
    with collective_errors(comm):
        if comm.rank == 0:
            folders = trace_folders(paths)
    folders = comm.bcast(folders, root=0)
    # Large traces take long: the time left is told by their sizes.
    sizes = [_size(files) for _, files in folders] if comm.rank == 0 else [0] * len(folders)
    with progress(comm, "replaying traces", sum(sizes)) as update:
        for (name, files), done in zip(folders, itertools.accumulate(sizes)):
            yield _replayed(name, files, comm)
            update(done)


def _replayed(name: str, files: list[Path], comm: Any) -> TraceResult:
    """Replay one trace. **Collective.**"""
    try:
        job = read_job(files, comm)
        replayed = replay(job, comm)
    except InputError as error:
        return TraceResult(name, None, None, _reason(error))
    if not replayed.steps:
        return TraceResult(name, None, None, "no step that takes time")
    return TraceResult(name, job, replayed)


def _size(paths: list[Path]) -> int:
    """Return the bytes of some files and of those in some folders; of some that vanish, 0."""
    total = 0
    for path in paths:
        with suppress(OSError):
            inside = path.rglob("*") if path.is_dir() else [path]
            total += sum(each.stat().st_size for each in inside if each.is_file())
    return total


def cases_of(result: TraceResult) -> list[Case]:
    """Replayed trace → its cases: every rank and step."""
    assert result.replay is not None
    return [
        Case(
            id=f"{result.name}/rank{each.rank}/"
            + (f"step{each.step}" if each.step >= 0 else "all"),
            measured=each.measured,
            predicted=each.replayed,
            columns={"trace": result.name, "kind": result.kind},
            extra={"baseline": each.baseline},
        )
        for each in result.replay.steps
    ]


def add_to(validation: Validation, result: TraceResult) -> None:
    """Add one trace's cases, or the reason for skipping it.

    Parameters
    ----------
    validation : Validation
        Changed in place.
    result : TraceResult
    """
    if result.skipped:
        validation.skipped[result.skipped] += 1
    else:
        validation.cases += cases_of(result)
