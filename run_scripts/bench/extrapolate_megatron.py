"""Megatron-LM's recording of 8 A800, grown to more replicas, beside the generated job of as many.

    python run_scripts/bench/extrapolate_megatron.py \
        ../shared/traces/megatron_gpt_tp2pp2dp2_a800_8rank

Nobody has measured the grown jobs. The generated ones have the recording's plan and model. Kernels
of each rank are scaled so that they take as long in a step as those of the recorded rank at its
place of TP and PP (the mean of two replicas), and NCCL's of tensor parallelism take the
recorded median of their operation and size: what is left to differ are order, gradients, messages,
waits and the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpisim import engine
from mpisim.base.text import percentage
from mpisim.experiment import read
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.program import Kind, Program
from mpisim.replay import TraceJob, read_job
from mpisim.topo import find_cluster

CLUSTER = "a800-8gpu"
REPLICAS = (2, 4, 8)
GPUS_OF_A_REPLICA = 4
COMPUTE = (Kind.KERNEL, Kind.COPY)

TEXT = """
[model]
preset = "gpt2-medium"
seq_len = 1024
[plan]
tp = 2
pp = 2
sp = true
zero = 0
micro_batch = 32
global_batch = {batch}
precision = "bf16"
[framework]
name = "megatron-lm"
[cluster]
preset = "{cluster}"
gpus = {gpus}
nodes = {nodes}
[overlap]
model = "off"
[run]
allow_oom = true
"""


def generated(replicas: int) -> PreparedExperiment:
    """Return the recorded plan and model with so many replicas."""
    gpus = GPUS_OF_A_REPLICA * replicas
    text = TEXT.format(batch=64 * replicas, cluster=CLUSTER, gpus=gpus, nodes=-(-gpus // 8))
    return prepare(read(text, "Megatron-LM's recording"))


def kernel_time(program: Program, rank: int, step: int | None = None) -> int:
    """Return what kernels and copies of a rank take, in ps; of one step, or of all rows."""
    table = program.table_of(rank)
    rows = np.isin(table.kind, COMPUTE)
    if step is not None:
        rows &= table.step == step
    return int(table.duration[rows].sum())


def place(rank: int, ranks: int) -> tuple[int, int]:
    """Return a rank's places of TP and PP, in the order TP, DP, PP."""
    return rank % 2, rank // (ranks // 2)


def tensor_parallel_times(job: TraceJob) -> dict[tuple[int, int], int]:
    """Recorded job → operation and bytes of its exchanges between ranks 0 and 1 → median in ps."""
    table, program = job.program.table_of(0), job.program
    found: dict[tuple[int, int], list[int]] = {}
    for slot, c in enumerate(program.slots_of(0).tolist()):
        if program.communicators.group(c) == (0, 1):
            for row in table.rows_on(slot).tolist():
                key = int(table.operation[row]), int(table.bytes[row])
                found.setdefault(key, []).append(int(table.duration[row]))
    return {key: int(np.median(times)) for key, times in found.items()}


def with_recorded_kernels(
    program: Program,
    recorded: dict[tuple[int, int], float],
    exchanges: dict[tuple[int, int], int],
) -> Program:
    """Return a generated job whose kernels take as long as those recorded at the same place."""
    tables = []
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        ratio = recorded[place(rank, program.n_ranks)] / kernel_time(program, rank)
        longer = np.rint(table.duration * ratio).astype(np.int64)
        duration = np.where(np.isin(table.kind, COMPUTE), longer, table.duration)
        for row in np.flatnonzero(table.kind == Kind.COLLECTIVE).tolist():
            key = int(table.operation[row]), int(table.bytes[row])
            duration[row] = exchanges.get(key, duration[row])
        tables.append(table.replace(duration=duration))
    return program.replace(tables=tuple(tables), table=np.arange(program.n_ranks, dtype=np.int32))


def main(job: TraceJob) -> None:
    """Print a row for each number of replicas."""
    whole = extrapolate_parallel(job, MPI.COMM_SELF)
    step = max(set(job.program.table_of(0).step.tolist()))
    sums: dict[tuple[int, int], list[int]] = {}
    for rank in range(8):
        sums.setdefault(place(rank, 8), []).append(kernel_time(job.program, rank, step))
    recorded = {at: float(np.mean(each)) for at, each in sums.items()}
    exchanges = tensor_parallel_times(job)
    print(f"recorded step {whole.recorded * 1e3:.1f} ms; kernels of its ranks by TP and PP "
          + ", ".join(f"{each / 1e9:.1f}" for each in recorded.values()) + " ms")  # fmt: skip
    columns = f"{'replicas':>8} {'grown':>10} {'generated':>10} {'its kernels':>12}"
    print(f"{columns}  grown beside it, factor from 2")
    first: float | None = None
    for replicas in REPLICAS:
        grown = extrapolate_parallel(
            job, MPI.COMM_SELF, dp=replicas, cluster=find_cluster(CLUSTER)
        ).step
        ours = generated(replicas)
        plain, scaled = (
            engine.simulate(program, network=ours.network).step_time / 1e12
            for program in (ours.program, with_recorded_kernels(ours.program, recorded, exchanges))
        )
        first = first or scaled
        print(
            f"{replicas:8} {grown * 1e3:7.1f} ms {plain * 1e3:7.1f} ms {scaled * 1e3:9.1f} ms  "
            f"{percentage(grown / scaled - 1, 1, signed=True)}, "
            f"{percentage(grown / whole.recorded / (scaled / first) - 1, 1, signed=True)}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path, help="the folder of the 8 ranks' files")
    main(read_job([parser.parse_args().trace], MPI.COMM_SELF, keep_calls=True))
