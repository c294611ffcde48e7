"""Arguments of commands about one communication: operation, sizes, settings and ranks."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING

from ..base.errors import InputError, UsageError, nearest

if TYPE_CHECKING:
    from ..program import Operation
    from ..topo import Cluster

__all__ = [
    "add_place_options",
    "gpus_of_a_node",
    "members_of",
    "operation_of",
    "settings_of",
    "size_of",
    "sizes_of",
]

ALIASES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_MAX_LINES = 1000
"""Lines of a table; more are a mistake in the factor."""


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Parser → the same with ``--cluster``, ``--nodes`` and ``--gpus-per-node``."""
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        required=True,
        help="a name from mpisim list clusters, or a file (.toml)",
    )
    parser.add_argument("--nodes", type=int, metavar="N", default=1, help="default: 1")
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="of each node (default: all it has)"
    )


def gpus_of_a_node(args: argparse.Namespace, cluster: Cluster) -> int:
    """Options of `add_place_options`, cluster → GPUs that are used of each node.

    Parameters
    ----------
    args : argparse.Namespace
        With ``nodes`` and ``gpus_per_node``, which is None for all that a node has.
    cluster : Cluster

    Returns
    -------
    int

    Raises
    ------
    UsageError
        If there is no node, or a node has not so many GPUs.
    """
    from ..topo.assemble import MAX_GPUS

    per_node = cluster.gpus_per_node if args.gpus_per_node is None else args.gpus_per_node
    if args.nodes < 1 or not 1 <= per_node <= cluster.gpus_per_node:
        raise UsageError(
            f"{args.nodes} nodes of {per_node} GPUs: there must be at least 1 node, of 1 to "
            f"{cluster.gpus_per_node} GPUs"
        )
    if args.nodes * cluster.gpus_per_node > MAX_GPUS:  # before their ranks are listed
        raise UsageError(
            f"--nodes is {args.nodes}: {args.nodes * cluster.gpus_per_node:,} GPUs; a topology has "
            f"{MAX_GPUS:,} at most"
        )
    return per_node


def operation_of(name: str) -> Operation:
    """Name of an operation, in any spelling of it → the operation."""
    from ..topo.nccl.model import COLLECTIVES
    from ..topo.nccl.point_to_point import SEND_OPERATIONS

    known = {each.name.lower(): each for each in sorted(COLLECTIVES | SEND_OPERATIONS)}
    key = name.casefold().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in known:
        raise InputError(
            f"unknown operation {name!r}{nearest(key, known)}; there are {', '.join(known)}"
        )
    return known[key]


def sizes_of(text: str) -> list[int]:
    """``8M``, ``8M:8G`` or ``8M:8G:4`` → bytes of each line."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(f"--size is {text!r}; it must be SIZE, FIRST:LAST or FIRST:LAST:FACTOR")
    first, last = size_of(parts[0]), size_of(parts[min(1, len(parts) - 1)])
    if last < first:
        raise UsageError(f"--size is {text!r}; the last size is below the first")
    factor = 2.0
    if len(parts) == 3:
        try:
            factor = float(parts[2])
        except ValueError:
            factor = 0.0
        if not 1 < factor < math.inf:
            raise UsageError(f"--size is {text!r}; the factor must be a number above 1")
    if math.log(last / first) / math.log(factor) >= _MAX_LINES:
        raise UsageError(f"--size is {text!r}; that is more than {_MAX_LINES} sizes")
    sizes = [first]
    while (following := max(round(sizes[-1] * factor), sizes[-1] + 1)) <= last:
        sizes.append(following)
    return sizes


def size_of(text: str) -> int:
    """``8M`` → bytes; K, M, G count in 1,024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 1 <= size < 1 << 50:
        raise UsageError(f"size {text!r} is no size above 0, such as 4096, 64K or 8M")
    return size


def settings_of(settings: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """``NAME=VALUE`` of ``--set`` → variables of NCCL, and changes of links."""
    variables: dict[str, str] = {}
    changes: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(
                f"--set {setting!r}: it must be NAME=VALUE, such as NCCL_ALGO=ring, or "
                "links.NAME.bandwidth='50 %'"
            )
        (changes if name.startswith("links.") else variables)[name.strip()] = value
    return variables, changes


def members_of(args: argparse.Namespace, whole: int, per_node: int) -> list[int]:
    """Options, GPUs of a node and those of them that are used → the ranks of the group.

    Parameters
    ----------
    args : argparse.Namespace
        With `nodes`, `gpus_per_node` and `ranks`.
    whole, per_node : int
        GPUs of a node, and the first so many that take part where no ranks are named.

    Raises
    ------
    UsageError
        If they cannot be.
    """
    if args.ranks is None:
        found = [node * whole + gpu for node in range(args.nodes) for gpu in range(per_node)]
    else:
        if args.gpus_per_node is not None:
            raise UsageError("--ranks names the GPUs; --gpus-per-node does, too: give one of them")
        found = _ranks(args.ranks, args.nodes * whole)
    if len(found) < 2:
        raise UsageError("one GPU alone has nobody to communicate with")
    return found


def _ranks(text: str, many: int) -> list[int]:
    """Read ``0,8,16`` and ``0-7,64-71``: ranks, in the communicator's order."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise UsageError(f"--ranks: {part!r} is no rank; it must be like 0,8,16 or 0-7,64-71")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= many:
            raise UsageError(
                f"--ranks: {part.strip()!r} is not within 0 to {many - 1}, the GPUs of --nodes"
            )
        found += range(first, last + 1)
    twice = next((rank for rank in found if found.count(rank) > 1), None)
    if twice is not None:
        raise UsageError(f"--ranks: {twice} is there twice")
    return found
