"""Options of commands that extrapolate traces of several ranks; imports nothing that is slow."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

__all__ = ["add_parallel_options", "of_several_ranks"]

OPTIONS: dict[str, dict[str, Any]] = {
    "--dp": {
        "type": int,
        "metavar": "N",
        "help": "data-parallel replicas (default: as many as the recorded job had)",
    },
    "--cluster": {
        "metavar": "CLUSTER",
        "help": "where the new job runs: NCCL's model of its network",
    },
    "--traced-cluster": {
        "metavar": "CLUSTER",
        "help": "where the job was recorded (default: the same); its measured communications "
        "calibrate the model",
    },
    "--gpu": {
        "metavar": "GPU",
        "help": "scale kernels to this GPU (default: they take what they took)",
    },
    "--distributed-optimizer": {
        "choices": ("on", "off"),
        "help": "shard the optimizer's states over the replicas, or no longer (default: as "
        "recorded)",
    },
    "--micro-batches": {
        "type": int,
        "metavar": "N",
        "help": "micro-batches of a pipeline's step (default: as recorded)",
    },
    "--layout": {
        "metavar": "AXES",
        "default": "",
        "help": "axes of the recorded job, the innermost first, as in tp=2,dp=2,pp=2 (default: "
        "found from its groups)",
    },
}


def add_parallel_options(parser: argparse.ArgumentParser, but: Collection[str] = ()) -> None:
    """Add the options of traces of several ranks.

    Parameters
    ----------
    parser : argparse.ArgumentParser
    but : collection of str
        Options that the parser has already.
    """
    group = parser.add_argument_group("traces of several ranks")
    for name, keys in OPTIONS.items():
        if name not in but:
            group.add_argument(name, **keys)


def of_several_ranks(paths: Sequence[str | Path]) -> bool:
    """Whether traces are of a job of several ranks, be it that only one of them is at hand.

    Parameters
    ----------
    paths : sequence of paths
        Files and folders.

    Raises
    ------
    TraceError
        If there is no trace, a rank twice, or files of different jobs.
    """
    from ..traces import find_sources

    sources = find_sources(paths, allow_missing=True)
    return len(sources) > 1 or max(source.world_size for source in sources) > 1
