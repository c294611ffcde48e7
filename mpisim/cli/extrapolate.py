"""``mpisim extrapolate``: a recorded job at another scale."""

from __future__ import annotations

import argparse
from typing import Any

from .output import add_monitor_option, add_result_options, check_options

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim extrapolate traces/                               the parallel structure of a job
  mpisim extrapolate traces/ --dp 8 --cluster a800-8gpu    ... with 8 data-parallel replicas
  mpisim extrapolate traces/ --cluster dgx-a100 --traced-cluster a800-8gpu    another network
  mpisim extrapolate traces/ --cluster dgx-h100 --traced-cluster a800-8gpu --gpu h100    ... and GPU
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim extrapolate``."""
    from ..extrapolate.parallel_options import add_parallel_options

    parser = subparsers.add_parser(
        "extrapolate",
        help="a recorded job at another scale",
        description="Recorded traces of a job → its step with more or fewer replicas, on another "
        "network.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="trace files of a job's ranks, or folders of them"
    )
    add_parallel_options(parser)
    add_result_options(parser)
    add_monitor_option(parser)
    parser.add_argument(
        "--save-program",
        metavar="FILE",
        help="write what every rank does, with the time of each communication for itself",
    )
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Extrapolate, simulate and print; the first process prints."""
    check_options(args)
    from .extrapolate_parallel import run_parallel

    return run_parallel(args)
