"""Output of the commands that fit constants: the file, lines of errors, skipped rows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Protocol

from ..base.text import percentage

__all__ = ["add_output", "print_skipped", "rows_line", "writing"]


class Errors(Protocol):
    """Errors of rows of one size."""

    @property
    def rows(self) -> int:
        """Number of rows compared."""

    @property
    def median(self) -> float:
        """Median of |predicted / measured - 1|."""

    @property
    def p90(self) -> float:
        """90th percentile of |predicted / measured - 1|."""


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``-o`` and ``--overwrite``."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help=f"write the {what} (TOML)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def writing(fit: Callable[[argparse.Namespace], str]) -> Callable[[argparse.Namespace], int]:
    """Fitting function → command that writes its result to the output file.

    Parameters
    ----------
    fit : callable
        Prints what it finds as it goes, and returns the text of the file.
    """

    def run(args: argparse.Namespace) -> int:
        from ..base.files import write_whole
        from .output import check_files, check_outputs

        check_outputs(args)

        check_files(args)
        text = fit(args)
        with write_whole(args.output, overwrite=args.overwrite) as file:
            file.write(text.encode())
        return 0

    return run


def rows_line(errors: Iterable[Errors]) -> str:
    """Return median and p90 over all sizes, each by its number of rows."""
    each = [*errors]
    rows = sum(one.rows for one in each)
    median = sum(one.rows * one.median for one in each) / rows
    p90 = sum(one.rows * one.p90 for one in each) / rows
    return f"{percentage(median, 1):>7} {percentage(p90, 1):>7}"


def print_skipped(skipped: Iterable[tuple[str, int]]) -> None:
    """Print a line for each reason why rows were left out."""
    for reason, count in sorted(skipped):
        print(f"skipped: {count} × {reason}")
