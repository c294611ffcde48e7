"""``mpisim shard``: where are the embedding tables of a recommendation model best?"""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import UsageError, one_of
from .output import (
    add_file_options,
    add_set_option,
    check_files,
    check_outputs,
    write_figures,
)

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim shard mine.toml                      sharders and a search, the fastest first
  mpisim shard mine.toml -o placed.toml       also write the experiment with the best placement
  mpisim run placed.toml                      ... which runs as any other
  mpisim shard mine.toml --kinds table_wise   whole tables alone
  mpisim shard mine.toml --no-search          the sharders alone
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim shard``."""
    parser = subparsers.add_parser(
        "shard",
        help="find the best placement of embedding tables (DLRM)",
        description="Place the embedding tables of a recommendation model by each sharder and by a "
        "local search, simulate every placement, and print which step is the fastest, how evenly "
        "ranks are loaded, and which placements the prediction cannot tell apart.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", help="an experiment (TOML), or the name of one of mpisim list"
    )
    add_set_option(parser)
    parser.add_argument(
        "--sharders",
        metavar="NAME,...",
        help="of these sharders alone (default: all values of plan.tables.sharder)",
    )
    parser.add_argument(
        "--kinds",
        metavar="KIND,...",
        help="kinds of sharding that the search may take: table_wise, column_wise, row_wise, "
        "data_parallel (default: all)",
    )
    parser.add_argument(
        "--no-search", dest="search", action="store_false", help="leave out the local search"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the experiment with the best placement (TOML)"
    )
    add_file_options(parser, monitor=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print placements, and write the best."""
    check_outputs(args)
    from ..base.files import write_whole
    from ..base.toml import toml_table
    from ..experiment.load import experiment_of, load_tables
    from ..experiment.serialization import with_absolute_paths
    from ..search.sharding import choose_placement, chosen_figures, chosen_lines, placement_tables
    from ..workloads.dlrm import SHARDERS
    from ..workloads.dlrm.tables import SHARDING

    sharders = _names("--sharders", args.sharders, tuple(SHARDERS))
    kinds = _names("--kinds", args.kinds, SHARDING)
    source, tables = load_tables(args.file, args.set)
    experiment = experiment_of(tables, source)
    check_files(args)
    found = choose_placement(experiment, sharders=sharders, kinds=kinds, search=args.search)
    if args.output is not None:
        tables = placement_tables(with_absolute_paths(tables, source), found.best)
        text = f"# Placement of tables by mpisim shard, of {source}\n\n{toml_table(tables)}"
        with write_whole(args.output, overwrite=args.overwrite) as file:
            file.write(text.encode())
    write_figures(args, chosen_figures(found))
    print("\n".join(chosen_lines(found)))
    if args.output is not None:
        print(f"{args.output} is written; run it with: mpisim run {args.output}")
    return 0


def _names(option: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a list, all if it is not given."""
    if text is None:
        return known
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} has {name!r}{one_of(name, known)}")
    if not names:
        raise UsageError(f"{option} is empty; allowed: {', '.join(known)}")
    return names
