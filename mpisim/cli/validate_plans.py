"""``mpisim validate plans``: measured sweeps over plans beside the order that is predicted."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import UsageError
from .output import add_monitor_option, write_figures, write_page_text
from .validate_e2e import add_changes, add_page, add_predicted, add_rows, conditions

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate plans all.csv
  mpisim validate plans all.csv --where source=vtrain --json out.json
  mpisim validate plans all.csv --least 3
  mpisim validate plans all.csv --predicted out.json    of 'mpisim validate e2e --json'
  mpirun -n 2 python -m mpisim validate plans all.csv
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate plans``."""
    parser = kinds.add_parser(
        "plans",
        help="measured sweeps over plans: would a search have chosen right?",
        description="Group the rows of a table of measured training steps that differ in the plan "
        "alone, predict them, and print what choosing by prediction costs, how well plans are put "
        "in order, and how far stated errors of differences hold. Under mpirun the processes share "
        "the rows. docs/accuracy.md explains the table.",
        epilog=EXAMPLES,
    )
    add_rows(parser, "only rows with this value, as for 'mpisim validate e2e'")
    add_changes(parser)
    parser.add_argument(
        "--least",
        type=int,
        metavar="N",
        default=4,
        help="least plans of a group (default: 4)",
    )
    add_predicted(parser)
    add_page(parser)
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Predict, and print tables. **Collective** under a launcher."""
    from .launch import world
    from .output import check_files, check_outputs, page_of

    check_outputs(args)
    if args.least < 2:
        raise UsageError(f"--least is {args.least}; it must be 2 or more")
    where = conditions(args.where)
    from ..mpi.parallel import collective_errors
    from ..validate.e2e import stored
    from ..validate.plans import as_json, compare_plans, markdown, render

    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
            page = "" if args.markdown is None else page_of(args.markdown)
        known = {} if args.predicted is None else stored(args.predicted)
    path = args.paths[0]
    found = compare_plans(
        path, comm, where=where, changes=args.changes, least=args.least, known=known
    )
    with collective_errors(comm):
        if found is not None:
            print(render(found, args.least))
            if args.markdown is not None:
                write_page_text(args, markdown(found, args.least, page))
            write_figures(args, as_json(found, args.least, path))
    return 0
