"""A recorded job on another GPU or cluster: kernels and communications with other times.

A kernel belongs to the call of an operator that launched it, if the recording has its shapes. Such
calls take, in this order: what the user measured on the new GPU; with `everything` what the kernel
models say of it; else what was recorded, times the ratio of the models for the new GPU and for the
one that was recorded (`.kernel_times`). Kernels without a known call are scaled by what all known
ones change by together; where a job has no shapes at all, by what their names tell.

Communications whose operation, size and members are known are left to the network of the new
cluster; all others are scaled by the ratio of the GPUs' ports. CPU times stay as recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..base.text import percentage
from ..kernels import Gpu, find_gpu, gpu_name
from ..kernels.recorded import UNKNOWN_ERROR
from ..mpi.parallel import collective_errors
from ..operators.measured import MeasuredOperators
from ..operators.pricing import OperatorPricing
from ..program import Operation, Program, Table
from .kernel_times import (
    HOST,
    MODELLED,
    NAMED,
    SCALED,
    UNKNOWN,
    RankTimes,
    RatesByName,
    rank_times,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .jobs import TraceJob

__all__ = ["Repriced", "Repricing", "reprice"]

FILE = "replay.toml"


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
    needs_shapes : bool
        Whether recordings without shapes are refused; else names tell what their kernels are.
    """

    everything: bool
    gpu: Gpu | None = None
    recorded_gpu: str | None = None
    cluster: str = ""
    measured: MeasuredOperators | None = None
    needs_shapes: bool = True


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
    late : Program, optional
        With each kernel its error bar longer.
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
    late: Program | None = None

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
        texts = {
            "exact": "as measured",
            "interpolated": "between measured ones",
            MODELLED: "by kernel models",
            SCALED: "recorded, times the ratio of two models" if self.is_other else "as recorded",
            UNKNOWN: f"recorded, times {self.factor:.3g}, as no operator with a model is known"
            if self.is_other
            else "as recorded, as no operator with a model is known",
            NAMED: "recorded, times the ratio of the rates that names tell, for want of shapes",
            HOST: "copies from or to the host, by the links' rates",
        }
        shares = [
            f"{percentage(self.share(name), 1)} {text}"
            for name, text in texts.items()
            if name in self.kernels
        ]
        lines = []
        if self.kernels:
            lines.append(
                f"kernels of {self.recorded.title} on {self.gpu.title}: {', '.join(shares)}; "
                f"± {percentage(self.error)} together"
            )
        if how.cluster:
            lines.append(
                f"communications on {how.cluster}: {self.by_network:,} by the model of its network"
                + (
                    f", {self.scaled:,} of unknown size or members times the ratio of the GPUs' "
                    f"ports (± {percentage(_unknown_error().error)})"
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
    InputError
        If the new GPU lacks a number format of the recording.
    """
    with collective_errors(comm):
        recorded = _recorded_gpu(job, how)
    new = recorded if how.gpu is None else how.gpu
    result = Repriced(recorded, new)
    before = OperatorPricing(recorded)
    after = OperatorPricing(new, how.measured)
    prices: dict[int, RankTimes | None] = {}
    with collective_errors(comm):
        for index in sorted(job.traces.facts):
            prices[index] = rank_times(
                job.sources[index],
                before,
                after,
                everything=how.everything,
                needs_shapes=how.needs_shapes,
            )
    mine = []
    for each in prices.values():
        if each is not None:
            own = each.duration >= 0
            mine.append((float(each.recorded[own].sum()), float(each.duration[own].sum())))
    pairs = [pair for part in comm.allgather(mine) for pair in part]
    was, now = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    result.factor = now / was if result.is_other and was else 1.0
    odd = _odd_sizes(job, comm)
    whole = job.traces.world_size <= len(job.traces.ranks)
    tables: list[Table | None] = list(job.program.tables)
    late = list(tables)
    names = job.program.names
    added: list[dict[str, float]] = []
    for index, each in prices.items():
        lowered = job.traces.facts[index].lowered
        kernels = _kernels(lowered.table, lowered.op, each, result, names)
        duration, sums = kernels.duration.copy(), kernels.sums
        if how.cluster:
            _communications(lowered.table, duration, sums, result, odd, whole)
        tables[index] = lowered.table.replace(duration=duration)
        late[index] = lowered.table.replace(
            duration=np.rint(duration * (1 + kernels.error)).astype(np.int64)
        )
        added.append(sums)
    # Rank by rank, so that the sums are the same on any number of processes.
    _add_up([each for part in comm.allgather(added) for each in part], result)
    program = job.program.replace(tables=tuple(tables))
    result.late = job.program.replace(tables=tuple(late))
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
    named = how.recorded_gpu or job.device_name
    try:
        return find_gpu(gpu_name(named))
    except InputError as error:
        if how.recorded_gpu is not None:
            raise
        name = repr(named) if named else "a GPU it does not name"
        raise TraceError(
            f"{job.sources[0].path}: recorded on {name}, which is not in mpisim list gpus; "
            "--recorded-gpu says whose models to use for it"
        ) from error


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


class _Kernels(NamedTuple):
    """New times of a rank's rows, their relative errors, and sums of what they rest on."""

    duration: NDArray[np.int64]
    error: NDArray[np.float64]
    sums: dict[str, float]


def _kernels(
    table: Table,
    op: NDArray[np.int64],
    times: RankTimes | None,
    result: Repriced,
    names: Sequence[str],
) -> _Kernels:
    """Return the new times of a rank's rows: of kernels and copies; others stay."""
    sums: dict[str, float] = {}
    duration, errors = table.duration.copy(), np.zeros(len(table))
    kernels = np.flatnonzero((op >= 0) & ~table.is_communication & (table.duration >= 0))
    unknown = _unknown_error().error if result.is_other else 0.0
    rates = RatesByName(result.recorded, result.gpu)
    for row in kernels.tolist():
        number, was = int(op[row]), float(table.duration[row])
        if times is None:
            kind = int(table.kind[row])
            took, origin = was * rates.ratio(names[table.name[row]], kind), NAMED
            error = UNKNOWN_ERROR if result.is_other else 0.0
        elif times.duration[number] < 0:
            took, origin, error = was * result.factor, UNKNOWN, unknown
        else:
            took, error = float(times.duration[number]), float(times.error[number])
            origin = times.source[number]
        duration[row], errors[row] = round(took), error
        _add(sums, f"kernels {origin}", took / 1e12)
        _add(sums, "before", was / 1e12)
        _add(sums, "after", took / 1e12)
        _add(sums, "spread", took * error / 1e12)
        _add(sums, f"step {table.step[row]}", took * error / 1e12)
    return _Kernels(duration, errors, sums)


def _communications(
    table: Table,
    duration: NDArray[np.int64],
    sums: dict[str, float],
    result: Repriced,
    odd: set[int],
    whole: bool,
) -> None:
    """Leave a rank's communications to the network, or scale them; see `_kernels`."""
    ports, unknown = _port_ratio(result), _unknown_error().error
    for row in np.flatnonzero(table.is_communication).tolist():
        operation = int(table.operation[row])
        known = operation != Operation.UNKNOWN and table.bytes[row] >= 0
        if whole and known and operation not in odd:
            duration[row] = -1
            _add(sums, "by network", 1)
        else:
            duration[row] = round(float(table.duration[row]) * ports)
            _add(sums, "scaled", 1)
            _add(sums, f"step {table.step[row]}", duration[row] * unknown / 1e12)


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value


def _port_ratio(result: Repriced) -> float:
    was, now = result.recorded.nvlink, result.gpu.nvlink
    return was.si / now.si if was is not None and now is not None else 1.0


def _unknown_error() -> Quantity:
    """Return what kernels without a known call, and communications without a size, are off by."""
    return build(Quantity, packaged(FILE)["scaled_without_model"], FILE, "scaled_without_model")
