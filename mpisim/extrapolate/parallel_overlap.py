"""Slowdown of kernels by what runs beside: out of a recorded job, and into the grown one.

A recorded kernel took what it took beside the communications of its job. With more replicas, or on
another network, communications last longer or shorter, and other kernels run beside them. So the
slowdown is taken out of the recorded times before a job is changed, and worked out anew behind,
both by the overlap model (:mod:`mpisim.overlap`):

    alone = time beside no communication + Σ time beside one / its factor

Recorded times are those with which kernels and communications did overlap, so the slowdown is put
back until durations and overlap agree (the "coupled" overlap): of a job that is not changed the
recorded times come back. Communications keep their measured times, which hold what kernels slow
them.

What a kernel computes, on which its factor depends, the shapes of its operator tell: a kernel
counts as that of its name whose recorded time is nearest to its own. Names tell the rest: products,
and kernels that stream through the memory. A recording without shapes keeps its times as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..base.errors import TraceError
from ..base.frozen import frozen
from ..base.text import percentage
from ..engine.run import Run
from ..kernels import Gpu
from ..kernels.analytical import analytical_model
from ..kernels.operations import Elementwise, Gemm, Kernel
from ..kernels.slowdown import Parametric, packaged_constants, work_of
from ..operators import Launched
from ..operators.pricing import OperatorPricing, Priced
from ..overlap import run_with_slowdown
from ..overlap.communication_kernels import CommunicationKernels
from ..overlap.factors import ParametricFactors
from ..overlap.model import DeviceModel, OverlapModel
from ..overlap.timeline import load_intervals
from ..program import Kind, Program, Table
from ..replay.kernel_times import PRODUCT
from ..traces.kineto_file import read_kineto
from ..traces.operator_calls import launched_calls

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..replay import TraceJob
    from ..topo.nccl_network import NcclNetwork
    from .parallel_network import MeasuredNetwork
    from .parallel_structure import ParallelStructure

__all__ = ["KernelSlowdown", "KernelsByName", "kernels_by_name"]

Ints = NDArray[np.int64]

MAX_PASSES = 50
"""Passes in which durations and overlap come to agree, at most, as of ``overlap.passes``; a few
are enough."""

BUCKETS_AN_OCTAVE = 2
"""Kernels of which only the name is known are told apart by time in steps of this fineness."""

KernelsByName = Mapping[str, Sequence[tuple[int, Kernel]]]
"""Name → recorded times in ps, ascending, and what such a kernel computes."""


def kernels_by_name(
    job: TraceJob, structure: ParallelStructure, gpu: Gpu, comm: Intracomm
) -> KernelsByName:
    """Job → kernels by name, computed from recorded shapes. **Collective.**

    Of each stage of a pipeline one rank counts; its recording is read once more, unless its calls
    have been kept (`mpisim.replay.read_job`).

    Parameters
    ----------
    job : TraceJob
    structure : ParallelStructure
    gpu : Gpu
        Of the recording.
    comm : mpi4py.MPI.Intracomm
        The processes that read the job.
    """
    pp = structure.axis("pp")
    first: dict[int, int] = {}
    for rank, place in enumerate(structure.place.tolist()):
        first.setdefault(0 if pp is None else place[pp], rank)
    mine = {
        index: _of_rank(job, index, gpu) for index in first.values() if index in job.traces.facts
    }
    found: dict[str, dict[Kernel, list[int]]] = defaultdict(lambda: defaultdict(list))
    parts = {rank: each for part in comm.allgather(mine) for rank, each in part.items()}
    for rank in sorted(parts):
        for name, kernel, time in parts[rank]:
            found[name][kernel].append(time)
    return {
        name: sorted(
            ((int(np.median(times)), kernel) for kernel, times in kernels.items()),
            key=lambda pair: pair[0],
        )
        for name, kernels in found.items()
    }


def _of_rank(job: TraceJob, index: int, gpu: Gpu) -> list[tuple[str, Kernel, int]]:
    """Name, description and time of the kernels of one rank that shapes describe; kept."""
    key = index, gpu
    found = job.described.get(key)
    if found is None:
        found = job.described[key] = _described(job, index, gpu)
    return found


def _described(job: TraceJob, index: int, gpu: Gpu) -> list[tuple[str, Kernel, int]]:
    """Describe the kernels of one rank, whose recording is read again if needed; see `_of_rank`."""
    source = job.sources[index]
    if source.process >= 0:
        return []
    calls = job.traces.facts[index].calls
    if calls is None:
        try:
            calls = launched_calls(read_kineto(source.path))
        except TraceError:  # without shapes
            return []
    lowered = job.traces.facts[index].lowered
    row_of = {int(op): row for row, op in enumerate(lowered.op.tolist()) if op >= 0}
    found = []
    pricing = OperatorPricing(gpu)
    prices: dict[Launched, Priced] = {}  # layers and micro-batches repeat their calls
    for each in calls:
        priced = prices.get(each.launched)
        if priced is None:
            priced = prices[each.launched] = pricing.price(each.launched)
        kernels = priced.kernels
        if not kernels or not priced.known:
            continue
        largest = max(kernels, key=lambda kernel: (kernel.flops, kernel.traffic))
        for i, op in enumerate(each.ops):
            row = row_of.get(op)
            if row is not None and lowered.table.kind[row] == Kind.KERNEL:
                kernel = kernels[i] if len(kernels) == len(each.ops) else largest
                name = job.program.names[lowered.table.name[row]]
                found.append((name, kernel, int(lowered.table.duration[row])))
    return found


class KernelSlowdown:
    """Slowdown of a job's kernels by what runs beside: as recorded, and in the grown job.

    **Collective:** the recorded job is simulated once, if it has shapes.

    Parameters
    ----------
    program : Program
        As recorded, whole.
    network : NcclNetwork
        It was recorded on.
    old, new : Gpu
        Of the recording, and of the grown job.
    kernels : mapping of str to sequence of (int, Kernel)
        As of `kernels_by_name`.
    comm : mpi4py.MPI.Intracomm
        The processes that share the work.
    """

    def __init__(
        self,
        program: Program,
        network: NcclNetwork,
        old: Gpu,
        new: Gpu,
        kernels: KernelsByName,
        comm: Intracomm,
    ) -> None:
        self._recorded, self._gpu, self._kernels, self._comm = program, new, kernels, comm
        self._times = 1.0
        self._alone: dict[int, Ints] = {}
        self._sums = [0, 0, 0, 0]
        if not kernels:
            return
        run = engine.simulate(program, comm, network=network, fold=False, digest=False)
        model = _Names(old, kernels).model(program, network)
        mine: dict[int, Ints] = {}
        for i in run.simulated.tolist():
            rank = int(run.hosted[i])
            mine[rank] = _alone(model, rank, run, i)
        for part in comm.allgather(mine):
            self._alone |= part
        for rank in range(program.n_ranks):
            rows = program.table_of(rank).kind == Kind.KERNEL
            self._sums[0] += int(self._alone[rank][rows].sum())
            self._sums[1] += int(program.table_of(rank).duration[rows].sum())

    def alone(self, program: Program) -> Program:
        """Return the recorded program, its kernels' times perhaps changed, as if they ran alone.

        Parameters
        ----------
        program : Program
            Whole, with the rows of the recorded one.
        """
        if not self._kernels:
            return program
        tables = []
        before, after = 0.0, 0.0
        for rank in range(program.n_ranks):
            table, recorded = program.table_of(rank), self._recorded.table_of(rank)
            alone = self._alone[rank]
            rows = np.flatnonzero(alone != recorded.duration)
            duration = table.duration.copy()
            share = alone[rows] / np.maximum(recorded.duration[rows], 1)
            duration[rows] = np.rint(duration[rows] * share).astype(np.int64)
            tables.append(table.replace(duration=duration))
            kernels = table.kind == Kind.KERNEL
            before += float(recorded.duration[kernels].sum())
            after += float(table.duration[kernels].sum())
        self._times = after / before if before else 1.0
        return program.replace(
            tables=tuple(tables), table=np.arange(program.n_ranks, dtype=np.int32)
        )

    def put_in(self, program: Program, network: NcclNetwork | MeasuredNetwork) -> Program:
        """Return a program whose kernels take what they take beside its communications.

        **Collective.**

        Parameters
        ----------
        program : Program
            Whole, with times that kernels take alone.
        network : Network

        Returns
        -------
        Program
            With the tables of the ranks that this process simulates, or all.
        """
        comm = self._comm
        if not self._kernels:
            return program

        def run(
            program: Program,
            wire_delays: Sequence[Ints | None] = (),
            last: bool = True,
            placement: NDArray[np.int32] | None = None,
        ) -> Run:
            return engine.simulate(
                program,
                comm,
                network=network,
                placement=placement,
                wire_delays=wire_delays,
                digest=False,
            )

        model = _Names(self._gpu, self._kernels, self._times).model(program, network)
        outcome = run_with_slowdown(model, run, "coupled", comm, MAX_PASSES)
        self._sums[2:] = outcome.kernel_time.sum(axis=0).tolist()
        return outcome.run.program

    @property
    def text(self) -> str:
        """Assumption about the slowdown, a line."""
        if not self._kernels:
            return (
                "kernels keep the slowdown by communications beside them that was recorded: "
                "without shapes it is not known what they compute"
            )
        alone, recorded, alone_now, slowed = self._sums
        before = recorded / alone - 1 if alone else 0.0
        now = slowed / alone_now - 1 if alone_now else 0.0
        return (
            f"kernels are slowed by communications beside them: by {percentage(before, 1)} of "
            f"all in the recording, which is taken out; now by {percentage(now, 1)} of those "
            "beside any (data/overlap.toml)"
        )


class _Names:
    """Kernels by name on a GPU.

    Parameters
    ----------
    gpu : Gpu
    kernels : mapping of str to sequence of (int, Kernel)
    times : float
        By which kernels take longer than recorded: on another GPU.
    """

    def __init__(self, gpu: Gpu, kernels: KernelsByName, times: float = 1.0) -> None:
        self._gpu, self._kernels, self._times = gpu, kernels, times

    def model(self, program: Program, network: Any) -> OverlapModel:
        """Return the overlap model of a program that uses them."""
        constants = packaged_constants()
        device = self._device(program)
        kind = np.zeros(program.n_ranks, np.int64)
        return OverlapModel(
            program, CommunicationKernels(program, network, constants), (device,), kind
        )

    def _device(self, program: Program) -> DeviceModel:
        """Kernels of a program, by name and time, and their factors."""
        described: list[Kernel] = []
        times: list[int] = []
        of_name: dict[int, tuple[Ints, Ints]] = {}
        for number, own in enumerate(self._by_name(program)):
            of_name[number] = (
                np.array([round(time * self._times) for time, _ in own], np.int64),
                np.arange(len(described), len(described) + len(own)),
            )
            described += [kernel for _, kernel in own]
            times += [time for time, _ in own]
        model = analytical_model(self._gpu)
        work = work_of(model, described, [time / 1e12 for time in times])
        factors = _OfKernels(Parametric(work, packaged_constants()))
        return _ByName(factors, work, np.zeros(0, np.int64), np.zeros((0, 0), np.int64), of_name)

    def _by_name(self, program: Program) -> list[Sequence[tuple[int, Kernel]]]:
        """Return of each name of a program what its kernels compute."""
        recorded: dict[int, set[int]] = defaultdict(set)
        for table in program.tables:
            assert table is not None
            rows = np.flatnonzero(table.kind == Kind.KERNEL)
            names, durations = table.name[rows], np.maximum(table.duration[rows], 1)
            bucket = np.rint(np.log2(durations) * BUCKETS_AN_OCTAVE).astype(np.int64)
            pairs = np.unique(np.stack([names.astype(np.int64), bucket]), axis=1)
            for name, each in pairs.T.tolist():
                recorded[name].add(each)
        found: list[Sequence[tuple[int, Kernel]]] = []
        for number, name in enumerate(program.names):
            known = self._kernels.get(name)
            if known is None:
                times = sorted(2 ** (each / BUCKETS_AN_OCTAVE) for each in recorded[number])
                known = [(round(time), self._guessed(name, time / 1e12)) for time in times]
            found.append(known)
        return found

    def _guessed(self, name: str, seconds: float) -> Kernel:
        """What a kernel of some name and time computes: as much as it can in that time."""
        gpu = self._gpu
        if PRODUCT.search(name):
            dtype = next((each for each in ("bf16", "fp16") if each in gpu.formats), "fp32")
            rate = gpu.peak(dtype).si * gpu.gemm_fraction.si
            side = max(8, round((seconds * rate / 2) ** (1 / 3)))
            return Gemm(side, side, side, dtype=dtype)  # type: ignore[arg-type]
        return Elementwise(max(1, round(seconds * gpu.bandwidth.si * gpu.memory_fraction.si)))


@frozen(eq=False)
class _ByName(DeviceModel):
    """Kernels that are found by their name, and by the nearest time that is known of it.

    Attributes
    ----------
    of_name : dict of int to (int64, int64)
        Number of a name → times in ps, ascending, and entries of `work`.
    """

    of_name: Mapping[int, tuple[Ints, Ints]]

    def numbers(self, table: Table, rows: Ints) -> Ints:
        """Return the entry of `work` of some rows; -1: not described. See `DeviceModel`."""
        found = np.full(len(rows), -1)
        names, durations = table.name[rows], table.duration[rows]
        for number in np.unique(names).tolist():
            times, entries = self.of_name[number]
            if not len(times):
                continue
            own = np.flatnonzero(names == number)
            after = np.searchsorted(times, durations[own]).clip(max=len(times) - 1)
            before = (after - 1).clip(min=0)
            nearer = np.abs(times[before] - durations[own]) < np.abs(times[after] - durations[own])
            found[own] = entries[np.where(nearer, before, after)]
        return found


class _OfKernels(ParametricFactors):
    """Factors of kernels; communications have the times that were measured beside kernels."""

    def communications(self, use: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 1 for each."""
        return np.ones(len(use))


def _alone(model: OverlapModel, rank: int, run: Run, i: int) -> Ints:
    """Durations of a rank's rows, those of kernels without what ran beside them, in ps."""
    table, rows = model.program.table_of(rank), run.rows(i)
    own, device = model.communications.of(rank), model.device(rank)
    duration = table.duration.copy()
    begin, wire, end = rows.begin[own.rows], rows.wire[own.rows], rows.end[own.rows]
    wire, end = own.occupied(begin, wire, end)
    bandwidth = np.rint(own.traffic / np.maximum(end - wire, 1) * 1e12).astype(np.int64)
    loads = load_intervals(begin, wire, end, own.taken, bandwidth, own.which, own.orders)
    kernels = np.flatnonzero((table.kind == Kind.KERNEL) & (table.duration > 0))
    number = device.numbers(table, kernels)
    kernels, number = kernels[number >= 0], number[number >= 0]
    if len(loads.time) < 2 or not len(kernels):
        return duration
    time, n = loads.time, len(loads.time) - 1
    first = (np.searchsorted(time, rows.begin[kernels], "right") - 1).clip(min=0)
    last = np.searchsorted(time, rows.end[kernels], "left").clip(max=n)
    count = (last - first).clip(min=0)
    which = np.repeat(np.arange(len(kernels)), count)
    interval = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[which]
    both = np.minimum(rows.end[kernels][which], time[interval + 1]) - np.maximum(
        rows.begin[kernels][which], time[interval]
    )
    factor, _ = device.factors.kernels(
        number[which], loads.load.at(interval), model.communications.distinct
    )
    saved = np.bincount(which, weights=both.clip(min=0) * (1 - 1 / factor), minlength=len(kernels))
    duration[kernels] = np.maximum(0, duration[kernels] - np.rint(saved).astype(np.int64))
    return duration
