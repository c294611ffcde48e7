"""``mpisim topo``: what connects the GPUs of a cluster, or of a file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .output import add_file_options, check_files, check_outputs, write_figures
from .speeds import add_speed_options, given_speeds, with_speed_options

if TYPE_CHECKING:
    from ..topo import Topology

__all__ = ["add_parser", "show"]

EXAMPLES = """\
examples:
  mpisim topo show dgx-h100                     what stands in a node
  mpisim topo show dgx-h100 --nodes 64 --test   64 nodes, what they can send one another
  mpisim topo show mine.toml --draw mine.svg    a cluster or a topology of your own, as a picture
  mpisim topo show mine.graphml --test          a graph that another program wrote
  mpisim topo show dgx-h100 --nodes 2 --test --set "links.node0.nic3->*.bandwidth=50 %"
                                                the same with a link at half its speed
  mpisim topo show dgx-h100 --nodes 2 --nic-bandwidth "800 Gb/s" --pcie-bandwidth "110 GB/s"
"""


def add_parser(subparsers: Any) -> None:
    """Add the parsers of ``mpisim topo``."""
    parser = subparsers.add_parser(
        "topo",
        help="look at what connects the GPUs of a cluster",
        description="Look at what connects the GPUs of a cluster.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = actions.add_parser(
        "show",
        help="print nodes, switches and links",
        description="Print what stands in a node and between nodes: GPUs, NICs, switches, links "
        "and their bandwidth; on request what they carry, or a picture.",
        epilog=EXAMPLES,
    )
    look.add_argument(
        "file",
        metavar="CLUSTER",
        help="a name from mpisim list clusters, a file with a cluster (.toml), or one with a "
        "topology (.toml, .graphml)",
    )
    look.add_argument("--nodes", type=int, metavar="N", help="how many (default: 1)")
    look.add_argument(
        "--test",
        action="store_true",
        help="also the ways between sample GPUs, the bisection bandwidth, and that of each port",
    )
    look.add_argument(
        "--set",
        dest="changes",
        metavar="LINK=VALUE",
        action="append",
        default=[],
        help="slow or cut links: links.NAME.bandwidth=10GB/s (or 50%%), links.NAME.latency=5us, "
        "links.NAME=cut; * in a name stands for anything; may be repeated",
    )
    add_speed_options(look)
    look.add_argument(
        "--draw", metavar="FILE", help="draw it: .svg, .png or .pdf (needs matplotlib)"
    )
    add_file_options(look, monitor=False)
    look.set_defaults(run=show)


def show(args: argparse.Namespace) -> int:
    """Print nodes, links and paths of a cluster's topology."""
    check_outputs(args)
    check_files(args)
    if args.nodes is not None and args.nodes < 1:
        raise UsageError(f"--nodes is {args.nodes}; it must be 1 or more")
    from ..topo.describe import capacity_figures, render_topology, topology_figures

    if args.draw is not None:
        from ..base.picture import check_picture

        check_picture("--draw", args.draw, overwrite=args.overwrite)
    topology = _topology(args)
    found = topology_figures(topology)
    test = capacity_figures(topology) if args.test else None
    if args.draw is not None:
        from ..topo.draw import draw

        draw(topology, args.draw, overwrite=args.overwrite)
    write_figures(args, found if test is None else found | {"test": test})
    print(render_topology(found, test))
    return 0


def _topology(args: argparse.Namespace) -> Topology:
    from ..topo import find_cluster
    from ..topo.changes import apply_changes
    from ..topo.fabrics.fat_tree import unused_oversubscription
    from ..topo.topology_files import is_topology_file, read_topology
    from .other_files import expected

    changes = {}
    for change in args.changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change!r}: it must be LINK=VALUE, such as links.NAME=cut")
        changes[name.strip()] = value.strip()
    if is_topology_file(args.file):
        if args.nodes is not None:
            raise UsageError(f"--nodes {args.nodes}: {args.file} lists its nodes itself")
        for key in given_speeds(args):
            raise UsageError(f"{key} is given, but {args.file} lists its links itself: use --set")
        topology = read_topology(args.file)
    else:
        with expected([args.file], ("cluster",)):
            cluster = with_speed_options(find_cluster(args.file), args)
        nodes = args.nodes or 1
        topology = cluster.topology(nodes)
        if cluster.fabric is not None and cluster.node is not None and nodes > 1:
            unused = unused_oversubscription(cluster.fabric, cluster.node.nics, nodes)
            if unused is not None:
                print(f"mpisim: note: {unused}", file=sys.stderr)
    return apply_changes(topology, changes) if changes else topology
