"""``mpisim extrapolate``: a recorded job at another scale."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .output import (
    add_monitor_option,
    add_result_options,
    check_json,
    check_options,
    check_page,
    deliver,
)

if TYPE_CHECKING:
    from ..simulate import Simulated

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim extrapolate traces/                               the parallel structure of a job
  mpisim extrapolate traces/ --dp 8 --cluster a800-8gpu    ... with 8 data-parallel replicas
  mpisim extrapolate traces/ --cluster dgx-a100 --traced-cluster a800-8gpu    another network
  mpisim extrapolate traces/ --cluster dgx-h100 --traced-cluster a800-8gpu --gpu h100    ... and GPU
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim extrapolate``."""
    from ..extrapolate.parallel_options import add_parallel_options

    parser = subparsers.add_parser(
        "extrapolate",
        help="a recorded job at another scale",
        description="Recorded traces of a job → its step with more or fewer replicas, on another "
        "network.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="trace files of a job's ranks, or folders of them"
    )
    add_parallel_options(parser)
    add_result_options(parser)
    add_monitor_option(parser)
    parser.add_argument(
        "--save-program",
        metavar="FILE",
        help="write what every rank does, with the time of each communication for itself",
    )
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Extrapolate, simulate and print; the first process prints."""
    check_options(args)
    from ..base.files import check_output
    from ..extrapolate.parallel import extrapolate_parallel
    from ..mpi.parallel import collective_errors, progress
    from ..program import save
    from ..replay import read_job
    from ..simulate import simulate
    from ..topo.cluster import find_cluster
    from .launch import world

    comm = world()
    first = comm.rank == 0
    with collective_errors(comm):
        if first:
            for path in (args.output, args.save_program):
                if path is not None:
                    check_output(path, overwrite=args.overwrite)
            check_json(args)
            check_page(args)
        clusters = [
            None if name is None else find_cluster(name)
            for name in (args.cluster, args.traced_cluster)
        ]
    with progress(comm, "working out what depends on what"):
        job = read_job(args.paths, comm, allow_missing=True)
        found = extrapolate_parallel(
            job,
            comm,
            dp=args.dp,
            cluster=clusters[0],
            traced_cluster=clusters[1],
            layout=args.layout,
            gpu=args.gpu,
            distributed_optimizer={"on": True, "off": False}.get(args.distributed_optimizer),
            micro_batches=args.micro_batches,
        )
        simulated: list[Simulated] | None = None if args.html is None else []
        results = simulate(
            found.program,
            comm,
            network=found.network,
            output=args.output,
            timeline=args.timeline,
            overwrite=args.overwrite,
            attributes=found.attributes,
            simulated=simulated,
        )
        with collective_errors(comm):
            if first and args.save_program is not None:
                save(found.priced_program(), args.save_program, overwrite=args.overwrite)
        shown = None
        if simulated:
            from ..page.shown import ShownRun

            shown = ShownRun.of(simulated[0])
        report = deliver(results, args, comm, found.figures, shown)
    if first:
        print(f"{found.text}\n\n{report}")
    return 0
