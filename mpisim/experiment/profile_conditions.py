"""Conditions of an entry of a profile (``where = {…}``) and an experiment → whether it holds."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

from ..base.errors import InputError, one_of
from ..base.frozen import frozen
from ..kernels.gpu import Gpu, find_gpu
from ..topo import find_cluster
from .models import Cnn, Model, Transformer

__all__ = [
    "COMPARISON",
    "COMPARISONS",
    "MAY_HOLD_BY",
    "Where",
    "check_conditions",
    "keys_looked_at",
    "may_hold",
    "plan_holds",
]

STATES = 18
"""Bytes a parameter of weights, gradients and Adam's states where nothing is sharded
(huggingface.co/docs/transformers model_memory_anatomy)."""

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\S+)")
"""A comparison in a text: its sign, and what is compared with."""

OF_MODELS = ("hidden", "seq_len", "memory", "lora_rank")

WORDS = ("precision", "recompute", "fp8_scaling", "kernels", "style", "main_parameters")

OF_PRECISION = {
    "precision": ("products", "bf16"),
    "fp8_scaling": ("fp8_scaling", "delayed"),
    "main_parameters": ("main_parameters", "fp32"),
}
"""Words that are keys of ``plan.precision``: which, and what it is if not given."""

MAY_HOLD_BY = ("model.preset", "cluster.", "kernels.")
"""What the keys begin with that `may_hold` looks at, besides the model itself."""

KEYS_OF_WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": ("recompute",),
    "kernels": (),
    "style": ("zero",),
    **dict.fromkeys(OF_PRECISION, ("precision",)),
}
"""The keys of ``[plan]`` behind each of `WORDS`."""

NOT_OF_PLAN = (*OF_MODELS, "gpus", "states")
"""Those of `NUMBERS` that are no keys of ``[plan]``."""

NUMBERS = ("tp", "pp", "vpp", "cp", "ep", "zero", *NOT_OF_PLAN)


@frozen
class Where:
    """What an experiment must be for an entry to hold; alternatives stand between ``|``.

    Attributes
    ----------
    gpu : str
        Names of ``mpisim list gpus``, or of their architectures (``"hopper"``).
    model : str
        What the name of the model's preset begins with.
    family : str
        ``"transformer"``, ``"cnn"`` or ``"dlrm"``.
    kind : str
        ``family`` of ``[model]``: ``"bert"``, ``"gpt"``.
    precision, recompute, fp8_scaling, kernels : str
        Main keys of these sub-tables, ``precision.fp8_scaling`` and ``framework.kernels``;
        ``recompute = "unset"``: neither the experiment nor an entry before says anything of
        recomputation.
    experts : bool, optional
        Whether the model has experts.
    sp : bool, optional
        Whether sequences are shared by tensor-parallel ranks.
    blocking : bool, optional
        Whether the CPU waits for each kernel it launches.
    style : str
        Whose rules data parallelism follows: ``framework.dp_style``, or what takes its place.
    replicas : bool, optional
        Whether data parallelism is the only one: tp, pp, cp and ep are 1.
    main_parameters : str
        Of ``plan.precision``.
    tp, pp, vpp, cp, ep, zero, hidden, seq_len, memory, lora_rank, gpus : str
        Numbers: ``"2|4"``, ``">1"``, ``">=1024"``; hidden to lora_rank are the model's.
    states : str
        The same: `STATES` of the whole model in percent of a GPU's memory; transformers.
    """

    gpu: str = ""
    model: str = ""
    family: str = ""
    kind: str = ""
    precision: str = ""
    recompute: str = ""
    fp8_scaling: str = ""
    kernels: str = ""
    experts: bool | None = None
    sp: bool | None = None
    blocking: bool | None = None
    style: str = ""
    replicas: bool | None = None
    main_parameters: str = ""
    tp: str = ""
    pp: str = ""
    vpp: str = ""
    cp: str = ""
    ep: str = ""
    zero: str = ""
    hidden: str = ""
    seq_len: str = ""
    memory: str = ""
    lora_rank: str = ""
    gpus: str = ""
    states: str = ""

    @cached_property
    def words(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The conditions of `WORDS` that there are, each with what is allowed."""
        given = ((name, getattr(self, name)) for name in WORDS)
        return tuple((name, tuple(text.split("|"))) for name, text in given if text)

    @cached_property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """The conditions of `NUMBERS` that there are."""
        given = ((name, getattr(self, name)) for name in NUMBERS)
        return tuple((name, text) for name, text in given if text)


def check_conditions(where: Where) -> None:
    """Conditions of a profile's entry → nothing, if experiments can be tested by them.

    Parameters
    ----------
    where : Where
        As the file of a framework has them.

    Raises
    ------
    InputError
        Naming the condition, what was found and what is allowed.
    """
    for name in NUMBERS:
        _number_holds(getattr(where, name), 1)
    families = ("transformer", "cnn", "dlrm")
    for each in filter(None, where.family.split("|")):
        if each not in families:
            raise InputError(f"where.family is {each!r}{one_of(each, families)}")


def may_hold(where: Where, tables: Mapping[str, Any], model: Model) -> bool:
    """Conditions, an experiment → whether its model and GPU are as they say, whatever its plan is.

    Parameters
    ----------
    where : Where
    tables : mapping
        Of the experiment: ``[model]``, ``[cluster]`` and ``[kernels]`` are looked at.
    model : Model
    """
    if where.family and _family(model) not in where.family.split("|"):
        return False
    if where.kind and getattr(model, "family", "") not in where.kind.split("|"):
        return False
    if where.experts is not None:
        experts = isinstance(model, Transformer) and model.experts > 0
        if where.experts != experts:
            return False
    if where.model and not _is_model(where.model, tables):
        return False
    return not where.gpu or _is_gpu(where.gpu, tables)


def plan_holds(where: Where, tables: Mapping[str, Any], model: Model) -> bool:
    """Conditions of which `may_hold` is true, an experiment → whether the others hold, too.

    Parameters
    ----------
    where : Where
    tables : mapping
        Of the experiment, with what entries before have set.
    model : Model
    """
    # Every candidate of a search comes here for every entry: nothing is looked up for a condition
    # that there is not.
    if where.sp is not None:
        plan = _table(tables, "plan")
        if where.sp != plan.get("sp", plan.get("tp", 1) != 1):
            return False
    if where.blocking is not None:
        framework = _table(tables, "framework")
        if where.blocking != framework.get("launch_blocking", False):
            return False
    for name, allowed in where.words:
        if _word(name, tables, model) not in allowed:
            return False
    if where.replicas is not None:
        plan = _table(tables, "plan")
        axes = tuple(plan.get(name, 1) for name in ("tp", "pp", "cp", "ep"))
        if where.replicas != (axes == (1, 1, 1, 1)):
            return False
    if not where.numbers:
        return True
    numbers = [(text, _number(name, tables, model)) for name, text in where.numbers]
    return all(_number_holds(text, value) for text, value in numbers)


def keys_looked_at(where: Where) -> frozenset[str]:
    """Conditions → the keys of ``[plan]``, sub-tables as a whole, that `plan_holds` looks at."""
    found = {"tp", "sp"} if where.sp is not None else set()
    if where.replicas is not None:
        found.update(("tp", "pp", "cp", "ep"))
    for name, _ in where.words:
        found.update(KEYS_OF_WORDS[name])
    found.update(name for name, _ in where.numbers if name not in NOT_OF_PLAN)
    return frozenset(found)


def _word(name: str, tables: Mapping[str, Any], model: Model) -> object:
    """Return what an experiment has for one of `WORDS`."""
    plan = _table(tables, "plan")
    if name == "recompute":
        return _table(plan, "recompute").get("granularity", "unset")
    if name == "kernels":
        return _table(tables, "framework").get("kernels", "flash")
    if name == "style":
        return _style(tables, model)
    key, default = OF_PRECISION[name]
    return _table(plan, "precision").get(key, default)


def _number(name: str, tables: Mapping[str, Any], model: Model) -> object:
    """Return what an experiment has for one of `NUMBERS`."""
    if name in OF_MODELS:
        return getattr(model, name, 0)
    if name == "gpus":
        return _gpus(tables)
    if name == "states":
        return _states(tables, model)
    return _table(tables, "plan").get(name, 0 if name == "zero" else 1)


def _family(model: Model) -> str:
    if isinstance(model, Transformer):
        return "transformer"
    return "cnn" if isinstance(model, Cnn) else "dlrm"


def _is_model(texts: str, tables: Mapping[str, Any]) -> bool:
    """Whether the name of the model's preset begins as one of the texts says."""
    preset = tables.get("model", {}).get("preset")
    if preset is None:
        return False
    from .model_presets import preset_name

    try:
        name = preset_name(preset)
    except InputError:  # a name with a size, which stands for a published model
        from .likely_models import like_named

        found = like_named(preset, {})
        if found is None:
            return False
        name = found[1].like
    return any(name.startswith(each) for each in texts.split("|"))


def _style(tables: Mapping[str, Any], model: Model) -> str:
    """Return whose rules data parallelism follows, as `mpisim.experiment.plan.Plan.style`."""
    given = _table(tables, "framework").get("dp_style")
    if given is not None:
        return str(given)
    if _table(tables, "plan").get("zero", 0) in (2, 3):
        return "fsdp"
    return "megatron" if isinstance(model, Transformer) else "ddp"


def _states(tables: Mapping[str, Any], model: Model) -> int | None:
    """Return `STATES` of a transformer in percent of a GPU's memory; None for other models."""
    if not isinstance(model, Transformer):
        return None
    from .model_counts import parameters

    _, gpu = _named_gpu(tables)
    return None if gpu is None else math.ceil(100 * STATES * parameters(model) / gpu.memory.si)


def _named_gpu(tables: Mapping[str, Any]) -> tuple[str, Gpu | None]:
    """Return the experiment's GPU by the name it has there; None if there is none of that name."""
    named, cluster = _table(tables, "kernels").get("gpu"), _table(tables, "cluster")
    try:
        if named is None:
            named = find_cluster(str(cluster.get("preset", ""))).gpu
        return str(named), find_gpu(str(named))
    except InputError:  # which is refused where these tables are read
        return str(named), None


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table; an empty one for what is none, which is refused where it is read."""
    found = tables.get(key)
    return found if isinstance(found, dict) else {}


def _is_gpu(texts: str, tables: Mapping[str, Any]) -> bool:
    """Whether the experiment's GPU, or its architecture, is one of those named."""
    named, gpu = _named_gpu(tables)
    return gpu is not None and any(each in (named, gpu.family) for each in texts.split("|"))


def _gpus(tables: Mapping[str, Any]) -> int:
    cluster = _table(tables, "cluster")
    per_node = cluster.get("gpus_per_node") or find_cluster(cluster["preset"]).gpus_per_node
    return int(cluster.get("gpus") or cluster.get("nodes", 1) * per_node)


def _number_holds(text: str, value: object) -> bool:
    """Whether a number is as ``"2|4"`` or ``">1"`` says; any if the text is empty."""
    if not text:
        return True
    if not isinstance(value, int):  # bad input, which is refused where the plan is built
        return False
    return any(compare(value, limit) for compare, limit in _comparisons(text))


@cache
def _comparisons(text: str) -> tuple[tuple[Callable[[Any, Any], bool], int], ...]:
    """``"2|4"`` or ``">1"`` → comparisons, one of which must hold, and with what."""
    match = COMPARISON.fullmatch(text)
    try:
        if match is not None:
            return ((COMPARISONS[match[1]], int(match[2])),)
        return tuple((operator.eq, int(each)) for each in text.split("|"))
    except ValueError as error:
        raise InputError(f"where: {text!r} is no number; allowed: '2|4', '>1'") from error
