"""``mpisim tables``: the embedding tables of a data set, for an experiment."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import InputError, UsageError
from .output import add_set_option, check_files

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim tables fbgemm_t856_bs65536.pt lin-dlrm-heavy-embedding-4-a100          what they are like
  mpisim tables fbgemm_t856_bs65536.pt mine.toml --tables 0-51 -o theirs.toml   mine with these
  mpisim shard theirs.toml                                                      ... placed
"""

MAX_SHOWN = 12
"""Tables that are printed one by one."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim tables``."""
    parser = subparsers.add_parser(
        "tables",
        help="read rows, lookups and reuse of embedding tables off a data set (DLRM)",
        description="Read the lookups of a file of github:facebookresearch/dlrm_datasets: rows of "
        "each table, mean lookups of a sample, and reuse factors of a batch as large as the "
        "experiment's. With -o the experiment is written with these tables in place of its own.",
        epilog=EXAMPLES,
    )
    parser.add_argument("dataset", metavar="DATASET", help="a file of torch.save (.pt)")
    parser.add_argument(
        "file", metavar="FILE", help="an experiment of a DLRM (TOML), or the name of one"
    )
    add_set_option(parser)
    parser.add_argument("--tables", metavar="RANGES", default="", help="of these alone, as 0-51,60")
    parser.add_argument(
        "--heavy",
        action="store_true",
        help="of those alone that a sample looks up 20 times or more",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the experiment (TOML)")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the tables, and write the experiment."""
    if args.overwrite and args.output is None:
        raise UsageError("--overwrite needs a file to write: -o FILE")
    from ..base.files import write_whole
    from ..base.rank_ranges import parse_ranges
    from ..base.toml import toml_table
    from ..experiment import Dlrm
    from ..experiment.load import experiment_of, load_tables
    from ..experiment.serialization import with_absolute_paths
    from ..formats.dlrm_datasets import HEAVY_POOLING, read_dataset_tables

    source, given = load_tables(args.file, args.set)
    experiment = experiment_of(given, source)
    model = experiment.model
    if not isinstance(model, Dlrm):
        raise InputError(
            f"{source}: model.family is {model.family!r}; embedding tables are those of a 'dlrm'"
        )
    check_files(args)
    numbers = parse_ranges(args.tables, "--tables", "table", 10**6) if args.tables else ()
    batch = experiment.plan.global_batch
    found = read_dataset_tables(args.dataset, batch, [int(each) for each in numbers])
    if args.heavy:
        found = [each for each in found if each.pooling >= HEAVY_POOLING]
    if not found:
        raise InputError(f"{args.dataset}: no sample looks up any of these tables")
    print("\n".join(_lines(found, batch, HEAVY_POOLING)))
    if args.output is not None:
        tables = with_absolute_paths(given, source)
        own = {
            key: value for key, value in tables["model"].items() if key not in ("skew", "preset")
        }
        kept = {
            key: getattr(model, key)
            for key in ("bottom_mlp", "top_mlp", "dense_features", "interaction")
        }
        tables["model"] = {
            **own,
            **kept,
            "family": "dlrm",
            "embedding": max(model.widths),
            "table_entries": [each.entries for each in found],
            "pooling": [max(1, round(each.pooling)) for each in found],
            "reuse": [[round(share, 6) for share in each.reuse] for each in found],
        }
        plan = dict(tables["plan"])
        placed = {key: v for key, v in plan.pop("tables", {}).items() if key != "placement"}
        tables["plan"] = plan | ({"tables": placed} if placed else {})
        tables.pop("published", None)
        text = f"# {source} with tables of {args.dataset}\n\n{toml_table(tables)}"
        with write_whole(args.output, overwrite=args.overwrite) as file:
            file.write(text.encode())
        print(f"{args.output} is written; place its tables with: mpisim shard {args.output}")
    return 0


def _lines(found: list[Any], batch: int, heavy: int) -> list[str]:
    """Return what the tables are like, for people."""
    from ..base.text import aligned, percentage

    rows = [("table", "rows", "lookups a sample", "distinct of a batch", "looked up once")]
    rows += [
        (
            f"{each.number}",
            f"{each.entries:,}",
            f"{each.pooling:.2f}",
            f"{each.distinct:,} of {each.lookups:,}",
            percentage(each.reuse[0], 1),
        )
        for each in found[:MAX_SHOWN]
    ]
    more = len(found) - MAX_SHOWN
    count = sum(each.pooling >= heavy for each in found)
    lookups, distinct = (sum(getattr(t, key) for t in found) for key in ("lookups", "distinct"))
    return [
        f"{len(found):,} tables, {count:,} of them heavy ({heavy} lookups a sample or more); "
        f"{sum(each.entries for each in found):,} rows",
        f"batch of {batch:,}: {lookups:,} lookups, {lookups / max(distinct, 1):.1f} of a distinct "
        "row",
        "",
        *aligned(rows),
        *([f"... {more:,} more"] if more > 0 else []),
    ]
