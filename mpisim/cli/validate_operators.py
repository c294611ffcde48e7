"""``mpisim validate operators``: recorded operators beside the kernel models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..base.errors import TraceError
from ..base.text import percentage
from .output import add_file_options, check_files, write_figures

if TYPE_CHECKING:
    from ..validate.operators import PricedTrace

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate operators TRACES/                  Kineto traces with shapes, in folders
  mpisim validate operators rank0.json --details     every operator of it
  mpisim validate operators rank0.json --gpu a100    by the models of another GPU
"""

MAX_ROWS = 12
"""Operators that are printed without --details."""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate operators``."""
    parser = kinds.add_parser(
        "operators",
        help="operators of recorded traces beside kernel models",
        description="Price every operator of Kineto traces that launched kernels (recorded with "
        "record_shapes=True) and compare with the recorded times of these kernels. "
        "docs/operators.md explains the tables.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="traces, or folders of them")
    parser.add_argument(
        "--gpu", metavar="GPU", help="whose models to use (default: the one a trace names)"
    )
    parser.add_argument("--details", action="store_true", help="print all operators")
    add_file_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Price and print; under a launcher only the first process does."""

    check_files(args)
    from ..kernels import gpu_name
    from ..mpi.parallel import progress
    from ..validate.operators import PricedTrace, price_traces, tabulate

    if args.gpu is not None:
        gpu_name(args.gpu)  # or an error that names those there are
    traces: list[PricedTrace] = []
    skipped: list[str] = []
    with progress(None, "pricing operators"):
        for found in price_traces(args.paths, args.gpu):
            if isinstance(found, PricedTrace):
                traces.append(found)
            else:
                skipped.append(found)
    if not traces:
        raise TraceError(skipped[0])
    tables = tabulate(traces)
    _print(traces, tables, skipped, None if args.details else MAX_ROWS)
    write_figures(args, _as_json(traces, tables, skipped))
    return 0


def _print(
    traces: Sequence[PricedTrace], tables: Any, skipped: Sequence[str], most: int | None
) -> None:
    from ..validate.operators import by_job

    jobs = by_job(traces)
    print(
        f"{'trace':54s} {'gpu':>14s} {'kernels':>11s} {'named':>7s} {'error':>7s} "
        f"{'alone':>7s} {'error':>7s} {'no shapes':>10s} {'named of rest':>14s}"
    )
    for each in traces:
        print(
            f"{each.name:54.54s} {each.gpu:>14s} {each.measured * 1e3:8.2f} ms "
            f"{percentage(each.named, 1):>7} {percentage(each.error, 1, signed=True):>7} "
            f"{percentage(each.alone, 1):>7} {percentage(each.error_alone, 1, signed=True):>7} "
            f"{percentage(each.shapeless, 1):>10} {percentage(each.named_of_shaped, 1):>14}"
        )
    error, alone, named, of_shaped = (percentage(median(each), 1) for each in zip(*jobs.values()))
    print(
        f"\n{len(jobs)} jobs (folders): median of their median |error| {error}, of what ran alone "
        f"{alone}, of the share named {named}, of what has shapes {of_shaped}"
    )
    for grouping, groups in tables.items():
        print(
            f"\n{grouping:44s} {'calls':>8s} {'kernels':>11s} {'total':>7s} {'median':>7s} "
            f"{'bias':>7s}"
        )
        for name, group in list(groups.items())[:most]:
            print(
                f"{name:44.44s} {group['n']:8,d} {group['seconds'] * 1e3:8.2f} ms "
                f"{_share(group['total'], signed=True):>7} "
                f"{_share(group['median']):>7} "
                f"{_share(group['bias'], signed=True):>7}"
            )
        if most is not None and len(groups) > most:
            print(f"… {len(groups) - most} more (--details)")
    unknown = _unknown(traces)
    if unknown:
        print("\nnot priced by a named model, by share of all kernel time")
        for (name, shaped), share in list(unknown.items())[:most]:
            print(f"{name:44.44s} {percentage(share, 2):>8}{'' if shaped else '  no shapes'}")
    for reason in skipped:
        print(f"skipped: {reason}")
    print(
        "\nkernels: recorded time without communications and copies from or to the host; named:\n"
        "share of it that models of the operators' kinds price; error, total: of all of these\n"
        "calls together; alone: share of these whose kernels ran beside none of another stream,\n"
        "and their error; median, bias: of single calls; no shapes: share of operators whose\n"
        "tensors the trace does not have (launched outside of any, lists of older recorders,\n"
        "vLLM's that are given the name of a layer); named of rest: share named without these"
    )


def _share(error: float | None, *, signed: bool = False) -> str:
    """Return an error of calls; a dash where no kernel of theirs took any time."""
    return "-" if error is None else percentage(error, 1, signed=signed)


def _unknown(traces: Sequence[PricedTrace]) -> dict[tuple[str, bool], float]:
    """Return the operators that no named model prices, and if they have shapes → share of time."""
    found: dict[tuple[str, bool], float] = {}
    total = sum(each.measured for each in traces) or 1.0
    for trace in traces:
        for each in trace.sums:
            if not each.known:
                key = each.name, each.shaped
                found[key] = found.get(key, 0.0) + each.measured / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _as_json(traces: Sequence[PricedTrace], tables: Any, skipped: Sequence[str]) -> dict[str, Any]:
    from ..validate.operators import by_job

    error, alone, named, of_shaped = (median(each) for each in zip(*by_job(traces).values()))
    return {
        "kind": "operators",
        "median": error,
        "median_alone": alone,
        "named": named,
        "named_of_shaped": of_shaped,
        "skipped": list(skipped),
        "unknown": [
            {"name": name, "shaped": shaped, "share": share}
            for (name, shaped), share in _unknown(traces).items()
        ],
        "groups": {
            f"{grouping}={name}": group
            for grouping, groups in tables.items()
            for name, group in groups.items()
        },
        "cases": [
            {
                "id": trace.name,
                "gpu": trace.gpu,
                "measured": trace.measured,
                "named": trace.named,
                "shapeless": trace.shapeless,
                "named_of_shaped": trace.named_of_shaped,
                "error": trace.error,
                "alone": trace.alone,
                "error_alone": trace.error_alone,
                "operators": [
                    {
                        "name": each.name,
                        "type": each.dtype,
                        "known": each.known,
                        "shaped": each.shaped,
                        "calls": each.calls,
                        "kernels": each.kernels,
                        "measured": each.measured,
                        "predicted": each.predicted,
                    }
                    for each in trace.sums
                ],
            }
            for trace in traces
        ],
    }
