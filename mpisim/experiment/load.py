"""From a TOML file to an experiment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import InputError, UsageError, nearest
from ..schema import build, defaults, parse
from .experiment import (
    CalibrationChoice,
    ClusterChoice,
    Experiment,
    KernelChoice,
    NetworkChoice,
    RunChoice,
)
from .models import FAMILIES, Model
from .overlap import OverlapChoice
from .plan import Plan
from .variation import VariationChoice

__all__ = ["DEFAULT", "assigned", "defaulted", "load", "read"]

DEFAULT = "llama3-8b-8-h100"
"""The experiment that runs when none is named."""

EXPERIMENTS = "experiments"

TABLES: dict[str, Any] = {
    "plan": Plan,
    "cluster": ClusterChoice,
    "kernels": KernelChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "calibration": CalibrationChoice,
    "run": RunChoice,
}
"""Tables of the file besides ``[model]``, whose dataclass depends on its family."""

VARIABLES = ["network", "nccl"]
"""The table of environment variables, whose values are texts."""

REQUIRED = ("model", "plan", "cluster")


def load(
    path: str | Path | None = None, changes: Sequence[str] = ()
) -> tuple[str, Experiment]:
    """Load an experiment from a file, or one of those that come with mpisim.

    Parameters
    ----------
    path : str or Path, optional
        Of a file, or a name from ``mpisim list experiments``; by default `DEFAULT`.
    changes : sequence of str
        Keys to set besides, as ``"plan.tp=8"``; the value is TOML, or a text without quotes.

    Returns
    -------
    text : str
        The file's contents and the changes, to be kept with the results.
    experiment : Experiment

    Raises
    ------
    InputError
        If the file cannot be read or understood.
    UsageError
        If a change is no assignment.
    """
    contents, source = _contents(DEFAULT if path is None else str(path))
    experiment = read(contents, source, changes)
    noted = "".join(f"# --set {change}\n" for change in changes)
    return noted + contents, experiment


def _contents(path: str) -> tuple[str, str]:
    """Return the text of an experiment, and what to call it in messages."""
    from mpisim.data import names, text

    # A name has no folder and no ending; a file in the working folder may be called as one.
    if Path(path).name == path and not path.endswith(".toml") and not Path(path).exists():
        known = names(EXPERIMENTS)
        if path in known:
            return text(f"{EXPERIMENTS}/{path}.toml"), f"{path}.toml"
        raise InputError(
            f"{path}: there is no such file, nor an experiment of that name"
            f"{nearest(path, known)}; see mpisim list experiments"
        )
    try:
        return Path(path).read_text(encoding="utf-8"), path
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def read(text: str, source: str, changes: Sequence[str] = ()) -> Experiment:
    """Read an experiment from TOML.

    Parameters
    ----------
    text : str
    source : str
        The name of the file, for messages; paths in it are relative to its folder.
    changes : sequence of str
        As for `load`.

    Raises
    ------
    InputError
        Naming the file and the key, what was found and what is allowed.
    """
    table = _changed(parse(text, source), changes)
    allowed = ("title", "model", *TABLES)
    for key in table:
        if key not in allowed:
            raise InputError(
                f"{source}: unknown key {key!r} at the top level{nearest(key, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
    for key in REQUIRED:
        if key not in table:
            raise InputError(f"{source}: key {key!r} is missing: the table [{key}]")
    title = table.get("title", Experiment.title)
    if not isinstance(title, str):
        raise InputError(f"{source}: key 'title' is {title!r}; it must be a text in quotes")
    model = _model(_table(table, "model", source), source)
    parts = {
        key: build(cls, _table(table, key, source), source, key) for key, cls in TABLES.items()
    }
    return Experiment(
        model=model, title=title, source=source, defaulted=_defaulted(table), **parts
    )


def defaulted(text: str, changes: Sequence[str] = ()) -> dict[str, object]:
    """Return the keys an experiment's text and changes leave to their defaults, with these.

    Those of the model are left out: a preset or a configuration gives them.
    """
    return _defaulted(_changed(parse(text, "experiment"), changes))


def assigned(changes: Sequence[str]) -> dict[str, Any]:
    """Return changes as on the command line (``"network.model=nccl"``) as a table.

    Raises
    ------
    UsageError
        If one is no assignment.
    """
    return _changed({}, changes)


def _defaulted(table: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, cls in TABLES.items():
        found |= defaults(cls, table.get(key, {}), key)
    return found


def _table(table: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    return found


def _model(table: Mapping[str, Any], source: str) -> Model:
    """Resolve ``[model]``: defaults of the family, then preset or config, then the user's keys."""
    given = dict(table)
    base: dict[str, Any] = {}
    preset, config = given.pop("preset", None), given.pop("hf_config", None)
    for key, value in (("preset", preset), ("hf_config", config)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{source}: key 'model.{key}' is {value!r}; it must be a text")
    if preset is not None and config is not None:
        raise InputError(f"{source}: [model] has both 'preset' and 'hf_config'; give one")
    try:
        if preset is not None:
            from .presets import find_model

            base = find_model(preset)
        elif config is not None:
            from .huggingface import from_config

            base = from_config(Path(source).parent / config)
    except InputError as error:
        key = "hf_config" if preset is None else "preset"
        raise InputError(f"{source}: key 'model.{key}': {error}") from error
    family = given.get("family", base.get("family"))
    if family is None:
        raise InputError(f"{source}: [model] needs one of 'preset', 'hf_config' and 'family'")
    if not isinstance(family, str) or family not in FAMILIES:
        near = nearest(family, FAMILIES) if isinstance(family, str) else ""
        raise InputError(
            f"{source}: key 'model.family' is {family!r}{near}; allowed: {', '.join(FAMILIES)}"
        )
    cls, common = FAMILIES[family]
    allowed = ("preset", "hf_config", *(each.name for each in fields(cls)))
    for key in given:
        if key not in allowed:
            raise InputError(
                f"{source}: unknown key {key!r} in [model]{nearest(key, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
    model: Model = build(cls, {**common, **base, **given}, source, "model")
    return model


def _changed(table: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return the table with keys set as on the command line."""
    for change in changes:
        *path, last = _key(change)
        within = table
        for name in path:
            within = within.setdefault(name, {})
            if not isinstance(within, dict):
                raise UsageError(f"--set {change}: {name!r} is no table")
        value = _ASSIGNMENT.sub("", change, count=1)
        try:
            within[last] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            within[last] = value.strip()
        if path == VARIABLES and type(within[last]) is int:  # as one writes them in a shell
            within[last] = value.strip()
    return table


_ASSIGNMENT = re.compile(r"""(?:[^"'=]|"[^"]*"|'[^']*')*=""")
"""A key, whose parts may be in quotes, and the sign behind it."""


def _key(change: str) -> list[str]:
    """Return the parts of the key of a change: ``plan.tp``, ``network.changes."links.a.b"``."""
    found = _ASSIGNMENT.match(change)
    path: list[str] = []
    try:
        within: Any = tomllib.loads(f"{found[0]} 0") if found else {}
    except (ValueError, RecursionError):
        within = {}
    while isinstance(within, dict) and within:
        ((name, within),) = within.items()
        path.append(name)
    if len(path) < 1 or within != 0:
        raise UsageError(f"--set {change}: not of the form TABLE.KEY=VALUE")
    return path
