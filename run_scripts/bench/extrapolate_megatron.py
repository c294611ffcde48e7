"""Megatron-LM's recording of 8 A800, grown to more replicas, beside the generated job of as many.

    python run_scripts/bench/extrapolate_megatron.py \
        ../shared/traces/megatron_gpt_tp2pp2dp2_a800_8rank

Nobody has measured the grown jobs. The generated ones have the recording's plan and model. Messages
between stages and reductions of gradients cut the rows of a rank into parts, in the recording as in
the generated job. Kernels of a part are scaled so that they take as long as in the same part of the
recorded rank at the same place (recorded replicas in turn), and NCCL's of tensor parallelism take
the recorded median of their operation and size. What is left to differ are order, gradients,
messages, waits and the CPU. The CPU of the recorded job also wrote stacks. A further column has
gaps between kernels as recorded: in each part the device then does as long nothing as it did.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpisim import engine
from mpisim.base.text import percentage
from mpisim.engine import Run
from mpisim.experiment import read
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.program import Flag, Kind, Program
from mpisim.replay import TraceJob, read_job
from mpisim.topo import find_cluster

CLUSTER = "a800-8gpu"
REPLICAS = (2, 4, 8)
RECORDED_REPLICAS = 2
GPUS_OF_A_REPLICA = 4
COMPUTE = (Kind.KERNEL, Kind.COPY)
ON_HOST = (Kind.HOST, Kind.HOST_WAIT)
MIN_BYTES = 1 << 20
"""Of a reduction that ends a part; losses are averaged over the replicas within a pass."""

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


def recorded_at(rank: int, ranks: int) -> int:
    """Return the recorded rank at a rank's place, in the order TP, DP, PP; replicas in turn."""
    replicas = ranks // GPUS_OF_A_REPLICA
    tp, dp, pp = rank % 2, rank // 2 % replicas, rank // (2 * replicas)
    return tp + 2 * (dp % RECORDED_REPLICAS) + 2 * RECORDED_REPLICAS * pp


def parts(program: Program, rank: int) -> NDArray[np.int64]:
    """Return the part of each row of a rank; a message or a reduction of gradients begins one."""
    table, slots = program.table_of(rank), program.slots_of(rank)
    sizes = np.array([len(program.communicators.group(int(c))) for c in slots])
    strides = np.array([np.ptp(program.communicators.group(int(c))) for c in slots])
    own = table.slot
    message = np.isin(table.kind, (Kind.SEND, Kind.RECV)) & ~(table.flags & Flag.JOINED > 0)
    beyond = (own >= 0) & (strides[own] > 1)  # not among neighbours, which share tensors
    reduction = (table.kind == Kind.COLLECTIVE) & beyond
    reduction &= (table.bytes >= MIN_BYTES) | (sizes[own] > RECORDED_REPLICAS)
    return np.cumsum(message | reduction)


def kernel_times(program: Program, rank: int) -> NDArray[np.int64]:
    """Return what kernels and copies of a rank take, in ps, by part."""
    table, part = program.table_of(rank), parts(program, rank)
    times = np.where(np.isin(table.kind, COMPUTE), table.duration, 0)
    return np.bincount(part, times).astype(np.int64)


def idle_times(program: Program, run: Run, rank: int) -> NDArray[np.int64]:
    """Return how long a rank's device does nothing, in ps, by the part of the row that ends it."""
    table, part, rows = program.table_of(rank), parts(program, rank), run.rows(rank)
    device = np.flatnonzero(~np.isin(table.kind, ON_HOST))
    device = device[np.argsort(rows.begin[device], kind="stable")]
    busy_until = np.maximum.accumulate(rows.end[device])[:-1]
    idle = np.maximum(rows.begin[device][1:] - busy_until, 0)
    return np.bincount(part[device][1:], idle, int(part[-1]) + 1).astype(np.int64)


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
    program: Program, recorded: Program, exchanges: dict[tuple[int, int], int]
) -> Program:
    """Return a generated job whose kernels take as long as those recorded at the same place."""
    tables = []
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        wanted = kernel_times(recorded, recorded_at(rank, program.n_ranks))
        ratio = wanted / np.maximum(kernel_times(program, rank), 1)
        longer = np.rint(table.duration * ratio[parts(program, rank)]).astype(np.int64)
        duration = np.where(np.isin(table.kind, COMPUTE), longer, table.duration)
        for row in np.flatnonzero(table.kind == Kind.COLLECTIVE).tolist():
            key = int(table.operation[row]), int(table.bytes[row])
            duration[row] = exchanges.get(key, duration[row])
        tables.append(table.replace(duration=duration))
    return program.replace(tables=tuple(tables), table=np.arange(program.n_ranks, dtype=np.int32))


def with_recorded_gaps(program: Program, run: Run, recorded: Program, replayed: Run) -> Program:
    """Return a generated job whose devices do as long nothing in each part as the recorded ones.

    `run` is that of the job. The time is spread evenly over the kernels of a part.
    """
    tables = []
    for rank in range(program.n_ranks):
        table, part = program.table_of(rank), parts(program, rank)
        wanted = idle_times(recorded, replayed, recorded_at(rank, program.n_ranks))
        kernels = np.isin(table.kind, COMPUTE)
        count = np.bincount(part[kernels], minlength=len(wanted))
        more = (wanted - idle_times(program, run, rank)) / np.maximum(count, 1)
        gap = np.maximum(table.gap + np.rint(more).astype(np.int64)[part], 0)
        tables.append(table.replace(gap=np.where(kernels, gap, table.gap)))
    return program.replace(tables=tuple(tables))


def main(job: TraceJob) -> None:
    """Print a row for each number of replicas."""
    whole = extrapolate_parallel(job, MPI.COMM_SELF)
    recorded = whole.program
    replayed = engine.simulate(recorded, network=None)
    exchanges = tensor_parallel_times(job)
    busy = [kernel_times(recorded, rank).sum() / 1e9 for rank in range(8)]
    idle = [idle_times(recorded, replayed, rank).sum() / 1e9 for rank in range(8)]
    print(
        f"recorded step {whole.recorded * 1e3:.1f} ms; kernels of its ranks "
        f"{', '.join(f'{each:.1f}' for each in busy)} ms, "
        f"gaps {', '.join(f'{each:.1f}' for each in idle)} ms"
    )
    columns = f"{'replicas':>8} {'grown':>10} {'generated':>10}"
    print(f"{columns}  {'its kernels':31} its kernels and gaps; grown beside them")
    first: list[float] = []
    for replicas in REPLICAS:
        grown = extrapolate_parallel(
            job, MPI.COMM_SELF, dp=replicas, cluster=find_cluster(CLUSTER)
        ).step
        ours = generated(replicas)
        plain = engine.simulate(ours.program, network=ours.network)
        scaled = with_recorded_kernels(ours.program, recorded, exchanges)
        run = engine.simulate(scaled, network=ours.network)
        spaced = with_recorded_gaps(scaled, run, recorded, replayed)
        of_gaps = engine.simulate(spaced, network=ours.network)
        steps = [each.step_time / 1e12 for each in (run, of_gaps)]
        first = first or steps
        said = [
            f"{step * 1e3:7.1f} ms {percentage(grown / step - 1, 1, signed=True):>6}, factor "
            f"{percentage(grown / whole.recorded / (step / two) - 1, 1, signed=True)}"
            for step, two in zip(steps, first, strict=True)
        ]
        print(
            f"{replicas:8} {grown * 1e3:7.1f} ms {plain.step_time / 1e9:7.1f} ms  "
            f"{'; '.join(said)}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path, help="the folder of the 8 ranks' files")
    main(read_job([parser.parse_args().trace], MPI.COMM_SELF, keep_calls=True))
