"""``mpisim new``: write an experiment to start from."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import UsageError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim new > mine.toml                                Llama-3-8B on the 8 GPUs of a DGX H100
  mpisim new mine.toml --model gpt3-175b --gpus 96      another model, on 96 GPUs
  mpisim new mine.toml --model qwen3-30b-a3b --cluster dgx-a100 --overwrite
"""

MODEL, CLUSTER = "llama-3-8b", "dgx-h100"


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim new``."""
    parser = subparsers.add_parser(
        "new",
        help="write an experiment to start from",
        description="Write an experiment with every key explained, and a plan that fits the "
        "memory of the GPUs by a rough count: something to start from, not the fastest plan.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="where to write it (default: standard output)"
    )
    parser.add_argument(
        "--model", metavar="NAME", default=MODEL,
        help=f"one of 'mpisim list models' (default: {MODEL})",
    )  # fmt: skip
    parser.add_argument(
        "--cluster", metavar="NAME", default=CLUSTER,
        help=f"one of 'mpisim list clusters' (default: {CLUSTER})",
    )  # fmt: skip
    parser.add_argument("--gpus", type=int, metavar="N", help="how many (default: one node)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the experiment."""
    from ..experiment.example import example

    if args.gpus is not None and args.gpus < 1:
        raise UsageError(f"--gpus is {args.gpus}; it must be 1 or more")
    if args.overwrite and args.file is None:
        raise UsageError("--overwrite needs a file to write: mpisim new FILE")
    text = example(args.model, args.cluster, args.gpus)
    if args.file is None:
        print(text, end="")
        return 0
    from ..files import staged

    with staged(args.file, overwrite=args.overwrite) as file:
        file.write(text.encode())
    print(f"{args.file} is written; run it with: mpisim run {args.file}")
    return 0
