"""``mpisim job``: when is the whole training done, what does it cost, what is lost to failures?"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..base.errors import UsageError
from .output import (
    add_experiment_options,
    add_file_options,
    check_files,
    check_outputs,
    experiment_changes,
    write_figures,
)

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim job llama3-405b-16384-h100                       an experiment with a table [job]
  mpisim job mine.toml --set job.tokens=2e12              ... or with one made here
  mpisim job mine.toml --set 'job.failures="meta-rsc-1"' --set 'job.checkpoint_interval="1 h"'
  mpisim job mine.toml --details                          every part, what it rests on
  mpisim job mine.toml -o job.h5 && mpisim report job.h5
  mpirun -n 4 python -m mpisim job mine.toml --runs 100000
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim job``."""
    parser = subparsers.add_parser(
        "job",
        help="print when a whole training job is done, with failures and checkpoints",
        description="Simulate one step of an experiment, and from it the job of its table [job]: "
        "many steps, checkpoints between them, failures as of published fleets, restarts. Print "
        "when it is done, what it costs, where the time goes and how often to checkpoint.",
        epilog=EXAMPLES,
    )
    add_experiment_options(parser)
    parser.add_argument(
        "--runs",
        metavar="N",
        type=int,
        help="simulate so many runs of the job (default: as many as make the p95 certain)",
    )
    parser.add_argument(
        "--details", action="store_true", help="print everything: all parts, what it rests on"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    add_file_options(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Print how long the job of an experiment takes and what it costs, on process 0."""
    check_outputs(args)
    from ..experiment import Experiment, load_any
    from ..mpi.parallel import collective_errors
    from .launch import without_launcher, world
    from .other_files import expected

    comm = world()
    changes = experiment_changes(args)
    if args.runs is not None:
        changes.append(f"job.runs={args.runs}")
    read: tuple[str, Experiment] | None = None
    with collective_errors(comm):
        if comm.rank == 0:
            with expected([args.file], ("experiment", "mpisim-program")):
                text, found = load_any(args.file, changes)
            if not isinstance(found, Experiment):
                raise UsageError(
                    f"{args.file}: holds no model, so that the size of a checkpoint is not known; "
                    "mpisim job takes an experiment (TOML)"
                )
            read = text, found
            check_files(args)
    text, experiment = comm.bcast(read, root=0)
    from ..job.experiment_outcome import experiment_outcome

    outcome = experiment_outcome(experiment, comm, show=True)
    with collective_errors(comm):
        if comm.rank == 0:
            from ..job.text import JobReport, as_json
            from ..report.drawing import drawing_for

            numbers = as_json(outcome)
            write_figures(args, {"title": experiment.title, **numbers})
            if args.output is not None:
                from ..job.store import write_job

                write_job(args.output, outcome, experiment.title, text, overwrite=args.overwrite)
            report = JobReport(experiment.title, numbers)
            drawing = drawing_for(sys.stdout, launched=not without_launcher())
            print(report.text(drawing, details=args.details))
    return 0
