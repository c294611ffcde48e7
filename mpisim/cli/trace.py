"""``mpisim trace``: look at a trace file."""

from __future__ import annotations

import argparse
from itertools import chain
from typing import Any

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim trace show rank0.json.gz              what is in this file?
  mpisim trace show TRACES/                    every trace file of a folder
  mpisim trace show et.json kineto.json --join do the recorded times respect the data?
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim trace``."""
    parser = subparsers.add_parser(
        "trace", help="look at a trace file", description="Look at a trace file."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="print what a trace file holds",
        description="Print what a trace file holds: a PyTorch Kineto trace, an execution trace "
        "(operators and tensors, without times), or an Nsight Systems export.",
        epilog=EXAMPLES,
    )
    show.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="trace files (.json, .json.gz, .sqlite) or folders of them",
    )
    show.add_argument(
        "--join",
        action="store_true",
        help="also join execution traces to the Kineto traces of the same ranks, and check the "
        "recorded times against the data dependencies",
    )
    show.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what each trace file holds."""
    from ..traces.show import joined, overview, read_traces, trace_files
    from .other_files import expected

    kept = []
    between = ""
    with expected(args.files, ("traces",)):
        for trace in chain.from_iterable(map(read_traces, trace_files(args.files))):
            print(between + overview(trace))
            between = "\n"
            if args.join:
                kept.append(trace)
    if args.join:
        print("\nJoined\n\n" + joined(kept))
    return 0
