"""``mpisim extrapolate`` of traces of several ranks: a recorded job at another scale."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import check_json, check_page, deliver

if TYPE_CHECKING:
    from ..simulate import Simulated

__all__ = ["run_parallel"]


def run_parallel(args: argparse.Namespace) -> int:
    """Extrapolate, simulate and print; the first process prints."""
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
