"""``mpisim report``: where did the time of a run go?"""

from __future__ import annotations

import argparse
from typing import Any

from .output import add_report_options, check_json, check_options, written

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim report run.h5                     step time, where it goes, what costs most
  mpisim report run.h5 --details           ranks, kernels, communications, critical path
  mpisim report run.h5 --top 30            longer lists
  mpisim report run.h5 --json run.json     the same as numbers
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim report``."""
    parser = subparsers.add_parser(
        "report",
        help="print where the time of a run went",
        description="Print where the time of a run went, in short or with all details: per rank, "
        "per kernel, along the critical path.",
        epilog=EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", help="a results file (HDF5)")
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a report."""
    check_options(args)
    check_json(args)
    from ..results import open_results

    with open_results(args.file) as results:
        print(written(results, args))
    return 0
