"""A recorded job's kernels → their times on another GPU.

Where shapes are on record the operator that launched a kernel is priced by the kernel models on
both GPUs (`mpisim.operators`), and the recorded time is multiplied by their ratio: what the model
does not know of this kernel it does not know on either GPU. Where they are not, or no operator is
around the launch, matrix products (by name) go with the matrix rate, copies between host and device
with PCIe, all other kernels with the bandwidth of the memory; the error bar of these is that of an
operator that is priced by its bytes alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..kernels import Gpu, find_gpu
from ..kernels.gpu import gpu_name
from ..mpi.parallel import collective_errors
from ..operators.pricing import UNKNOWN_ERROR, OperatorPricing, Priced
from ..program import Kind, Program, Table
from ..traces.kineto import KinetoTrace, read_kineto
from ..traces.operator_calls import launched_calls

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..operators import Launched
    from ..replay import TraceJob

__all__ = ["KernelChange", "on_another_gpu"]

PRODUCT = re.compile(r"gemm|cutlass|xmma|wgrad|dgrad|conv|matmul|flash|fmha|attention", re.I)
"""Names of kernels that matrix units limit."""

FORMATS = (
    ("bf16", re.compile(r"bf16|bfloat16", re.I)),
    ("tf32", re.compile(r"tf32|s1688gemm", re.I)),
    ("fp32", re.compile(r"sgemm|fp32", re.I)),
    ("fp16", re.compile(r"fp16|f16|half|hmma|h884|h1688", re.I)),
)
"""Number formats that names of kernels tell."""


@frozen(eq=False)
class KernelChange:
    """A job's program on another GPU; partial where the job's is.

    Attributes
    ----------
    program, late : Program
        As expected, and with each kernel its error bar longer.
    old, new : str
        The GPUs.
    before, after : float
        Seconds of kernels and copies over all ranks.
    by_shape : float
        Share of the recorded time that shapes price.
    error : float
        Of the new time of all kernels together, relative: they are off together.
    """

    program: Program
    late: Program
    old: str
    new: str
    before: float
    after: float
    by_shape: float
    error: float


def on_another_gpu(job: TraceJob, name: str, recorded_on: str, comm: Intracomm) -> KernelChange:
    """Price a job's kernels on another GPU. **Collective.**

    Parameters
    ----------
    job : TraceJob
    name : str
        The GPU.
    recorded_on : str
        The GPU of recordings that name none that is known.
    comm : mpi4py.MPI.Intracomm
        The processes that read the job.

    Raises
    ------
    InputError
        If there is no such GPU, or it lacks a number format of the recording.
    """
    with collective_errors(comm):
        old = find_gpu(_recorded_gpu(job.device_name, recorded_on))
        new = find_gpu(name)
        prices = _Ratios(old, new)
        tables, late = list(job.program.tables), list(job.program.tables)
        sums = np.zeros(4)
        for i, fact in job.traces.facts.items():
            source, table = job.sources[i], fact.lowered.table
            trace = read_kineto(source.path) if source.process < 0 else None
            factor, error, shaped = prices.of_rows(table, fact.lowered.op, trace, job.program.names)
            number = int(job.program.table[i])
            tables[number] = _scaled(table, factor)
            late[number] = _scaled(table, factor * (1 + error))
            own = np.where(_computes(table), table.duration, 0) / 1e12
            after = own * factor
            sums += [own.sum(), after.sum(), own[shaped].sum(), (after * error).sum()]
    before, after, shape, off = np.sum(comm.allgather(sums), axis=0).tolist()
    return KernelChange(
        job.program.replace(tables=tuple(tables)),
        job.program.replace(tables=tuple(late)),
        old.title,
        new.title,
        before,
        after,
        shape / before if before else 0.0,
        off / after if after else 0.0,
    )


def _recorded_gpu(said: str, otherwise: str) -> str:
    """The GPU that a recording names, or the one that it is taken for."""
    try:
        return gpu_name(said)
    except InputError:
        return otherwise


def _computes(table: Table) -> NDArray[np.bool_]:
    return (table.kind == Kind.KERNEL) | (table.kind == Kind.COPY)


def _scaled(table: Table, factor: NDArray[np.float64]) -> Table:
    return table.replace(
        duration=np.where(
            factor == 1, table.duration, np.rint(table.duration * factor).astype(np.int64)
        )
    )


class _Ratios:
    """Times on one GPU over times on another."""

    def __init__(self, old: Gpu, new: Gpu) -> None:
        self.gpus = old, new
        self.same = old == new
        self._pricing = OperatorPricing(old), OperatorPricing(new)
        self._known: dict[Launched, tuple[float, float]] = {}
        self._named: dict[str, float] = {}

    def of_rows(
        self,
        table: Table,
        op: NDArray[np.int64],
        trace: KinetoTrace | None,
        names: Sequence[str],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Return of each row the ratio, its error bar, and whether shapes tell it.

        Parameters
        ----------
        table : Table
        op : int64, shape (n_rows,)
            Device operation of the trace that each row is of; -1 for host rows.
        trace : KinetoTrace, optional
            None where there are no operators.
        names : sequence of str
            Of rows.
        """
        factor, error = np.ones(len(table)), np.zeros(len(table))
        shaped = np.zeros(len(table), bool)
        if self.same:
            return factor, error, shaped
        by_op = {} if trace is None else self._of_operators(trace)
        for row in np.flatnonzero(_computes(table)).tolist():
            found = by_op.get(int(op[row]))
            if found is None:
                name = names[table.name[row]]
                factor[row], error[row] = self._of_name(name, table.kind[row]), UNKNOWN_ERROR
            else:
                factor[row], error[row] = found
                shaped[row] = True
        return factor, error, shaped

    def _of_operators(self, trace: KinetoTrace) -> dict[int, tuple[float, float]]:
        """Device operations that operators with shapes launched → their ratio and its error."""
        try:
            calls = launched_calls(trace)
        except TraceError:  # without shapes
            return {}
        found = {}
        for each in calls:
            if each.launched not in self._known:
                old, new = (pricing.price(each.launched) for pricing in self._pricing)
                if old.known and not new.known:
                    raise InputError(
                        f"--gpu: {self.gpus[1].title} cannot run {each.call.name} as it was "
                        f"recorded on {self.gpus[0].title}; its number formats are "
                        f"{', '.join(self.gpus[1].formats)}"
                    )
                self._known[each.launched] = _ratio(old, new)
            ratio, error = self._known[each.launched]
            if ratio > 0:
                found.update(dict.fromkeys(each.ops, (ratio, error)))
        return found

    def _of_name(self, name: str, kind: int) -> float:
        """Ratio of a kernel of which only the name is known."""
        key = f"{kind}{name}"
        if key not in self._named:
            self._named[key] = self._rate(0, name, kind) / self._rate(1, name, kind)
        return self._named[key]

    def _rate(self, which: int, name: str, kind: int) -> float:
        gpu = self.gpus[which]
        if kind == Kind.COPY and "DtoD" not in name and "Memset" not in name:
            return gpu.pcie.si * gpu.pcie_fraction.si
        if kind == Kind.KERNEL and PRODUCT.search(name):
            told = [dtype for dtype, pattern in FORMATS if pattern.search(name)]
            both = set(self.gpus[0].formats) & set(self.gpus[1].formats)
            dtype = next((d for d in (*told, "bf16", "fp16") if d in both), "fp32")
            fraction = gpu.fp32_fraction if dtype == "fp32" else gpu.gemm_fraction
            return gpu.peak(dtype).si * fraction.si
        return gpu.bandwidth.si * gpu.memory_fraction.si


def _ratio(old: Priced, new: Priced) -> tuple[float, float]:
    """Prices of one call on two GPUs → their ratio and its error; 0 where nothing is priced."""
    if not old.duration or not new.duration:
        return 0.0, UNKNOWN_ERROR
    known = old.known and new.known
    error = math.hypot(old.error, new.error) if known else UNKNOWN_ERROR
    return new.duration / old.duration, error
