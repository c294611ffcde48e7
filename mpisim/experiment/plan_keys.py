"""Tables of a file as people write them → as `mpisim.base.schema.build` takes them.

A value in place of a sub-table of ``[plan]`` is its main key; keys that had another name in earlier
versions are refused with the new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base.errors import InputError
from .plan_options import MAIN_KEYS

__all__ = [
    "PRECISION",
    "RECOMPUTE",
    "argument_key",
    "flattened",
    "key_path",
    "nested",
    "renamed",
    "set_key",
    "short_key",
    "with_sub_tables",
]

PRECISION, RECOMPUTE = "precision.products", "recompute.granularity"
"""Main keys that are often set, as `mpisim.experiment.plan.with_keys` takes them."""

RENAMED = {
    "account_for_embedding": "plan.pipeline.account_for_embedding",
    "account_for_loss": "plan.pipeline.account_for_loss",
    "activation_fp8": "plan.precision.fp8_activations",
    "attention": "framework.attention",
    "attention_precision": "plan.precision.attention",
    "average_in_collective": "framework.average_in_collective",
    "bias_kernels": "framework.bias_kernels",
    "broadcast_buffers": "framework.broadcast_buffers",
    "bucket": "framework.bucket",
    "compiled_loss": "framework.compiled_loss",
    "convolution_precision": "plan.precision.convolutions",
    "cp_style": "framework.cp_style",
    "cuda_graph_modules": "framework.cuda_graph_modules",
    "cuda_graphs": "framework.cuda_graphs",
    "dgrad_overlap": "plan.overlap.dgrad",
    "dispatch_precision": "plan.precision.dispatch",
    "dp_overlap": "plan.overlap.dp",
    "dp_style": "framework.dp_style",
    "eager_loss": "framework.eager_loss",
    "ep_overlap": "plan.overlap.ep",
    "flat_shards": "framework.flat_shards",
    "fp8_casts": "framework.fp8_casts",
    "fp8_params": "plan.precision.fp8_params",
    "fp8_scaling": "plan.precision.fp8_scaling",
    "fp8_split_sums": "plan.precision.fp8_split_sums",
    "fp8_transposed": "framework.fp8_transposed",
    "fp8_weight_casts": "framework.fp8_weight_casts",
    "fsdp_pipeline": "framework.fsdp_pipeline",
    "fully_shard": "framework.fully_shard",
    "fused": "framework.fused",
    "fused_loss": "framework.fused_loss",
    "fused_wgrad": "framework.fused_wgrad",
    "grad_precision": "plan.precision.gradients",
    "image_layout": "framework.image_layout",
    "kernels": "framework.kernels",
    "launch_blocking": "framework.launch_blocking",
    "loss_gradient": "framework.loss_gradient",
    "moe_capacity": "framework.moe_capacity",
    "moe_dispatcher": "framework.moe_dispatcher",
    "moe_experts": "framework.moe_experts",
    "moe_overlap": "plan.overlap.moe",
    "moment_precision": "plan.precision.moments",
    "norm_fusion": "framework.norm_fusion",
    "p2p_overlap": "plan.overlap.p2p",
    "p2p_split": "framework.p2p_split",
    "packed_attention": "framework.packed_attention",
    "persistent_norms": "framework.persistent_norms",
    "placement": "plan.tables.placement",
    "prefetch": "framework.prefetch",
    "primitive": "framework.primitive",
    "recompute_keeps": "plan.recompute.keeps",
    "recompute_layers": "plan.recompute.layers",
    "recompute_modules": "plan.recompute.modules",
    "recompute_stops": "plan.recompute.stops",
    "repeats_heads": "framework.repeats_heads",
    "reshard_after_forward": "framework.reshard_after_forward",
    "residual_norms": "framework.residual_norms",
    "rotary": "framework.rotary",
    "schedule": "plan.pipeline.schedule",
    "scores_softmax": "framework.scores_softmax",
    "separate_projections": "framework.separate_projections",
    "sharder": "plan.tables.sharder",
    "sp_style": "framework.sp_style",
    "stages": "plan.pipeline.stages",
    "tp_overlap": "plan.overlap.tp",
    "tp_overlap_fp8": "plan.overlap.tp_fp8",
    "tp_overlap_pairs": "plan.overlap.tp_pairs",
    "tp_overlap_scatter": "plan.overlap.tp_scatter",
    "unaligned": "framework.unaligned",
    "wrap_layers": "framework.wrap_layers",
}
"""Keys of ``[plan]`` up to version 0.9, with their full names today."""


_PARALLEL = re.compile(r"(?P<axis>[a-z_]+?)(_model)?_parallel(ism)?(_size|_degree)?")

_SIZE = re.compile(r"(?P<axis>[tpcde]p|vpp|etp)_(size|degree|world_size)")

ARGUMENTS: Mapping[str, str] = {
    "micro_batch_size": "micro_batch",
    "mbs": "micro_batch",
    "per_device_train_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "gbs": "global_batch",
    "batch_size": "global_batch",
    "train_batch_size": "global_batch",
    "zero_stage": "zero",
    "fsdp": "framework.dp_style",
    "dtype": "precision",
    "world_size": "cluster.gpus",
    "offload_optimizer": "plan.offload.optimizer",
    "optimizer_cpu_offload": "plan.offload.optimizer",
    "optimizer_offload_fraction": "plan.offload.optimizer",
    "overlap_cpu_optimizer_d2h_h2d": "plan.offload.overlap",
    "offload_param": "plan.offload.parameters",
    "cpu_offload": "plan.offload.parameters",
    "cpu_offloading_num_layers": "plan.offload.activations",
}
"""Further arguments of frameworks, and the keys that say the same."""

AXES: Mapping[str, str] = {
    "tensor": "tp",
    "pipeline": "pp",
    "virtual_pipeline": "vpp",
    "context": "cp",
    "expert": "ep",
    "expert_tensor": "etp",
    "data": "dp",
    "sequence": "sp",
}
"""The words of the arguments of Megatron-LM and torchtitan, and the keys of ``[plan]``."""


def argument_key(name: str) -> str | None:
    """Name of a framework's argument → the key with the same meaning.

    Parameters
    ----------
    name : str
        As in a framework's configuration.

    Returns
    -------
    str or None
        Key of ``[plan]``, or a key with the name of its table in front; None if none means the
        same.

    Examples
    --------
    >>> argument_key("tensor_model_parallel_size"), argument_key("sequence_parallel")
    ('tp', 'sp')
    >>> argument_key("gradient_accumulation_steps"), argument_key("optimizer")
    ('global_batch', None)
    >>> argument_key("tp_size"), argument_key("fsdp")
    ('tp', 'framework.dp_style')
    """
    if name.startswith("gradient_accumulation"):
        return "global_batch"  # over dp × micro_batch
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    short = _SIZE.fullmatch(name)
    if short is not None:
        return short["axis"]
    found = _PARALLEL.fullmatch(name)
    return None if found is None else AXES.get(found["axis"])


def renamed(key: str) -> str | None:
    """Key of an earlier version, with its table → its name today.

    Parameters
    ----------
    key : str

    Returns
    -------
    str or None
        None if no earlier version had it.
    """
    table, _, name = key.partition(".")
    if key == "calibration.framework":
        return "framework.name"
    return RENAMED.get(name) if table == "plan" else None


def key_path(path: list[str]) -> list[str]:
    """Parts of a key as written → as tables have them: ``plan.precision`` is a key of a sub-table.

    Parameters
    ----------
    path : list of str
        Parts of a key, its table first.

    Returns
    -------
    list of str

    Examples
    --------
    >>> key_path(["plan", "precision"])
    ['plan', 'precision', 'products']
    """
    if len(path) == 2 and path[0] == "plan" and MAIN_KEYS.get(path[1]):
        return [*path, MAIN_KEYS[path[1]]]
    return path


def short_key(key: str) -> str:
    """Key of a plan → as one writes it: a main key is that of its sub-table.

    Parameters
    ----------
    key : str
        With or without ``plan.`` in front.

    Returns
    -------
    str

    Examples
    --------
    >>> short_key("plan.recompute.granularity"), short_key("recompute.layers")
    ('plan.recompute', 'recompute.layers')
    """
    group, _, name = key.rpartition(".")
    return group if name and MAIN_KEYS.get(group.removeprefix("plan.")) == name else key


def with_sub_tables(tables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Tables of a file → the same, each sub-table of ``[plan]`` a table.

    Parameters
    ----------
    tables : mapping
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        For a key with the name of an earlier version.
    """
    found = dict(tables)
    for name in ("plan", "calibration"):
        if not isinstance(found.get(name), dict):
            continue
        for key in found[name]:
            now = renamed(f"{name}.{key}")
            if now is not None:
                raise InputError(f"{source}: key '{name}.{key}' has a new name: '{now}'")
    if isinstance(found.get("plan"), dict):
        if "framework" in found["plan"]:
            raise InputError(
                f"{source}: unknown key 'framework' in [plan]; it is a table by itself, [framework]"
            )
        found["plan"] = {
            key: {MAIN_KEYS[key]: value}
            if MAIN_KEYS.get(key) and not isinstance(value, dict)
            else value
            for key, value in found["plan"].items()
        }
    return found


def set_key(tables: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Set a key of tables; sub-tables are copied on the way, since others may share them.

    Parameters
    ----------
    tables : dict
        Changed in place; what it holds is not.
    path : sequence of str
        Parts of the key, the table first.
    value : object
    """
    *outer, last = path
    for name in outer:
        inner = tables.get(name)
        tables[name] = dict(inner) if isinstance(inner, dict) else {}
        tables = tables[name]
    tables[last] = value


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Values by full key → nested tables.

    Parameters
    ----------
    keys : mapping of str to object

    Returns
    -------
    dict

    Examples
    --------
    >>> nested({"plan.tp": 2, "plan.recompute": "full", "plan.recompute.layers": 4})
    {'plan': {'tp': 2, 'recompute': {'granularity': 'full', 'layers': 4}}}
    """
    tables: dict[str, Any] = {}
    for key in keys:
        *path, last = key_path(key.split("."))
        within = tables
        for name in path:
            within = within.setdefault(name, {})
        within[last] = keys[key]
    return tables


def flattened(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Table, its name → full keys with their values, as `nested` takes them.

    Parameters
    ----------
    table : mapping
        Sub-tables of ``[plan]`` are flattened, too; those of others are values.
    path : str
        Its name, put in front of each key.

    Yields
    ------
    key : str
    value : object
    """
    for key, value in table.items():
        if path == "plan" and key in MAIN_KEYS and isinstance(value, dict):
            yield from flattened(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value
