"""``mpisim comm``: what one communication takes, in the form of nccl-tests."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError, UsageError, nearest
from .output import check_json

if TYPE_CHECKING:
    from ..experiment import NetworkChoice
    from ..program import Operation
    from ..topo import Cluster
    from ..topo.collectives.calibration import Regime

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim comm all_reduce --cluster dgx-h100 --size 8M:8G       8 MiB, 16 MiB, ... on 8 GPUs
  mpisim comm all_gather --cluster dgx-h100 --size 1G --nodes 64
  mpisim comm all_reduce --cluster dgx-h100 --size 1K:1G:4 --nodes 4 --set NCCL_ALGO=ring
  mpisim comm all_to_all --cluster dgx-h100 --size 64M --nodes 8 --gpus-per-node 1
  mpisim comm all_reduce --cluster mine.toml --size 1M:1G --calibration mine.cal.toml
  mpisim comm all_reduce --cluster p5 --size 1M:1G --nodes 2 --model alpha-beta
"""

NOTE = """\
Size: the full buffer, as nccl-tests counts it. algbw: size over time; busbw: algbw times what each
GPU sends over its link in a ring per byte. ±: one standard deviation of the time."""

TYPES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "bfloat16": 2, "float": 4, "double": 8,
}  # fmt: skip
"""Bytes of an element, by nccl-tests' names."""

ALIASES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_MOST = 1000
"""Lines of a table; more are a mistake in the factor."""


class Line(NamedTuple):
    """One size: seconds, relative error, algorithm, protocol, channels."""

    seconds: float
    error: float
    algorithm: str
    protocol: str
    channels: int


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim comm``."""
    parser = subparsers.add_parser(
        "comm",
        help="how long one communication takes, as nccl-tests prints it",
        description="Print how long a communication takes with the network to itself, and what "
        "NCCL chooses for it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("operation", metavar="OPERATION", help="all_reduce, all_gather, ...")
    parser.add_argument(
        "--cluster", metavar="CLUSTER", required=True,
        help="a name from mpisim list clusters, or a file (.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--size", metavar="SIZES", required=True,
        help="bytes (K, M, G count in 1,024): one size, or first:last, doubling, or "
        "first:last:factor",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, metavar="N", default=1, help="default: 1")
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="of each node (default: all it has)"
    )
    parser.add_argument(
        "--type", choices=tuple(TYPES), default="float",
        help="of the elements, for the column of counts (default: float)",
    )  # fmt: skip
    parser.add_argument(
        "--set", dest="settings", metavar="NCCL_NAME=VALUE", action="append", default=[],
        help="a variable of NCCL; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--model", choices=("nccl", "alpha-beta"), default="nccl",
        help="NCCL's own choices, or latency and bandwidth (default: nccl)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", metavar="FILE", help="of mpisim calibrate collectives (default: ours)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file (JSON)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; under a launcher only the first process does."""
    check_json(args)
    from ..experiment import NetworkChoice
    from ..topo import find_cluster
    from ..topo.bus import bus_factor
    from .launch import launched_rank

    operation = _operation(args.operation)
    sizes = _sizes(args.size)
    cluster = find_cluster(args.cluster)
    per_node = cluster.gpus_per_node if args.gpus_per_node is None else args.gpus_per_node
    if args.nodes < 1 or not 1 <= per_node <= cluster.gpus_per_node:
        raise UsageError(
            f"{args.nodes} nodes of {per_node} GPUs: there must be at least 1 node, of 1 to "
            f"{cluster.gpus_per_node} GPUs"
        )
    ranks = args.nodes * per_node
    if ranks < 2:
        raise UsageError("one GPU alone has nobody to communicate with")
    if args.model == "nccl":
        choice = NetworkChoice(nccl=_variables(args.settings), calibration=args.calibration)
        price = _nccl(cluster, operation, args.nodes, per_node, choice)
    else:
        price = _alpha_beta(cluster, operation, args.nodes, per_node, args)
    lines = [price(size) for size in sizes]
    if launched_rank() != 0:
        return 0
    factor = bus_factor(operation, ranks)
    if args.json is not None:
        from ..files import write_json

        rows = [
            {
                "bytes": size,
                "seconds": line.seconds,
                "relative_error": line.error,
                "algbw": size / line.seconds,
                "busbw": size / line.seconds * factor,
                "algorithm": line.algorithm,
                "protocol": line.protocol,
                "channels": line.channels,
            }
            for size, line in zip(sizes, lines)
        ]
        head = {"operation": args.operation, "cluster": args.cluster, "model": args.model}
        write_json(args.json, head | {"nodes": args.nodes, "gpus": ranks, "rows": rows})
    where = f"{args.nodes} × {per_node} GPUs of {cluster.title}"
    print("\n".join([f"{operation.name.lower()} on {where}", "", *_table(
        sizes, lines, factor, args.type
    ), "", NOTE]))  # fmt: skip
    return 0


def _operation(name: str) -> Operation:
    from ..topo.nccl.model import COLLECTIVES
    from ..topo.nccl.point_to_point import OPERATIONS

    known = {each.name.lower(): each for each in sorted(COLLECTIVES | OPERATIONS)}
    key = name.casefold().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in known:
        raise InputError(
            f"unknown operation {name!r}{nearest(key, known)}; there are {', '.join(known)}"
        )
    return known[key]


def _sizes(text: str) -> list[int]:
    """Read ``8M``, ``8M:8G`` or ``8M:8G:4``."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(f"--size is {text!r}; it must be SIZE, FIRST:LAST or FIRST:LAST:FACTOR")
    first, last = _size(parts[0]), _size(parts[min(1, len(parts) - 1)])
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
    if math.log(last / first) / math.log(factor) >= _MOST:
        raise UsageError(f"--size is {text!r}; that is more than {_MOST} sizes")
    sizes = [first]
    while (following := max(round(sizes[-1] * factor), sizes[-1] + 1)) <= last:
        sizes.append(following)
    return sizes


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 1 <= size < 1 << 50:
        raise UsageError(f"size {text!r} is no size above 0, such as 4096, 64K or 8M")
    return size


def _variables(settings: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE``."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r}: it must be NAME=VALUE, such as NCCL_ALGO=ring")
        found[name.strip()] = value
    return found


def _nccl(
    cluster: Cluster, operation: Operation, nodes: int, per_node: int, given: NetworkChoice
) -> Callable[[int], Line]:
    from ..prediction.network import calibrated
    from ..topo.nccl import Shape

    model, factor = calibrated(cluster, given)
    shape = Shape.regular(nodes, per_node, model.system)
    regime: Regime = "inside" if shape.nodes == 1 else "across"

    def price(size: int) -> Line:
        choice = model.choose(operation, size, shape)
        return Line(
            choice.seconds(size), factor(size, regime).error,
            choice.algorithm, choice.protocol, choice.channels,
        )  # fmt: skip

    return price


def _alpha_beta(
    cluster: Cluster, operation: Operation, nodes: int, per_node: int, args: argparse.Namespace
) -> Callable[[int], Line]:
    from ..quantity import PICOSECONDS

    if args.settings:
        raise UsageError(f"--set {args.settings[0]}: only --model nccl has settings")
    if args.calibration is not None:
        raise UsageError(f"--calibration {args.calibration}: only --model nccl has one")
    model = cluster.cost(nodes)
    group = (nodes * per_node, nodes == 1)

    def price(size: int) -> Line:
        shares = model.shares(operation, size, group)
        error = math.hypot(*(share * model.numbers[key].error for key, share in shares.items()))
        seconds = model.price(operation, size, group).duration / PICOSECONDS
        return Line(seconds, error, "-", "-", 0)

    return price


def _table(sizes: list[int], lines: list[Line], factor: float, kind: str) -> list[str]:
    from ..text import aligned

    head = ("size", "count", "type", "time", "±", "algbw", "busbw")
    units = ("(B)", "(elements)", "", "(us)", "(%)", "(GB/s)", "(GB/s)")
    chosen = ("algorithm", "protocol", "channels")
    rows = [
        (
            str(size),
            str(size // TYPES[kind]),
            kind,
            f"{line.seconds * 1e6:.2f}",
            f"{100 * line.error:.0f}",
            f"{size / line.seconds / 1e9:.2f}",
            f"{size / line.seconds / 1e9 * factor:.2f}",
            line.algorithm,
            line.protocol,
            str(line.channels or "-"),
        )
        for size, line in zip(sizes, lines)
    ]
    return aligned([(*head, *chosen), (*units, "", "", ""), *rows], left=())
