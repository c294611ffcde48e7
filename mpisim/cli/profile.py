"""``mpisim profile``: what to time once so that all plans are known, and what that costs."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .output import (
    add_change_options,
    add_json_option,
    add_overwrite_option,
    check_outputs,
    experiment_changes,
)
from .search import add_vary_option, with_varied

if TYPE_CHECKING:
    from ..search import SearchSpace
    from ..search.profiling import Profiling

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim profile mine.toml                                       one plan
  mpisim profile mine.toml --vary plan.tp=1,2,4,8 --vary plan.pp=1,2,4,8
  mpisim profile distsim-bert-exlarge-search-16-a10              the plans of its [search]
  mpisim profile mine.toml --kernels todo.csv                    a list to time, and fill in:
  mpisim calibrate kernels todo.csv -o mine_gpu.toml             ... what then becomes of it
"""

SHOWN = 12
"""Communications that are printed; the JSON file has all."""

COLUMNS = ("gpu", "family", "operation", "median_us", "repeats", "predicted_us", "runs")
"""Columns of the list of kernels: those that `mpisim calibrate kernels` needs, then the predicted
time and the number of runs."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim profile``."""
    parser = subparsers.add_parser(
        "profile",
        help="print what to time on few GPUs to know many plans, and what that costs",
        description="Count the distinct kernels and communications of one plan or of many, as "
        "those of a search, and print what it takes to time each once, beside a step of every "
        "plan on all of its GPUs. Times are predictions.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an experiment (TOML), or the name of one of mpisim list experiments; all plans of "
        "its table [search] are counted",
    )
    add_change_options(parser)
    add_vary_option(parser)
    parser.add_argument(
        "--most-ranks",
        type=int,
        metavar="N",
        default=8,
        help="time all-reduces, all-gathers and reduce-scatters of more ranks with N (default: 8)",
    )
    parser.add_argument(
        "--kernels",
        metavar="FILE",
        help="write the kernels to be timed (CSV, for mpisim calibrate kernels)",
    )
    add_json_option(parser)
    add_overwrite_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what is to be timed."""
    if args.most_ranks < 2:
        raise UsageError(f"--most-ranks is {args.most_ranks}; it must be 2 or more")
    check_outputs(args)
    from mpi4py import MPI

    from ..base.files import check_output, write_json
    from ..mpi.parallel import progress
    from ..search.profiling import profiling

    space = _space(args)
    for path in (args.kernels, args.json):
        if path is not None:
            check_output(path, overwrite=args.overwrite)
    with progress(MPI.COMM_SELF, "generating the plans", len(space)) as update:
        found = profiling(space, MPI.COMM_SELF, most_ranks=args.most_ranks, progress=update)
    left_out = 0
    if args.kernels is not None:
        left_out = _write_kernels(found, args.kernels, args.overwrite)
    if args.json is not None:
        write_json(args.json, _figures(found), overwrite=args.overwrite)
    print("\n".join(_lines(found, args.most_ranks)))
    if args.kernels is not None:
        print(f"{args.kernels} is written; fill in median_us")
        if left_out:
            print(f"{left_out} kernels without a description of their own are not in it")
    return 0


def _space(args: argparse.Namespace) -> SearchSpace:
    """Arguments → the plans that are asked for; one, if nothing is varied."""
    from ..experiment.load import load_tables
    from ..experiment.plan_keys import with_sub_tables
    from ..search import SearchSpace, read_search
    from ..search.choice import read_choice
    from .other_files import expected

    with expected([args.file], ("experiment",)):
        source, tables = load_tables(args.file, experiment_changes(args))
    tables = with_varied(tables, args.vary)
    if "search" in tables:
        return read_search(tables, source)
    return SearchSpace(with_sub_tables(tables, source), source, (), (), read_choice({}, source))


def _lines(found: Profiling, most_ranks: int) -> list[str]:
    """Events and plans → lines of the report: costs, what each plan adds, communications."""
    from ..base.text import aligned, counted, duration, percentage

    runs = [sum(many for _, many in each) for each in (found.kernels, found.communications)]
    costs = [sum(each.cost for each, _ in some) for some in (found.kernels, found.communications)]
    cells = [
        ("to be timed", "distinct", "in a step of all plans", "GPU time"),
        ("kernels", f"{len(found.kernels):,}", f"{runs[0]:,}", duration(costs[0])),
        ("communications", f"{len(found.communications):,}", f"{runs[1]:,}", duration(costs[1])),
        ("all, once", "", "", duration(found.cost)),
    ]
    plans = counted(len(found.plans), "plan")
    at_once = max((each.timed_ranks for each, _ in found.communications), default=1)
    nodes = max((each.nodes for each, _ in found.communications), default=1)
    lines = [
        *aligned(cells),
        "",
        f"A step of {plans}, each on all of its GPUs, takes {duration(found.direct)} of GPU time: "
        f"timing costs {percentage(found.cost / found.direct, 1)} of it.",
        f"It takes {counted(at_once, 'GPU')} at a time at most, on {counted(nodes, 'node')}.",
    ]
    if len(found.plans) > 1:
        alone = percentage(found.alone / found.direct, 1)
        lines.append(f"If every plan were timed for itself it would be {alone}.")
    if found.refused:
        many = counted(len(found.refused), "combination")
        lines.append(f"Left out: {many}, the first with {found.refused[0]}")
    if len(found.plans) > 1:
        rows = [("plan", "step", "GPU time", "new kernels", "new communications", "adds")]
        rows += [
            (
                each.described,
                duration(each.step),
                duration(each.direct),
                str(each.kernels),
                str(each.communications),
                duration(each.cost),
            )
            for each in found.plans
        ]
        lines += ["", *aligned(rows)]
    return [*lines, *_communication_lines(found, most_ranks)]


def _communication_lines(found: Profiling, most_ranks: int) -> list[str]:
    from ..base.text import aligned, duration, quantity

    if not found.communications:
        return []
    rows = [("communication", "size", "ranks", "nodes", "takes", "GPU time", "in all plans")]
    rows += [
        (
            each.operation.name.lower(),
            quantity(each.bytes, "B"),
            str(each.ranks) if each.ranks == each.timed_ranks else f"{each.ranks} *",
            "1" if each.nodes == 1 else "several",
            duration(each.duration),
            duration(each.cost),
            f"{many:,}",
        )
        for each, many in found.communications[:SHOWN]
    ]
    lines = ["", *aligned(rows)]
    more = len(found.communications) - SHOWN
    if more > 0:
        lines.append(f"... and {more:,} that cost less")
    if any(each.ranks != each.timed_ranks for each, _ in found.communications):
        lines.append(f"* timed with {most_ranks} ranks, and scaled as a ring moves bytes")
    return lines


def _write_kernels(found: Profiling, path: str, overwrite: bool) -> int:
    """Write the kernels as a table of measured kernels with empty times → how many are left out."""
    from ..base.csv_files import write_table
    from ..kernels.measured.formats import COLLECTED_FAMILIES

    kept = [
        (event, event.kernel, many)
        for event, many in found.kernels
        if event.kernel is not None and event.kernel.family in COLLECTED_FAMILIES
    ]
    keys = dict.fromkeys(each.name for _, kernel, _ in kept for each in fields(type(kernel)))
    rows = [
        (
            event.gpu,
            kernel.family,
            event.name,
            "",
            "",
            f"{event.duration / 1e6:.3f}",
            many,
            *(_cell(getattr(kernel, key, None)) for key in keys),
        )
        for event, kernel, many in kept
    ]
    write_table(path, (*COLUMNS, *keys), rows, overwrite=overwrite)
    return len(found.kernels) - len(kept)


def _cell(value: object) -> str:
    """Return a number of a kernel as `mpisim calibrate kernels` reads it."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _figures(found: Profiling) -> dict[str, Any]:
    """Events and plans → figures for ``--json``: each event and plan; times in seconds."""
    return {
        "gpu_seconds": found.cost / 1e12,
        "direct_gpu_seconds": found.direct / 1e12,
        "plans": [
            {
                "plan": each.described,
                "gpus": each.gpus,
                "step_seconds": each.step / 1e12,
                "new_kernels": each.kernels,
                "new_communications": each.communications,
                "new_gpu_seconds": each.cost / 1e12,
                "alone_gpu_seconds": each.alone / 1e12,
            }
            for each in found.plans
        ],
        "kernels": [
            {
                "gpu": each.gpu,
                "name": each.name,
                "kernel": None if each.kernel is None else repr(each.kernel),
                "seconds": each.duration / 1e12,
                "runs": many,
            }
            for each, many in found.kernels
        ],
        "communications": [
            {
                "operation": each.operation.name.lower(),
                "bytes": each.bytes,
                "ranks": each.ranks,
                "timed_ranks": each.timed_ranks,
                "several_nodes": each.nodes > 1,
                "seconds": each.duration / 1e12,
                "gpu_seconds": each.cost / 1e12,
                "runs": many,
            }
            for each, many in found.communications
        ],
        "refused": list(found.refused),
    }
