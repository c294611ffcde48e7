"""``mpisim packets``: flows as packets, with queues, congestion control, PFC or losses, paths."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, UsageError
from .comm_arguments import (
    add_place_options,
    gpus_of_a_node,
    members_of,
    operation_of,
    settings_of,
    size_of,
)
from .output import add_json_option, add_overwrite_option, check_files, check_outputs
from .speeds import add_speed_options, given_speeds, with_speed_options

if TYPE_CHECKING:
    from ..experiment import NetworkChoice
    from ..program import Operation
    from ..topo import Cluster
    from ..topo.packets import PacketFlow, PacketRun, PacketSettings
    from ..topo.topology import Topology

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim packets all_to_all --cluster mine.toml --nodes 8 --size 16M
  mpisim packets all_to_all --cluster mine.toml --nodes 8 --size 16M --draws 8
  mpisim packets all_to_all --cluster mine.toml --nodes 8 --size 16M --spines 16 --routing spray
  mpisim packets all_to_all --cluster h100-roce --nodes 64 --gpus-per-node 1 --size 16M --spines 32
  mpisim packets all_reduce --cluster dgx-h100 --nodes 4 --size 64M --congestion none
  mpisim packets all_reduce --cluster dgx-h100 --nodes 4 --size 64M --parameters simai
  mpisim packets incast.csv --cluster h100-roce --nodes 8 --set kmin=100000 --set mtu=9000
  mpisim packets incast.csv --cluster h100-roce --nodes 8 --no-pfc -o incast.h5
  mpisim packets incast.csv --cluster h100-roce --nodes 8 --recovery go-back-n --set buffer=2MB
  mpisim packets all_to_all --cluster mine.toml --nodes 8 --size 16M --congestion hpcc
"""

MAX_DRAWS = 1000


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim packets``."""
    parser = subparsers.add_parser(
        "packets",
        help="simulate a communication packet by packet: queues, ECN, PFC, losses, ECMP",
        description="Simulate the flows of a communication, or those of a table, packet by packet: "
        "with queues at switches, senders that slow down (DCQCN, DCTCP, HPCC, TIMELY), pauses "
        "(PFC) or losses, and ECMP, spraying or adaptive routing. Print how long that takes beside "
        "what links alone take, and the flow model.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="an operation (all_to_all, all_reduce, ...), or a table of flows (.csv) with the "
        "columns sender, receiver (GPUs), bytes, and where wanted start (in seconds), channel, "
        "step, repeats, links, as mpisim comm --flows --csv writes",
    )
    add_place_options(parser)
    parser.add_argument("--size", metavar="SIZE", help="bytes of an operation, as for mpisim comm")
    parser.add_argument(
        "--ranks", metavar="LIST", help="the GPUs of an operation's group, such as 0-7,64-71"
    )
    parser.add_argument(
        "--spines",
        type=int,
        metavar="N",
        help="spines above each leaf, over which flows are hashed (default: the cluster's; where "
        "it does not say, its spines are one, and nothing collides)",
    )
    _add_switch_options(parser)
    add_speed_options(parser)
    parser.add_argument(
        "--max-hops",
        type=int,
        metavar="N",
        help="packets times links at most (default: 500,000,000, some minutes)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write flows and links (HDF5)")
    parser.add_argument("--csv", metavar="FILE", help="also write when each flow ends, as a table")
    add_json_option(parser)
    add_overwrite_option(parser)
    parser.set_defaults(run=run)


def _add_switch_options(parser: argparse.ArgumentParser) -> None:
    """Add what switches and NICs do with packets."""
    parser.add_argument(
        "--routing",
        choices=("ecmp", "spray", "adaptive"),
        default="ecmp",
        help="ecmp: a hash gives each queue pair one path; spray: every packet takes any; "
        "adaptive: every switch sends a packet to the link that has the least to send "
        "(default: ecmp)",
    )
    parser.add_argument(
        "--congestion",
        choices=("dcqcn", "dctcp", "hpcc", "hpcc-pint", "timely", "none"),
        default="dcqcn",
        help="what senders slow down for. dcqcn: marked packets; dctcp: the share of them in a "
        "window, as TCP; hpcc: loads that switches report; hpcc-pint: the "
        "same in a few bits; timely: long round trips (default: dcqcn)",
    )
    parser.add_argument(
        "--parameters",
        choices=("sigcomm2015", "simai"),
        default="sigcomm2015",
        help="of ECN, DCQCN and HPCC: of the papers, or of SimAI's configuration (default: "
        "sigcomm2015)",
    )
    parser.add_argument(
        "--no-pfc", action="store_true", help="no pauses: buffers of switches have no end"
    )
    parser.add_argument(
        "--recovery",
        choices=("none", "go-back-n", "selective-repeat"),
        default="none",
        help="no pauses: switches drop what finds no room, and queue pairs send again all from a "
        "gap on, or what is missing (default: none, as nothing is lost)",
    )
    parser.add_argument(
        "--store-and-forward",
        action="store_true",
        help="switches take a packet whole before they send it on (default: cut-through)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="of hashes and of marks (default: 0)"
    )
    parser.add_argument(
        "--draws",
        type=int,
        metavar="N",
        default=1,
        help="run so many seeds, from --seed on, and print a line for each (default: 1)",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter of data/packets.toml (mtu, buffer, kmin, ...), with a unit or in the "
        "file's; kmin, kmax and rates are those of a link of reference_rate, in proportion on "
        "others; or a variable of NCCL, or a change of links as for mpisim topo show; may be "
        "repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate packets, print what happened, and write what was asked for."""
    check_outputs(args)
    check_files(args)
    from ..base.text import counted
    from ..experiment import NetworkChoice
    from ..mpi.parallel import progress
    from ..topo import find_cluster
    from ..topo.packets import simulate_packets
    from ..topo.packets.run import MAX_HOPS
    from .other_files import expected
    from .packets_text import as_json, draw_lines, report_lines, settings_line

    if not 1 <= args.draws <= MAX_DRAWS:
        raise UsageError(f"--draws is {args.draws}; it must be 1 to {MAX_DRAWS}")
    if args.draws > 1 and (args.output or args.csv):
        raise UsageError("-o and --csv keep one run; give them without --draws")
    if args.seed < 0:
        raise UsageError(f"--seed is {args.seed}; it must be 0 or more")
    limit = MAX_HOPS if args.max_hops is None else args.max_hops
    if limit < 1:
        raise UsageError(f"--max-hops is {limit}; it must be 1 or more")
    names, changes = settings_of(args.settings)
    variables = {name: value for name, value in names.items() if name.startswith("NCCL_")}
    settings = _settings(args, {name: names[name] for name in names if name not in variables})
    with expected([args.cluster], ("cluster",)):
        cluster = with_speed_options(find_cluster(args.cluster), args)
    cluster = _with_spines(cluster, args.spines)
    given = NetworkChoice(nccl=variables, changes=changes)
    what, topology, flows, price = _flows(args, cluster, given)
    runs: list[PacketRun] = []
    for seed in range(args.seed, args.seed + args.draws):
        label = f"seed {seed}" if args.draws > 1 else "packets"
        with progress(None, label, 1) as update:
            each = replace(settings, seed=seed)
            runs.append(simulate_packets(topology, flows, each, max_hops=limit, progress=update))
    found = runs[0]
    _note_without_effect(args, found)
    title = f"{what} on {counted(args.nodes, 'node')} of {cluster.title}"
    if args.json is not None:
        from ..base.files import write_json

        head = {"what": args.what, "cluster": args.cluster, "nodes": args.nodes}
        head |= given_speeds(args)
        write_json(
            args.json,
            head | {"runs": [as_json(each, price) for each in runs]},
            overwrite=args.overwrite,
        )
    if args.output is not None:
        from ..topo.packets.store import write_packets

        write_packets(args.output, title, found, overwrite=args.overwrite)
    if args.csv is not None:
        from ..topo.packets.store import write_flow_table

        write_flow_table(args.csv, found, overwrite=args.overwrite)
    several = [settings_line(found), "", *draw_lines(runs)]
    print("\n".join([title, *(several if args.draws > 1 else report_lines(found, price))]))
    return 0


def _note_without_effect(args: argparse.Namespace, found: PacketRun) -> None:
    """Say which options about paths changed nothing, on standard error."""
    given = [] if args.spines is None else [f"--spines {args.spines}"]
    given += [f"--routing {args.routing}"] if args.routing != "ecmp" else []
    if given and found.plan.most_paths == 1:
        print(
            f"mpisim: note: {' and '.join(given)} changed nothing: every flow has one path "
            "(all stay below a leaf, or there is one spine)",
            file=sys.stderr,
        )


def _settings(args: argparse.Namespace, changes: dict[str, str]) -> PacketSettings:
    from ..topo.packets import packet_settings

    settings = partial(
        packet_settings,
        args.parameters,
        routing=args.routing,
        congestion=args.congestion,
        pfc=not args.no_pfc and args.recovery == "none",
        recovery=args.recovery,
        switching="store-and-forward" if args.store_and_forward else "cut-through",
    )
    try:
        settings()
    except InputError as error:  # methods that do not go together, whatever their parameters
        raise UsageError(f"--congestion {args.congestion}: {error}") from error
    try:
        return settings(changes)
    except InputError as error:
        raise UsageError(f"--set: {error}") from error


def _with_spines(cluster: Cluster, spines: int | None) -> Cluster:
    """Return a cluster whose routes have the links of all paths that its fabric could take."""
    from ..topo.fabrics import MAX_SPINES

    fabric = cluster.fabric
    if spines is not None:
        if fabric is None or fabric.leaf is None:
            raise UsageError(f"--spines is {spines}; {cluster.title} has no leaves and spines")
        if not 1 <= spines <= MAX_SPINES:
            raise UsageError(f"--spines is {spines}; it must be from 1 to {MAX_SPINES}")
        return replace(cluster, fabric=replace(fabric, spines=spines, ecmp="adaptive"))
    if fabric is None or fabric.ecmp != "ecmp":
        return cluster
    return replace(cluster, fabric=replace(fabric, ecmp="adaptive"))


def _operation(what: str) -> Operation:
    """Name → operation; of a file that is no .csv say what it must be."""
    if Path(what).is_file():
        raise UsageError(f"{what}: a table of flows must be a CSV file whose name ends in .csv")
    return operation_of(what)


def _flows(
    args: argparse.Namespace, cluster: Cluster, given: NetworkChoice
) -> tuple[str, Topology, list[PacketFlow], int | None]:
    """Return what is sent in words, the topology, the flows, and what the flow model takes (ps)."""
    from ..base.text import counted
    from ..prediction.network import network_of
    from ..topo.flows import flow_list
    from ..topo.nccl_network import NcclNetwork
    from ..topo.packets import flows_of_list, read_flows

    per_node = gpus_of_a_node(args, cluster)
    table = args.what.lower().endswith(".csv")
    if table:
        for option in ("size", "ranks", "gpus_per_node"):
            if getattr(args, option) is not None:
                name = option.replace("_", "-")
                raise UsageError(f"--{name} is for an operation; {args.what} says who sends what")
    operation = None if table else _operation(args.what)
    if not table and args.size is None:
        raise UsageError(f"--size is missing: the bytes of {args.what}")
    network = network_of(cluster, args.nodes, given)
    assert isinstance(network, NcclNetwork)  # of this model
    if operation is None:
        flows = read_flows(args.what, network.topology)
        return f"{args.what}: {counted(len(flows), 'flow')}", network.topology, flows, None
    members = members_of(args, cluster.gpus_per_node, per_node)
    size = size_of(args.size)
    found = flow_list(network, operation, size, members)
    price = network.price(operation, size, network.placement(members, operation)).duration
    how = f"{found.choice.algorithm} {found.choice.protocol or ''}".strip()
    what = f"{operation.name.lower()} of {size:,} B among {len(members)} GPUs ({how})"
    return what, found.topology, flows_of_list(found), price
