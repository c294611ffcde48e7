"""Example experiments with every key explained, for ``mpisim new``.

What a key means is read from the documentation of the dataclass that it is a field of, so the
example cannot say something else than the reference. A key that is not explained there stands at
the end of its table.
"""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ..base.errors import InputError
from ..base.schema import field_of
from ..base.text import WIDTH, counted
from ..base.toml import toml_table, toml_value
from ..experiment.choices import (
    CalibrationChoice,
    ClusterChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    VariationChoice,
)
from ..experiment.framework import FrameworkOptions
from ..experiment.huggingface import from_config
from ..experiment.model_presets import find_model, model_presets
from ..experiment.model_table import model_of
from ..experiment.models import USUAL_LENGTH, Model, Transformer
from ..experiment.plan import Plan, keys_of
from ..experiment.plan_keys import nested, short_key
from ..experiment.plan_options import MAIN_KEYS
from ..experiment.profile_filling import filled
from ..experiment.profiles import chosen_profile
from ..search.starting_plan import starting_plan
from ..topo import Cluster, find_cluster
from ..topo.speeds import with_speeds

__all__ = ["Example", "example"]


MORE_RACKS = 8
"""Of so many racks one more may be used, so that all have as many GPUs: 64 of 72."""

HEAD = """\
# One training step, to be run with: mpisim run FILE
# Every key is here, with what it means. One behind a '#' has the value shown unless it is set.
"""

BRIEF_HEAD = """\
# One training step, to be run with: mpisim run FILE
# What most people set; a key behind a '#' has the value shown unless it is set. 'mpisim new --all'
# writes all other keys, too, with what they mean; docs/experiments.md explains them by subject.
"""

BRIEF_MODEL_NOTE = """\
# Of 'mpisim list models'; or hf_config = "config.json" of Hugging Face; or family and sizes.
"""

BRIEF_PLAN = {
    "tp": "tensor parallel size",
    "pp": "pipeline stages",
    "vpp": 'model chunks of a stage, with pipeline = "interleaved", "zb-v", "dualpipe-v"',
    "cp": "context parallel size",
    "ep": "expert parallel size",
    "etp": "tensor parallel size inside an expert",
    "zero": "sharded: 1 optimizer states, 2 and gradients, 3 and parameters",
    "micro_batch": "of one GPU at a time",
    "global_batch": "of a step",
    "precision": "of products: fp32, tf32, fp16, bf16, fp8, nvfp4",
    "recompute": "activations computed again: none, selective, full",
    "pipeline": "schedule, one of 'mpisim list schedules'",
    "optimizer": "adam, sgd, momentum, adagrad",
}
"""Keys of ``[plan]`` in brief examples, in words; dp is what remains of the GPUs."""

OF_EXPERTS, OF_TRANSFORMERS = ("ep", "etp"), ("tp", "vpp", "cp", "recompute", "pipeline")
"""Those of models with experts, and of transformers alone."""

MODEL_NOTE = """\
# A model of 'mpisim list models'; the keys below change it. In place of it, hf_config = "PATH"
# takes a config.json of Hugging Face; without either, family and sizes describe a model of your
# own.
"""


JOB_NOTE = """\
# Of how long the whole training takes, [job] says more (docs/job.md), or the command line:
#   mpisim job FILE --set job.tokens=2e12
"""


class Example(NamedTuple):
    """An experiment to start from.

    Attributes
    ----------
    text : str
        TOML with a comment for every key.
    notes : tuple of str
        Sentences: which plan was chosen and why, what was chosen for the model.
    """

    text: str
    notes: tuple[str, ...]


class _Chosen(NamedTuple):
    """The model of an example.

    Attributes
    ----------
    keys : dict
        Keys of ``[model]`` as written.
    model : Model
    title : str
        Its name in titles.
    notes : tuple of str
        What was chosen for it, a line each.
    """

    keys: dict[str, Any]
    model: Model
    title: str
    notes: tuple[str, ...]


def example(
    name: str,
    cluster: str,
    gpus: int | None = None,
    *,
    config: bool = False,
    folder: str | Path = "",
    framework: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
    every: bool = False,
) -> Example:
    """Write an experiment, with a plan that fits by the memory model, or that takes least.

    Parameters
    ----------
    name : str
        A model of ``mpisim list models``, or the path of a config.json.
    cluster : str
        A cluster of ``mpisim list clusters``, or the path of a file with one.
    gpus : int, optional
        GPUs to use; those of one node if not given.
    config : bool
        Whether `name` is a path.
    folder : str or Path
        Where the experiment will be: paths in it are relative to that.
    framework : mapping, optional
        Keys of ``[framework]``: name, version, recipe.
    changes : mapping, optional
        Keys of ``[model]`` besides; with ``family`` among them they are all that there is.
    every : bool
        Whether to write every key with what it means, or those that most people set.

    Returns
    -------
    Example

    Raises
    ------
    InputError
        If a name is not known, a file cannot be read, or the cluster has no so many GPUs.
    """
    given_keys = dict(changes or {})
    if config:
        chosen = _of_config(Path(name), Path(folder), given_keys)
    else:
        chosen = _of_preset(name, given_keys)
    found = find_cluster(cluster)
    count = found.gpus_per_node if gpus is None else gpus
    found, choice, of_racks = _cluster_choice(found, cluster, count)
    if framework:
        chosen_profile(framework, "")
    start = starting_plan(chosen.model, cluster, found, count, framework)
    resolved = {f.name: getattr(chosen.model, f.name) for f in dataclasses.fields(chosen.model)}
    notes = (*chosen.notes, *(f"plan: {each}" for each in start.why))
    notes += tuple(f"cluster: {each}" for each in of_racks)
    first = {key: value for key, value in chosen.keys.items() if key in ("preset", "hf_config")}
    given = {key: value for key, value in chosen.keys.items() if key not in first}
    head = "".join(f"{key} = {toml_value(value)}\n" for key, value in first.items())
    of_framework = {**(framework or {}), **_in_table(start.keys, "framework")}
    added = _filled_in(start.keys, of_framework, choice, chosen.model)
    title = f"{chosen.title} on {counted(count, 'GPU')}"
    if not every:
        parts = [
            BRIEF_HEAD + f"\ntitle = {toml_value(title)}\n",
            f"[model]\n{BRIEF_MODEL_NOTE}{_comment(chosen.notes)}{head}"
            + _brief_model(chosen, given),
            "[plan]\n" + _comment(start.why) + _brief_plan(start.keys, added, chosen.model),
            "[framework]\n" + _brief_framework(of_framework),
            "[cluster]\n"
            + _comment(of_racks)
            + "".join(f"{key} = {toml_value(value)}\n" for key, value in choice.items()),
        ]
        return Example("\n".join(parts), notes)
    parts = [
        HEAD + f"\ntitle = {toml_value(title)}\n",
        f"[model]\n{MODEL_NOTE}{_comment(chosen.notes)}{head}\n"
        + _section(type(chosen.model), given, resolved),
        "[plan]\n" + _comment(start.why) + "\n" + _plan(start.keys, added),
        "[framework]\n" + _section(FrameworkOptions, of_framework, _in_table(added, "framework")),
        "[cluster]\n" + _comment(of_racks) + _section(ClusterChoice, choice),
        "[kernels]\n" + _section(KernelChoice, {}),
        "[network]\n" + _section(NetworkChoice, {}),
        "[overlap]\n" + _section(OverlapChoice, {}),
        "[variation]\n" + _section(VariationChoice, {}),
        "[calibration]\n" + _section(CalibrationChoice, {}),
        "[prices]\n" + _section(PriceChoice, {}),
        "[run]\n" + _section(RunChoice, {}),
        JOB_NOTE,
    ]
    return Example("\n".join(parts), notes)


def _cluster_choice(
    found: Cluster, name: str, gpus: int
) -> tuple[Cluster, dict[str, Any], tuple[str, ...]]:
    """Cluster, its name and GPUs to use → the part to use, keys of ``[cluster]``, and why.

    Raises
    ------
    InputError
        If the cluster is one box with fewer GPUs.
    """
    nodes = -(-gpus // found.gpus_per_node)
    if nodes > 1 and found.fabric is None:
        raise InputError(
            f"{gpus} GPUs are more than the {found.gpus_per_node} of {name!r}, which is one box"
        )
    share = _share_of_racks(found, gpus)
    if share is not None:
        why = (
            f"{share} of the {found.gpus_per_node} GPUs of each rack, so that no group that fits "
            "into one lies in two",
        )
        choice = {"preset": name, "nodes": gpus // share, "gpus_per_node": share}
        return with_speeds(found, {"gpus_per_node": share}), choice, why
    choice = {"preset": name, "nodes": nodes}
    if gpus != nodes * found.gpus_per_node:
        choice["gpus"] = gpus
    return found, choice, ()


def _share_of_racks(cluster: Cluster, gpus: int) -> int | None:
    """Return the GPUs of each rack to use so that groups stay inside racks; None to use all.

    Ranks are laid over racks one after another: on 4 racks of 72, 256 GPUs in groups of 64 would
    have groups in two racks. So equally many GPUs of each rack are used, if that takes no more than
    an eighth more.
    """
    most, tray = cluster.gpus_per_node, cluster.node.tray if cluster.node else None
    least = -(-gpus // most)
    if not tray or least == 1 or gpus % most == 0:
        return None
    for racks in range(least, least * (MORE_RACKS + 1) // MORE_RACKS + 1):
        if gpus % racks == 0 and gpus // racks % tray == 0:
            return gpus // racks
    return None


def _filled_in(
    keys: Mapping[str, Any], framework: Mapping[str, Any], cluster: Mapping[str, Any], model: Model
) -> dict[str, Any]:
    """Return what the framework's profile, or common practice, adds to a plan; by its keys."""
    tables = nested({k if k.startswith("framework.") else f"plan.{k}": keys[k] for k in keys})
    tables["framework"], tables["cluster"] = dict(framework), dict(cluster)
    _, set_by = filled(tables, model, "", with_model=False)
    return {key.removeprefix("plan."): each.value for key, each in set_by.items()}


def _of_preset(name: str, changes: Mapping[str, Any]) -> _Chosen:
    """Return the model of a name with some keys changed, or of its own keys alone."""
    if "family" in changes:
        return _Chosen(dict(changes), model_of(changes, "--set"), "my model", ())
    table = find_model(name)
    keys = {"preset": name, **changes}
    title = next(each.title for each in model_presets().values() if dict(each.table) == table)
    return _Chosen(keys, model_of(keys, "--set" if changes else name), title, ())


def _of_config(path: Path, folder: Path, changes: Mapping[str, Any]) -> _Chosen:
    """Return the model of a config.json, with sequences as models are usually trained on."""
    found, guess = from_config(path)
    found = {**found, **changes}
    given = str(path) if path.is_absolute() else os.path.relpath(path, folder)
    keys: dict[str, Any] = {"hf_config": given}
    length = found.get("seq_len")
    notes = () if guess is None else guess.notes
    if "seq_len" not in changes and (length is None or length > USUAL_LENGTH):
        keys["seq_len"] = USUAL_LENGTH
        why = f"{path} names no length"
        if length is not None:
            why = f"{path} allows {length:,} tokens (max_position_embeddings)"
        notes += (f"seq_len = {USUAL_LENGTH}, a usual length in training: {why}",)
    keys |= changes
    read = {**keys, "hf_config": os.path.abspath(path)}
    name = path.parent if path.name == "config.json" else path.with_suffix("")
    return _Chosen(keys, model_of(read, str(path)), name.resolve().name, notes)


def _brief_model(chosen: _Chosen, given: Mapping[str, Any]) -> str:
    """Write the length of samples, where the model has one, and what was chosen for the model."""
    length = getattr(chosen.model, "seq_len", None)
    lines = [f"{key} = {toml_value(value)}\n" for key, value in given.items()]
    if length is not None and "seq_len" not in given:
        lines.append(f"# seq_len = {length}\n")
    return "".join(lines)


def _brief_plan(keys: Mapping[str, Any], added: Mapping[str, Any], model: Model) -> str:
    """Write the keys of a plan that most people set; what was chosen besides as it is."""
    of_all = {short_key(key): value for key, value in {**keys_of(Plan(1)), **added}.items()}
    known = {short_key(key): value for key, value in keys.items()}
    known = {key: value for key, value in known.items() if not key.startswith("framework.")}
    hidden: tuple[str, ...] = () if isinstance(model, Transformer) else OF_TRANSFORMERS
    if not getattr(model, "experts", 0):
        hidden += OF_EXPERTS
    lines, sections = [], {key.partition(".")[0] for key in known if "." in key}
    for key, words in BRIEF_PLAN.items():
        if key in hidden or key in sections:
            continue
        value = known.pop(key, None)
        chosen = "" if value is not None else "# "
        value = of_all[key] if value is None else value
        if value is None:
            value = known.get("tp", keys.get("tp", 1))  # etp
        left = f"{chosen}{key} = {toml_value(value)}"
        lines.append(f"{left:<23} # {words}\n")
    tables = nested({f"plan.{key}": value for key, value in known.items()})
    return "".join(lines) + toml_table(tables.get("plan", {}), "plan")


def _brief_framework(given: Mapping[str, Any]) -> str:
    """Write which framework it is, or how to say so."""
    lines = [f"{key} = {toml_value(value)}\n" for key, value in given.items()]
    if "name" not in given:
        name = '# name = "megatron-core"'
        lines.insert(0, f"{name:<24} # of 'mpisim list frameworks': sets what is left blank\n")
    if "version" not in given:
        version = "# version is not set"
        lines.insert(1, f"{version:<24} # the newest that is known\n")
    return "".join(lines)


def _plan(keys: Mapping[str, Any], added: Mapping[str, Any]) -> str:
    """Write the table of a plan, and those in it; `added`: what is filled in besides."""
    own = {key: value for key, value in keys.items() if "." not in key}
    hidden = (*MAIN_KEYS, "framework")
    parts = [_section(Plan, own, added, hidden=hidden)]
    for name in MAIN_KEYS:
        _, field = field_of(Plan, name) or (Plan, None)
        assert field is not None
        table = _section(type(field.default), _in_table(keys, name), _in_table(added, name))
        parts.append(f"[plan.{name}]\n{table}")
    return "\n".join(parts)


def _in_table(keys: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the keys of a sub-table, without its name."""
    prefix = f"{table}."
    return {key.removeprefix(prefix): keys[key] for key in keys if key.startswith(prefix)}


def _comment(notes: Iterable[str]) -> str:
    """Return sentences as lines of comments, set in: no one is to take them for keys."""
    filled = (
        textwrap.wrap(each, WIDTH, initial_indent="#   ", subsequent_indent="#   ")
        for each in notes
    )
    return "".join(f"{line}\n" for lines in filled for line in lines)


def _section(
    cls: type,
    given: Mapping[str, Any],
    resolved: Mapping[str, Any] | None = None,
    hidden: Iterable[str] = (),
) -> str:
    """Write a table: `given` keys as they are, others behind a ``#`` with their default.

    `resolved` are the values that keys have if not given, where those are not the defaults;
    `hidden` keys stand elsewhere.
    """
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    lines = []
    entries = list(_documented(cls))
    explained = {name for names, _ in entries for name in names}
    entries += [([name], "") for name in fields if name not in explained]
    for names, text in entries:
        if names[0] in hidden:
            continue
        choices = [_choices(hints[name]) for name in names]
        if any(choices):
            text = f"{text} One of {', '.join(next(filter(None, choices)))}.".lstrip()
        lines += [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2)]
        for name in names:
            if name in given:
                lines.append(f"{name} = {toml_value(given[name])}")
                continue
            value = (resolved or {}).get(name, fields[name].default)
            unset = value is None or value is dataclasses.MISSING
            lines.append(f"# {name} is not set" if unset else f"# {name} = {toml_value(value)}")
        lines.append("")
    return "\n".join(lines)


def _documented(cls: type) -> Iterator[tuple[list[str], str]]:
    """Yield the keys that are explained together, with the explanation."""
    text = textwrap.dedent((cls.__doc__ or "").partition("----------\n")[2])
    # An entry is "name, name : type" at the margin, then indented lines.
    for entry in re.findall(r"^\S.*(?:\n+[ ].*)*", text, re.MULTILINE):
        head, _, body = entry.partition("\n")
        words = " ".join(body.split()).replace("``", "'").replace("`", "")
        yield head.partition(" : ")[0].split(", "), words


def _choices(hint: Any) -> list[str]:
    """Return the texts a key may have, if there are only some."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Literal:
            return [str(choice) for choice in get_args(each)]
    return []
