"""``mpisim sensitivity``: what would a step gain from more of each part of the hardware?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from .output import (
    add_experiment_options,
    add_file_options,
    add_fold_option,
    check_files,
    check_outputs,
    experiment_changes,
    write_figures,
)

if TYPE_CHECKING:
    from ..experiment import Experiment, ProgramExperiment

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim sensitivity mine.toml                      every quantity, x 0.9, x 1.1 and x 2
  mpisim sensitivity mine.toml --only nic_bandwidth,link_bandwidth --factors 1.5,2,4
  mpisim sensitivity mine.toml --no-simulate        the derivatives alone, from one run
  mpisim sensitivity run.h5                         ... of the experiment that a run kept
  mpisim sensitivity mine.toml --draw tornado.png --json tornado.json
  mpirun -n 8 python -m mpisim sensitivity mine.toml      changes spread over processes
  mpisim run mine.toml --set scale.nic_bandwidth=2        one of the changes by itself
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim sensitivity``."""
    parser = subparsers.add_parser(
        "sensitivity",
        help="print what a step would gain from more of each part of the hardware",
        description="Print how the step of an experiment answers to bandwidths, matrix rate, "
        "latency, launch time, memory and micro-batch size: by the derivative along the critical "
        "path, and simulated again with each changed; where the two differ, why.",
        epilog=EXAMPLES,
    )
    add_experiment_options(
        parser,
        "an experiment (TOML), the name of one of mpisim list experiments, a program file "
        "(HDF5), or what mpisim run -o wrote",
    )
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        default="",
        help="of these quantities alone: hbm_bandwidth, matrix_rate, link_bandwidth, "
        "nic_bandwidth, switch_bandwidth, pcie_bandwidth, host_memory_bandwidth, data_loading, "
        "latency, launch_time, memory, micro_batch; of a program speeds in place of the first "
        "two, and communications",
    )
    parser.add_argument(
        "--factors",
        metavar="F,...",
        default="0.9,1.1,2",
        help="times what each quantity is (default: 0.9,1.1,2)",
    )
    parser.add_argument(
        "--no-simulate",
        dest="simulate",
        action="store_false",
        help="print the derivatives alone, without simulating the changes",
    )
    add_fold_option(parser)
    parser.add_argument("--draw", metavar="FILE", help="draw it: .png, .svg or .pdf (matplotlib)")
    add_file_options(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Print a tornado; the first process prints."""
    check_outputs(args)
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    factors = _factors(args.factors)
    from ..mpi.parallel import collective_errors
    from ..report.tornado import draw_tornado, render_tornado, tornado_figures
    from ..sensitivity import sensitivity
    from .launch import world

    comm = world()
    changes = experiment_changes(args)
    read: Experiment | ProgramExperiment | None = None
    with collective_errors(comm):
        if comm.rank == 0:
            if Path(args.file).is_dir():
                raise UsageError(
                    f"{args.file}: is a folder; recordings are read by mpisim replay {args.file} "
                    "--save-program step.h5, which mpisim sensitivity step.h5 takes"
                )
            read = _read(args.file, changes)
            check_files(args)
            if args.draw is not None:
                from ..base.picture import check_picture

                check_picture("--draw", args.draw, overwrite=args.overwrite)
    experiment = comm.bcast(read, root=0)
    found = sensitivity(
        experiment,
        comm,
        only=only,
        factors=factors,
        simulate=args.simulate,
        fold=args.fold,
        progress=True,
    )
    with collective_errors(comm):
        if found is not None:
            write_figures(args, tornado_figures(found))
            if args.draw is not None:
                draw_tornado(found, args.draw, overwrite=args.overwrite)
    if found is not None:
        print(render_tornado(found))
    return 0


def _read(file: str, changes: Sequence[str]) -> Experiment | ProgramExperiment:
    """File or name → the experiment; of a result the one that it is of."""
    from ..experiment import load_any
    from .other_files import expected, hdf5_format

    if hdf5_format(Path(file)) != "mpisim-results":
        with expected([file], ("experiment", "mpisim-program")):
            return load_any(file, changes)[1]
    from ..export import kept_experiment

    if changes:
        raise UsageError(
            f"{file}: is the result of a run, whose keys are fixed ({changes[0]} is given); --set "
            "and --allow-oom take the experiment that it was run from"
        )
    return kept_experiment(file)


def _factors(text: str) -> list[float]:
    """Return the numbers of a list."""
    found = []
    for word in text.split(","):
        try:
            found.append(float(word))
        except ValueError as error:
            raise UsageError(
                f"--factors {text}: {word.strip()!r} is no number; write them as 0.9,1.1,2"
            ) from error
    return list(dict.fromkeys(found))
