"""TOML file, or the name of a packaged experiment → `Experiment` or `ProgramExperiment`.

`load` and `load_any` read a file and apply ``--set`` changes; `read` does so with a text. Tables
are checked one by one by `mpisim.base.schema.build`; ``[model]`` is resolved first
(`model_of`), since its dataclass depends on the family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, UsageError, nearest, one_of
from ..base.files import read_text
from ..base.presets import SUFFIX, packaged
from ..base.schema import build, defaults, parse
from ..base.toml import toml_value
from .choices import (
    CalibrationChoice,
    ClusterChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
)
from .experiment import Experiment, Published
from .framework import FrameworkOptions
from .models import FAMILIES, Cnn, Dlrm, Model, Transformer
from .plan import Plan
from .plan_keys import key_path, with_sub_tables
from .profiles import filled
from .program_experiment import ProgramExperiment, program_experiment

if TYPE_CHECKING:
    from .likely_models import Guess

__all__ = [
    "DEFAULT",
    "TABLES",
    "defaulted",
    "experiment_of",
    "load",
    "load_any",
    "load_tables",
    "model_of",
    "plan_of",
    "read",
]

DEFAULT = "llama3-8b-8-h100"
"""The experiment that runs when none is named."""

FOLDER = "experiments"

HDF5_SIGNATURE = b"\x89HDF"
"""How program files begin."""

ALL_KEYS = "docs/experiments.md and 'mpisim new' explain all keys"

MODEL_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "seq_len", "vocab", "experts")
"""Keys of ``[model]`` that a model without a name is told by: whole numbers."""

TABLES: dict[str, Any] = {
    "plan": Plan,
    "framework": FrameworkOptions,
    "cluster": ClusterChoice,
    "scale": ScaleChoice,
    "kernels": KernelChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "calibration": CalibrationChoice,
    "prices": PriceChoice,
    "run": RunChoice,
}
"""Tables of the file besides ``[model]``, whose dataclass depends on its family.

``[framework]`` becomes a part of the plan.
"""

PART_OF_PLAN = "framework"

PUBLISHED = "published"
"""The table of published figures, which chooses nothing."""

JOB = "job"
"""The table of ``mpisim job``, of which no step depends."""

SEARCH = "search"
"""The table of ``mpisim search``, which says nothing of the experiment itself."""

NCCL_VARIABLES = ["network", "nccl"]
"""The table of environment variables, whose values are texts."""

REQUIRED = ("model", "plan", "cluster")
"""Tables that every file has; where one is changed, nothing is published of the run."""


def load(path: str | Path | None = None, changes: Sequence[str] = ()) -> tuple[str, Experiment]:
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
    contents, source, table = _read(DEFAULT if path is None else str(path))
    experiment = _changed(table, source, changes)
    return _with_changes_noted(contents, changes), experiment


def load_any(
    path: str | Path | None = None, changes: Sequence[str] = ()
) -> tuple[str, Experiment | ProgramExperiment]:
    """Load an experiment, of a model or of a program: a program file is one by itself.

    Parameters, result and errors are those of `load`.
    """
    named = DEFAULT if path is None else str(path)
    if _is_hdf5(named):
        contents, source = f"[workload]\nprogram = {toml_value(Path(named).name)}\n", named
        table = parse(contents, source)
    else:
        contents, source, table = _read(named)
    table = _with_changes(table, source, changes)
    if "workload" in table:
        return _with_changes_noted(contents, changes), program_experiment(table, source)
    return _with_changes_noted(contents, changes), experiment_of(table, source)


def load_tables(path: str | Path, changes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """File or name of an experiment, changes → what to call it in messages, and its tables.

    Parameters and errors are those of `load`; the tables are not checked.
    """
    _, source, table = _read(str(path))
    return source, _with_changes(table, source, changes)


def _is_hdf5(path: str) -> bool:
    """Whether a file begins as program files do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE
    except (OSError, ValueError):  # reading it as a text says why
        return False


def _with_changes_noted(contents: str, changes: Sequence[str]) -> str:
    return "".join(f"# --set {change}\n" for change in changes) + contents


def _read(path: str) -> tuple[str, str, dict[str, Any]]:
    """Return the text of an experiment, what to call it in messages, and its tables, to change."""
    from mpisim.data import names, text

    # A name has no folder and no ending; a file in the working folder may be called as one.
    if Path(path).name == path and not path.endswith(SUFFIX) and not Path(path).exists():
        known = names(FOLDER)
        if path in known:
            file = f"{FOLDER}/{path}{SUFFIX}"
            return text(file), f"{path}{SUFFIX}", deepcopy(packaged(file))
        raise InputError(
            f"{path}: there is no such file, nor an experiment of that name"
            f"{nearest(path, known)}; see mpisim list experiments"
        )
    contents = read_text(path)
    return contents, path, parse(contents, path)


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
    return _changed(parse(text, source), source, changes)


def _changed(table: dict[str, Any], source: str, changes: Sequence[str]) -> Experiment:
    """Build an experiment from its tables and changes."""
    experiment = experiment_of(_with_changes(table, source, changes), source)
    if any(_key_path(change)[0] in REQUIRED for change in changes):
        return replace(experiment, published=Published())
    return experiment


def _tables_with(key: str) -> str:
    """Suggest the tables that have a key which was given without one; empty if none has."""
    homes = [*TABLES.items(), *(("model", cls) for cls in (Transformer, Cnn, Dlrm))]
    tables = [name for name, cls in homes if key in (each.name for each in fields(cls))]
    tables += ["model"] if key in ("preset", "hf_config") else []
    found = [f"{name}.{key}" for name in dict.fromkeys(tables)]
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def experiment_of(
    table: dict[str, Any], source: str, resolved: Mapping[str, Any] | None = None
) -> Experiment:
    """Build an experiment from its parsed tables; errors as of `read`.

    Parameters
    ----------
    table : dict
    source : str
    resolved : mapping, optional
        All keys of the model, in place of the preset or config.json that ``[model]`` names.
    """
    if not table:
        raise InputError(f"{source}: holds no key; 'mpisim new' writes an experiment to start from")
    table = {key: value for key, value in table.items() if key != SEARCH}
    table = with_sub_tables(table, source)
    allowed = ("title", "model", *TABLES, PUBLISHED, JOB, SEARCH)
    for key in table:
        if key not in allowed:
            near = _tables_with(key) or one_of(key, allowed)
            raise InputError(f"{source}: unknown key {key!r} at the top level{near}")
    for key in REQUIRED:
        if key not in table:
            raise InputError(f"{source}: key {key!r} is missing: the table [{key}]")
    title = table.get("title", Experiment.title)
    if not isinstance(title, str):
        raise InputError(f"{source}: key 'title' is {title!r}; it must be a text in quotes")
    named = _table(table, "model", source)
    model, guess = _model_and_guess(named if resolved is None else dict(resolved), source)
    if resolved is not None and "hf_config" not in named:
        guess = _model_and_guess(named, source)[1]
    given = table
    table, set_by = filled(table, model, source, with_model=resolved is None)
    if any(key.startswith("model.") for key in set_by):
        model = model_of(table["model"], source)
    config = "" if "seq_len" in named else named.get("hf_config", "")
    parts = {
        key: build(cls, _table(table, key, source), source, key, ALL_KEYS)
        for key, cls in TABLES.items()
        if key not in ("plan", PART_OF_PLAN)
    }
    parts["plan"] = plan_of(table, source)
    published = build(Published, _table(table, PUBLISHED, source), source, PUBLISHED)
    job = None
    if JOB in table:
        from .job_choice import JobChoice

        job = build(JobChoice, _table(table, JOB, source), source, JOB, "docs/job.md explains them")
    return Experiment(
        model=model,
        title=title,
        source=source,
        defaulted=_defaulted(table),
        given=given,
        set_by_profile=set_by,
        published=published,
        job=job,
        config_length=config,
        guess=guess,
        **parts,
    )


def plan_of(tables: Mapping[str, Any], source: str) -> Plan:
    """Tables ``[plan]`` and ``[framework]``, as `with_sub_tables` returns them → plan."""
    plan, framework = (
        build(TABLES[key], _table(tables, key, source), source, key, ALL_KEYS)
        for key in ("plan", PART_OF_PLAN)
    )
    try:
        return replace(plan, framework=framework)
    except InputError as error:
        raise InputError(f"{source}: [plan] {error}") from error


def defaulted(text: str, changes: Sequence[str] = ()) -> dict[str, object]:
    """Return the keys an experiment's text and changes leave to their defaults, with these.

    Those of the model are left out: a preset or a configuration gives them.

    Parameters
    ----------
    text : str
        TOML of an experiment.
    changes : sequence of str
        Assignments ``key=value``, as of ``--set``; made in this order.

    Returns
    -------
    dict of str to object
        Full key (``table.key``) → its default.
    """
    tables = _with_changes(parse(text, "experiment"), "experiment", changes)
    return _defaulted(with_sub_tables(tables, "experiment"))


def _defaulted(table: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, cls in TABLES.items():
        found |= defaults(cls, table.get(key, {}), key)
    inside = f"plan.{PART_OF_PLAN}."  # where the table does not stand in a file
    return {key: value for key, value in found.items() if not key.startswith(inside)}


def _table(table: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    return found


def model_of(table: Mapping[str, Any], source: str) -> Model:
    """Resolve ``[model]``: defaults of the family, then preset or config.json, then given keys.

    Parameters
    ----------
    table : mapping
        The keys of ``[model]``.
    source : str
        The file they stand in, for messages and relative paths.
    """
    return _model_and_guess(table, source)[0]


def _model_and_guess(table: Mapping[str, Any], source: str) -> tuple[Model, Guess | None]:
    """Resolve ``[model]`` as `model_of`; return also what was guessed of it."""
    given = dict(table)
    base: dict[str, Any] = {}
    guess = None
    preset, config = given.pop("preset", None), given.pop("hf_config", None)
    for key, value in (("preset", preset), ("hf_config", config)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{source}: key 'model.{key}' is {value!r}; it must be a text")
    if preset is not None and config is not None:
        raise InputError(f"{source}: [model] has both 'preset' and 'hf_config'; give one")
    try:
        if preset is not None:
            base, guess = _named(preset, given)
        elif config is not None:
            from .huggingface import from_config

            base = from_config(Path(source).parent / config)
    except InputError as error:
        key = "hf_config" if preset is None else "preset"
        raise InputError(f"{source}: key 'model.{key}': {error}") from error
    if not base:
        given, guess = _completed(given, source)
    elif "parameters" in given:
        known = "preset" if config is None else "hf_config"
        raise InputError(f"{source}: [model] has both '{known}' and 'parameters'; give one")
    family = given.get("family", base.get("family"))
    if family is None:
        raise InputError(
            f"{source}: [model] needs one of 'preset', 'hf_config', 'family' and 'parameters', or "
            "layers, hidden and heads"
        )
    if not isinstance(family, str) or family not in FAMILIES:
        near = nearest(family, FAMILIES) if isinstance(family, str) else ""
        raise InputError(
            f"{source}: key 'model.family' is {family!r}{near}; allowed: {', '.join(FAMILIES)}"
        )
    cls, common = FAMILIES[family]
    allowed = ("preset", "hf_config", "parameters", *(each.name for each in fields(cls)))
    for key in given:
        if key not in allowed:
            raise InputError(
                f"{source}: unknown key {key!r} in [model]{one_of(key, allowed, ALL_KEYS)}"
            )
    model: Model = build(cls, {**common, **base, **given}, source, "model")
    return model, guess


def _named(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Guess | None]:
    """Return the keys of a published model, or of the likeliest for a name with a size."""
    from .model_presets import find_model

    try:
        return find_model(name), None
    except InputError:
        from .likely_models import like_named

        found = like_named(name, {key: given[key] for key in MODEL_SIZES if key in given})
        if found is None:
            raise
        return found


def _completed(given: dict[str, Any], source: str) -> tuple[dict[str, Any], Guess | None]:
    """Return keys of a model that has no name, with those that it needs and that were not given."""
    family, count = given.get("family"), given.pop("parameters", None)
    if family is not None and (
        not isinstance(family, str) or FAMILIES.get(family, (None,))[0] is not Transformer
    ):
        if count is not None:
            raise InputError(f"{source}: key 'model.parameters' is for transformers")
        return given, None
    needs = ["family", "layers", "hidden", "heads", "seq_len"]
    needs += [] if family == "vit" else ["vocab"]
    shaped = {"layers", "hidden", "heads"} <= given.keys()
    if count is None and not (shaped and any(key not in given for key in needs)):
        return given, None
    if any(type(value) is not int for key, value in given.items() if key in MODEL_SIZES):
        return given, None  # reading it says what is wrong
    from .likely_models import complete, parameters_of

    allowed = {each.name for each in fields(Transformer)}
    known = {key: value for key, value in given.items() if key in allowed}
    try:
        keys, guess = complete(known, None if count is None else parameters_of(count))
    except InputError as error:
        raise InputError(f"{source}: [model]: {error}") from error
    return {**keys, **given}, guess


def _with_changes(table: dict[str, Any], source: str, changes: Sequence[str]) -> dict[str, Any]:
    """Return the table with keys set as on the command line."""
    if not changes:
        return table
    import tomllib

    table = with_sub_tables(table, source)
    for change in changes:
        *path, last = key_path(_key_path(change))
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
        # As one writes them in a shell.
        if path == NCCL_VARIABLES and type(within[last]) is int:
            within[last] = value.strip()
        if [*path, last] == ["framework", "version"] and not isinstance(within[last], str):
            within[last] = value.strip()
    return table


_ASSIGNMENT = re.compile(r"""(?:[^"'=]|"[^"]*"|'[^']*')*=""")
"""A key, whose parts may be in quotes, and the sign behind it."""


def _key_path(change: str) -> list[str]:
    """Return the parts of the key of a change: ``plan.tp``, ``network.changes."links.a.b"``."""
    import tomllib

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
