"""Options of commands that extrapolate traces of several ranks; imports nothing that is slow."""

from __future__ import annotations

import argparse

__all__ = ["add_parallel_options"]


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of traces of several ranks.

    Parameters
    ----------
    parser : argparse.ArgumentParser
    """
    group = parser.add_argument_group("traces of several ranks")
    group.add_argument(
        "--dp",
        type=int,
        metavar="N",
        help="data-parallel replicas (default: as many as the recorded job had)",
    )
    group.add_argument(
        "--cluster", metavar="CLUSTER", help="where the new job runs: NCCL's model of its network"
    )
    group.add_argument(
        "--traced-cluster",
        metavar="CLUSTER",
        help="where the job was recorded (default: the same); its measured communications "
        "calibrate the model",
    )
    group.add_argument(
        "--gpu",
        metavar="GPU",
        help="scale kernels to this GPU (default: they take what they took)",
    )
    group.add_argument(
        "--distributed-optimizer",
        choices=("on", "off"),
        help="shard the optimizer's states over the replicas, or no longer (default: as recorded)",
    )
    group.add_argument(
        "--micro-batches",
        type=int,
        metavar="N",
        help="micro-batches of a pipeline's step (default: as recorded)",
    )
    group.add_argument(
        "--layout",
        metavar="AXES",
        default="",
        help="axes of the recorded job, the innermost first, as in tp=2,dp=2,pp=2 (default: found "
        "from its groups)",
    )
