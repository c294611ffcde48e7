"""``mpisim calibrate overlap``: fit the slowdown of what overlaps to measured pairs."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim calibrate overlap pairs.csv -o mine.toml
  mpisim run mine-experiment.toml --set overlap.calibration=mine.toml
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim calibrate overlap``."""
    parser = kinds.add_parser(
        "overlap",
        help="fit the slowdown of kernels and communications that overlap",
        description="Fit the constants of the slowdown to a table of pairs: a kernel alone, a "
        "communication alone, and both at the same time (docs/overlap.md).",
        epilog=EXAMPLES,
    )
    parser.add_argument("path", metavar="CSV", help="a table of measured pairs")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="write the constants (TOML)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, print a line a constant, write the file; under a launcher one process does."""
    from .launch import launched_rank
    from .output import check_outputs

    check_outputs(args)
    if launched_rank() != 0:
        return 0
    from ..files import check_output, staged
    from ..kernels.slowdown import packaged_constants
    from ..overlap.fit import fit, written
    from ..overlap.pairs import read_pairs

    check_output(args.output, overwrite=args.overwrite)
    pairs = read_pairs(args.path)
    before = packaged_constants()
    found = fit(pairs, before)
    print(f"{'constant':16s} {'before':>8s} {'after':>8s} {'error':>6s}")
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(found.constants, each.name)
        note = "" if each.name in found.known else "  not in the pairs"
        print(f"{each.name:16s} {old.value:8.3f} {new.value:8.3f} {new.error:6.0%}{note}")
    print(
        f"slowdowns of kernels in {len(pairs):,} pairs: off by {found.before:.1%} before, "
        f"{found.after:.1%} after (root mean square)"
    )
    with staged(args.output, overwrite=args.overwrite) as file:
        file.write(written(found.constants).encode())
    return 0
