"""``mpisim extrapolate`` of traces of several ranks: a recorded job at another scale."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from .output import check_files, deliver, simulate_with_options

__all__ = ["add_parallel_options", "run_parallel"]

OPTIONS: dict[str, dict[str, Any]] = {
    "--dp": {
        "type": int,
        "metavar": "N",
        "help": "data-parallel replicas (default: as many as the recorded job had)",
    },
    "--cluster": {
        "metavar": "CLUSTER",
        "help": "where the new job runs: NCCL's model of its network",
    },
    "--traced-cluster": {
        "metavar": "CLUSTER",
        "help": "where the job was recorded (default: the same); its measured communications "
        "calibrate the model",
    },
    "--gpu": {
        "metavar": "GPU",
        "help": "scale kernels to this GPU (default: they take what they took)",
    },
    "--distributed-optimizer": {
        "choices": ("on", "off"),
        "help": "shard the optimizer's states over the replicas, or no longer (default: as "
        "recorded)",
    },
    "--micro-batches": {
        "type": int,
        "metavar": "N",
        "help": "micro-batches of a pipeline's step (default: as recorded)",
    },
    "--pp": {
        "type": int,
        "metavar": "N",
        "help": "stages of each pipeline, to which the recorded layers are dealt (default: as "
        "recorded)",
    },
    "--schedule": {
        "choices": ("1f1b", "gpipe", "interleaved"),
        "help": "order of the pipeline's passes (default: as recorded)",
    },
    "--vpp": {
        "type": int,
        "metavar": "N",
        "help": "chunks of each stage of the interleaved schedule (default: as recorded, else 2)",
    },
    "--megatron-buckets": {
        "choices": ("fp32", "bf16"),
        "help": "reduce gradients in the buckets that Megatron-LM cuts for the new number of "
        "replicas, larger ones from 40 on: the format in which it reduces them (default: the "
        "recorded buckets)",
    },
    "--layout": {
        "metavar": "AXES",
        "default": "",
        "help": "axes of the recorded job, the innermost first, as in tp=2,dp=2,pp=2 (default: "
        "found from its groups)",
    },
}


def add_parallel_options(parser: argparse.ArgumentParser, but: Collection[str] = ()) -> None:
    """Add the options of traces of several ranks.

    Parameters
    ----------
    parser : argparse.ArgumentParser
    but : collection of str
        Options that the parser has already.
    """
    group = parser.add_argument_group("traces of several ranks")
    for name, keys in OPTIONS.items():
        if name not in but:
            group.add_argument(name, **keys)


def run_parallel(args: argparse.Namespace) -> int:
    """Extrapolate, simulate and print; the first process prints."""
    from ..extrapolate.parallel_origin import GrownOrigin
    from ..mpi.parallel import collective_errors, progress
    from ..program import save
    from .launch import world

    comm = world()
    first = comm.rank == 0
    with collective_errors(comm):
        if first:
            check_files(args)
    origin = GrownOrigin(
        tuple(map(str, args.paths)),
        args.cluster,
        args.traced_cluster,
        args.gpu,
        args.dp,
        args.micro_batches,
        args.pp,
        args.layout,
        {"on": True, "off": False}.get(args.distributed_optimizer),
        args.schedule,
        args.vpp,
        args.calibration,
        args.megatron_buckets,
    )
    with progress(comm, "working out what depends on what"):
        found = origin.grown(comm)
        results, shown = simulate_with_options(
            found.program,
            args,
            comm,
            network=found.network,
            attributes=found.attributes,
            origin=origin.text if args.output is not None else "",
        )
        with collective_errors(comm):
            if first and args.save_program is not None:
                save(found.priced_program(), args.save_program, overwrite=args.overwrite)
        report = deliver(results, args, comm, found.figures, shown)
    if first:
        print(f"{found.text}\n\n{report}")
    return 0
