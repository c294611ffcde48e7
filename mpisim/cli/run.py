"""``mpisim run``, and ``mpisim`` alone: simulate an experiment and print the report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .output import (
    add_change_options,
    add_fold_option,
    add_monitor_option,
    add_result_options,
    check_files,
    check_options,
    deliver,
    experiment_changes,
    simulate_with_options,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..experiment import Experiment, ProgramExperiment
    from ..prediction.prepared import PreparedExperiment
    from ..prediction.prepared_program import PreparedProgram

__all__ = ["add_parser", "add_run_options", "run"]

MOST_SEEDS = 5000
"""What an attribute of an HDF5 file can hold, all steps one by one."""

EXAMPLES = """\
examples:
  mpirun -n 8 python -m mpisim                  the default: Llama-3-8B, one simulated GPU a process
  mpisim new > mine.toml                        an experiment to start from (--all: every key) ...
  mpisim run mine.toml                          ... and to run
  mpisim run echo-gpt3-175b-96-h800             one of those in mpisim list experiments
  mpisim run mine.toml --set plan.tp=8 --set plan.recompute=full
  mpisim run mine.toml --set variation.kernels=0.02 --set variation.gpus=0.01 --seeds 20
  mpisim run mine.toml -o run.h5 --timeline     save the result, with every operation of every GPU
  mpisim run mine.toml --html run.html          ... as a page: look at it, send it to someone
  mpisim run mine.toml --save-program step.h5   what every rank does ...
  mpisim run step.h5 --set variation.speeds.3=0.9      ... and to run
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim run``."""
    parser = subparsers.add_parser(
        "run",
        help="simulate an experiment (the default command)",
        description="Simulate one training step: a model on a cluster by a parallel plan, and "
        "print how long it takes, why, and whether it fits into memory. Without FILE: Llama-3-8B "
        "on the 8 GPUs of a DGX H100.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="an experiment (TOML), the name of one of mpisim list experiments, or a program file "
        "(HDF5)",
    )
    add_run_options(parser)
    parser.set_defaults(run=run, collective=True, cluster=None)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run, of an experiment or of a program."""
    add_change_options(parser)
    parser.add_argument("--save-program", metavar="FILE", help="write what every rank does (HDF5)")
    parser.add_argument(
        "--seeds",
        metavar="K",
        type=int,
        default=1,
        help="run K times with random factors ([variation]) of K seeds, spread over the processes, "
        "and tell how the step time spreads (default: 1)",
    )
    add_fold_option(parser)
    parser.add_argument(
        "--no-repeat",
        dest="repeat",
        action="store_false",
        help="simulate every round of micro-batches, also where they repeat to the picosecond; "
        "the result is the same",
    )
    add_result_options(parser)
    add_monitor_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run an experiment or a program file and print the report; the first process prints."""
    check_options(args)
    if not 1 <= args.seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds is {args.seeds}; it must be from 1 to {MOST_SEEDS}")
    from ..experiment import Experiment, load_any
    from ..mpi.parallel import collective_errors, progress
    from .launch import world
    from .other_files import expected
    from .processes import advise

    comm = world()
    changes = [] if args.cluster is None else [f"cluster.preset={args.cluster}"]
    changes += experiment_changes(args)
    read: tuple[str, Experiment | ProgramExperiment] | None = None
    with collective_errors(comm):
        # One process reads: the file may be on the first machine alone, or change in between.
        if comm.rank == 0:
            with expected([args.file], ("experiment", "mpisim-program")):
                read = load_any(args.file, changes)
            check_files(args)
    text, experiment = comm.bcast(read, root=0)

    what: Experiment | PreparedExperiment | PreparedProgram = experiment
    with progress(comm, "generating what every rank does"):
        if args.save_program is not None or not isinstance(experiment, Experiment):
            what = _prepared(experiment, args, comm)
        from ..experiment.serialization import serialize_any

        results, shown = simulate_with_options(
            what,
            args,
            comm,
            text=text,
            origin=serialize_any(experiment) if args.output is not None else "",
            fold=args.fold,
            seeds=args.seeds,
            repeat=args.repeat,
        )
        extra: dict[str, Any] = {}
        if not isinstance(what, Experiment):  # a program file may hold its experiment
            experiment = what.experiment
        if results is not None and isinstance(experiment, Experiment):
            from ..prediction.published import compare_results

            found = compare_results(experiment, results)
            extra["published"] = [each.as_json() for each in found]
        report = deliver(results, args, comm, extra, shown)
    if comm.rank == 0:
        print(report)
    shared = (results.wall["simulate"], results.n_classes) if results else (0.0, 0)
    advise(comm, *shared, "rank")
    return 0


def _prepared(
    experiment: Experiment | ProgramExperiment, args: argparse.Namespace, comm: Intracomm
) -> PreparedExperiment | PreparedProgram:
    """Return what is to be run, its program in a file if that was asked for. **Collective.**"""
    from ..experiment import Experiment
    from ..extrapolate.prepare import prepare_workload
    from ..mpi.parallel import collective_errors
    from ..prediction.prepared import prepare
    from ..prediction.prepared_program import saved_program
    from ..program import save

    case: PreparedExperiment | PreparedProgram
    with collective_errors(comm):
        if isinstance(experiment, Experiment):
            case = prepare(experiment)
        else:
            case = prepare_workload(experiment)
        if comm.rank == 0 and args.save_program is not None:
            save(saved_program(case), args.save_program, overwrite=args.overwrite)
    return case
