"""Generated steps of several ranks, written as traces and read again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpisim.experiment import load
from mpisim.export.operators import operators_around
from mpisim.extrapolate.parallel import Extrapolated, extrapolate_parallel
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.program import Operation, Program
from mpisim.replay import TraceJob, read_job
from mpisim.simulate import Simulated, simulate
from mpisim.topo import find_cluster
from mpisim.traces.export import Added, export_kineto

GPT = """
title = "GPT, TP 2, PP 2, DP 2, distributed optimizer"
[model]
preset = "gpt3-350m"
[plan]
tp = 2
pp = 2
zero = 1
micro_batch = 4
global_batch = {batch}
precision = "bf16"
[cluster]
preset = "dgx-h100"
nodes = {nodes}
"""

LLAMA = """
title = "Llama, FSDP"
[model]
preset = "llama-7b"
[plan]
tp = 1
pp = 1
zero = 3
micro_batch = 1
global_batch = {batch}
precision = "bf16"
[framework]
dp_style = "fsdp"
[cluster]
preset = "dgx-h100"
nodes = {nodes}
"""

GPIPE = GPT.replace("zero = 1", 'zero = 1\noverlap.p2p = true\npipeline.schedule = "gpipe"')

MEGATRON = "megatron_gpt_tp2pp2dp2_a800_8rank"


def generated(text: str, batch: int, nodes: int, folder: Path) -> Simulated:
    """A text of an experiment → its simulated step; each node holds as many replicas."""
    path = folder / f"{nodes}.toml"
    path.write_text(text.format(batch=batch * nodes, nodes=nodes))
    simulated: list[Simulated] = []
    simulate(prepare(load(str(path), ["framework.name=none"])[1]), simulated=simulated)
    return simulated[0]


@dataclass
class Job:
    """A generated step of 8 GPUs, written as traces and read again."""

    text: str
    batch: int
    folder: Path
    job: TraceJob

    def generated(self, nodes: int) -> Simulated:
        """The generated step on so many nodes."""
        return generated(self.text, self.batch, nodes, self.folder)

    def grown(
        self, replicas: int, cluster: str = "dgx-h100", buckets: str | None = None
    ) -> Extrapolated:
        """The recorded step with so many replicas."""
        return extrapolate_parallel(
            self.job, MPI.COMM_SELF, dp=replicas, cluster=find_cluster(cluster), buckets=buckets
        )


def recorded(text: str, batch: int, folder: Path) -> Job:
    """A text of an experiment → its step on one node as a recorded job."""
    return Job(text, batch, folder, traced(generated(text, batch, 1, folder), folder))


def traced(step: Simulated, folder: Path) -> TraceJob:
    """A simulated step → the job of its traces, which are written to a folder."""
    prepared = step.prepared
    assert isinstance(prepared, PreparedExperiment)
    export_kineto(
        step.run.program,
        step.run,
        folder / "traces",
        added=lambda _, rank: Added(step=0, around=operators_around(prepared, rank)),
    )
    return read_job([folder / "traces"], MPI.COMM_SELF)


def on_stages(text: str, stages: int, folder: Path, batch: int = 32) -> Simulated:
    """A text of an experiment with two stages → its simulated step with so many, and replicas."""
    path = folder / f"{stages}.toml"
    many = text.replace("pp = 2", f"pp = {stages}").replace("{nodes}", str(-(-stages // 2)))
    path.write_text(many.replace("{batch}", str(batch)))
    simulated: list[Simulated] = []
    experiment = load(str(path), changes=(f"cluster.gpus={4 * stages}",))[1]
    simulate(prepare(experiment), simulated=simulated)
    return simulated[0]


def recorded_on_stages(text: str, stages: int, folder: Path, batch: int = 32) -> TraceJob:
    """A text of an experiment with two stages → its step with so many as a recorded job."""
    return traced(on_stages(text, stages, folder, batch), folder)


def traffic(program: Program) -> Counter[str]:
    """Operation → bytes of all ranks."""
    found: Counter[str] = Counter()
    for table, ranks in zip(program.tables, np.bincount(program.table), strict=True):
        assert table is not None
        for operation in np.unique(table.operation[table.is_communication]).tolist():
            size = table.bytes[table.operation == operation]
            found[Operation(operation).name] += int(np.maximum(size, 0).sum()) * int(ranks)
    return found
