"""Measured row → the experiment that was run, or the reason why there is none."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import InputError
from ...base.frozen import frozen
from ...base.toml import toml_table, toml_value
from ...experiment import Experiment, Transformer
from ...experiment import read as read_experiment
from ...experiment.likely_models import like_named
from ...experiment.model_presets import find_model
from ...experiment.plan_keys import nested, short_key
from ...experiment.profiles import named_in
from .clusters import choose
from .completion import MICRO_BATCHES, RECOMPUTE_SHARE, SEQUENCE_TOKENS, complete
from .rows import Row
from .settings import Fact, Settings, assigned

__all__ = ["VERDICTS", "Mapped", "Skipped", "experiment_of", "shown"]

MODEL_KEYS = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn_hidden": "ffn_hidden",
    "vocab": "vocab",
    "num_experts": "experts",
    "topk": "topk",
    "moe_ffn": "moe_ffn_hidden",
    "seq_len": "seq_len",
}
"""Keys of ``[model]`` by columns."""

PLAN_KEYS = {
    "tp": "tp",
    "pp": "pp",
    "vpp": "vpp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "sp": "sp",
    "zero_stage": "zero",
    "zero_group": "zero_group",
    "micro_batch": "micro_batch",
    "global_batch": "global_batch",
    "precision": "precision",
    "activation_recompute": "recompute",
    "tp_overlap": "overlap.tp",
    "dp_overlap": "overlap.dp",
}
"""Keys of ``[plan]`` by columns."""

OF_PROFILE = ("framework.name", "framework.version", "framework.recipe")
"""Keys that say which framework ran a row; an empty text takes one back."""

VERDICTS = ("fits", "close", "refused", "unjudged")
"""Of rows, which all ran: fits into memory, too close to call, does not fit; not said, since it
hinges on what is not modelled."""

SUFFIXES = (" SFT", "-proxy")
"""What follows the name of a model when it is trained otherwise, or cut to fewer layers."""

UNNAMED = re.compile(r"GPT(?:$| \()")
"""Names that say no more than their model's kind."""

SIZED = re.compile(r"GPT [\d.]+[MBT]$")
"""Names that say no more than the kind and a size; a shape says more than that."""

ADAPTERS = (" QLoRA", " LoRA", " lora")
"""What follows it when low-rank adapters are trained beside it; QLoRA: of 4 bits."""


@frozen
class Mapped:
    """A row as an experiment.

    Attributes
    ----------
    row : Row
    source : str
        Short name of the row's source.
    experiment : Experiment
    text : str
        The experiment as TOML.
    defaults : tuple of str
        What the row does not state and was filled in, as ``key = value``.
    approximations : tuple of str
        Where the experiment is not what was run.
    unjudged : str
        What saves memory and is not modelled, so that the row is not refused for memory.
    others : tuple of (Experiment, float)
        The same on other networks that it may have had, with the probability of each
        (`mpisim.validate.e2e.clusters.OtherCluster`).
    """

    row: Row
    source: str
    experiment: Experiment
    text: str
    defaults: tuple[str, ...]
    approximations: tuple[str, ...]
    unjudged: str = ""
    others: tuple[tuple[Experiment, float], ...] = ()

    def judged(self, fits: bool, certain: bool) -> str:
        """Verdict of the memory model on the row: one of `VERDICTS`.

        Parameters
        ----------
        fits : bool
            Whether the experiment fits.
        certain : bool
            Whether that is sure.
        """
        if self.unjudged and not (fits and certain):
            return "unjudged"
        if not certain:
            return "close"
        return "fits" if fits else "refused"

    @property
    def is_transformer(self) -> bool:
        """Whether its model is one."""
        return isinstance(self.experiment.model, Transformer)

    @property
    def is_dense(self) -> bool:
        """Whether it is a transformer without experts and recurrences."""
        model = self.experiment.model
        return isinstance(model, Transformer) and not (model.experts or model.pattern)


@frozen
class Skipped:
    """A row that is no experiment, and why."""

    row: Row
    source: str
    why: str


def experiment_of(
    row: Row, settings: Settings, changes: Sequence[str] = (), *, profiles: bool = True
) -> Mapped | Skipped:
    """Row → its experiment, or why there is none.

    What the row states counts; then the last of the rules that hold for it; then the profile of its
    framework (`mpisim.experiment.profiles`); then the defaults of experiments.

    Parameters
    ----------
    row : Row
    settings : Settings
    changes : sequence of str
        Keys to set at last, as for ``--set``.
    profiles : bool
        Whether the experiment says which framework ran it.
    """
    source = settings.source(row)
    if row.seconds is None:
        return Skipped(row, source, "no measured step time")
    why = settings.refuses(row)
    if why is not None:
        return Skipped(row, source, why)
    try:
        return _mapped(row, source, settings, changes, profiles)
    except InputError as error:
        return Skipped(row, source, str(error).removeprefix(f"{row.where}: "))


def _mapped(
    row: Row, source: str, settings: Settings, changes: Sequence[str], profiles: bool
) -> Mapped:
    keys: dict[str, Any] = {}
    preset, base, approximations = _preset(row, settings)
    stated = _stated(row, preset, base)
    if "plan.precision" in stated:
        stated["plan.precision"], notes = _precision(stated["plan.precision"], settings)
        approximations += notes
    facts = [each for each in settings.facts if each.holds(row, source)]
    for key in (key for each in facts for key in each.drop):
        stated.pop(key, None)
    ruled, replaced = _ruled(facts)
    ruled = {**_named_framework(row), **ruled}
    open_keys = {key: value for key, value in ruled.items() if key not in stated}
    keys = {**open_keys, **stated, **replaced}
    if preset is not None:
        keys["model.preset"] = preset
    elif unnamed(_name(row)) or SIZED.match(_name(row)):
        keys["model.family"] = "gpt"
    elif "params_b" in row.numbers:
        keys["model.parameters"] = row.numbers["params_b"] * 1e9
    defaults = [
        f"{key} = {toml_value(value)}"
        for key, value in open_keys.items()
        if key not in (RECOMPUTE_SHARE, MICRO_BATCHES, SEQUENCE_TOKENS, *OF_PROFILE)
    ]
    defaults += [
        f"{key} = {toml_value(value)} (instead)"
        for key, value in replaced.items()
        if stated.get(key) != value and key != RECOMPUTE_SHARE
    ]
    chosen = choose(row, source, settings)
    keys = {**keys, **{key: value for key, value in chosen.keys.items() if key not in row.keys}}
    defaults += chosen.assumed
    if " QLoRA" in row.texts["model"]:
        keys.setdefault("plan.precision.frozen", "nf4")
    defaults += complete(keys, row, base)
    _check_adapters(keys, row)
    _drop_framework(keys, profiles)
    table = nested(dict(sorted(keys.items())))
    text = f"title = {toml_value(row.texts['model'])}\n" + toml_table(table)
    experiment = read_experiment(text, row.where, changes)
    others = []
    for other in chosen.others if "cluster.preset" not in row.keys else ():
        elsewhere = nested(dict(sorted((keys | {"cluster.preset": other.preset}).items())))
        others.append((read_experiment(toml_table(elsewhere), row.where, changes), other.share))
    filler = "practice" if experiment.profile is None else "profile"
    defaults += [
        f"{short_key(key)} = {toml_value(each.value)} ({filler})"
        for key, each in experiment.set_by_profile.items()
    ]
    if experiment.guess is not None:
        approximations += experiment.guess.notes
    unjudged = settings.unjudged(row, source)
    return Mapped(
        row,
        source,
        experiment,
        text,
        tuple(defaults),
        tuple(approximations),
        unjudged,
        tuple(others),
    )


def shown(mapped: Mapped) -> str:
    """Row as an experiment → the file that a user would write.

    Parameters
    ----------
    mapped : Mapped
        With a measured step time.

    Returns
    -------
    str
        TOML; comments at its head tell the measured time, what was filled in and what is
        approximate.
    """
    row = mapped.row
    part = ", without its optimizer" if row.without_optimizer else ""
    seconds = row.seconds
    assert seconds is not None
    lines = [f"{row.id}: {seconds:.6g} s measured{part}; to be run with: mpisim run FILE"]
    own = [each for each in mapped.defaults if not each.endswith(("(profile)", "(practice)"))]
    lines += [f"filled in: {each}" for each in own]
    lines += [f"approximation: {each}" for each in mapped.approximations]
    comments = (textwrap.wrap(each, 98, subsequent_indent="  ") for each in lines)
    return "".join(f"# {line}\n" for each in comments for line in each) + f"\n{mapped.text}"


def unnamed(model: str) -> bool:
    """Whether a model has no name but its kind's, so that its shape is what tells it."""
    return UNNAMED.match(model) is not None


def _name(row: Row) -> str:
    """Return the name of a row's model, without what follows it."""
    name = row.texts["model"]
    for suffix in (*SUFFIXES, *ADAPTERS):
        name = name.partition(suffix)[0]
    return name


def _preset(row: Row, settings: Settings) -> tuple[str | None, dict[str, Any], list[str]]:
    """Return the preset of a row's model, its keys, and a note; None and nothing without a name.

    A name that no preset has is one of its size (`like_named`), or its printed shape tells it.
    """
    for each in settings.models:
        if row.texts["model"].startswith(each.text):
            return each.preset, find_model(each.preset), [each.note] if each.note else []
    name = _name(row)
    shaped = {"layers", "hidden", "heads"} <= row.integers.keys()
    if unnamed(name) or (SIZED.match(name) and shaped):
        return None, {}, []
    try:
        return name, find_model(name), []
    except InputError as error:
        shape = {
            key: row.integers[column]
            for column, key in MODEL_KEYS.items()
            if column in row.integers
        }
        found = like_named(name, shape)
        if found is not None:
            return name, found[0], []
        if shaped:
            return None, {}, []
        raise InputError(f"no such model: {name}") from error


def _stated(row: Row, preset: str | None, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an experiment that a row states."""
    words = {name: row.texts[name] for name in ("precision", "activation_recompute")}
    known: Mapping[str, Any] = {**words, **row.integers, **row.flags}
    transformer = not base or "layers" in base
    found = {}
    for columns, table in ((MODEL_KEYS, "model"), (PLAN_KEYS, "plan")):
        for column, key in columns.items():
            value = known.get(column, "")
            if value != "" and (transformer or table == "plan"):
                found[f"{table}.{key}"] = value
    found |= dict(assigned(f"{key}={text}") for key, text in row.keys.items())
    if preset is None:
        for key in ("model.seq_len", "model.hidden"):
            if key not in found:
                raise InputError(f"{key.partition('.')[2]} is not stated")
    for key in ("plan.micro_batch", "plan.global_batch"):
        if row.texts[key.partition(".")[2]] and key not in found:
            raise InputError("micro_batch is not whole")
    return found


def _precision(name: str, settings: Settings) -> tuple[str, list[str]]:
    for each in settings.precisions:
        if each.text == name:
            return each.precision, [each.note]
    return name, []


def _ruled(facts: Sequence[Fact]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what facts say of keys that a row may state, and of those it is wrong about."""
    ruled: dict[str, Any] = {}
    replaced: dict[str, Any] = {}
    for fact in facts:
        (replaced if fact.instead else ruled).update(map(assigned, fact.set))
    return ruled, replaced


def _check_adapters(keys: Mapping[str, Any], row: Row) -> None:
    """Refuse a model with adapters of no stated rank: it would be trained in full."""
    name = row.texts["model"].casefold()
    if "lora" in name and "model.lora_rank" not in keys:
        raise InputError("the rank of its LoRA is not stated: column model.lora_rank")


def _named_framework(row: Row) -> dict[str, Any]:
    """Return keys of the framework that a row names, with its version where that stands beside."""
    found = named_in(row.texts["framework"])
    if found is None:
        return {}
    profile, version = found
    beside = named_in(row.texts.get("source_version", ""))
    if not version and beside is not None and beside[0] is profile:
        version = beside[1]
    return {"framework.name": profile.name} | ({"framework.version": version} if version else {})


def _drop_framework(keys: dict[str, Any], profiles: bool) -> None:
    """Leave out which framework it is where that is not wanted, and what is said to be none."""
    known = profiles and "framework.name" in keys
    for key in OF_PROFILE:
        if not known or not keys.get(key):
            keys.pop(key, None)
