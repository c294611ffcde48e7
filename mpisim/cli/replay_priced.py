"""``mpisim replay --cluster``: execution traces, which hold no times, with those of models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError
from ..base.text import percentage
from .output import check_files, deliver, simulate_with_options

if TYPE_CHECKING:
    from ..topo import Cluster
    from ..traces.et_program import PricedJob

__all__ = ["check_priced", "run_priced"]

_RECORDED = {
    "--step": "step",
    "--allow-missing-ranks": "allow_missing_ranks",
    "--scale-kernel": "scale_kernel",
    "--delay": "delay",
    "--cap-host-gap": "cap_host_gap",
    "--recorded-gpu": "recorded_gpu",
}
_FACTORS = {f"--scale-{name}": f"scale_{name}" for name in ("compute", "comm", "host")}


def check_priced(args: argparse.Namespace) -> None:
    """Refuse options that need recorded times beside those that do without.

    Raises
    ------
    UsageError
    """
    if args.cluster is None:
        raise UsageError(
            "--gpu and --measured price traces without times, which needs --cluster, too; traces "
            "with times need --price"
        )
    given = [option for option, key in _RECORDED.items() if getattr(args, key)]
    given += [option for option, key in _FACTORS.items() if getattr(args, key) != 1.0]
    if given:
        raise UsageError(
            f"{', '.join(given)}: of recorded times, and --cluster prices traces that have none; "
            "save the program (--save-program) and change that"
        )


def run_priced(args: argparse.Namespace) -> int:
    """Price execution traces, simulate and print; the first process prints."""
    from ..mpi.parallel import collective_errors, progress
    from ..prediction.network import network_of
    from ..program import save
    from .launch import world

    comm = world()
    first = comm.rank == 0
    with collective_errors(comm):
        if first:
            check_files(args)
    with progress(comm, "pricing what the traces launch"):
        with collective_errors(comm):
            # Every process reads all files: without times there is nothing to match between them.
            job, cluster = _priced(args)
            nodes = -(-len(job.ranks) // cluster.gpus_per_node)
            network = network_of(cluster, nodes)
            if first and args.save_program is not None:
                save(job.program, args.save_program, overwrite=args.overwrite)
        results, shown = simulate_with_options(
            job.program, args, comm, network=network, attributes=_statements(job, args)
        )
        report = deliver(results, args, comm, _figures(job), shown)
    if first:
        print(report)
    return 0


def _priced(args: argparse.Namespace) -> tuple[PricedJob, Cluster]:
    from ..kernels import find_gpu
    from ..operators.measured import MeasuredOperators
    from ..topo.cluster import find_cluster
    from ..traces.et_program import execution_traces, price_job

    cluster = find_cluster(args.cluster)
    gpu = find_gpu(cluster.gpu if args.gpu is None else args.gpu)
    measured = None if args.measured is None else MeasuredOperators.read(args.measured)
    return price_job(execution_traces(args.paths), gpu, measured), cluster


def _statements(job: PricedJob, args: argparse.Namespace) -> dict[str, Any]:
    """Statements of the results: error, assumptions, and what could not be modelled."""
    from ..operators.pricing import measured_share

    unknown = job.unknown / ((job.named + job.unknown) or 1.0)
    names = ", ".join(name for name, _ in job.unknown_names.most_common(5))
    return {
        "uncertainty": job.error,
        "uncertainty_method": "the five CPU overheads, each by itself, and all kernels together "
        "off by their error bars (data/host_overheads.toml, the kernel models)",
        "assumptions": [
            "kernels of each operator by the table of operators, times by the kernel models of "
            f"{args.gpu or f'the GPU of {args.cluster}'}",
            "CPU times between and in operators: Lin et al.'s five overheads, medians of other "
            "jobs (data/host_overheads.toml)",
            *measured_share(job.by_how),
            "one stream of computation, one for each process group; kernels wait for a "
            "communication where the program did, or where its thread is left",
            "all ranks begin together",
            *(
                [f"{percentage(unknown, 1)} of kernel time by bytes moved alone: {names}"]
                if job.unknown_names
                else []
            ),
        ],
        "not_modelled": [
            "kernels that no operator of the trace launches (extensions that PyTorch's dispatcher "
            "does not see)",
            "CPU time outside of operators beyond the usual gap between two: loading of data, "
            "other Python",
        ],
    }


def _figures(job: PricedJob) -> dict[str, Any]:
    """Figures of a priced job beside those of the report; seconds over all ranks."""
    return {
        "priced": {
            "named_kernels": job.named,
            "unknown_kernels": job.unknown,
            "host": job.host,
            "unknown": dict(job.unknown_names.most_common()),
            "by": job.by_how,
        }
    }
