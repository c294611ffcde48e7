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
from typing import Any

from ..base.errors import InputError, nearest, one_of
from ..base.files import read_text
from ..base.presets import SUFFIX, packaged
from ..base.schema import build, defaults, parse
from ..base.toml import toml_value
from ..schedules import CHUNKS_IN_A_V, SCHEDULES
from ..topo import find_cluster
from .changes import changed_key, with_changes
from .experiment import Experiment, Published
from .model_table import model_and_guess, model_of
from .plan import Plan
from .plan_keys import argument_key, short_key, with_sub_tables
from .profile_filling import ProfileKey, filled
from .program_experiment import ProgramExperiment, program_experiment
from .tables import ALL_KEYS, PART_OF_PLAN, TABLES, table_of, tables_with

__all__ = [
    "DEFAULT",
    "defaulted",
    "experiment_of",
    "load",
    "load_any",
    "load_tables",
    "plan_of",
    "read",
]

DEFAULT = "llama3-8b-8-h100"
"""The experiment that runs when none is named."""

FOLDER = "experiments"

HDF5_SIGNATURE = b"\x89HDF"
"""How program files begin."""

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


def _check_cluster(table: Mapping[str, Any], source: str) -> None:
    """Refuse a cluster that nobody knows, before profiles ask how many GPUs it has."""
    preset = table_of(table, "cluster", source).get("preset")
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
    named = table_of(table, "model", source)
    model, guess = model_and_guess(named if resolved is None else dict(resolved), source)
    if resolved is not None and "hf_config" not in named:
        guess = model_and_guess(named, source)[1]
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
    published = build(Published, table_of(table, PUBLISHED, source), source, PUBLISHED)
    job = None
    if JOB in table:
        from .job_choice import TIME_KEYS, JobChoice

        of_job = dict(table_of(table, JOB, source))
        for key in TIME_KEYS:  # without a unit, which the message about them asks for
            if type(of_job.get(key)) in (int, float):
                of_job[key] = f"{of_job[key]}"
        job = build(JobChoice, of_job, source, JOB)
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
    framework = _part(tables, PART_OF_PLAN, source)
    chunks = _implied_chunks(tables)
    if chunks is not None:
        tables = {**tables, "plan": {**tables["plan"], "vpp": chunks}}
    plan: Plan = _part(tables, "plan", source, {PART_OF_PLAN: framework})
    return plan


def _implied_chunks(tables: Mapping[str, Any]) -> int | None:
    """Tables → model chunks of a stage, where the schedule leaves no choice and none are given.

    Parameters
    ----------
    tables : mapping
        As `with_sub_tables` returns them.

    Returns
    -------
    int or None
        None where ``plan.vpp`` is given, and with schedules that leave the number open.
    """
    plan = tables.get("plan", {})
    if not isinstance(plan, dict) or "vpp" in plan:
        return None
    pipeline = plan.get("pipeline", {})
    schedule = pipeline.get("schedule") if isinstance(pipeline, dict) else None
    found = SCHEDULES.get(schedule) if isinstance(schedule, str) else None
    return CHUNKS_IN_A_V if found is not None and found.v_shaped else None


def _part(
    tables: Mapping[str, Any], name: str, source: str, built: Mapping[str, Any] | None = None
) -> Any:
    """Build one of `TABLES`; a key that another table has is refused with its place."""
    given, cls = table_of(tables, name, source), TABLES[name]
    known = {each.name for each in fields(cls)} if given else ()
    for key in given:
        if key not in known and name == "plan" and (meant := argument_key(key)):
            raise InputError(
                f"{source}: unknown key {key!r} in [plan] (did you mean {meant!r}?); {ALL_KEYS}"
            )
        if key not in known and (near := tables_with(key, name)):
            raise InputError(f"{source}: unknown key {key!r} in [{name}]{near}")
    return build(cls, given, source, name, ALL_KEYS, built)


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
    chunks = _implied_chunks(table)
    if chunks is not None:
        found["plan.vpp"] = chunks
    inside = f"plan.{PART_OF_PLAN}."  # where the table does not stand in a file
    return {key: value for key, value in found.items() if not key.startswith(inside)}
