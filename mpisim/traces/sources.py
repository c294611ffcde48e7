"""Files and folders → the traces of one job, each with its rank.

Only the head of each file is read here, by one process; the files themselves are read later, each
by the process that hosts its rank.
"""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..base.errors import TraceError
from ..base.frozen import frozen
from ..base.text import counted
from .et import is_execution_trace
from .kineto_file import read_kineto
from .nsys import nsys_processes
from .nsys_export import is_nsys
from .raw import read_head

__all__ = [
    "RANK_IN_NAME",
    "Source",
    "find_sources",
    "is_folder",
    "is_kineto",
    "is_nsys",
    "json_files",
    "sqlite_files",
]

_MAX_RANKS = 1 << 24
"""Ranks of a job."""
_SUFFIXES = (".json", ".json.gz")
_RANK = re.compile(rb'"rank"\s*:\s*(-?\d+)')
_WORLD = re.compile(rb'"world_size"\s*:\s*(-?\d+)')
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{')
RANK_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)


@frozen
class Source:
    """One trace file of one rank, or one process of an Nsight Systems export.

    `world_size` is 0 where the file does not say; `size` is the file's size in bytes; `process` is
    -1 but in an export.
    """

    path: Path
    rank: int
    world_size: int
    size: int
    process: int = -1


def find_sources(paths: Iterable[Path | str], allow_missing: bool = False) -> list[Source]:
    """Find the traces of one job, in order of rank: Kineto's, or Nsight Systems exports.

    An export holds a rank for every process that used a GPU. They are numbered by GPU, and file
    after file; one of a single process may say its rank in its name (rankN), as Kineto's files do.

    Parameters
    ----------
    paths : iterable of paths
        Files, or directories whose ``.json`` and ``.json.gz`` files are taken (execution traces
        and other files there are passed over), or their ``.sqlite`` files if there are no others.
    allow_missing : bool
        Whether a job with some of its ranks (more than one, but not all) is accepted.

    Raises
    ------
    TraceError
        If there is no trace, a rank twice, a rank missing, or files of different jobs.
    """
    files: list[Path] = []
    named = [Path(path) for path in paths]
    if not named:
        raise TraceError("no trace was named; give files or directories of Kineto traces")
    exports: list[Path] = []
    for path in named:
        if not is_folder(path) and is_nsys(path):
            exports.append(path)
        elif is_folder(path):
            inside = json_files(path)
            inside_exports = [] if inside else [p for p in sqlite_files(path) if is_nsys(p)]
            if inside_exports:
                exports += inside_exports
                continue
            for broken in filter(_is_broken, inside):
                read_kineto(broken)  # says what is wrong with it
            kineto = [p for p in inside if is_kineto(p)]
            if not kineto:
                raise TraceError(
                    f"{path}: no Kineto trace (.json or .json.gz with 'traceEvents') and no Nsight "
                    "Systems export (.sqlite) in this folder, which holds "
                    f"{counted(len(inside), 'JSON file')}"
                    f"{'; folders in it are not searched' if _has_folders(path) else ''}"
                )
            files += kineto
        else:
            if len(named) == 1 or is_kineto(path):
                files.append(path)
            else:
                raise TraceError(f"{path}: not a Kineto trace (no 'traceEvents' in its head)")
    for path in files:
        if is_execution_trace(path):
            raise TraceError(
                f"{path}: an execution trace holds no times; 'mpisim replay' with --cluster prices "
                "it, or name the Kineto trace of the same rank ('mpisim trace show' reads both)"
            )
    if files and exports:
        raise TraceError(f"{exports[0]}: an Nsight Systems export among Kineto traces; name one")
    found = [_source(path, alone=len(files) == 1) for path in files] + _export_sources(exports)
    return _checked(sorted(found, key=lambda source: (source.rank, source.path)), allow_missing)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder.

    Raises
    ------
    TraceError
        If it is neither a folder nor a file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a null character
        what = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TraceError(f"{path}: {what[:1].lower()}{what[1:]}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise TraceError(f"{path}: neither a file nor a folder")
    return stat.S_ISDIR(mode)


def json_files(folder: Path) -> list[Path]:
    """Return the JSON files of a folder, not those of folders in it.

    Raises
    ------
    TraceError
        If the folder cannot be read.
    """
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(_SUFFIXES) and p.is_file())
    except OSError as error:
        raise TraceError(f"{folder}: the folder cannot be read ({error.strerror})") from None


def sqlite_files(folder: Path) -> list[Path]:
    """Return the SQLite files of a folder, not those of folders in it."""
    suffixes = (".sqlite", ".sqlite.gz")
    return sorted(p for p in folder.iterdir() if p.name.endswith(suffixes) and p.is_file())


def _export_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the processes of Nsight Systems exports, each a rank."""
    found: list[Source] = []
    for path in paths:
        processes, size = nsys_processes(path), path.stat().st_size
        by_name = RANK_IN_NAME.findall(path.name) if len(processes) == 1 else []
        for process in processes:
            rank = int(by_name[-1]) if by_name else len(found)
            found.append(Source(path, rank, 0, size, process))
    return found


def is_kineto(path: Path) -> bool:
    """Whether the head of a file looks like a Kineto trace."""
    head = read_head(path)
    return b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head)


def _has_folders(path: Path) -> bool:
    return any(inside.is_dir() for inside in path.iterdir())


def _is_broken(path: Path) -> bool:
    """Whether a file is no JSON from its first byte on.

    What a rank failed to write must not make its job look smaller.
    """
    return read_head(path).lstrip()[:1] not in (b"{", b"[")


def _source(path: Path, alone: bool) -> Source:
    head = read_head(path)
    info = _INFO.search(head)
    inside = head[info.end() : info.end() + 4096] if info else b""
    rank, world = _RANK.search(inside), _WORLD.search(inside)
    if rank is not None:
        number = int(rank.group(1))
    else:
        by_name = RANK_IN_NAME.findall(path.name)
        if by_name:
            number = int(by_name[-1])
        elif alone:
            number = 0
        else:
            raise TraceError(
                f"{path}: its rank is neither in 'distributedInfo' nor in its name (rankN), "
                "which tell a job's ranks apart; of one GPU name one trace, not a folder of several"
            )
    return Source(path, number, int(world.group(1)) if world else 0, path.stat().st_size)


def _checked(sources: Sequence[Source], allow_missing: bool) -> list[Source]:
    """Refuse a set of files that is not one whole job, or one rank of it."""
    for before, now in itertools.pairwise(sources):
        if before.rank == now.rank:
            raise TraceError(
                f"{now.path}: rank {now.rank} is already given by {before.path}; "
                "each rank needs one file"
            )
    sizes = {source.world_size: source for source in sources if source.world_size}
    if len(sizes) > 1:
        (a, first), (b, second) = list(sizes.items())[:2]
        raise TraceError(
            f"{second.path}: from a job of {b} ranks, but {first.path} is from one of {a}; "
            "replay one job at a time"
        )
    world = next(iter(sizes), 0)
    if world < 0 or world > _MAX_RANKS:
        raise TraceError(
            f"{sizes[world].path}: 'world_size' is {world}; it must be from 1 to {_MAX_RANKS}"
        )
    for source in sources:
        if not 0 <= source.rank < _MAX_RANKS:
            raise TraceError(
                f"{source.path}: its rank is {source.rank}; it must be from 0 to {_MAX_RANKS - 1}"
            )
    if world and sources[-1].rank >= world:
        raise TraceError(f"{sources[-1].path}: rank {sources[-1].rank} in a job of {world} ranks")
    if not world and len(sources) > 1:
        world = sources[-1].rank + 1
    if not allow_missing and 1 < len(sources) < world:
        here = {source.rank for source in sources}
        missing = list(itertools.islice((r for r in range(world) if r not in here), 6))
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise TraceError(
            f"{sources[0].path.parent}: {len(sources)} of {world} ranks are here; missing: {shown} "
            "(one rank alone, or all; --allow-missing-ranks replays what there is)"
        )
    return list(sources)
