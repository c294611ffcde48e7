"""Search stores: HDF5 files with what is known of every candidate, to go on from and to read.

space, answer, why
             texts in JSON: tables, keys, values and choice; the answer, null before there is one;
             messages of invalid candidates without numbers, their count, an example
candidates/  status (enumeration), bound, step (ps), peak (bytes), gpus, tokens, and what it costs:
             usd_hour, usd_joule, least_watts, purchase, energy (J of a step); of whole jobs
             job_steps, job_time (s), job_usd
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.hdf5 import create_file, open_file, reading_kept
from ..base.hdf5_data import StoredType, read_column, read_json_text, write_column, write_json_text
from .choice import Choice
from .records import Reason, Records, Status
from .space import SearchSpace

__all__ = ["FORMAT", "read_store", "write_store"]

FORMAT, VERSION = "mpisim-search", 4

UNITS = {
    "bound": "ps",
    "step": "ps",
    "peak": "bytes",
    "energy": "J",
    "least_watts": "W",
    "job_time": "s",
}

OF_JOBS = ("job_steps", "job_time", "job_usd")
"""Columns that files before version 3 lack: no search asked for jobs."""


def write_store(
    path: str | Path,
    space: SearchSpace,
    records: Records,
    answer: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write what is known of a search; the file appears whole or not at all. Local.

    Parameters
    ----------
    path : str or Path
    space : SearchSpace
    records : Records
    answer : dict, optional
        As `mpisim.search.answer.Answer.as_json`, of a search that has ended.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with create_file(path, FORMAT, VERSION, overwrite=overwrite) as file:
        write_json_text(file, "space", _space_json(space))
        write_json_text(file, "answer", answer)
        write_json_text(file, "why", records.why)
        group = file.create_group("candidates")
        for name, column in records.columns.items():
            write_column(group, name, column, UNITS.get(name), stored=_stored(name, column))


def read_store(path: str | Path) -> tuple[SearchSpace, Records, dict[str, Any] | None]:
    """Store of a search → its space, the records of its candidates, and its answer. Local.

    Parameters
    ----------
    path : str or Path
        Written by ``mpisim search -o``.

    Returns
    -------
    space : SearchSpace
    records : Records
        What is known of each candidate so far.
    answer : dict or None
        None if the search has not ended.

    Raises
    ------
    InputError
        If the file is damaged, or not of this format and version.
    """
    with open_file(path, FORMAT, VERSION) as file:
        with reading_kept("search"):
            kept, answer = read_json_text(file, "space"), read_json_text(file, "answer")
            why = read_json_text(file, "why")
            if file.attrs["format_version"] < 4:
                _complete(kept, answer)
            reasons = {key: Reason(*each) for key, each in why.items()}
            choice = Choice(**{**kept["choice"], "objectives": tuple(kept["choice"]["objectives"])})
            values = tuple(tuple(each) for each in kept["values"])
            space = SearchSpace(
                kept["tables"],
                _source(kept["source"], kept["absolute_source"]),
                tuple(kept["keys"]),
                values,
                choice,
                tuple(kept["changes"]),
            )
        n = len(space)
        columns = {}
        for name, empty in Records.none(n).columns.items():
            if name in OF_JOBS and name not in file["candidates"]:
                columns[name] = empty
                continue
            columns[name] = read_column(
                file["candidates"], name, _stored(name, empty), UNITS.get(name), n
            )
    found = {name: np.array(column) for name, column in columns.items()}
    return space, Records(**found, why=reasons), answer


def _complete(space: dict[str, Any], answer: dict[str, Any] | None) -> None:
    """Add to space and answer of files before version 4 what these lack.

    Their source is absolute, and no front of theirs says how many are on it beyond those shown.
    """
    space["absolute_source"] = space["source"]
    space.setdefault("changes", [])
    if answer is not None:
        answer["front_size"] = len(answer.get("front", ()))


def _source(given: str, absolute: str) -> str:
    """Return the file of a search, as it was given where that names the same file from here."""
    return given if not absolute or str(Path(given).resolve()) == absolute else absolute


def _stored(name: str, column: NDArray[Any]) -> StoredType:
    """Return the type of a column in the file."""
    return Status if name == "status" else column.dtype.type


def _space_json(space: SearchSpace) -> dict[str, Any]:
    """Return a search space in JSON's types."""
    return {
        "tables": dict(space.tables),
        "source": space.source,
        "absolute_source": str(Path(space.source).resolve()) if space.source else "",
        "keys": list(space.keys),
        "values": [list(each) for each in space.values],
        "choice": asdict(space.choice),
        "changes": list(space.changes),
    }
