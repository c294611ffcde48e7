"""Arguments of commands that read measured collectives → measurements and batches."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from ..base.errors import UsageError

if TYPE_CHECKING:
    from ..topo.collectives.batches import Batch
    from ..topo.collectives.measurement import Measurement

__all__ = ["add_reading", "read_rows", "sorted_rows"]


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the files, and the options that say what outputs of nccl-tests leave out."""
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="+",
        help="outputs of nccl-tests or rccl-tests, printed or of their option -J; tables of "
        "measured collectives (.csv)",
    )
    group = parser.add_argument_group("what outputs of nccl-tests do not say")
    group.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="the machine of all files: a name from mpisim list clusters, or a file (.toml); by "
        "default what the GPU's name tells",
    )
    group.add_argument(
        "--operation", metavar="OPERATION", help="all_reduce, all_gather, alltoall, sendrecv, ..."
    )
    group.add_argument("--gpus", type=int, metavar="N", help="of the group")
    group.add_argument("--nodes", type=int, metavar="N", help="that these stand on")
    group.add_argument(
        "--network", metavar="WORDS", help='between the nodes: "8x400G NDR IB", "RoCE", "EFA"'
    )


def read_rows(args: argparse.Namespace) -> tuple[list[Measurement], Counter[str]]:
    """Return the measurements of the files, and the rows left out by reason."""
    from ..topo import find_cluster
    from ..topo.collectives.read import read
    from ..topo.collectives.runs import RunOverrides

    for name in ("gpus", "nodes"):
        number = getattr(args, name)
        if number is not None and number < 1:
            raise UsageError(f"--{name} is {number}; it must be 1 or more")
    gpu = None if args.cluster is None else find_cluster(args.cluster).gpu
    overrides = RunOverrides(args.operation, args.gpus, args.nodes, gpu, args.network)
    return read(args.paths, overrides)


def sorted_rows(
    rows: list[Measurement], args: argparse.Namespace, platform: str | None = None
) -> tuple[list[Batch], Counter[str]]:
    """Return the batches of measurements, and the rows left out by reason.

    Parameters
    ----------
    rows : list of Measurement
    args : argparse.Namespace
    platform : str, optional
        The user's platform that they are of; by default that of ``--cluster``, or what each says.
    """
    from ..topo import find_cluster
    from ..topo.collectives.batches import batches
    from ..topo.collectives.platforms import platform_name, single_platform

    if args.cluster is None and platform is None:
        return batches(rows)
    cluster = None if args.cluster is None else find_cluster(args.cluster)
    return batches(rows, single_platform(platform or platform_name(args.cluster), cluster))
