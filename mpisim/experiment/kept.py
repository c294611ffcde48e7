"""Experiments as texts that stand alone, to be kept with the programs that were made of them.

A text holds the tables as they were given, the model with all of its numbers, and files by paths
that do not depend on a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from ..base.presets import SUFFIX
from .experiment import Experiment
from .load import FOUND, REQUIRED, of_table

__all__ = ["OURS", "Tables", "kept", "restored", "tables_of"]

Tables = Mapping[str, Any]
"""Tables of an experiment by name, as a file has them."""

OURS = "ours"
"""In place of a file of constants fitted to steps: the one that comes with mpisim."""

BESIDE = (
    ("model", "hf_config"),
    ("kernels", "calibration"),
    ("network", "calibration"),
    ("overlap", "calibration"),
    ("overlap", "pairs"),
    ("calibration", "file"),
)
"""Keys with paths relative to the experiment's file."""

HARDWARE = (("cluster", "preset"), ("kernels", "gpu"))
"""Keys with a name, or a path relative to the working folder."""


def kept(experiment: Experiment) -> str:
    """Return an experiment as a text from which `restored` makes it again. Local."""
    model = {key: value for key, value in asdict(experiment.model).items() if value is not None}
    tables = tables_of(experiment.given, experiment.source)
    if not list(experiment.published.figures()):
        tables.pop(FOUND, None)  # of the run without the changes made to it
    return json.dumps({"tables": tables, "model": model})


def tables_of(given: Tables, source: str) -> dict[str, Any]:
    """Return tables of a file, or of changes to it, with absolute paths. Local."""
    found: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in given.items()
    }
    folder = Path(source).parent
    for table, key in BESIDE:
        path = found.get(table, {}).get(key)
        if isinstance(path, str) and path != OURS:
            found[table][key] = str((folder / path).resolve())
    for table, key in HARDWARE:
        if isinstance(found.get(table, {}).get(key), str):
            found[table][key] = _absolute(found[table][key])
    others = found.get("cluster", {}).get("other_gpus")
    if isinstance(others, dict):
        found["cluster"]["other_gpus"] = {nodes: _absolute(gpu) for nodes, gpu in others.items()}
    return found


def restored(text: str, source: str, over: Tables | None = None) -> Experiment:
    """Return the experiment that `kept` made a text of. Local.

    Parameters
    ----------
    text : str
    source : str
        The file it was kept in, for messages.
    over : mapping, optional
        Tables in place of those of the same names.

    Raises
    ------
    InputError
        If it is no such text.
    """
    try:
        found = json.loads(text)
        tables, model = dict(found["tables"]), dict(found["model"])
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{source}: the experiment kept in it is damaged: {error}") from error
    if any(name in REQUIRED for name in over or {}):
        tables.pop(FOUND, None)
    return of_table({**tables, **(over or {})}, source, model)


def _absolute(name: Any) -> Any:
    return str(Path(name).resolve()) if str(name).endswith(SUFFIX) else name
