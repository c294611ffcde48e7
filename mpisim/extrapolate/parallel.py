"""The files of a job of several ranks → the job at another scale, and what the answer rests on.

`extrapolate_parallel` takes nothing but what `mpisim.replay.read_job` has read: it finds the grid
of the job (`parallel_structure`), writes the program of the new job (`parallel_growth`) and works
out how far off its step may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError, UsageError
from ..base.frozen import frozen
from ..base.quantity import picoseconds
from ..base.text import percentage
from ..engine import simulate
from ..experiment.choices import NetworkChoice
from ..kernels import find_gpu, gpu_name
from ..mpi.parallel import collective_errors
from ..prediction.network import network_of
from ..program import Operation, Program, gather
from ..replay import Repriced, Repricing, replay, reprice
from ..replay.error import differences
from ..results.step_times import step_of_job
from .parallel_answer import Extrapolated
from .parallel_axes import parse_layout
from .parallel_buckets import ALREADY_MEGATRON, with_megatron_buckets
from .parallel_changes import Changes, check_changes
from .parallel_growth import Grown, grow
from .parallel_optimizer import with_distributed_optimizer
from .parallel_overlap import KernelsByName, KernelSlowdown, kernels_by_name
from .parallel_rounds import with_micro_batches
from .parallel_slowest import SlowestOfMore
from .parallel_stages import with_stages
from .parallel_structure import (
    ParallelStructure,
    find_structure,
    with_traffic_of,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..replay import Replay, TraceJob
    from ..topo import Cluster
    from ..topo.nccl_network import NcclNetwork

__all__ = ["Extrapolated", "extrapolate_parallel"]


def extrapolate_parallel(
    job: TraceJob,
    comm: Intracomm,
    *,
    dp: int | None = None,
    cluster: Cluster | None = None,
    traced_cluster: Cluster | None = None,
    layout: str = "",
    gpu: str | None = None,
    distributed_optimizer: bool | None = None,
    micro_batches: int | None = None,
    stages: int | None = None,
    schedule: str | None = None,
    chunks: int | None = None,
    buckets: str | None = None,
    calibration: str | None = None,
) -> Extrapolated:
    """Write a recorded job of several ranks at another scale. **Collective.**

    Parameters
    ----------
    job : TraceJob
        Some data-parallel replicas may be missing (`read_job(..., allow_missing=True)`): they are
        filled in.
    comm : mpi4py.MPI.Intracomm
        The processes that read the job.
    dp : int, optional
        Data-parallel replicas; by default as many as the recorded job had.
    cluster : Cluster, optional
        Where the new job runs; needed for any change.
    traced_cluster : Cluster, optional
        Where the job was recorded; by default `cluster`.
    layout : str, optional
        Axes of the recorded job, the innermost first, as in ``tp=2,dp=2,pp=2``; by default those
        found.
    gpu : str, optional
        On which kernels run; by default as recorded.
    distributed_optimizer : bool, optional
        Whether the optimizer is sharded over the replicas; by default as recorded.
    micro_batches : int, optional
        Of a step of each pipeline; by default as recorded.
    stages : int, optional
        Of each pipeline, to which the recorded layers are dealt; by default as recorded.
    schedule : str, optional
        Of each pipeline: ``1f1b``, ``gpipe`` or ``interleaved``; by default as recorded.
    chunks : int, optional
        Of each stage of an interleaved schedule; by default as recorded.
    buckets : str, optional
        Gradients are reduced in this format, ``fp32`` or ``bf16``, in the buckets that Megatron-LM
        cuts for the new replicas; by default in those recorded.
    calibration : str, optional
        File of ``mpisim calibrate collectives`` for `cluster`; by default what comes along. It
        does not hold of a `traced_cluster` that is another.

    Raises
    ------
    InputError
        If the groups form no grid, or the change cannot be made.
    """
    with collective_errors(comm):
        check_changes(
            cluster,
            layout,
            Changes(
                dp=dp,
                gpu=gpu,
                distributed_optimizer=distributed_optimizer,
                micro_batches=micro_batches,
                stages=stages,
                schedule=schedule,
                chunks=chunks,
                buckets=buckets,
                calibration=calibration,
            ),
        )
    plain = replay(job, comm)
    whole = _whole(job.program, comm)
    with collective_errors(comm):
        structure = _structure(job, whole, layout)
    recorded = _step(whole, comm, None)
    wanted = _Changed(
        *(structure, dp, cluster, traced_cluster, distributed_optimizer, micro_batches),
        *(stages, schedule, chunks, buckets, calibration),
    )
    run = _run_of(job, whole, wanted, gpu, comm)
    if run is None:
        own = max((abs(each.error) for each in plain.steps), default=0.0)
        said = {
            "uncertainty": own,
            "uncertainty_method": "worst step error of the replay against the recording",
            "assumptions": [
                *_kept(),
                *structure.notes,
                *([] if buckets is None else [ALREADY_MEGATRON]),
            ],
        }
        return Extrapolated(structure, whole, None, None, recorded, recorded, own, said)
    error, method = _error(plain, recorded, run)
    said = {
        "uncertainty": error,
        "uncertainty_method": method,
        "assumptions": _rests_on(job, structure, run, cluster, calibration),
        "not_modelled": _not_modelled(),
    }
    new, step = run.grown, run.step
    return Extrapolated(
        structure, new.program, new.network, new, recorded, step, error, said, run.kernels
    )


def _structure(job: TraceJob, whole: Program, layout: str) -> ParallelStructure:
    """Return the grid of a job's groups; `layout` as of `extrapolate_parallel`."""
    traces = job.traces
    named = any(m.group is not None for each in traces.matching.operations for m in each.members)
    axes = parse_layout(layout) if layout else ()
    return find_structure(
        *(whole, traces.ranks, traces.world_size),
        named=named,
        layout=axes,
        recorded=traces.recorded_groups,
    )


@frozen(eq=False)
class _Run:
    """A changed job as simulated.

    Attributes
    ----------
    grown : Grown
        With kernels as they run beside communications.
    step : float
        Seconds.
    late : mapping of str to float
        What takes its error bar longer → seconds of that step.
    slowdown : str
        What communications do to kernels, for people.
    kernels : Repriced, optional
        Where they run on another GPU.
    """

    grown: Grown
    step: float
    late: Mapping[str, float]
    slowdown: str
    kernels: Repriced | None


def _run_of(
    job: TraceJob, whole: Program, wanted: _Changed, gpu: str | None, comm: Intracomm
) -> _Run | None:
    """Return the changed job, simulated; None if nothing changes. **Collective.**"""
    cluster, traced = wanted.cluster, wanted.traced
    if cluster is None:
        with collective_errors(comm):
            wanted.grown(whole, False, {})  # refuses what needs a network
        return None
    kernels: Repriced | None = None
    with collective_errors(comm):
        if traced is None:
            _check_recorded_there(job.device_name, cluster)
        name = _recorded_gpu(job.device_name, (traced or cluster).gpu)
        old = find_gpu(name)
        new = old if gpu is None else find_gpu(gpu)
    now = whole
    if gpu is not None:
        changed, kernels = reprice(job, comm, Repricing(False, new, name, needs_shapes=False))
        now = _whole(changed.program, comm)
        kernels = kernels if kernels.is_other else None
    with collective_errors(comm):
        before = wanted.network(traced or cluster, whole.n_ranks)
    by_name = kernels_by_name(job, wanted.structure, old, comm)
    slowdown = KernelSlowdown(whole, before, old, new, by_name, comm)
    with collective_errors(comm):
        grown = wanted.grown(slowdown.alone(now), kernels is not None, by_name)
    if grown is None:
        return None
    slowed = slowdown.put_in(grown.program, grown.network)
    grown = replace(grown, program=_whole(slowed, comm))
    slowdown_text = slowdown.text  # of this run, not of the late one
    step = _step(grown.program, comm, grown.network)
    late = {"communications priced anew": _step(grown.program, comm, grown.network.late())}
    if kernels is not None:
        assert kernels.late is not None
        longer = _whole(kernels.late, comm)
        slow = wanted.grown(slowdown.alone(longer), True, by_name)
        assert slow is not None
        slowed = _whole(slowdown.put_in(slow.program, slow.network), comm)
        late["kernels on another GPU"] = _step(slowed, comm, slow.network)
    return _Run(grown, step, late, slowdown_text, kernels)


def _check_recorded_there(said: str, cluster: Cluster) -> None:
    """Refuse a cluster that the job cannot have been recorded on, where none is named for that.

    Its measured communications would calibrate the model of a network that they never crossed, and
    without another change the answer were the recording itself.
    """
    name = _recorded_gpu(said, cluster.gpu)
    recorded, there = find_gpu(name), find_gpu(cluster.gpu)
    if (recorded.family, recorded.nvlink) == (there.family, there.nvlink):
        return  # or one of the same links with another memory
    raise UsageError(
        f"--cluster has {there.title}, but the job was recorded on {recorded.title}: "
        f"--traced-cluster says on which cluster (and --gpu {cluster.gpu} takes kernels to the "
        "other GPU, too)"
    )


def _check_partners(program: Program) -> None:
    """Refuse sends and receives of which no file has the other end: their axis cannot be seen."""
    for table in filter(None, program.tables):
        alone = table.is_communication & (table.operation == Operation.UNKNOWN)
        for number in np.unique(table.name[alone]).tolist():
            if "sendrecv" in program.names[number].lower().replace("_", ""):
                raise UsageError(
                    "the files lack ranks that others exchange messages with, such as further "
                    "stages of their pipelines; give those of all ranks, or all of one replica"
                )


def _recorded_gpu(said: str, otherwise: str) -> str:
    """The GPU that a recording names, or the one that it is taken for."""
    try:
        return gpu_name(said)
    except InputError:
        return otherwise


def _whole(program: Program, comm: Intracomm) -> Program:
    """A partial program → all of it on every process. **Collective.**"""
    if comm.size == 1:  # a message to itself would make a copy
        return program
    found: Program = comm.bcast(gather(program, comm), root=0)
    return found


@frozen
class _Changed:
    """Requested changes of a job; see `extrapolate_parallel`."""

    structure: ParallelStructure
    dp: int | None
    cluster: Cluster | None
    traced: Cluster | None
    distributed_optimizer: bool | None
    micro_batches: int | None
    stages: int | None
    schedule: str | None
    chunks: int | None
    buckets: str | None
    calibration: str | None

    def network(self, cluster: Cluster, ranks: int) -> NcclNetwork:
        """Return the network of so many ranks of the old or the new cluster."""
        from ..topo.nccl_network import NcclNetwork

        own = self.calibration if cluster == self.cluster else None
        nodes = -(-ranks // cluster.gpus_per_node)
        found = network_of(cluster, nodes, NetworkChoice(calibration=own))
        assert isinstance(found, NcclNetwork)
        return found

    def grown(self, program: Program, changed: bool, kernels: KernelsByName) -> Grown | None:
        """Return the changed job; None if nothing is to be changed, nor has been."""
        structure, cluster, recorded = self.structure, self.cluster, program.n_ranks
        along = structure.axis("dp")
        size = 1 if along is None else structure.axes[along].size
        replicas = size if self.dp is None else self.dp
        missing = any(axis.unseen for axis in structure.axes)
        if cluster is None:
            if replicas == size and not missing:
                return None
            what = "some replicas are missing" if missing else f"--dp {replicas} is a change"
            raise UsageError(f"{what}: --cluster says on which network")
        if missing:
            _check_partners(program)
        floor = picoseconds(find_gpu(cluster.gpu).memory_floor.si)
        said: list[str] = []
        samples = replicas / size
        if self.micro_batches is not None:
            program, how, before = with_micro_batches(program, structure, self.micro_batches)
            said.append(how)
            samples *= self.micro_batches / before
        if self.distributed_optimizer is not None:
            on = self.distributed_optimizer
            program, how = with_distributed_optimizer(program, structure, on, floor)
            said.append(how)
        said = [how for how in said if how]
        if said:
            structure = with_traffic_of(structure, program)
        if (self.stages, self.schedule, self.chunks) != (None, None, None):
            node = (self.traced or cluster).gpus_per_node
            program, structure, how = with_stages(
                *(program, structure, self.stages, node, floor, kernels),
                schedule=self.schedule,
                chunks=self.chunks,
            )
            said += [how] if how else []
        merged = ""
        if self.buckets is not None:
            kept = program
            program, merged = with_megatron_buckets(program, structure, replicas, self.buckets)
            changed = changed or program is not kept
        same = self.traced in (None, cluster)
        if replicas == size and same and not (missing or changed or said):
            return None
        world = math.prod(axis.size for axis in structure.axes)
        old = self.network(self.traced or cluster, world)
        new = self.network(cluster, world // size * replicas)
        found = grow(program, structure, replicas, old, new, floor)
        slowest = SlowestOfMore(recorded, found.program.n_ranks)
        said = [*said, *found.assumptions, *([slowest.text] if slowest.text else [])]
        return replace(
            found,
            program=slowest.put_in(found.program, kernels),
            slowest=slowest.factor,
            assumptions=tuple(said),
            samples=samples,
            buckets=merged or found.buckets,
        )


def _step(program: Program, comm: Intracomm, network: Any) -> float:
    """Seconds of a job's step: the mean of those recorded. **Collective.**"""
    run = simulate(program, comm, network=network)
    found = step_of_job(program, run, comm)
    return (int(run.step_time) if found is None else found.recorded.mean_ps) * 1e-12


# --- what is said of it --------------------------------------------------------------------------


def _error(plain: Replay, recorded: float, run: _Run) -> tuple[float, str]:
    """How far off the new step may be, and why: see `mpisim.replay.error` for the first four."""
    job, step = plain.job, run.step
    own = max((abs(each.error) for each in plain.steps), default=0.0)
    steps, waits = differences()
    change = abs(step - recorded) / step if step > 0 else 0.0
    edges = any(name.startswith("late start") and n for name, n in job.counts.items())
    inferred = waits.si if edges else 0.0
    measured = sum(each.measured for each in plain.steps)
    kept = sum(job.unexplained.get(number, 0.0) for number in {s.step for s in plain.steps})
    kept = min(kept / measured, 1.0) if measured else 0.0
    late = {what: abs(each - step) / step if step > 0 else 0.0 for what, each in run.late.items()}
    if run.grown.slowest is not None and run.grown.slowest.error:
        late["the slowest GPU"] = run.grown.slowest.error  # of products: at most that of the step
    value = math.hypot(own, steps.si, inferred * change, kept * change, *late.values())
    slower = ", ".join(f"{what} {percentage(each, 1)}" for what, each in late.items())
    return value, (
        f"of a prediction, 9 of 10 within: the unchanged replay {percentage(own, 2)}, steps differ "
        f"{percentage(steps.si, 1)}, waits inferred {percentage(inferred)} of the change, "
        f"time kept as recorded {percentage(kept, 1)} of it, {slower} (all of them slower by their "
        f"error bars); the change is {percentage(step / recorded - 1, 2, signed=True)} "
        "(data/replay.toml, the calibrations of the models)"
    )


def _kept() -> list[str]:
    return [
        "durations, launch latencies, gaps and CPU times as recorded, but for the changes named",
        "a communication's wire time is what remains after its last member arrived",
    ]


def _rests_on(
    job: TraceJob,
    structure: ParallelStructure,
    run: _Run,
    cluster: Cluster | None,
    calibration: str | None,
) -> list[str]:
    """Lines of what a changed job rests on."""
    return [
        *_kept(),
        *structure.notes,
        *_assumptions(run.grown),
        *([f"network.calibration = {calibration}"] if calibration is not None else ()),
        run.slowdown,
        *_kernel_assumptions(run.kernels, job.device_name, cluster),
    ]


def _assumptions(grown: Grown) -> list[str]:
    """Assumptions of the new job, a line each."""
    found = [
        "each replica computes what a recorded one did: as many samples, in the same kernels; "
        "recorded replicas are copied in turn, with their differences",
        "full buffers of collectives keep their sizes, but for stages that have other layers: "
        f"{grown.buckets}",
    ]
    if grown.repriced:
        found.append(
            "priced anew, because their groups lie otherwise or have other sizes: "
            + ", ".join(f"{count:,} along {axes}" for axes, count in grown.repriced.items())
        )
    for where, (ratio, spread, count) in grown.ratios.items():
        found.append(
            f"measured over modelled time of messages of 1 MiB and more {where} nodes: median "
            f"{ratio:.2f}, spread {percentage(spread)}, {count} sorts; each sort keeps "
            "its own ratio where its group stays so"
        )
    before, after = grown.sharded
    if before:
        found.append(
            f"kernels between a step's last reduction and the all-gather behind it work on "
            f"shares of the optimizer's states: {before * 1e3:.3f} ms become {after * 1e3:.3f} ms"
        )
    return [*found, *grown.assumptions]


def _kernel_assumptions(
    kernels: Repriced | None, recorded_on: str, cluster: Cluster | None
) -> list[str]:
    """Assumptions of the times of kernels, a line each."""
    if kernels is None:
        gpu = "" if cluster is None else f"; --gpu {cluster.gpu} would scale them"
        return [f"kernels take what they took on {recorded_on or 'the recorded GPU'}{gpu}"]
    return [
        f"kernels of {kernels.recorded.title} on {kernels.gpu.title}: {kernels.before:.4g} s over "
        f"all recorded ranks become {kernels.after:.4g} s ± {percentage(kernels.error)}; "
        f"{percentage(kernels.share('scaled'))} of them by the kernel models' ratio for "
        "their operators' shapes, "
        + (
            "the others by matrix rate, memory or PCIe bandwidth"
            if kernels.share("by name")
            else f"the others × {kernels.factor:.3g}, as all of those together"
        ),
        "CPU times as recorded",
    ]


def _not_modelled() -> list[str]:
    return [
        "communications that kernels slow down otherwise than recorded",
        "buckets that frameworks cut otherwise for more ranks (Megatron-LM from 40 replicas on, "
        "without --megatron-buckets), padding of single parameters",
    ]
