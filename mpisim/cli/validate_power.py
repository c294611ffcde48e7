"""``mpisim validate power``: measured power of training beside what is predicted."""

from __future__ import annotations

import argparse
from typing import Any

from .output import add_json_option, add_monitor_option, add_overwrite_option

__all__ = ["add_kind", "run"]


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate power``."""
    parser = kinds.add_parser(
        "power",
        help="measured power of training beside what is predicted",
        description="Simulate training runs of which the power was published, and print both.",
    )
    add_json_option(parser)
    add_overwrite_option(parser)
    add_monitor_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print the table; under a launcher only the first process does."""
    from .launch import launched_rank
    from .output import check_files

    if launched_rank() != 0:
        return 0
    check_files(args)
    from ..validate.power import as_json, power_rows, render

    rows = power_rows()
    print(render(rows))
    if args.json is not None:
        from ..base.files import write_json

        write_json(args.json, as_json(rows), overwrite=args.overwrite)
    return 0
