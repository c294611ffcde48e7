"""File → its format, recognised by content, and the program in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from ..base.errors import InputError
from ..kernels.counted import RooflinePricer
from ..program import Program
from ..traces.raw import read_head
from ..traces.sources import is_folder, is_kineto, is_nsys
from .aicb import aicb_program, is_aicb
from .chakra import is_chakra, read_chakra
from .simai import POLICIES
from .simai_program import simai_program
from .triosim import TENSOR, TRACE, triosim_program

__all__ = ["FORMATS", "import_program", "recognise"]

FORMATS = {
    "chakra": "Chakra execution traces (.et)",
    "simai": "a SimAI or ASTRA-sim 1.0 workload (.txt)",
    "aicb": "an AICB workload (.csv)",
    "triosim": f"a TrioSim trace ({TRACE} and {TENSOR})",
}
"""Formats that are read, and what they are."""

_CSV = (b"OperatorID,", b"Index,TensorID,")
_WORKLOAD = re.compile(rb"[A-Z_]{4,40}(\s+[\w:]+)*\s*\n\s*\d+\s*\n")
"""A policy with its sizes, and a line with the number of layers."""


def import_program(
    paths: Sequence[Path | str], n_ranks: int = 0, counts: RooflinePricer | None = None
) -> Program:
    """Files of another tool → program. Local.

    Parameters
    ----------
    paths : sequence of paths
        Files of one format, or a folder of them.
    n_ranks : int
        Number of ranks, for a workload of SimAI or AICB that does not say.
    counts : RooflinePricer, optional
        Prices nodes of Chakra traces and lines of AICB that have no duration.

    Raises
    ------
    InputError
        If the format is unknown, or the files cannot be understood.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("no file to import was named")
    kind = recognise(files)
    if n_ranks and kind not in ("simai", "aicb"):
        raise InputError(
            f"{files[0]}: --ranks is for workloads of SimAI and AICB; this is {FORMATS[kind]}"
        )
    if counts is not None and kind not in ("chakra", "aicb"):
        raise InputError(
            f"{files[0]}: --gpu is for Chakra traces and AICB's tables, which may count operations "
            f"and bytes in place of a time; this is {FORMATS[kind]}"
        )
    if kind == "chakra":
        return read_chakra(files, counts)
    if kind in ("simai", "aicb"):
        inside = [path for each in files for path, _ in _inside(each)]
        if len(inside) > 1:
            raise InputError(f"{inside[1]}: {FORMATS[kind]} is one file")
        if kind == "aicb":
            return aicb_program(inside[0], n_ranks, counts)
        return simai_program(inside[0], n_ranks)
    return triosim_program(files[0])


def recognise(paths: Sequence[Path]) -> str:
    """Files, or a folder of them → their format, a key of `FORMATS`.

    Raises
    ------
    InputError
        If it is none of them, or there are several.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for file, kind in _inside(path):
            if kind:
                found.setdefault(kind, file)
    if not found:
        allowed = "; ".join(FORMATS.values())
        raise InputError(f"{paths[0]}: {_what_else(paths[0])}; what can be imported: {allowed}")
    if len(found) > 1:
        (_, first), (other, second) = list(found.items())[:2]
        raise InputError(f"{second}: {FORMATS[other]}, unlike {first}; import one job at a time")
    return next(iter(found))


def _inside(path: Path) -> list[tuple[Path, str]]:
    """Return the file, or those of a folder that can hold something to import, with formats."""
    if not is_folder(path):
        return [(path, _kind(path))]
    try:
        found = ((p, _kind(p)) for p in path.iterdir() if p.is_file())
        return sorted((each for each in found if each[1]), key=itemgetter(0))
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be read ({error.strerror})") from None


def _kind(path: Path) -> str:
    """File → its format; empty if it is none that is read.

    A file that is meant to be of a format and is broken counts as one: its reader says what is
    wrong with it.
    """
    head = read_head(path)
    words = head[:200].split()
    if (words and words[0].decode("ascii", "replace") in POLICIES) or _WORKLOAD.match(head):
        return "simai"
    if is_aicb(head):
        return "aicb"
    if head.startswith(_CSV) or path.name.removesuffix(".gz") in (TRACE, TENSOR):
        return "triosim"
    return "chakra" if is_chakra(path) else ""


def _what_else(path: Path) -> str:
    """File that cannot be imported → what it is, in words."""
    if path.is_dir():
        return "no file of a known format in this folder"
    if read_head(path).startswith(b"\x89HDF"):
        return "an HDF5 file; programs of mpisim need no import"
    if is_nsys(path) or is_kineto(path):
        return "a trace with times; use 'mpisim replay FILE --save-program'"
    return "the format is unknown"
