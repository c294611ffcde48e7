"""Keys that a row and its rules give → keys that go together, and what was filled in, in words.

Rows state sizes that no plan has together, count batches in tokens, or leave out layers and
micro-batches that follow from what they do state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.errors import InputError
from .rows import Row

__all__ = ["MICRO_BATCHES", "RECOMPUTE_SHARE", "SEQUENCE_TOKENS", "complete"]

RECOMPUTE_SHARE = "plan.recompute_share"
"""Of rules: the share of layers that recompute, resolved to ``plan.recompute.layers``."""

MICRO_BATCHES = "plan.micro_batches"
"""Of rules: the micro-batches of a step, resolved to ``plan.micro_batch``; "pp": one a stage."""

SEQUENCE_TOKENS = "plan.sequence_tokens"
"""Of facts: batches are counted in tokens, of which a sequence has so many, padding included."""


def complete(keys: dict[str, Any], row: Row, base: Mapping[str, Any]) -> list[str]:
    """Keys of a row's experiment → what was filled in, in words, until they go together.

    Parameters
    ----------
    keys : dict
        Of the row's experiment; changed in place.
    row : Row
    base : mapping
        Keys of the model's preset, if it has any.

    Raises
    ------
    InputError
        If the row does not state its batch or its precision.
    """
    filled = []
    transformer = not base or "layers" in base
    if not transformer:
        _drop_keys_of_transformers(keys, row)
    if "plan.global_batch" not in keys:
        raise InputError("global_batch is not stated")
    filled += _batches_in_tokens(keys)
    filled += _micro_batch(keys)
    if "plan.micro_batch" not in keys:
        raise InputError("micro_batch is not stated")
    if "plan.precision" not in keys:
        raise InputError("precision is not stated")
    filled += _complete_plan(keys)
    if transformer:
        filled += _layers(keys, row, base)
    share = keys.pop(RECOMPUTE_SHARE, None)
    if share is not None:
        parts = keys.get("plan.pp", 1) * keys.get("plan.vpp", 1)
        keys["plan.recompute.layers"] = max(1, round(share * _count(keys, base) / parts))
    keys["run.allow_oom"] = True  # it was run, so it fitted
    return filled


def _drop_keys_of_transformers(keys: dict[str, Any], row: Row) -> None:
    """Leave a model that is no transformer the keys that it can have."""
    own = {"model.preset", *row.keys}
    for key in [key for key in keys if key.startswith("model.") and key not in own]:
        del keys[key]
    for key in (
        "plan.sp",
        "plan.overlap.tp",
        "plan.recompute",
        "framework.kernels",
        "framework.fused",
    ):
        keys.pop(key, None)


def _complete_plan(keys: dict[str, Any]) -> list[str]:
    """Drop what a plan's other keys leave no use for; return what was filled in, in words."""
    filled = []
    if keys.get("framework.dp_style") == "deepspeed" and keys.get("plan.precision") == "fp32":
        keys["plan.precision.gradients"] = "fp32"
    if keys.get("plan.tp", 1) == 1:
        keys.pop("plan.sp", None)
    if keys.get("plan.tp", 1) == 1 or not keys.get("plan.sp", True):
        keys.pop("plan.overlap.tp", None)
    if not keys.get("plan.zero"):
        keys.pop("plan.zero_group", None)
    if keys.get("plan.zero") == 3 and keys.get("plan.pp", 1) > 1:
        keys["plan.zero"] = 2
        filled.append("plan.zero = 2 (instead): a pipeline keeps parameters gathered for a step")
    if keys.get("plan.vpp", 1) > 1:
        keys["plan.pipeline.schedule"] = "interleaved"
    return filled


def _micro_batch(keys: dict[str, Any]) -> list[str]:
    """Fill in a micro-batch that is not stated from how many a step has."""
    count = keys.pop(MICRO_BATCHES, None)
    if count is None or "plan.micro_batch" in keys or "plan.dp" not in keys:
        return []
    count = keys.get("plan.pp", 1) if count == "pp" else count
    keys["plan.micro_batch"] = max(1, keys["plan.global_batch"] // (keys["plan.dp"] * count))
    return [f"plan.micro_batch = {keys['plan.micro_batch']}"]


def _batches_in_tokens(keys: dict[str, Any]) -> list[str]:
    """Turn batches that are counted in tokens into sequences."""
    length = keys.pop(SEQUENCE_TOKENS, None)
    if length is None:
        return []
    keys["plan.micro_batch"] = max(1, keys["plan.micro_batch"] // length)
    keys["plan.global_batch"] = keys["plan.micro_batch"] * keys["plan.dp"]
    return [f"batches in sequences of {length} tokens"]


def _count(keys: Mapping[str, Any], base: Mapping[str, Any]) -> int:
    return int(keys.get("model.layers", base.get("layers", 0)))


def _layers(keys: dict[str, Any], row: Row, base: Mapping[str, Any]) -> list[str]:
    """Fill in layers that are not stated, and spread them over the pipeline."""
    filled = []
    parts = keys.get("plan.pp", 1) * keys.get("plan.vpp", 1)
    if not _count(keys, base):
        if "params_b" not in row.numbers:
            raise InputError("layers are not stated")
        if "model.vocab" not in keys:
            raise InputError("vocab is not stated")
        hidden = keys["model.hidden"]
        # Matrices of attention and feed-forward blocks (12 h²) and the embedding.
        exact = (row.numbers["params_b"] * 1e9 - keys["model.vocab"] * hidden) / (12 * hidden**2)
        keys["model.layers"] = max(1, round(exact / parts)) * parts
        filled.append("model.layers from the number of parameters")
    layers = _count(keys, base)
    if parts == 1 or layers % parts == 0 or "plan.pipeline.stages" in keys:
        return filled
    if (layers + 2) % parts == 0:
        keys["plan.pipeline.account_for_embedding"] = keys["plan.pipeline.account_for_loss"] = True
        return [
            *filled,
            "plan.pipeline.account_for_embedding, plan.pipeline.account_for_loss = true",
        ]
    if parts > layers + 2:
        raise InputError(f"pp × vpp is {parts}, more than its {layers} layers")
    each = -(-layers // parts)
    counts = [max(0, min(each, layers - each * part)) for part in range(parts)]
    keys["plan.pipeline.stages"] = counts
    return [*filled, "plan.pipeline.stages: the last ones shorter"]
