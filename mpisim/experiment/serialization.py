"""Experiments → self-contained texts, and back: a program file holds the one it was written from.

A text is JSON: the tables as they were given, the model with all of its numbers, and absolute paths
of files. That of an experiment of a program file names the file. Results files hold such a text,
too, so that what was simulated can be simulated again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from ..base.presets import SUFFIX
from .choices import DataChoice
from .experiment import Experiment
from .load import PUBLISHED, REQUIRED, experiment_of
from .program_experiment import ProgramExperiment, WorkloadChoice

__all__ = [
    "PACKAGED_CONSTANTS",
    "Tables",
    "deserialize",
    "deserialize_any",
    "serialize",
    "serialize_any",
    "with_absolute_paths",
]

Tables = Mapping[str, Any]
"""Tables of an experiment by name, as a file has them."""

PACKAGED_CONSTANTS = "ours"
"""Value of ``[calibration] file`` for the step constants that come with mpisim."""

RELATIVE_PATHS = (
    ("model", "hf_config"),
    ("kernels", "calibration"),
    ("network", "calibration"),
    ("overlap", "calibration"),
    ("overlap", "pairs"),
    ("calibration", "file"),
)
"""Keys with paths relative to the experiment's file."""

NAMES_OR_PATHS = (
    ("cluster", "preset"),
    ("kernels", "gpu"),
    ("job", "failures"),
    ("job", "storage"),
)
"""Keys with a name, or a path relative to the working folder."""


def serialize(experiment: Experiment) -> str:
    """Experiment of a model → text from which `deserialize` makes it again. Local.

    Parameters
    ----------
    experiment : Experiment

    Returns
    -------
    str
        JSON, with absolute paths.
    """
    model = {key: value for key, value in asdict(experiment.model).items() if value is not None}
    tables = with_absolute_paths(experiment.given, experiment.source)
    if not list(experiment.published.figures()):
        tables.pop(PUBLISHED, None)  # of the run without the changes made to it
    return json.dumps({"tables": tables, "model": model})


def with_absolute_paths(given: Tables, source: str) -> dict[str, Any]:
    """Return tables of an experiment with absolute paths in place of relative ones. Local.

    Parameters
    ----------
    given : mapping
        Tables of a file, or changes to it.
    source : str
        The file, whose folder relative paths start from.
    """
    found: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in given.items()
    }
    folder = Path(source).parent
    for table, key in RELATIVE_PATHS:
        path = found.get(table, {}).get(key)
        if isinstance(path, str) and path != PACKAGED_CONSTANTS:
            found[table][key] = str((folder / path).resolve())
    measured = found.get("kernels", {}).get("measurements")
    if isinstance(measured, list | tuple):
        found["kernels"]["measurements"] = [str((folder / path).resolve()) for path in measured]
    for table, key in NAMES_OR_PATHS:
        if isinstance(found.get(table, {}).get(key), str):
            found[table][key] = _absolute(found[table][key])
    others = found.get("cluster", {}).get("other_gpus")
    if isinstance(others, dict):
        found["cluster"]["other_gpus"] = {nodes: _absolute(gpu) for nodes, gpu in others.items()}
    return found


def deserialize(text: str, source: str, over: Tables | None = None) -> Experiment:
    """Text of `serialize` → experiment. Local.

    Parameters
    ----------
    text : str
    source : str
        The program file that holds the text, for messages.
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
        tables.pop(PUBLISHED, None)
    return experiment_of({**tables, **(over or {})}, source, model)


def serialize_any(experiment: Experiment | ProgramExperiment) -> str:
    """Experiment, of a model or of a program → text for `deserialize_any`. Local.

    Parameters
    ----------
    experiment : Experiment or ProgramExperiment

    Returns
    -------
    str
        JSON, with absolute paths.
    """
    if isinstance(experiment, Experiment):
        return serialize(experiment)
    folder = Path(experiment.source).parent
    tables = with_absolute_paths(experiment.tables, experiment.source)
    found: dict[str, Any] = {"program": "", "tables": tables, "title": experiment.title}
    if experiment.trace is None:
        found["program"] = str((folder / experiment.program).resolve())
    else:
        choice = asdict(experiment.trace)
        for key in ("trace", "execution_trace"):
            if choice[key] is not None:
                choice[key] = str((folder / choice[key]).resolve())
        choice["trace_of"] = {
            gpu: str((folder / path).resolve()) for gpu, path in choice["trace_of"].items()
        }
        found |= {"trace": choice, "plan": experiment.plan}
        if experiment.data is not None:
            found["data"] = asdict(experiment.data)
    return json.dumps(found)


def deserialize_any(text: str, source: str) -> Experiment | ProgramExperiment:
    """Text of `serialize_any` → experiment. Local.

    Parameters
    ----------
    text : str
    source : str
        The file that holds the text, for messages.

    Raises
    ------
    InputError
        If it is no such text.
    """
    try:
        found = json.loads(text)
        if "program" not in found:
            return deserialize(text, source)
        trace, data = found.get("trace"), found.get("data")
        return ProgramExperiment(
            str(found["program"]),
            dict(found["tables"]),
            found["title"],
            source,
            None if trace is None else WorkloadChoice(**trace),
            dict(found.get("plan", {})),
            None if data is None else DataChoice(**data),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{source}: the experiment kept in it is damaged: {error}") from error


def _absolute(name: Any) -> Any:
    return str(Path(name).resolve()) if str(name).endswith(SUFFIX) else name
