"""Example experiments with every key explained, for ``mpisim new``.

What a key means is read from the documentation of the dataclass that it is a field of, so the
example can neither lack a key nor say something else than the reference.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from ..errors import InputError
from .experiment import (
    CalibrationChoice,
    ClusterChoice,
    KernelChoice,
    NetworkChoice,
    RunChoice,
)
from .models import FAMILIES, Cnn, Model, Transformer
from .overlap import OverlapChoice
from .plan import Plan
from .presets import find_model, model_presets
from .variation import VariationChoice

if TYPE_CHECKING:
    from ..topo import Cluster

__all__ = ["example", "starting_plan"]

WIDTH = 100

HEAD = """\
# One training step, to be run with: mpisim run FILE
# Every key is here, with what it means. One behind a '#' has the value shown unless it is set.
"""

MODEL_NOTE = """\
# A model of 'mpisim list models'; the keys below change it. In place of it, hf_config = "PATH"
# takes a config.json of Hugging Face; without either, family and sizes describe a model of your
# own.
"""

STATES = {0: (18, 0), 1: (6, 12)}
"""Bytes of weights, gradients and optimizer states of a parameter in mixed precision with Adam, by
`zero`: what every rank has, and what data-parallel ranks share (arXiv:1910.02054, section 3.1, with
gradients in fp32 as Megatron-LM keeps them)."""

ENDS = ("account_for_embedding", "account_for_loss")
"""Keys that make the first and the last stage a layer shorter."""

FILL = 0.6
"""Share of a GPU's memory that those may take; the rest is for activations."""


def example(name: str, cluster: str, gpus: int | None = None) -> str:
    """Write an experiment.

    Parameters
    ----------
    name : str
        A model of ``mpisim list models``.
    cluster : str
        A cluster of ``mpisim list clusters``, or the path of a file with one.
    gpus : int, optional
        GPUs to use; those of one node if not given.

    Returns
    -------
    str
        TOML with a comment for every key.

    Raises
    ------
    InputError
        If a name is not known, or the cluster has no so many GPUs.
    """
    from ..topo import find_cluster

    table = find_model(name)
    cls, common = FAMILIES[table["family"]]
    model = cls(**{**common, **_tuples(table)})
    where = find_cluster(cluster)
    count = where.gpus_per_node if gpus is None else gpus
    nodes = -(-count // where.gpus_per_node)
    if nodes > 1 and where.fabric is None:
        raise InputError(
            f"{count} GPUs are more than the {where.gpus_per_node} of {cluster!r}, which is one box"
        )
    choice: dict[str, Any] = {"preset": cluster, "nodes": nodes}
    if count != nodes * where.gpus_per_node:
        choice["gpus"] = count
    title = next(each.title for each in model_presets().values() if dict(each.table) == table)
    keys = [field.name for field in dataclasses.fields(cls)]
    resolved = {key: getattr(model, key) for key in keys}
    parts = [
        HEAD + f"\ntitle = {_value(f'{title} on {count} GPUs')}\n",
        f"[model]\n{MODEL_NOTE}preset = {_value(name)}\n\n" + _section(cls, {}, resolved),
        "[plan]\n" + _section(Plan, starting_plan(model, where, count)),
        "[cluster]\n" + _section(ClusterChoice, choice),
        "[kernels]\n" + _section(KernelChoice, {}),
        "[network]\n" + _section(NetworkChoice, {}),
        "[overlap]\n" + _section(OverlapChoice, {}),
        "[variation]\n" + _section(VariationChoice, {}),
        "[calibration]\n" + _section(CalibrationChoice, {}),
        "[run]\n" + _section(RunChoice, {}),
    ]
    return "\n".join(parts)


def starting_plan(model: Model, cluster: Cluster, gpus: int) -> dict[str, Any]:
    """Return a plan to start from: the least splitting of the model that leaves room.

    Tensor parallelism grows first, inside a node, then the pipeline; the remaining GPUs are data
    parallel and share the optimizer states. It is no search for the fastest plan.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    gpus : int

    Returns
    -------
    dict
        Keys of ``[plan]``.
    """
    from ..kernels import find_gpu
    from ..workloads.closed_forms import parameters

    plan: dict[str, Any]
    gpu = find_gpu(cluster.gpu)
    precision = next(each for each in ("bf16", "fp16", "fp32") if each in gpu.formats)
    if not isinstance(model, Transformer):
        batch, optimizer = (64, "momentum") if isinstance(model, Cnn) else (2048, "sgd")
        plan = {"global_batch": batch * gpus, "micro_batch": batch, "dp": gpus}
        return plan | {"precision": "fp32", "optimizer": optimizer}
    total = parameters(model)
    splits = [
        (tp, pp)
        for pp in range(1, model.layers + 1)
        for tp in (1, 2, 4, 8, 16)
        if tp <= cluster.gpus_per_node
        and (model.layers % pp == 0 or (model.layers + len(ENDS)) % pp == 0)
        and not (model.heads % tp or model.kv % min(tp, model.kv))
        and not (gpus % (tp * pp) or model.ffn % tp or model.seq_len % tp)
        and (pp == 1 or (model.family != "t5" and tp == min(8, cluster.gpus_per_node)))
    ]
    for tp, pp in splits:
        dp = gpus // (tp * pp)
        ep = math.gcd(tp * dp, model.experts) if model.experts else 1
        own, shared = STATES[min(1, dp - 1)]
        # Nearly all of a mixture's parameters are its experts'.
        parts = pp * (ep if model.experts else tp)
        if total * (own / parts + shared / gpus) <= FILL * gpu.memory.si:
            break
    plan = {"tp": tp, "pp": pp, "dp": dp}
    if model.experts:
        plan |= {"ep": ep} | ({"etp": 1} if tp > 1 else {})
    if model.layers % pp:
        plan |= dict.fromkeys(ENDS, True)
    if dp > 1:
        plan["zero"] = 1
    micro_batches = 8 if pp == 1 else 4 * pp
    return {"global_batch": micro_batches * dp, "micro_batch": 1, **plan, "precision": precision}


def _section(cls: type, given: Mapping[str, Any], resolved: Mapping[str, Any] | None = None) -> str:
    """Write a table: `given` keys as they are, others behind a ``#`` with their default.

    `resolved` are the values that keys have if not given, where those are not the defaults.
    """
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    lines = []
    for names, text in _documented(cls):
        choices = [_choices(hints[name]) for name in names]
        if any(choices):
            text = f"{text} One of {', '.join(next(filter(None, choices)))}.".lstrip()
        lines += [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2)]
        for name in names:
            if name in given:
                lines.append(f"{name} = {_value(given[name])}")
                continue
            value = (resolved or {}).get(name, fields[name].default)
            unset = value is None or value is dataclasses.MISSING
            lines.append(f"# {name} is not set" if unset else f"# {name} = {_value(value)}")
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


def _value(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of TOML with tuples for lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
