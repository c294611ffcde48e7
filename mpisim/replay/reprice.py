"""A recorded job on another GPU or cluster: kernels and communications with other times.

A kernel belongs to the call of an operator that launched it, if the recording has its shapes. Such
calls take, in this order: what the user measured on the new GPU; with `everything` what the kernel
models say of it; else what was recorded, times the ratio of the models for the new GPU and for the
one that was recorded. Kernels without a known call are scaled by what all known ones change by
together, copies from and to the host by the ratio of the links' rates.

Communications whose operation, size and members are known are left to the network of the new
cluster; all others are scaled by the ratio of the GPUs' ports. CPU times stay as recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..kernels import Gpu, find_gpu, gpu_name
from ..mpi.parallel import collective_errors
from ..operators.measured import MeasuredOperators
from ..operators.pricing import OperatorPricing, Priced
from ..program import Operation, Table
from ..traces.kineto import read_kineto
from ..traces.operator_calls import launched_calls

if TYPE_CHECKING:
    from .jobs import TraceJob

__all__ = ["Repriced", "Repricing", "reprice"]

FILE = "replay.toml"

MEASURED = ("exact", "interpolated")
SCALED, MODELLED, UNKNOWN, HOST = "scaled", "model", "unknown", "host copies"
"""What else a kernel's time comes from: the recording times a ratio of models; a model; the ratio
that others have; the ratio of links."""


@frozen
class Repricing:
    """What is to be priced again.

    Attributes
    ----------
    everything : bool
        Whether models alone say what known kernels take; else the recording times a ratio.
    gpu : Gpu or None
        The new one; None: that of the recording.
    recorded_gpu : str or None
        The one of the recording, where it does not say.
    cluster : str
        Whose network prices communications; empty: they stay as recorded.
    measured : MeasuredOperators or None
        Times on the new GPU, which come first.
    """

    everything: bool
    gpu: Gpu | None = None
    recorded_gpu: str | None = None
    cluster: str = ""
    measured: MeasuredOperators | None = None


@dataclass
class Repriced:
    """What a job's new times rest on: seconds over all ranks.

    Attributes
    ----------
    recorded, gpu : Gpu
        The GPU of the recording, and the new one.
    kernels : dict of str to float
        New times of kernels by where they come from.
    before, after : float
        Kernels as recorded, and now.
    by_network, scaled : int
        Communications whose time the network says, and those that are scaled.
    spread : dict of int to float
        What the new times may be off together, by one standard deviation, by step (-1: in none).
    kernels_spread : float
        Of kernels, in all steps and between.
    factor : float
        By which kernels without a known call are scaled.
    """

    recorded: Gpu
    gpu: Gpu
    kernels: dict[str, float] = field(default_factory=dict)
    before: float = 0.0
    after: float = 0.0
    by_network: int = 0
    scaled: int = 0
    spread: dict[int, float] = field(default_factory=dict)
    kernels_spread: float = 0.0
    factor: float = 1.0

    @property
    def error(self) -> float:
        """Relative error bar of the kernels, all being off together."""
        return self.kernels_spread / self.after if self.after else 0.0

    def lines(self, how: Repricing) -> list[str]:
        """Return what was changed, for reports.

        Parameters
        ----------
        how : Repricing
        """
        said = {
            "exact": "as measured",
            "interpolated": "between measured ones",
            MODELLED: "by kernel models",
            SCALED: "recorded, times the ratio of two models" if self.is_other else "as recorded",
            UNKNOWN: f"recorded, times {self.factor:.3g}, as no operator with a model is known"
            if self.is_other
            else "as recorded, as no operator with a model is known",
            HOST: "copies from or to the host, by the links' rates",
        }
        shares = [
            f"{self.share(name):.1%} {text}" for name, text in said.items() if name in self.kernels
        ]
        lines = []
        if self.kernels:
            lines.append(
                f"kernels of {self.recorded.title} on {self.gpu.title}: {', '.join(shares)}; "
                f"± {self.error:.0%} together"
            )
        if how.cluster:
            lines.append(
                f"communications on {how.cluster}: {self.by_network:,} by the model of its network"
                + (
                    f", {self.scaled:,} of unknown size or members times the ratio of the GPUs' "
                    f"ports (± {_unknown_error().error:.0%})"
                    if self.scaled
                    else ""
                )
            )
        return lines

    @property
    def is_other(self) -> bool:
        """Whether the new GPU is another one."""
        return self.gpu != self.recorded

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, for JSON; seconds over all ranks."""
        return {
            "recorded_gpu": self.recorded.title,
            "gpu": self.gpu.title,
            "kernels": self.kernels,
            "kernels_before": self.before,
            "kernels_after": self.after,
            "kernels_error": self.error,
            "communications_by_network": self.by_network,
            "communications_scaled": self.scaled,
        }

    def share(self, *sources: str) -> float:
        """Return the share of kernel time that comes from some sources."""
        whole = sum(self.kernels.values())
        return sum(self.kernels.get(each, 0.0) for each in sources) / whole if whole else 0.0


class _RankPrices:
    """New durations of one rank's device operations.

    Attributes
    ----------
    duration : float64 array
        In ps, by device operation; negative where no call is known.
    error : float64 array
        Relative.
    source : list of str
        By device operation.
    """

    def __init__(self, n: int) -> None:
        self.duration = np.full(n, -1.0)
        self.error = np.zeros(n)
        self.source = [UNKNOWN] * n
        self.recorded = np.zeros(n)


def reprice(job: TraceJob, comm: Any, how: Repricing) -> tuple[TraceJob, Repriced]:
    """Recorded job → the same with other durations, and what they rest on. **Collective.**

    Parameters
    ----------
    job : TraceJob
    comm : mpi4py.MPI.Comm
        The processes that read the job.
    how : Repricing

    Raises
    ------
    TraceError
        If a recording has no shapes, its GPU is not known, or it is no Kineto trace.
    """
    with collective_errors(comm):
        recorded = _recorded_gpu(job, how)
    new = recorded if how.gpu is None else how.gpu
    result = Repriced(recorded, new)
    before = OperatorPricing(recorded)
    after = OperatorPricing(new, how.measured)
    prices: dict[int, _RankPrices] = {}
    with collective_errors(comm):
        for index in sorted(job.traces.facts):
            prices[index] = _rank_prices(job, index, how, before, after)
    known = [each.duration >= 0 for each in prices.values()]
    mine = [
        (float(each.recorded[own].sum()), float(each.duration[own].sum()))
        for each, own in zip(prices.values(), known)
    ]
    pairs = [pair for part in comm.allgather(mine) for pair in part]
    was, now = (sum(column) for column in zip(*pairs))
    result.factor = now / was if result.is_other and was else 1.0
    odd = _odd_sizes(job, comm)
    whole = job.traces.world_size <= len(job.traces.ranks)
    tables: list[Table | None] = list(job.program.tables)
    added: list[dict[str, float]] = []
    for index, each in prices.items():
        lowered = job.traces.facts[index].lowered
        tables[index], sums = _table(lowered.table, lowered.op, each, how, result, odd, whole)
        added.append(sums)
    # Rank by rank, so that the sums are the same on any number of processes.
    _add_up([each for part in comm.allgather(added) for each in part], result)
    program = job.program.replace(tables=tuple(tables))
    return replace(job, traces=replace(job.traces, program=program)), result


def _add_up(ranks: list[dict[str, float]], result: Repriced) -> None:
    """Add what the ranks' tables rest on."""
    united: dict[str, float] = {}
    for each in ranks:
        for name, value in each.items():
            united[name] = united.get(name, 0.0) + value
    result.before, result.after = united.get("before", 0.0), united.get("after", 0.0)
    result.by_network = int(united.get("by network", 0))
    result.scaled = int(united.get("scaled", 0))
    result.kernels_spread = united.get("spread", 0.0)
    for name, value in united.items():
        what, _, which = name.partition(" ")
        if what == "kernels":
            result.kernels[which] = value
        elif what == "step":
            result.spread[int(which)] = value


def _recorded_gpu(job: TraceJob, how: Repricing) -> Gpu:
    said = how.recorded_gpu or job.device_name
    try:
        return find_gpu(gpu_name(said))
    except InputError as error:
        if how.recorded_gpu is not None:
            raise
        raise TraceError(
            f"{job.sources[0].path}: recorded on {said or 'a GPU it does not name'!r}, which is "
            "not known; --recorded-gpu says whose models to use for it"
        ) from error


def _rank_prices(
    job: TraceJob, index: int, how: Repricing, before: OperatorPricing, after: OperatorPricing
) -> _RankPrices:
    """Price the calls of one rank's recording, which is read once more."""
    source = job.sources[index]
    if source.process >= 0:
        raise TraceError(
            f"{source.path}: a recording of Nsight Systems names no operators; --price needs "
            "Kineto traces with shapes (record_shapes=True)"
        )
    trace = read_kineto(source.path)
    device = trace.device
    found = _RankPrices(len(device))
    found.recorded = (device.end - device.begin).astype(float)
    same = after.model.gpu == before.model.gpu
    for each in launched_calls(trace):
        ops = list(each.ops)
        recorded = found.recorded[ops]
        total = float(recorded.sum())
        priced = after.price(each.launched, each.call)
        if priced.how not in MEASURED and (not priced.known or not priced.duration or not total):
            continue
        if priced.how in MEASURED:
            took, error, origin = float(priced.duration), priced.error, str(priced.how)
        elif how.everything:
            took, error, origin = float(priced.duration), priced.error, MODELLED
        elif same:
            took, error, origin = total, 0.0, SCALED
        else:
            old = before.price(each.launched)
            if not old.known or not old.duration:
                continue
            took, origin = total * priced.duration / old.duration, SCALED
            error = _ratio_error(priced, old)
        parts = recorded / total if total else np.full(len(ops), 1 / len(ops))
        found.duration[ops] = took * parts
        found.error[ops] = error
        for op in ops:
            found.source[op] = origin
    for op, name in enumerate(device.name):
        if found.duration[op] < 0 and ("HtoD" in name or "DtoH" in name):
            was, now = before.model.gpu, after.model.gpu
            ratio = (was.pcie.si * was.pcie_fraction.si) / (now.pcie.si * now.pcie_fraction.si)
            found.duration[op] = found.recorded[op] * ratio
            found.error[op] = 0.0 if same else math.hypot(was.pcie.error, now.pcie.error)
            found.source[op] = HOST
    return found


def _ratio_error(after: Priced, before: Priced) -> float:
    """Error of a ratio of two models of one kernel, taken as if they were off by themselves.

    They share formulas, and often constants, so that this is more than their difference is off.
    """
    return math.hypot(after.error, before.error)


def _odd_sizes(job: TraceJob, comm: Any) -> set[int]:
    """Return operations and kinds of which some member does not say its size: none is priced."""
    found = set()
    for index in job.traces.facts:
        table = job.traces.facts[index].lowered.table
        own = table.is_communication & (table.bytes < 0)
        found |= {int(table.operation[row]) for row in np.flatnonzero(own)}
    return {each for part in comm.allgather(found) for each in part} & {
        int(Operation.ALL_TO_ALL),
        int(Operation.SEND_RECV),
    }


def _table(
    table: Table,
    op: NDArray[np.int64],
    prices: _RankPrices,
    how: Repricing,
    result: Repriced,
    odd: set[int],
    whole: bool,
) -> tuple[Table, dict[str, float]]:
    """Return a rank's table with the new durations, and sums of what they rest on, by name."""
    sums: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        sums[name] = sums.get(name, 0.0) + value

    duration = table.duration.copy()
    kernels = np.flatnonzero((op >= 0) & ~table.is_communication & (table.duration >= 0))
    unknown = _unknown_error()
    for row in kernels.tolist():
        number = int(op[row])
        was = float(table.duration[row])
        took, error = float(prices.duration[number]), float(prices.error[number])
        origin = prices.source[number]
        if took < 0:
            took, origin = was * result.factor, UNKNOWN
            error = unknown.error if result.is_other else 0.0
        duration[row] = round(took)
        add(f"kernels {origin}", took / 1e12)
        add("before", was / 1e12)
        add("after", took / 1e12)
        add("spread", took * error / 1e12)
        add(f"step {table.step[row]}", took * error / 1e12)
    if how.cluster:
        ports = _port_ratio(result)
        for row in np.flatnonzero(table.is_communication).tolist():
            operation = int(table.operation[row])
            known = operation != Operation.UNKNOWN and table.bytes[row] >= 0
            if whole and known and operation not in odd:
                duration[row] = -1
                add("by network", 1)
            else:
                duration[row] = round(float(table.duration[row]) * ports)
                add("scaled", 1)
                add(f"step {table.step[row]}", duration[row] * unknown.error / 1e12)
    return table.replace(duration=duration), sums


def _port_ratio(result: Repriced) -> float:
    was, now = result.recorded.nvlink, result.gpu.nvlink
    return was.si / now.si if was is not None and now is not None else 1.0


def _unknown_error() -> Quantity:
    """Return what kernels without a known call, and communications without a size, are off by."""
    return build(Quantity, packaged(FILE)["scaled_without_model"], FILE, "scaled_without_model")
