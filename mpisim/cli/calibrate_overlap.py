"""``mpisim calibrate overlap``: fit the slowdown of what overlaps to measured pairs."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from ..base.text import percentage
from .fit_output import add_output, writing
from .output import add_monitor_option

__all__ = ["add_kind"]

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
    add_output(parser, "constants")
    add_monitor_option(parser)
    parser.set_defaults(run=writing(_fit))


def _fit(args: argparse.Namespace) -> str:
    """Fit, print a line a constant, and return the constants as a file."""
    from ..kernels.slowdown import packaged_constants
    from ..overlap.fit import fit, written
    from ..overlap.pairs import read_pairs

    pairs = read_pairs(args.path)
    before = packaged_constants()
    found = fit(pairs, before)
    print(f"{'constant':16s} {'before':>8s} {'after':>8s} {'error':>6s}")
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(found.constants, each.name)
        note = "" if each.name in found.known else "  not in the pairs"
        print(f"{each.name:16s} {old.value:8.3f} {new.value:8.3f} {percentage(new.error):>6}{note}")
    print(
        f"slowdowns of kernels in {len(pairs):,} pairs: off by "
        f"{percentage(found.before, 1)} before, {percentage(found.after, 1)} after "
        "(root mean square)"
    )
    return written(found.constants)
