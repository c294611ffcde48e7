"""``mpisim validate power``: measured power of training beside what is predicted."""

from __future__ import annotations

import argparse
from typing import Any

from .output import add_file_options, write_figures

__all__ = ["add_kind", "run"]


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate power``."""
    parser = kinds.add_parser(
        "power",
        help="measured power of training beside what is predicted",
        description="Simulate training runs of which the power was published, and print both.",
    )
    add_file_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print the table; under a launcher only the first process does."""
    from .output import check_files

    check_files(args)
    from ..validate.power import as_json, power_rows, render

    rows = power_rows()
    print(render(rows))
    write_figures(args, as_json(rows))
    return 0
