"""``mpisim comm``: what one communication takes, in the form of nccl-tests."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .comm_arguments import (
    add_place_options,
    gpus_of_a_node,
    members_of,
    operation_of,
    settings_of,
    sizes_of,
)
from .comm_table import TYPES, Line, better_object, note, notes, table
from .output import add_file_options, check_files, check_outputs
from .speeds import add_speed_options, given_speeds, with_speed_options

if TYPE_CHECKING:
    from ..experiment import NetworkChoice
    from ..program import Operation
    from ..topo import Cluster
    from ..topo.nccl_network import NcclNetwork

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim comm all_reduce --cluster dgx-h100 --size 8M:8G       8 MiB, 16 MiB, ... on 8 GPUs
  mpisim comm all_gather --cluster dgx-h100 --size 1G --nodes 64
  mpisim comm all_reduce --cluster dgx-h100 --size 1K:1G:4 --nodes 4 --set NCCL_ALGO=ring
  mpisim comm all_to_all --cluster dgx-h100 --size 64M --nodes 8 --gpus-per-node 1
  mpisim comm all_reduce --cluster mine.toml --size 1M:1G --calibration mine.cal.toml
  mpisim comm all_reduce --cluster p5 --size 1M:1G --nodes 2 --model alpha-beta
  mpisim comm all_reduce --cluster dgx-h100 --size 1G --nodes 4 --nic-bandwidth "800 Gb/s"
  mpisim comm all_gather --cluster dgx-h100 --size 1G --nodes 2 --why
  mpisim comm send_recv --cluster dgx-h100 --size 1M --nodes 2 --ranks 1,8 --flows
  mpisim comm send_recv --cluster p5 --size 1G --nodes 2 --ranks 0,9 --set 'links.*.latency=2 x'
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim comm``."""
    parser = subparsers.add_parser(
        "comm",
        help="print how long one communication takes, as nccl-tests does",
        description="Print how long a communication takes with the network to itself, and what "
        "NCCL chooses for it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("operation", metavar="OPERATION", help="all_reduce, all_gather, ...")
    add_place_options(parser)
    parser.add_argument(
        "--size",
        metavar="SIZES",
        required=True,
        help="bytes (K, M, G count in 1,024): one size, or first:last, doubling, or "
        "first:last:factor",
    )
    parser.add_argument(
        "--type",
        choices=tuple(TYPES),
        default="float",
        help="of the elements, for the column of counts (default: float)",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a variable of NCCL, or a change of links as for mpisim topo show; may be repeated",
    )
    parser.add_argument(
        "--model",
        choices=("nccl", "alpha-beta"),
        default="nccl",
        help="NCCL's own choices, or latency and bandwidth (default: nccl)",
    )
    add_speed_options(parser)
    parser.add_argument(
        "--calibration", metavar="FILE", help="of mpisim calibrate collectives (default: packaged)"
    )
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="the GPUs of the group, in its order, such as 0-7,64-71 (default: the first of each "
        "node)",
    )
    parser.add_argument(
        "--why",
        action="store_true",
        help="say for each size what its time is made of, which link or part limits it, and what "
        "no algorithm can beat",
    )
    parser.add_argument(
        "--flows",
        action="store_true",
        help="print the flows that one size consists of, in place of times: sender, receiver, "
        "bytes and links by step and channel; --json has them, too",
    )
    parser.add_argument("--csv", metavar="FILE", help="also write the flows as a table")
    add_file_options(parser, monitor=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a table of sizes and times of one collective, as nccl-tests does."""
    check_outputs(args)
    check_files(args)
    from ..experiment import NetworkChoice
    from ..topo import find_cluster
    from ..topo.network import bus_factor
    from .other_files import expected

    operation = operation_of(args.operation)
    sizes = sizes_of(args.size)
    _check_flows(args, sizes)
    if args.model != "nccl" and given_speeds(args):
        raise UsageError("speeds of links are for --model nccl; [alpha_beta] has its own")
    with expected([args.cluster], ("cluster",)):
        cluster = with_speed_options(find_cluster(args.cluster), args)
    per_node = gpus_of_a_node(args, cluster)
    members = members_of(args, cluster.gpus_per_node, per_node)
    ranks = len(members)
    network = None
    if args.model == "nccl":
        variables, changes = settings_of(args.settings)
        given = NetworkChoice(nccl=variables, changes=changes, calibration=args.calibration)
        network, price = _nccl(cluster, operation, args.nodes, members, given)
    else:
        price = _alpha_beta(cluster, operation, args.nodes, per_node, args)
    if args.flows:
        assert network is not None  # checked
        _flows(args, network, operation, sizes[0], members)
        return 0
    lines = [price(size) for size in sizes]
    factor = bus_factor(operation, ranks)
    if args.json is not None:
        _write_json(args, sizes, lines, factor, ranks)
    where = f"{args.nodes} × {per_node} GPUs of {cluster.title}"
    if args.ranks is not None:
        used = len({member // cluster.gpus_per_node for member in members})
        where = f"{ranks} GPUs on {used} node{'s' if used > 1 else ''} of {cluster.title}"
    library = _library(network)
    why: list[str] = []
    if args.why:
        if network is None:
            raise UsageError("--why explains --model nccl; [alpha_beta] has two numbers")
        why = [line for size in sizes for line in _why(network, operation, size, members)]
    print(
        "\n".join(
            [
                f"{operation.name.lower()} on {where}",
                "",
                *table(sizes, lines, factor, args.type),
                "",
                note(library),
                *notes(sizes, lines, library),
                *why,
            ]
        )
    )
    return 0


def _write_json(
    args: argparse.Namespace, sizes: list[int], lines: list[Line], factor: float, ranks: int
) -> None:
    """Write the table: a row for each size."""
    from ..base.files import write_json

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
            "limit": line.limit,
            "better": better_object(line),
        }
        for size, line in zip(sizes, lines)
    ]
    head = {"operation": args.operation, "cluster": args.cluster, "model": args.model}
    head |= given_speeds(args)
    write_json(
        args.json,
        head | {"nodes": args.nodes, "gpus": ranks, "rows": rows},
        overwrite=args.overwrite,
    )


def _why(
    network: NcclNetwork, operation: Operation, size: int, members: list[int]
) -> Iterator[str]:
    """Yield the price of a size in parts, and what else was possible."""
    from ..topo.explain import explain
    from ..topo.nccl.bottleneck import PROTOCOL

    found = explain(network, operation, size, members)
    us, choice = 1e6, found.choice
    yield ""
    yield f"{size} B take {found.seconds * us:.2f} us, limited by: {found.limit or 'nothing'}"
    way = f" {found.route_latency * us:+.2f} us along the route" if found.route_latency else ""
    how = f" {choice.protocol}, {choice.channels} channels" if choice.channels else ""
    yield (
        f"  {choice.algorithm}{how}: latency "
        f"{found.latency * us:.2f} us{way}, then {found.link_rate / 1e9:.2f} GB/s"
    )
    if found.link_rate < found.nccl_rate and network.nccl is not None:
        rate = f"{found.nccl_rate / 1e9:.2f} GB/s"
        yield f"  where no link limited it {_library(network)} would reach {rate}"
    if found.limit == PROTOCOL:
        yield "  protocol: so many channels of this protocol move no more; faster links do not help"
    if found.cut is not None:
        side = len(found.cut.side)
        yield (
            f"  no algorithm takes less than {found.cut.seconds * us:.2f} us: "
            f"{found.cut.bytes:.4g} B must leave {side} GPU{'s' if side > 1 else ''}, "
            f"over {found.cut.capacity / 1e9:.4g} GB/s"
        )
    for other, seconds in found.others:
        how = f" {other.protocol}" if other.protocol else ""
        yield f"  {other.algorithm}{how} would take {seconds * us:.2f} us"


def _check_flows(args: argparse.Namespace, sizes: list[int]) -> None:
    if not args.flows:
        if args.csv is not None:
            raise UsageError(f"--csv {args.csv}: it is for the flows of --flows")
        return
    if len(sizes) > 1:
        raise UsageError(f"--flows lists one size; --size {args.size} names {len(sizes)}")
    if args.model != "nccl":
        raise UsageError("--flows lists those of --model nccl; [alpha_beta] knows of none")
    if args.why:
        raise UsageError("--flows prints no times that --why could explain; give one of them")


def _flows(
    args: argparse.Namespace,
    network: NcclNetwork,
    operation: Operation,
    size: int,
    members: list[int],
) -> None:
    """Print and write the flows of one size."""
    from ..topo.flows import flow_list
    from .comm_flows import flow_lines, flow_object, write_flows

    found = flow_list(network, operation, size, members)
    if args.csv is not None:
        write_flows(args.csv, found, overwrite=args.overwrite)
    if args.json is not None:
        from ..base.files import write_json

        head = {"operation": args.operation, "cluster": args.cluster, "bytes": size}
        head |= given_speeds(args)
        head |= {"nodes": args.nodes, "gpus": len(members)}
        write_json(args.json, head | flow_object(found), overwrite=args.overwrite)
    print(f"{operation.name.lower()} of {size} B among {len(members)} GPUs: ", end="")
    print("\n".join(flow_lines(found)))


def _library(network: NcclNetwork | None) -> str:
    """Return the name of the library whose choices a network has; AMD's GPUs have RCCL."""
    nccl = None if network is None else network.nccl
    return "RCCL" if nccl is not None and nccl.system.rccl else "NCCL"


def _nccl(
    cluster: Cluster, operation: Operation, nodes: int, ranks: list[int], given: NetworkChoice
) -> tuple[NcclNetwork, Callable[[int], Line]]:
    """Return the network, and what prices a size on it."""
    from ..base.quantity import PICOSECONDS
    from ..prediction.network import network_of
    from ..topo.nccl_network import NcclNetwork

    network = network_of(cluster, nodes, given)
    assert isinstance(network, NcclNetwork)  # of this model
    group = network.placement(ranks, operation)

    def price(size: int) -> Line:
        (choice, took), *_ = network.choices(operation, size, group)
        better = network.better(operation, size, group)
        shares = network.shares(operation, size, group)
        return Line(
            took.duration / PICOSECONDS,
            math.hypot(*(share * network.numbers[key].error for key, share in shares.items())),
            choice.algorithm,
            choice.protocol or "-",
            choice.channels,
            network.limit_of(operation, size, group),
            None if better is None else (better[0], better[1].duration / PICOSECONDS),
        )

    return network, price


def _alpha_beta(
    cluster: Cluster, operation: Operation, nodes: int, per_node: int, args: argparse.Namespace
) -> Callable[[int], Line]:
    from ..base.quantity import PICOSECONDS

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
