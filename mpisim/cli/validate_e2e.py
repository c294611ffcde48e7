"""``mpisim validate e2e``: measured training steps beside their predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .output import add_file_options, add_monitor_option, write_figures, write_page_text

if TYPE_CHECKING:
    from ..prediction.step_constants import StepConstants
    from ..validate.e2e import Comparison

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate e2e all.csv
  mpisim validate e2e all.csv --where source=vtrain,trust=A --json out.json
  mpisim validate e2e all.csv --where 'trust=A|B' --plot scatter.png
  mpisim validate e2e all.csv --set framework.fused=false
  mpisim validate e2e all.csv --cross-validate --markdown docs/accuracy.md
  mpisim validate e2e all.csv --predicted out.json --cross-validate
  mpisim validate e2e all.csv --calibration mine.toml
  mpisim validate e2e all.csv --composition
  mpisim validate e2e all.csv --show tt-l8b-8g-eager-bf16 > row.toml    the experiment of a row
  mpisim validate e2e all.csv --no-profiles             with the defaults of experiments alone
  mpirun -n 2 python -m mpisim validate e2e all.csv
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate e2e``."""
    parser = kinds.add_parser(
        "e2e",
        help="measured training steps beside their predictions",
        description="Make an experiment of every row of a table of measured training steps, "
        "simulate it, and print the errors by source, GPU, precision, scale and parallelism. Under "
        "mpirun the processes share the rows. docs/accuracy.md explains the table.",
        epilog=EXAMPLES,
    )
    add_rows(
        parser,
        "only rows with this value (* for any text), or one of several between | ; several "
        "conditions with commas between; source is its short name",
    )
    parser.add_argument(
        "--show", metavar="ID", help="print the experiment that a user would write for this row"
    )
    parser.add_argument(
        "--no-profiles",
        action="store_false",
        dest="profiles",
        help="do not say which framework ran a row: the defaults of experiments count",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows")
    add_changes(parser)
    parser.add_argument(
        "--every-micro-batch",
        action="store_true",
        help="simulate long steps in full, in place of two shorter ones that say how long each "
        "further micro-batch takes (several times slower)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="predict with constants fitted to steps: a file of 'mpisim calibrate e2e', or 'ours'",
    )
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="also predict each row, to first order, with constants fitted to rows of trust A of "
        "other families (source, model, framework), and of other sources",
    )
    add_predicted(parser)
    parser.add_argument(
        "--composition",
        action="store_true",
        help="only rows of trust F: are steps composed of their layers as these say?",
    )
    add_page(parser)
    parser.add_argument("--plot", metavar="FILE", help="also draw predicted over measured times")
    parser.add_argument(
        "--top", type=int, metavar="N", default=10, help="worst rows to show (default: 10)"
    )
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def add_rows(parser: argparse.ArgumentParser, where: str) -> None:
    """Add the table and ``--where``, which all commands about measured steps have.

    Parameters
    ----------
    parser : ArgumentParser
    where : str
        Help of ``--where``.
    """
    parser.add_argument("paths", metavar="CSV", nargs=1, help="table of measurements")
    parser.add_argument("--where", metavar="COLUMN=VALUE", nargs="+", default=[], help=where)


def add_changes(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``, as in ``mpisim validate plans``."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        nargs="+",
        default=[],
        dest="changes",
        help="set keys of every experiment",
    )


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add ``--markdown``, ``--json`` and ``--overwrite``, as in ``mpisim validate plans``."""
    parser.add_argument(
        "--markdown", metavar="FILE", help="also write the tables into this page (Markdown)"
    )
    add_file_options(parser, monitor=False)


def add_predicted(parser: argparse.ArgumentParser) -> None:
    """Add ``--predicted``, which ``mpisim calibrate e2e`` has, too."""
    parser.add_argument(
        "--predicted",
        metavar="FILE",
        help="take what was simulated before from this file of 'mpisim validate e2e --json', and "
        "simulate only rows whose experiments are not in it",
    )


def run(args: argparse.Namespace) -> int:
    """Predict, and print tables of errors. **Collective** under a launcher."""
    from .launch import world
    from .output import check_files, check_outputs, page_of

    check_outputs(args)
    _check_options(args)
    where = conditions(args.where)
    from ..mpi.parallel import collective_errors
    from ..validate.e2e import compare, composition, show, stored

    comm = world()
    path = args.paths[0]
    with collective_errors(comm):
        if comm.rank == 0:
            if args.show is not None:
                print(show(path, args.show, profiles=args.profiles), end="")
            elif args.composition:
                print(composition(path))
    if args.show is not None or args.composition:
        return 0
    page = ""
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
            if args.plot is not None:
                from ..base.picture import check_picture

                check_picture("--plot", args.plot, overwrite=args.overwrite)
            page = "" if args.markdown is None else page_of(args.markdown)
        constants = _constants(args.calibration)
        known = {} if args.predicted is None else stored(args.predicted)
    found = compare(
        path,
        comm,
        where=where,
        limit=args.limit,
        changes=args.changes,
        every=args.every_micro_batch,
        constants=constants,
        known=known,
        profiles=args.profiles,
    )
    with collective_errors(comm):
        if found is not None:
            _write(found, args, page)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Refuse numbers and pairs of options that make no sense."""
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit is {args.limit}; it must be 1 or more")
    if args.top < 0:
        raise UsageError(f"--top is {args.top}; it must be 0 or more")
    if args.cross_validate and args.calibration is not None:
        raise UsageError("--cross-validate fits constants; --calibration gives them: choose one")
    if args.predicted is not None and args.calibration is not None:
        raise UsageError(
            "--predicted has steps without constants, --calibration gives them: choose one"
        )


def _write(found: Comparison, args: argparse.Namespace, page: str) -> None:
    """Print tables of a comparison, and write the files that were asked for.

    Parameters
    ----------
    found : Comparison
    args : argparse.Namespace
    page : str
        What the file of ``--markdown`` holds so far.
    """
    from ..validate.e2e import as_json, cross_validate, markdown, render, scatter

    if args.cross_validate:
        cross_validate(found)
    print(render(found, args.top))
    if args.markdown is not None:
        write_page_text(args, markdown(found, page))
    write_figures(args, as_json(found, args.paths[0]))
    if args.plot is not None:
        scatter(found.compared, args.plot)


def _constants(path: str | None) -> StepConstants | None:
    from ..experiment.serialization import PACKAGED_CONSTANTS
    from ..prediction.step_constants import StepConstants, packaged_constants

    if path is None:
        return None
    return packaged_constants() if path == PACKAGED_CONSTANTS else StepConstants.read(path)


def conditions(texts: Sequence[str]) -> dict[str, str]:
    """Read ``--where``.

    Raises
    ------
    UsageError
        If a condition is no assignment, or a column has two.
    """
    found: dict[str, str] = {}
    for condition in ",".join(texts).split(",") if texts else ():
        column, equals, value = condition.partition("=")
        if not equals or not column.strip():
            raise UsageError(f"--where {condition}: not of the form COLUMN=VALUE")
        if column.strip() in found:
            raise UsageError(f"--where: column {column.strip()!r} has two conditions")
        found[column.strip()] = value.strip()
    return found
