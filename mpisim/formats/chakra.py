"""Chakra execution traces (MLCommons): files, folders and which tool wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from ..base.errors import InputError
from ..base.files import read_text
from ..kernels.counted import RooflinePricer
from ..program import Program
from ..traces.raw import open_text, read_head
from ..traces.sources import is_folder
from .chakra_foreign import read_foreign
from .chakra_groups import groups_of
from .chakra_likeness import TraceNodes
from .chakra_own import is_own, read_own
from .chakra_schema import looks_like_chakra, read_nodes

__all__ = ["is_chakra", "read_chakra"]

SUFFIXES = (".et", ".et.gz")
_RANK = re.compile(r"\.(\d+)\.et(\.gz)?$")


def is_chakra(path: Path) -> bool:
    """Whether a file is called or looks like a Chakra execution trace."""
    return path.name.endswith(SUFFIXES) or looks_like_chakra(read_head(path))


def read_chakra(paths: Iterable[Path | str], counts: RooflinePricer | None = None) -> Program:
    """Chakra execution traces of one job → program. Local.

    Files that `write_chakra` made give back the program that was written; for those of other tools
    see `mpisim.formats.chakra_foreign.read_foreign`.

    Parameters
    ----------
    paths : iterable of paths
        Files (``NAME.<rank>.et``, plain or gzip), or one folder of them. A ``.json`` file in the
        folder, or among the paths, holds process groups as ASTRA-sim's
        ``--comm-group-configuration`` does.
    counts : RooflinePricer, optional
        Prices nodes of other tools' files that have no duration.

    Raises
    ------
    InputError
        If a file cannot be read or understood, or ranks are missing; the message names file and
        node.
    """
    files, configurations = _files(paths)
    traces = list(zip(files, _traces(files)))
    own = [is_own(trace.metadata) for _, trace in traces]
    if all(own):
        if counts is not None:
            raise InputError(
                f"{files[0]}: --gpu is for nodes without a duration; mpisim wrote these, with one"
            )
        return read_own(traces)
    if any(own):
        raise InputError(
            f"{files[own.index(False)]}: written by another tool than {files[own.index(True)]}; "
            "read one job at a time"
        )
    groups: dict[str, tuple[int, ...]] = {}
    for path in configurations:
        groups |= groups_of(path, _json(path))
    ranked = sorted(
        ((_rank(path, len(files)), path, trace) for path, trace in traces),
        key=lambda each: each[:2],
    )
    for (rank, path, _), (other, before, _) in zip(ranked[1:], ranked):
        if rank == other:
            raise InputError(f"{path}: rank {rank} is already given by {before}")
    return read_foreign(ranked, groups, counts)


def _traces(files: Iterable[Path]) -> Iterator[TraceNodes]:
    """Yield the nodes of each file; of files of equal bytes they are the same object."""
    known: dict[bytes, TraceNodes] = {}
    for path in files:
        raw = open_text(path)
        digest = blake2b(raw, digest_size=16).digest()
        if digest not in known:
            known[digest] = TraceNodes(*read_nodes(path, raw))
        yield known[digest]


def _files(paths: Iterable[Path | str]) -> tuple[list[Path], list[Path]]:
    """Paths → trace files, and files of process groups."""
    traces: list[Path] = []
    groups: list[Path] = []
    for path in map(Path, paths):
        folder = is_folder(path)
        inside = sorted(path.iterdir()) if folder else [path]
        groups += [p for p in inside if p.name.endswith(".json")]
        traces += [
            p for p in inside if p.name.endswith(SUFFIXES if folder else "") and p not in groups
        ]
    if not traces:
        raise InputError("no Chakra execution trace (.et) among the files named")
    return traces, groups


def _rank(path: Path, n_files: int) -> int:
    found = _RANK.search(path.name)
    if found:
        return int(found.group(1))
    if n_files == 1:
        return 0
    raise InputError(f"{path}: its name does not say its rank (NAME.<rank>.et)")


def _json(path: Path) -> object:
    import orjson

    contents = read_text(path)
    try:
        return orjson.loads(contents)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
