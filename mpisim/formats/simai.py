"""SimAI and ASTRA-sim 1.0 text workloads: one line a layer, as SimAI's workload generator writes.

The first line names a parallelism policy and the job's sizes, the second counts the layers, and
each layer has twelve fields: name, dependency (not used), and time, communication and bytes of the
forward pass, of the input gradient and of the weight gradient, then the delay behind each
communication. Times are ns. Sizes are those of the whole buffer. What the fields mean is fixed by
``astra-sim/workload/Workload.cc`` (aliyun/SimAI, astra-sim/astra-sim 1.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..program import Operation
from ..traces.raw import open_text
from .rank_limit import MOST_RANKS

__all__ = ["POLICIES", "Communication", "Layer", "Part", "SimaiWorkload", "read_simai"]

POLICIES = (
    "DATA",
    "MODEL",
    "HYBRID_TRANSFORMER",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "DISTRIBUTED_INFERENCE",
    "MICRO",
)
_OPERATIONS = {
    "NONE": Operation.NONE,
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
}
_GROUPS = ("", "EP", "DP_EP")
_TYPES = {
    name + (f"_{group}" if group else ""): (operation, group)
    for name, operation in _OPERATIONS.items()
    for group in (_GROUPS if name != "NONE" else ("",))
}
_SIZES = {
    "model_parallel_NPU_group": "tensor",
    "ep": "expert",
    "pp": "pipeline",
    "vpp": "chunks",
    "ga": "micro_batches",
    "all_gpus": "n_ranks",
    "pp_comm": "pipeline_bytes",
    "DLRM_LAST_BOTTOM_LAYER": "last_bottom",
}
_LISTS = {"checkpoints": "checkpoints", "checkpoint_initiates": "recomputes"}
_MOST_NS = 10**15
_MOST_BYTES = 2**53


class Communication(NamedTuple):
    """A communication of a layer; `group` is ``""`` where the policy says which group it is."""

    operation: Operation
    group: str
    bytes: int


class Part(NamedTuple):
    """One pass through a layer: compute time in ps, and the communication behind it."""

    duration: int
    communication: Communication


@frozen
class Layer:
    """One line of the file.

    Attributes
    ----------
    name : str
    forward, input_gradient, weight_gradient : Part
    update : int
        Delay behind each of its communications, in ps.
    policy : str
        The layer's own, in a HYBRID_CUSTOMIZED workload; else empty.
    """

    name: str
    forward: Part
    input_gradient: Part
    weight_gradient: Part
    update: int
    policy: str = ""


@frozen
class SimaiWorkload:
    """A workload file.

    Attributes
    ----------
    path : Path
    policy : str
        One of `POLICIES`.
    layers : tuple of Layer
    tensor, expert, pipeline, chunks, micro_batches : int
        Sizes of the job; `chunks` is the number of model chunks a pipeline stage holds.
    n_ranks : int
        0 where the file does not say.
    pipeline_bytes : int
        What a stage sends to the next, for each chunk and micro-batch.
    checkpoints, recomputes : frozenset of int
        Layers whose input is kept; layers before whose backward pass the forward pass is computed
        again, from the last checkpoint on.
    last_bottom : int
        The last layer of DLRM's bottom network; -1 where the file does not say.
    """

    path: Path
    policy: str
    layers: tuple[Layer, ...]
    tensor: int = 0
    expert: int = 1
    pipeline: int = 1
    chunks: int = 1
    micro_batches: int = 1
    n_ranks: int = 0
    pipeline_bytes: int = 0
    checkpoints: frozenset[int] = frozenset()
    recomputes: frozenset[int] = frozenset()
    last_bottom: int = -1


def read_simai(path: Path | str) -> SimaiWorkload:
    """Read a workload file (``.txt``, plain or gzip).

    Raises
    ------
    InputError
        If it cannot be read or understood; the message names the line.
    """
    path = Path(path)
    try:
        text = open_text(path).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path}: no SimAI workload: not a text file") from None
    lines = list(_numbered(text))
    if len(lines) < 2:
        raise InputError(f"{path}: truncated: a SimAI workload has a header and a count of layers")
    policy, sizes, lists = _header(path, lines[0][1])
    (number, fields), rows = lines[1], lines[2:]
    count = _whole(path, number, "the number of layers", fields[0], 1, 10**7)
    if len(rows) != count:
        raise InputError(f"{path}: line {number} says {count} layers, but {len(rows)} lines follow")
    for name, layers in lists.items():
        if any(layer >= count for layer in layers):
            raise InputError(
                f"{path}: line 1: {name} names layer {max(layers)}; there are {count} layers"
            )
    return SimaiWorkload(
        path,
        policy,
        tuple(_layer(path, number, fields, policy) for number, fields in rows),
        **sizes,  # type: ignore[arg-type]
        **lists,  # type: ignore[arg-type]
    )


def _numbered(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not blank, with their numbers, split."""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if fields:
            yield number, fields


def _header(path: Path, tokens: list[str]) -> tuple[str, dict[str, int], dict[str, frozenset[int]]]:
    """Return policy, sizes and lists of layers from the first line."""
    policy, rest = tokens[0], tokens[1:]
    if policy not in POLICIES:
        raise InputError(
            f"{path}: line 1: unknown parallelism policy {policy!r}{nearest(policy, POLICIES)}; "
            f"allowed: {', '.join(POLICIES)}"
        )
    sizes: dict[str, int] = {}
    lists: dict[str, frozenset[int]] = {}
    at = 0

    def take(what: str, least: int = 0) -> int:
        nonlocal at
        if at >= len(rest):
            raise InputError(f"{path}: line 1: {what!r} has no value")
        at += 1
        text = rest[at - 1]
        if what == "pp_comm":  # with sequence parallelism the generator divides: 8388608.0
            return _whole(path, 1, what, text.removesuffix(".0"), least, _MOST_BYTES)
        return _whole(path, 1, what, text, least, MOST_RANKS)

    while at < len(rest):
        key = rest[at].removesuffix(":")
        at += 1
        if key in _SIZES:
            # Zero is what files have for "none" where a size makes no sense for their policy.
            sizes[_SIZES[key]] = take(key)
        elif key in _LISTS:
            lists[_LISTS[key]] = frozenset(take(key) for _ in range(take(key)))
        else:
            known = [*_SIZES, *_LISTS]
            raise InputError(
                f"{path}: line 1: unknown key {key!r}{nearest(key, known)}; "
                f"allowed: {', '.join(known)}"
            )
    for name in ("expert", "pipeline", "chunks", "micro_batches"):
        if name in sizes:
            sizes[name] = max(1, sizes[name])
    return policy, sizes, lists


def _layer(path: Path, number: int, fields: list[str], policy: str) -> Layer:
    expected = 13 if policy == "HYBRID_CUSTOMIZED" else 12
    if len(fields) != expected:
        raise InputError(
            f"{path}: line {number}: {len(fields)} fields; a layer of a {policy} workload has "
            f"{expected}"
        )
    _whole(path, number, "the dependency", fields[1], -1, 2**31)
    own = fields[12] if expected == 13 else ""
    if own and (own not in POLICIES or own == "HYBRID_CUSTOMIZED"):
        raise InputError(
            f"{path}: line {number}: unknown parallelism policy {own!r}{nearest(own, POLICIES)}"
        )
    forward, inputs, weights = (
        _part(path, number, what, fields[at : at + 3])
        for what, at in (("forward", 2), ("input gradient", 5), ("weight gradient", 8))
    )
    update = _whole(path, number, "the update time", fields[11], 0, _MOST_NS) * 1000
    return Layer(fields[0], forward, inputs, weights, update, own)


def _part(path: Path, number: int, what: str, fields: list[str]) -> Part:
    time, kind, size = fields
    if kind not in _TYPES:
        raise InputError(
            f"{path}: line {number}: {what}: unknown communication {kind!r}"
            f"{nearest(kind, _TYPES)}; allowed: {', '.join(_TYPES)}"
        )
    operation, group = _TYPES[kind]
    return Part(
        _whole(path, number, f"{what}: the time in ns", time, 0, _MOST_NS) * 1000,
        Communication(
            operation, group, _whole(path, number, f"{what}: the size", size, 0, _MOST_BYTES)
        ),
    )


def _whole(path: Path, number: int, what: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InputError(
            f"{path}: line {number}: {what} is {text!r}; it must be a whole number from {least} "
            f"to {most}"
        )
    return value
