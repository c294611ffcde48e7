"""``mpisim validate traces``: recorded steps beside their replay."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base.errors import MpisimError, TraceError
from ..base.text import percentage
from .output import add_file_options, add_monitor_option, check_files, check_outputs, write_figures

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..validate import CrossStep, Perturbation, TraceResult, Validation

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate traces TRACES/                   one trace a subfolder, table of errors
  mpisim validate traces TRACES/ --json out.json   the same as numbers
  mpisim validate traces TRACES/ --perturb         does the replay move as it must?
  mpisim validate traces TRACES/ --cross-step      does a step predict the next?
  mpirun -n 4 python -m mpisim validate traces TRACES/
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate traces``."""
    parser = kinds.add_parser(
        "traces",
        help="replay recorded traces",
        description="Replay recorded traces and compare every step of every rank with what was "
        "measured. A folder with subfolders is one trace a subfolder. A trace that cannot be "
        "replayed is a row with the reason; the exit code is then 2, or 1 if a test fails.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="folders or files of traces")
    add_file_options(parser, monitor=False)
    parser.add_argument(
        "--perturb", action="store_true", help="also run the tests of an honest replay"
    )
    parser.add_argument(
        "--cross-step", action="store_true", help="also predict every step from the one before"
    )
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Replay the traces and print a table, one line a trace as it is done.

    Returns 1 if a test fails on a trace that is replayed, else 2 if a trace cannot be replayed.
    """
    check_outputs(args)
    from ..mpi.parallel import collective_errors
    from ..validate import Validation, validate_traces
    from ..validate.traces import add_to
    from .launch import world

    comm = world()
    first = comm.rank == 0
    with collective_errors(comm):
        if first:
            check_files(args)
    validation, tests = Validation("traces"), _Tests()
    for number, result in enumerate(validate_traces(args.paths, comm)):
        add_to(validation, result)
        if first:
            if number == 0:  # not above the line of an error
                _show(HEAD)
            _show(_line(result))
        if result.skipped:
            tests.skipped[result.name] = result.skipped
            continue
        try:
            _test(result, args, tests, comm)
        except MpisimError as error:  # the same on every process
            tests.failed[result.name] = str(error)
            if first:
                _show(f"    FAILS: {error}")
    with collective_errors(comm):
        if first:
            print(_summary(validation, _of_changes(tests)))
            found = _figures(validation, tests)
            write_figures(args, {**found, "not_replayed": tests.skipped, "failed": tests.failed})
        if not validation.cases:
            raise TraceError(f"{args.paths[0]}: no trace here could be replayed")
    if tests.failed or any(m.passed is False for moves in tests.moves.values() for m in moves):
        return 1
    return 2 if tests.skipped else 0


@dataclass
class _Tests:
    """Of each trace, by its name: what tests found, why it failed one, why it is not replayed."""

    moves: dict[str, list[Perturbation]] = field(default_factory=dict)
    across: dict[str, list[CrossStep]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def _test(result: TraceResult, args: argparse.Namespace, tests: _Tests, comm: MPI.Comm) -> None:
    """Run the tests of an honest replay that the command asks for. **Collective.**"""
    from ..validate import cross_steps, perturb_traces

    if args.cross_step:
        steps = tests.across[result.name] = cross_steps(result, comm)
        if comm.rank == 0 and steps:
            _show(_across(steps))
    if args.perturb:
        moves = tests.moves[result.name] = []
        for move in perturb_traces(result, comm):
            moves.append(move)
            if comm.rank == 0:
                _show(_move(move))


def _show(text: str) -> None:
    """Print clear of the line of progress."""
    from ..mpi.phases import phases

    with phases.silent():
        print(text, flush=True)


HEAD = (
    f"{'trace':34s} {'ranks':>5s} {'kernels':>7s} {'comms':>6s} {'unmatched':>9s} {'steps':>5s} "
    f"{'measured':>10s} {'replayed':>10s} {'worst':>7s} {'baseline':>8s}"
)


def _line(result: TraceResult) -> str:
    """One trace: its worst step, and the worst error of the baseline."""
    if result.replay is None or result.job is None:
        return f"{result.name:34.34s} skipped: {result.skipped}"
    job, steps = result.job, result.replay.steps
    worst = max(steps, key=lambda each: abs(each.error))
    base = max(steps, key=lambda each: abs(each.baseline / each.measured - 1))
    return (
        f"{result.name:34.34s} {len(job.sources):5d} {job.kernels:7d} "
        f"{job.counts['kernels matched']:6d} {job.counts['kernels without a partner']:9d} "
        f"{len({each.step for each in steps}):5d} {worst.measured * 1e3:7.2f} ms "
        f"{worst.replayed * 1e3:7.2f} ms {percentage(worst.error, 2, signed=True):>7} "
        f"{percentage(base.baseline / base.measured - 1, 1, signed=True):>8}"
    )


def _move(move: Perturbation) -> str:
    verdict = {True: "ok", False: "FAILS", None: ""}[move.passed]
    change = percentage(move.change, 2, signed=True)
    return f"    {move.test:34s} step {change:>8}  {verdict:5s} {move.note}"


def _across(steps: list[CrossStep]) -> str:
    """Errors of steps predicted from the one before, and of copying its time."""
    error = sum(abs(each.error) for each in steps) / len(steps)
    worst = max(steps, key=lambda each: abs(each.error))
    copied = sum(abs(each.copied / each.measured - 1) for each in steps) / len(steps)
    return (
        f"    from the step before                {len(steps)} steps: "
        f"mean {percentage(error, 2)}, worst {percentage(worst.error, 2, signed=True)}; "
        f"copying its time {percentage(copied, 2)}; "
        f"rows without counterpart {percentage(max(each.unmatched for each in steps), 1)}"
    )


def _of_changes(tests: _Tests) -> dict[str, dict[str, float | int | None]]:
    """Errors of changed replays over all traces: fractions (see data/replay.toml)."""
    from ..validate.cases import summary

    steps = [each.error for found in tests.across.values() for each in found]
    spreads = [m.spread for found in tests.moves.values() for m in found if m.spread is not None]
    found = {"step_to_step": steps, "inferred_waits": spreads}
    return {name: summary(errors) for name, errors in found.items() if errors}


def _summary(validation: Validation, changes: dict[str, dict[str, float | int | None]]) -> str:
    """Errors over all steps, and by kind of trace."""
    figures = validation.as_json()
    lines = [""]
    for name, group in figures["groups"].items():
        if name.startswith("kind="):
            cases = [c for c in validation.cases if c.columns["kind"] == name[5:]]
            worst = max(cases, key=lambda case: abs(case.error))
            base = sum(abs(c.extra["baseline"] / c.measured - 1) for c in cases) / len(cases)
            lines.append(
                f"{name[5:]:18s} {group['n']:4d} steps: mean {percentage(group['mape'], 2)}, "
                f"median {percentage(group['median'], 2)}, p90 {percentage(group['p90'], 2)}, "
                f"worst {percentage(worst.error, 2, signed=True)} ({worst.id}); "
                f"baseline mean {percentage(base, 1)}"
            )
    for name, what in (
        ("step_to_step", "steps from the one before"),
        ("inferred_waits", "predicted changes without late-start edges, share of the change"),
    ):
        if name in changes:
            of = changes[name]
            mean, median, p90 = (percentage(of[key] or 0, 2) for key in ("mape", "median", "p90"))
            lines.append(f"{what}: {of['n']}, mean {mean}, median {median}, p90 {p90}")
    for reason, count in figures["skipped"].items():
        lines.append(f"skipped: {count} × {reason}")
    lines.append(
        "measured, replayed: of the rank and step with the worst error.\n"
        "baseline: largest sum of kernel time over streams, as recorded. unmatched: communication\n"
        "kernels without a partner in the files at hand, replayed as recorded."
    )
    return "\n".join(lines)


def _figures(validation: Validation, tests: _Tests) -> dict[str, Any]:
    figures = {**validation.as_json(), "changes": _of_changes(tests)}
    if tests.across:
        figures["cross_step"] = [
            {
                "id": each.id,
                "measured": each.measured,
                "predicted": each.predicted,
                "error": each.error,
                "copied": each.copied,
                "unmatched": each.unmatched,
            }
            for steps in tests.across.values()
            for each in steps
        ]
    if tests.moves:
        figures["perturbations"] = {
            name: [
                {
                    "test": each.test,
                    "change": each.change,
                    "seconds": each.seconds,
                    "note": each.note,
                    "passed": each.passed,
                }
                for each in moves
            ]
            for name, moves in tests.moves.items()
        }
    return figures
