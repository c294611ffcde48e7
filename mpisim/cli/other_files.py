"""Files that a command cannot take → the command that can.

People name the file that they have. Which command it is for is known from its content, so the
message says it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from ..base.errors import InputError, UsageError

__all__ = ["expected", "hdf5_format", "kind_of"]

TAKEN_BY: Mapping[str, str] = {
    "mpisim-program": "a program of mpisim, which 'mpisim run {file}' simulates",
    "mpisim-results": "the result of a run, which 'mpisim report {file}' shows",
    "mpisim-search": "a search, which 'mpisim report {file}' shows",
    "mpisim-job": "the outcome of a job, which 'mpisim report {file}' shows",
    "mpisim-decentralized": "decentralized training, which 'mpisim report {file}' shows",
    "mpisim-packets": "what 'mpisim packets -o' wrote, which h5py reads, or any other reader of "
    "HDF5 (docs/network.md)",
    "experiment": "an experiment, which 'mpisim run {file}' simulates",
    "cluster": "a cluster, which 'mpisim topo show {file}' shows; 'mpisim new mine.toml --cluster "
    "{file}' writes an experiment on it",
    "calibration": "a calibration of collectives, which the key network.calibration names, and "
    "--calibration of mpisim comm, validate and extrapolate",
    "script": "a script of Python; 'mpisim capture --world-size 8 -- python {file}' runs it "
    "without a GPU, and predicts its step",
    "config": "a config.json of Hugging Face; 'mpisim new mine.toml --config {file}' writes an "
    "experiment of it",
    "traces": "a recording, which 'mpisim replay {file}' replays",
    "chakra": "Chakra execution traces; 'mpisim program import {file} -o step.h5' makes a program "
    "of them, which 'mpisim run step.h5' simulates",
    "aicb": "a workload of AICB; 'mpisim program import {file} -o step.h5' makes a program of it, "
    "which 'mpisim run step.h5' simulates",
    "simai": "a workload of SimAI or ASTRA-sim 1.0; 'mpisim program import {file} -o step.h5' "
    "makes a program of it, which 'mpisim run step.h5' simulates",
}
"""Kinds of files and folders, and which command takes them."""

SIGNATURE = b"\x89HDF"
"""How HDF5 files begin."""

MAX_CONFIG = 1 << 20
"""Bytes of a config.json; larger ones are something else."""


@contextmanager
def expected(paths: Iterable[Path | str | None], takes: Collection[str]) -> Iterator[None]:
    """Say of files that are refused which command takes them.

    Parameters
    ----------
    paths : iterable of paths
        What the block inside reads.
    takes : collection of str
        Kinds of `TAKEN_BY` that it can read: what is wrong with those, its own error says.

    Raises
    ------
    UsageError
        Before the block for a file of mpisim that it cannot read; else in place of an `InputError`
        from inside, if one of the files is of another kind.
    """
    given = [Path(path) for path in paths if path]
    # Of files behind one that is missing nothing is said; names without a suffix may be packaged.
    named = list(takewhile(lambda path: path.exists() or not path.suffix, given))
    for path in named:  # known at once, and read late
        _refuse(path, hdf5_format(path), takes)
    try:
        yield
    except InputError as error:
        try:
            for path in named:
                _refuse(path, kind_of(path), takes)
        except UsageError as known:
            raise known from error
        raise


def _refuse(path: Path, kind: str, takes: Collection[str]) -> None:
    """Refuse a file of a known kind that is not taken."""
    if kind in TAKEN_BY and kind not in takes:
        known = TAKEN_BY[kind].format(file=shlex.quote(str(path)))
        raise UsageError(f"{path}: is {known}")


def kind_of(path: Path) -> str:
    """File or folder → which of the kinds of `TAKEN_BY` it is; empty if it is none.

    Parameters
    ----------
    path : Path
        Need not exist. Whether it is whole, the reader of its kind says.
    """
    format = hdf5_format(path)
    if format:
        return format if format in TAKEN_BY else ""
    if path.suffix == ".toml":
        return _kind_of_toml(path)
    if path.suffix == ".py":
        return "script"
    try:
        return _kind_of_workload(path)
    except (InputError, OSError):
        return ""


def _kind_of_toml(path: Path) -> str:
    """Return the kind of a TOML file; an experiment is what is none of the others."""
    from ..base.presets import load_file

    try:
        table = load_file(path)
    except InputError:
        return "experiment"
    if "gpus_per_node" in table or {"node", "fabric"} & set(table):
        return "cluster"
    entries = list(table.values())
    if entries and all(isinstance(each, dict) and "numbers" in each for each in entries):
        return "calibration"
    return "experiment"


def _kind_of_workload(path: Path) -> str:
    """Return the kind of what other tools have written."""
    from ..formats.recognise import recognise
    from ..traces.sources import find_sources, is_kineto, is_nsys

    if _is_config(path):
        return "config"
    if path.is_file():
        if is_nsys(path) or is_kineto(path):
            return "traces"
    else:
        with suppress(InputError):  # no recording is in the folder
            if find_sources([path], allow_missing=True):
                return "traces"
    kind = recognise([path])
    return kind if kind in TAKEN_BY else "traces"  # TrioSim's are replayed


def _is_config(path: Path) -> bool:
    """Whether it is a config.json of Hugging Face, or the folder of a checkpoint."""
    import json

    file = path / "config.json" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".json" or file.stat().st_size > MAX_CONFIG:
        return False
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and bool({"model_type", "architectures"} & set(found))


def hdf5_format(path: Path) -> str:
    """File → the format that it says it has; empty of what is no HDF5 file, or says nothing.

    Parameters
    ----------
    path : Path
        Whether the file is whole, the reader of the format says.
    """
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            if file.read(len(SIGNATURE)) != SIGNATURE:
                return ""
        import h5py

        with h5py.File(path, "r") as opened:
            return str(opened.attrs.get("format", ""))
    except (OSError, ValueError):
        return ""
