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

from ..base.errors import InputError, nearest, one_of
from ..base.files import read_text
from ..base.presets import SUFFIX, packaged
from ..base.schema import build, check_value, defaults, field_of, parse
from ..base.toml import toml_value
from ..topo import find_cluster
from .changes import changed_key, with_changes
from .choices import (
    CalibrationChoice,
    ClusterChoice,
    DataChoice,
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
from .models import FAMILIES, Cnn, Dlrm, Model, Transformer, image_length, model_key
from .plan import Plan
from .plan_keys import argument_key, short_key, with_sub_tables
from .plan_options import MAIN_KEYS
from .profiles import ProfileKey, filled
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
    "tables_with",
]

DEFAULT = "llama3-8b-8-h100"
"""The experiment that runs when none is named."""

FOLDER = "experiments"

HDF5_SIGNATURE = b"\x89HDF"
"""How program files begin."""

ALL_KEYS = "docs/experiments.md and 'mpisim new --all' explain all keys"

MODEL_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "seq_len", "vocab", "experts")
"""Keys of ``[model]`` that a model without a name is told by: whole numbers."""

TABLES: dict[str, Any] = {
    "plan": Plan,
    "framework": FrameworkOptions,
    "cluster": ClusterChoice,
    "data": DataChoice,
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

NAMED_BY = ("model.preset", "cluster.preset", "framework.name")
"""Keys that name what a table is about."""

PART_OF_PLAN = "framework"

PUBLISHED = "published"
"""The table of published figures, which chooses nothing."""

JOB = "job"
"""The table of ``mpisim job``, of which no step depends."""

SEARCH = "search"
"""The table of ``mpisim search``, which says nothing of the experiment itself."""

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
    """File or name → experiment, of a model or of a program; a program file is one by itself.

    Parameters
    ----------
    path : str or Path, optional
        As for `load`, or a program file.
    changes : sequence of str
        As for `load`.

    Returns
    -------
    text : str
        The file's contents and the changes, to be kept with the results.
    experiment : Experiment or ProgramExperiment

    Raises
    ------
    InputError
        If the file cannot be read or understood.
    UsageError
        If a change is not of the form.
    """
    named = DEFAULT if path is None else str(path)
    if _is_hdf5(named):
        contents, source = f"[workload]\nprogram = {toml_value(Path(named).name)}\n", named
        table = parse(contents, source)
    else:
        contents, source, table = _read(named)
    table = with_changes(table, source, changes)
    if "workload" in table:
        return _with_changes_noted(contents, changes), program_experiment(table, source)
    return _with_changes_noted(contents, changes), _of_changed(table, source, changes)


def load_tables(path: str | Path, changes: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """File or name of an experiment, changes → its name in messages, and its tables.

    The tables are parsed and changed, but not checked.

    Parameters
    ----------
    path : str or Path
        A file, or the name of a packaged experiment.
    changes : sequence of str
        TABLE.KEY=VALUE, as ``--set`` takes them.

    Returns
    -------
    source : str
    tables : dict

    Raises
    ------
    InputError
        If there is none, or it is not TOML.
    UsageError
        If a change is not of the form.
    """
    _, source, table = _read(str(path))
    return source, with_changes(table, source, changes)


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
            f"{path}: there is no such file, nor an experiment of that name{_of_no_file(path)}"
            f"{nearest(path, known)}; see mpisim list experiments"
        )
    contents = read_text(path)
    return contents, path, parse(contents, path)


def _of_no_file(name: str) -> str:
    """Name of no file → the hint that it is a model or a cluster; empty if it is neither."""
    from .model_presets import find_model

    for find, what in ((find_model, "model"), (find_cluster, "cluster")):
        try:
            find(name)
        except InputError:
            continue
        option = f"'mpisim new mine.toml --{what} {name}'"
        return f"; it is a {what}, of which {option} writes an experiment"
    return ""


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
    return _of_changed(with_changes(table, source, changes), source, changes)


def _of_changed(table: dict[str, Any], source: str, changes: Sequence[str]) -> Experiment:
    """Build an experiment from changed tables: of another run nothing is published."""
    try:
        experiment = experiment_of(table, source)
    except InputError as error:
        raise InputError(f"{error}{_several_values(changes, str(error))}") from error
    if any(changed_key(change)[0] in REQUIRED for change in changes):
        return replace(experiment, published=Published())
    return experiment


_SEVERAL = re.compile(r"(?P<key>[\w.]+)=(?P<values>[\w.]+(,[\w.]+)+)")


def _several_values(changes: Sequence[str], said: str) -> str:
    """Say where keys take several values, if one that was given these is refused."""
    for found in filter(None, map(_SEVERAL.fullmatch, changes)):
        if repr(found["values"]) in said:
            return f"; for one value after another: mpisim search --vary {found[0]}"
    return ""


def tables_with(key: str, given: str = "") -> str:
    """Unknown key → suggestion of the tables that have a key of its name.

    Parameters
    ----------
    key : str
        As given, without its table.
    given : str
        The table in which it was given; empty for the top level.

    Returns
    -------
    str
        `` (did you mean 'plan.tp'?)``, to be appended to a message; empty if no table has it.
    """
    homes = [*TABLES.items(), *(("model", cls) for cls in (Transformer, Cnn, Dlrm))]
    tables = [name for name, cls in homes if key in (each.name for each in fields(cls))]
    tables = [] if key == PART_OF_PLAN else tables
    tables += [
        f"plan.{group}" for group in MAIN_KEYS if field_of(Plan, f"{group}.{key}") is not None
    ]
    tables += ["model"] if key in ("preset", "hf_config") else []
    found = [f"{name}.{key}" for name in dict.fromkeys(tables) if name != given]
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _check_cluster(table: Mapping[str, Any], source: str) -> None:
    """Refuse a cluster that nobody knows, before profiles ask how many GPUs it has."""
    preset = _table(table, "cluster", source).get("preset")
    if isinstance(preset, str) and preset:
        try:
            find_cluster(preset)
        except InputError as error:
            raise InputError(f"{source}: key 'cluster.preset': {error}") from error


def experiment_of(
    table: dict[str, Any], source: str, resolved: Mapping[str, Any] | None = None
) -> Experiment:
    """Parsed tables → experiment.

    Parameters
    ----------
    table : dict
        Parsed TOML, changes applied.
    source : str
        The file, for messages and relative paths.
    resolved : mapping, optional
        All keys of the model, in place of the preset or config.json that ``[model]`` names.

    Returns
    -------
    Experiment

    Raises
    ------
    InputError
        Naming the file and the key, what was found and what is allowed.
    """
    if not table:
        raise InputError(f"{source}: holds no key; 'mpisim new' writes an experiment to start from")
    table = {key: value for key, value in table.items() if key != SEARCH}
    table = with_sub_tables(table, source)
    allowed = ("title", "model", *TABLES, PUBLISHED, JOB, SEARCH)
    for key in table:
        if key not in allowed:
            near = tables_with(key) or one_of(key, allowed)
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
    if resolved is None:
        _check_cluster(table, source)
    given = table
    table, set_by = filled(table, model, source, with_model=resolved is None)
    if any(key.startswith("model.") for key in set_by):
        model = model_of(table["model"], source)
    config = "" if "seq_len" in named else named.get("hf_config", "")
    parts = {key: _part(table, key, source) for key in TABLES if key not in ("plan", PART_OF_PLAN)}
    try:
        parts["plan"] = plan_of(table, source)
    except InputError as error:
        raise InputError(f"{error}{_set_by(set_by, str(error), table)}") from error
    published = build(Published, _table(table, PUBLISHED, source), source, PUBLISHED)
    job = None
    if JOB in table:
        from .job_choice import TIME_KEYS, JobChoice

        of_job = dict(_table(table, JOB, source))
        for key in TIME_KEYS:  # without a unit, which the message about them asks for
            if type(of_job.get(key)) in (int, float):
                of_job[key] = f"{of_job[key]}"
        job = build(JobChoice, of_job, source, JOB, "docs/job.md explains them")
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
    """Tables ``[plan]`` and ``[framework]`` → plan.

    Parameters
    ----------
    tables : mapping
        As `with_sub_tables` returns them.
    source : str
        The file, for messages.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        If a key is unknown, or values are wrong by themselves or together.
    """
    plan, framework = (_part(tables, key, source) for key in ("plan", PART_OF_PLAN))
    try:
        return replace(plan, framework=framework)
    except InputError as error:
        raise InputError(f"{source}: [plan] {error}") from error


def _part(tables: Mapping[str, Any], name: str, source: str) -> Any:
    """Build one of `TABLES`; a key that another table has is refused with its place."""
    given, cls = _table(tables, name, source), TABLES[name]
    known = {each.name for each in fields(cls)} if given else ()
    for key in given:
        if key not in known and name == "plan" and (meant := argument_key(key)):
            raise InputError(
                f"{source}: unknown key {key!r} in [plan] (did you mean {meant!r}?); {ALL_KEYS}"
            )
        if key not in known and (near := tables_with(key, name)):
            raise InputError(f"{source}: unknown key {key!r} in [{name}]{near}")
    return build(cls, given, source, name, ALL_KEYS)


def _set_by(keys: Mapping[str, ProfileKey], message: str, table: Mapping[str, Any]) -> str:
    """Say which keys that an error names were filled in, and by what; empty if none."""
    if ": unknown key '" in message:
        return ""
    inside = re.search(r": \[(plan\.\w+)\] ", message)  # whose keys have bare names there
    prefix = f"{inside[1] if inside else 'plan'}."
    named = [
        short_key(key)
        for key in keys
        if re.search(rf"(?<![\w.]){re.escape(key.removeprefix(prefix))}(?![\w.])", message)
    ]
    if not named:
        return ""
    verb = "is" if len(named) == 1 else "are"
    name = table.get(PART_OF_PLAN, {}).get("name")
    sets = (
        "common practice where no framework is named; [framework] name tells"
        if name is None
        else f"what framework.name = {name!r} sets"
    )
    return f"; {' and '.join(named)} {verb} {sets}"


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
    tables = with_changes(parse(text, "experiment"), "experiment", changes)
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
        main = next((each for each in ("preset", "name") if f"{key}.{each}" in NAMED_BY), None)
        suggestion = f" (did you mean '{key}.{main}'?)" if main and isinstance(found, str) else ""
        raise InputError(
            f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]{suggestion}"
        )
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
    if preset is not None:
        base, guess = _named(preset, given, source)
    elif config is not None:
        from .huggingface import from_config

        try:
            base, guess = from_config(Path(source).parent / config)
        except InputError as error:
            raise InputError(f"{source}: key 'model.hf_config': {error}") from error
    if "seq_len" not in given:
        given |= image_length(given, base)
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
            meant = model_key(key)
            near = f" (did you mean {meant!r}?); {ALL_KEYS}" if meant in allowed else ""
            near = near or tables_with(key, "model") or one_of(key, allowed, ALL_KEYS)
            raise InputError(f"{source}: unknown key {key!r} in [model]{near}")
    model: Model = build(cls, {**common, **base, **given}, source, "model")
    return model, guess


def _named(name: str, given: Mapping[str, Any], source: str) -> tuple[dict[str, Any], Guess | None]:
    """Return the keys of a published model, or of the likeliest for a name with a size."""
    from .model_presets import find_model

    try:
        return find_model(name), None
    except InputError as error:
        unknown = error
    from .likely_models import like_named

    sizes = {key: given[key] for key in MODEL_SIZES if key in given}
    _check_values(sizes, source)
    try:
        found = like_named(name, sizes)
    except InputError as error:
        raise InputError(f"{source}: key 'model.preset': {error}") from error
    if found is None:
        raise InputError(f"{source}: key 'model.preset': {unknown}") from unknown
    return found


def _check_values(keys: Mapping[str, Any], source: str) -> None:
    """Refuse values that no transformer has, before others are taken to go with them."""
    for key, value in keys.items():
        check_value(Transformer, key, value, source, f"model.{key}")


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
    from .likely_models import complete, parameters_of

    allowed = {each.name for each in fields(Transformer)}
    known = {key: value for key, value in given.items() if key in allowed}
    _check_values(known, source)
    try:
        keys, guess = complete(known, None if count is None else parameters_of(count))
    except InputError as error:
        raise InputError(f"{source}: [model]: {error}") from error
    return {**keys, **given}, guess
