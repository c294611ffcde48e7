"""``mpisim replay``: simulate recorded traces again, as they were or changed."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from ..base.text import percentage
from .output import (
    add_monitor_option,
    add_result_options,
    check_files,
    check_options,
    deliver,
    in_detail,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..engine import Run
    from ..export.repriced import PricedAgain
    from ..replay import Pricing, Replay, TraceJob
    from ..replay.what_if import WhatIf
    from ..results import Results

__all__ = ["add_parser", "run"]

MAX_STEPS, MAX_STEPS_IN_SHORT = 16, 4
"""Steps of ranks that are shown beside the measured ones, with all details and in short."""

EXAMPLES = """\
examples:
  mpisim replay traces/                             every rank of a job: one file a rank
  mpirun -n 8 python -m mpisim replay traces/       the same, each process reads its own ranks
  mpisim replay traces/ --scale-comm 0.5            what if the network were twice as fast?
  mpisim replay traces/ --scale-kernel '*gemm*=0.7' what if matrix products took 30 % less?
  mpisim replay traces/ --delay 3:0.01              what if rank 3 came 10 ms late?
  mpisim replay traces/ --cap-host-gap 5:0.001      what do rank 5's stalls cost everyone?
  mpisim replay traces/ --step 6                    where did the time of step 6 go?
  mpisim replay traces/ -o run.h5 --timeline        save the result with every row
  mpisim export run.h5 --format perfetto -o run.pftrace    ... and look at it
  mpisim replay traces/ --html run.html             a page to look at, or to send to someone
  mpisim replay traces/ --price changed --gpu h100-sxm    what if the GPUs were H100?
  mpisim replay traces/ --price changed --gpu h100-sxm --cluster dgx-h100    ... and the network?
  mpisim replay et/ --cluster dgx-v100              execution traces, which hold no times
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim replay``."""
    parser = subparsers.add_parser(
        "replay",
        help="replay recorded traces, as they were or changed",
        description="Replay PyTorch Kineto traces: every time is computed again from what the "
        "trace shows to depend on what, and set beside the measured one. Execution traces hold no "
        "times: --cluster prices them.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="trace files (.json, .json.gz), Nsight Systems exports (.sqlite), or folders of them",
    )
    add_result_options(parser)
    add_monitor_option(parser)
    parser.add_argument(
        "--save-program", metavar="FILE", help="write what every rank does, as read and changed"
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="recorded step that the tables and the critical path are about (default: the last)",
    )
    parser.add_argument(
        "--allow-missing-ranks",
        action="store_true",
        help="accept a job of which some ranks have no trace",
    )
    _add_hardware_options(parser)
    _add_what_if_options(parser)
    parser.set_defaults(run=run, collective=True)


def _add_hardware_options(parser: argparse.ArgumentParser) -> None:
    priced = parser.add_argument_group(
        "other hardware",
        "of Kineto traces with shapes, or of execution traces, which hold no times",
    )
    priced.add_argument(
        "--price",
        choices=("changed", "all"),
        help="price Kineto traces again: recorded times of kernels times the ratio of models "
        "(changed), or the models alone (all)",
    )
    priced.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="communications on this cluster; of execution traces also its GPUs and hosts",
    )
    priced.add_argument(
        "--gpu",
        metavar="GPU",
        help="kernels on these GPUs (default: those of the cluster, else those recorded)",
    )
    priced.add_argument(
        "--recorded-gpu", metavar="GPU", help="those recorded, where Kineto traces do not say"
    )
    priced.add_argument(
        "--measured",
        metavar="FILE",
        help="times of operators on the new GPU, which come before models: columns operator, "
        "shapes, types, time_us (.csv; docs/operators.md)",
    )


def _add_what_if_options(parser: argparse.ArgumentParser) -> None:
    change = parser.add_argument_group("what if")
    for name, what in (
        ("compute", "kernel and copy times"),
        ("comm", "wire times of communications"),
        ("host", "CPU times"),
    ):
        change.add_argument(
            f"--scale-{name}", type=_factor, default=1.0, metavar="F", help=f"multiply {what} by F"
        )
    change.add_argument(
        "--scale-kernel",
        type=_pattern,
        action="append",
        default=[],
        metavar="PATTERN=F",
        help="multiply rows whose name matches a shell pattern (may be repeated)",
    )
    change.add_argument(
        "--delay",
        type=_rank_seconds,
        action="append",
        default=[],
        metavar="RANK:SECONDS",
        help="start a rank late (may be repeated)",
    )
    change.add_argument(
        "--cap-host-gap",
        type=_maybe_rank_seconds,
        action="append",
        default=[],
        metavar="[RANK:]SECONDS",
        help="cut CPU time before a call to this, on all ranks or on one (may be repeated)",
    )


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a factor; give 0 or more")
    return value


def _pattern(text: str) -> tuple[str, float]:
    pattern, equals, factor = text.rpartition("=")
    if not equals or not pattern:
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=FACTOR, as in '*gemm*=0.7'")
    return pattern, _factor(factor)


def _maybe_rank_seconds(text: str) -> tuple[int | None, float]:
    rank, colon, seconds = text.rpartition(":")
    try:
        found = (int(rank) if colon else None, float(seconds))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:SECONDS, as in 3:0.01") from None
    if not 0 <= found[1] < float("inf"):
        raise argparse.ArgumentTypeError(f"{seconds} is no time in seconds; give 0 or more")
    return found


def _rank_seconds(text: str) -> tuple[int, float]:
    rank, seconds = _maybe_rank_seconds(text)
    if rank is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:SECONDS, as in 3:0.01")
    return rank, seconds


def _each_rank_once(option: str, given: list[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for rank, seconds in given:
        if rank in found:
            raise UsageError(f"{option} is given twice for rank {rank}")
        found[rank] = seconds
    return found


def run(args: argparse.Namespace) -> int:
    """Replay and print; the first process prints."""
    check_options(args)
    if args.price is None and (args.cluster or args.gpu or args.measured):
        from .replay_priced import check_priced, run_priced

        check_priced(args)
        return run_priced(args)
    _check_repriced(args)
    from ..export.repriced import price_again
    from ..mpi.parallel import collective_errors, progress
    from ..replay import Pricing, read_job, replay
    from .launch import world
    from .other_files import expected
    from .processes import advise

    comm = world()
    first = comm.rank == 0
    with collective_errors(comm):
        if first:
            check_files(args)
    what = _what_if(args)
    pricing = None
    if args.price is not None:
        pricing = Pricing(args.price, args.gpu, args.cluster, args.recorded_gpu, args.measured)
    begun = time.perf_counter()
    with progress(comm, "working out what depends on what"):
        with expected(args.paths, ("traces",)):
            job = read_job(args.paths, comm, allow_missing=args.allow_missing_ranks)
        repriced = None if pricing is None else price_again(job, comm, pricing)
        if repriced is None:
            replayed = replay(job, comm, what, critical_path=True, progress=True)
        else:
            replayed = replay(
                repriced.job,
                comm,
                what,
                critical_path=True,
                progress=True,
                network=repriced.network,
                changes=repriced.lines,
            )
        plain = replay(job, comm) if replayed.changes else replayed
        seconds = time.perf_counter() - begun
        attributes = _statements(job, replayed, plain, repriced)
        results = _results(args, comm, replayed.run, attributes, what, pricing)
        if args.save_program is not None:
            _save_program(args, comm, replayed)
        shown = None
        if args.html is not None:
            from ..page.shown import ShownRun

            shown = ShownRun(replayed.run)
        figures = _figures(job, replayed, plain)
        if repriced is not None:
            figures["priced"] = repriced.result.as_dict()
        report = deliver(results, args, comm, figures, shown)
    if first:
        details = in_detail(args)
        steps = _steps(replayed, plain, what, MAX_STEPS if details else MAX_STEPS_IN_SHORT)
        print("\n\n".join([steps, report, *([_findings(job)] if details else [])]))
    advise(comm, seconds, len(job.traces.ranks), "rank")
    return 0


def _what_if(args: argparse.Namespace) -> WhatIf:
    """Options → what is to be changed in what was recorded."""
    from ..replay.what_if import WhatIf

    return WhatIf(
        compute=args.scale_compute,
        comm=args.scale_comm,
        host=args.scale_host,
        kernels=tuple(args.scale_kernel),
        delay=_each_rank_once("--delay", args.delay),
        cap_host_gap=min((s for rank, s in args.cap_host_gap if rank is None), default=None),
        cap_rank_gap=_each_rank_once(
            "--cap-host-gap", [(r, s) for r, s in args.cap_host_gap if r is not None]
        ),
    )


def _results(
    args: argparse.Namespace,
    comm: Intracomm,
    run: Run,
    attributes: dict[str, Any],
    what: WhatIf,
    pricing: Pricing | None,
) -> Results | None:
    """Collect the result of a replay, and write it where a file is asked for. **Collective.**"""
    from ..replay import ReplayOrigin
    from ..results import collect, write_results

    if args.output is None:
        return collect(run, comm=comm, attributes=attributes, step=args.step)
    return write_results(
        run,
        args.output,
        comm=comm,
        timeline=args.timeline,
        origin=ReplayOrigin.of(args.paths, args.allow_missing_ranks, what, pricing).text,
        overwrite=args.overwrite,
        attributes=attributes,
        step=args.step,
    )


def _save_program(args: argparse.Namespace, comm: Intracomm, replayed: Replay) -> None:
    """Write what every rank does, and what was changed. **Collective.**"""
    from ..mpi.parallel import collective_errors
    from ..program import gather, save

    whole = gather(replayed.program, comm)
    with collective_errors(comm):
        if whole is not None:
            if replayed.changes:
                attributes = {**whole.attributes, "changed": "; ".join(replayed.changes)}
                whole = whole.replace(attributes=attributes)
            save(whole, args.save_program, overwrite=args.overwrite)


def _check_repriced(args: argparse.Namespace) -> None:
    """Refuse options that need others.

    Raises
    ------
    UsageError
    """
    if args.price is None:
        if args.recorded_gpu is not None:
            raise UsageError("--recorded-gpu says what --price starts from, which is not given")
        return
    if args.cluster is not None and args.scale_comm != 1.0:
        raise UsageError(
            "--scale-comm is of recorded communications, and --cluster prices them; give one"
        )
    given = (args.cluster, args.gpu, args.measured)
    if args.price == "changed" and given == (None, None, None):
        raise UsageError("--price changed needs what changes: --gpu, --cluster or --measured")


def _statements(
    job: TraceJob, replayed: Replay, plain: Replay, repriced: PricedAgain | None
) -> dict[str, Any]:
    """Replay → attributes of its results: error, assumptions, what could not be modelled."""
    from ..replay.error import replay_error

    spread = None if repriced is None else repriced.result.spread
    error = replay_error(replayed, plain, spread)
    unmatched = job.counts["kernels without a partner"]
    assumptions = [
        "durations, launch latencies, gaps and CPU times as recorded, but for the changes named",
        "a communication's wire time is what remains after its last member arrived",
        *(f"changed: {line}" for line in replayed.changes),
    ]
    missing = [
        "kernels slowing each other down when changes make them overlap otherwise",
        *(
            ["CPU times on other hosts: they are as recorded, so is how long a launch takes"]
            if repriced is not None
            else []
        ),
        *(
            [
                f"{unmatched} communication kernels without a partner in the files: their recorded "
                "time, waiting included, is taken as wire time"
            ]
            if unmatched
            else []
        ),
        *(
            [
                f"{job.late[0]} device operations started later "
                f"({job.late[1] * 1e3:.2f} ms in all) "
                "than everything they are known to wait for"
            ]
            if job.late[0]
            else []
        ),
    ]
    return {
        "uncertainty": error.value,
        "uncertainty_method": error.method,
        "assumptions": assumptions,
        "not_modelled": missing,
    }


def _steps(replayed: Replay, plain: Replay, what: WhatIf, most: int) -> str:
    """Measured and replayed step times, rank by rank; the worst ones of many."""
    changed = bool(replayed.changes)
    head = f"{'rank':>6s} {'step':>6s} {'measured':>12s} {'replayed':>12s} {'error':>8s}"
    lines = [head + (f" {'changed':>12s} {'change':>8s}" if changed else "")]
    pairs = list(zip(plain.steps, replayed.steps, strict=True))
    shown = pairs
    if len(pairs) > most:
        shown = sorted(pairs, key=lambda p: -abs(p[0].error))[:most]
    for before, after in shown:
        line = (
            f"{before.rank:6d} {before.step if before.step >= 0 else 'all':>6} "
            f"{before.measured * 1e3:9.3f} ms {before.replayed * 1e3:9.3f} ms "
            f"{percentage(before.error, 2, signed=True):>8}"
        )
        if changed:
            change = percentage(after.replayed / before.replayed - 1, 2, signed=True)
            line += f" {after.replayed * 1e3:9.3f} ms {change:>8}"
        lines.append(line)
    if len(shown) < len(pairs):
        lines.append(f"       … {len(pairs) - len(shown)} more steps with smaller errors")
    changes = [f"what if: {line}" for line in replayed.changes]
    counts = replayed.job.counts
    if what.comm != 1.0 and not counts["kernels matched"] + counts["kernels without a partner"]:
        changes.append("--scale-comm changes nothing: this recording has no communications")
    return "\n".join([*changes, *lines])


def _findings(job: TraceJob) -> str:
    """How the traces were understood: rules used and what stayed open, with counts."""
    lines = ["How the traces were read"]
    lines += [f"  {count:8d}  {name}" for name, count in sorted(job.counts.items()) if count]
    lines += [
        f"  {count:8d}  host overheads {name}: {total * 1e3:.1f} ms"
        for name, (count, total) in sorted(job.overheads.items())
    ]
    if job.late[0]:
        lines.append(f"  {job.late[0]:8d}  unexplained late starts: {job.late[1] * 1e3:.2f} ms")
    lines += [
        f"            stall kept as CPU time: {seconds * 1e3:.2f} ms in {name} on rank {rank}"
        for rank, seconds, name in job.stalls[:5]
    ]
    return "\n".join(lines)


def _figures(job: TraceJob, replayed: Replay, plain: Replay) -> dict[str, Any]:
    """Figures of a replay beside those of the report; seconds."""
    return {
        "measured_steps": _by_rank(plain, "measured"),
        "unchanged_steps": plain.rank_steps,
        "changes": replayed.changes,
        "counts": {name: count for name, count in sorted(job.counts.items()) if count},
        "late_starts": {"count": job.late[0], "seconds": job.late[1]},
        "host_overheads": {
            name: {"count": count, "seconds": total}
            for name, (count, total) in job.overheads.items()
        },
    }


def _by_rank(replayed: Replay, what: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for each in replayed.steps:
        found.setdefault(str(each.rank), {})[str(each.step)] = getattr(each, what)
    return found
