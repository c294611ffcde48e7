"""Recorded kernels of operators beside what the table of operators and the kernel models say.

A kernel that ran at the same time as one of another stream, communications included, shared the GPU
with it: its recorded time is not that of the kernel by itself, which is what models price (sharing
has its own model, ``docs/overlap.md``). Errors are given of all calls, and of those that ran alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..kernels import find_gpu, gpu_name
from ..operators.pricing import OperatorPricing
from ..operators.tensors import all_tensors
from ..traces.kineto import KERNEL, DeviceOps
from ..traces.kineto_file import read_kineto
from ..traces.operator_calls import launched_calls, records_shapes
from ..traces.sources import is_folder, is_kineto, json_files
from .cases import summary

__all__ = ["OperatorSum", "PricedTrace", "by_job", "price_traces", "tabulate"]


@frozen
class OperatorSum:
    """All calls of an operator in a trace with one type of tensors.

    Attributes
    ----------
    name, dtype : str
    known : bool
        Whether a model of its kind prices them.
    shaped : bool
        Whether the trace has the shapes of what their kernels read; true where ``known``.
    calls, kernels : int
        Kernels as recorded.
    measured, predicted : float
        Seconds, of all calls together.
    errors : tuple of float
        Relative, of each call.
    measured_alone, predicted_alone : float
        Seconds of the calls none of whose kernels ran beside another.
    """

    name: str
    dtype: str
    known: bool
    shaped: bool
    calls: int
    kernels: int
    measured: float
    predicted: float
    errors: tuple[float, ...]
    measured_alone: float
    predicted_alone: float


@frozen
class PricedTrace:
    """The operators of one trace file; see `OperatorSum`.

    Attributes
    ----------
    name : str
        Folder and file.
    gpu : str
        Whose models priced it.
    sums : tuple of OperatorSum
        The longest first.
    """

    name: str
    gpu: str
    sums: tuple[OperatorSum, ...]

    @property
    def measured(self) -> float:
        """Seconds of all kernels that operators launched, communications left out."""
        return sum(each.measured for each in self.sums)

    @property
    def named(self) -> float:
        """Share of that time which named models price."""
        return sum(each.measured for each in self.sums if each.known) / (self.measured or 1.0)

    @property
    def shapeless(self) -> float:
        """Share of that time whose shapes the trace does not have: no model can price it."""
        return sum(e.measured for e in self.sums if not e.shaped) / (self.measured or 1.0)

    @property
    def named_of_shaped(self) -> float:
        """Share of the other time which named models price."""
        return self.named / (1 - self.shapeless) if self.shapeless < 1 else 0.0

    @property
    def error(self) -> float:
        """Relative error of the time of all calls that named models price, together."""
        known = [each for each in self.sums if each.known]
        measured = sum(each.measured for each in known)
        return sum(each.predicted for each in known) / measured - 1 if measured else 0.0

    @property
    def alone(self) -> float:
        """Share of the time of these calls whose kernels ran beside no other."""
        known = [each for each in self.sums if each.known]
        return sum(e.measured_alone for e in known) / (sum(e.measured for e in known) or 1.0)

    @property
    def error_alone(self) -> float:
        """As `error`, of the calls whose kernels ran beside no other."""
        known = [each for each in self.sums if each.known]
        measured = sum(each.measured_alone for each in known)
        return sum(e.predicted_alone for e in known) / measured - 1 if measured else 0.0


def price_traces(paths: Sequence[str], gpu: str | None = None) -> Iterator[PricedTrace | str]:
    """Price the operators of trace files one after another.

    Parameters
    ----------
    paths : sequence of str
        Kineto traces, folders of them, or folders of such folders; other files in folders are
        passed over.
    gpu : str, optional
        Whose models to use; the one that each trace names if not given.

    Yields
    ------
    PricedTrace or str
        Or why a file in a folder could not be priced. What is named itself must be.

    Raises
    ------
    TraceError, InputError
        If a named file cannot be priced, or a folder holds no trace.
    """
    for path in map(Path, paths):
        if not is_folder(path):
            yield _priced(path, gpu)
            continue
        inside = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
        files = [file for folder in inside for file in json_files(folder) if is_kineto(file)]
        if not files:
            raise TraceError(f"{path}: no Kineto trace (.json or .json.gz) in this folder")
        for file in files:
            try:
                yield _priced(file, gpu)
            except InputError as error:
                yield str(error)


def _priced(path: Path, gpu: str | None) -> PricedTrace:
    trace = read_kineto(path)
    try:
        name = gpu_name(gpu or trace.device_name)
    except InputError as error:
        raise TraceError(
            f"{path}: recorded on {trace.device_name or 'a GPU it does not name'!r}, which is not "
            "known; --gpu says whose models to use"
            if gpu is None
            else str(error)
        ) from None
    pricing = OperatorPricing(find_gpu(name))
    took = (trace.device.end - trace.device.begin) / 1e12
    beside = _beside(trace.device)
    found: dict[tuple[str, str, bool, bool], list[tuple[int, float, float, bool]]] = {}
    for each in launched_calls(trace):
        priced = pricing.price(each.launched)
        measured = float(took[list(each.ops)].sum())
        dtype = next((t.dtype for t in all_tensors(each.call.inputs)), "none")
        shaped = priced.known or records_shapes(each.call)
        key = each.call.name, dtype, priced.known, shaped
        alone = not beside[list(each.ops)].any()
        row = len(each.ops), measured, priced.duration / 1e12, alone
        found.setdefault(key, []).append(row)
    if not found:
        raise TraceError(f"{path}: no operator here launched a kernel")
    sums = [
        OperatorSum(
            *key,
            calls=len(rows),
            kernels=sum(n for n, _, _, _ in rows),
            measured=sum(m for _, m, _, _ in rows),
            predicted=sum(p for _, _, p, _ in rows),
            errors=tuple(p / m - 1 for _, m, p, _ in rows if m > 0),
            measured_alone=sum(m for _, m, _, alone in rows if alone),
            predicted_alone=sum(p for _, _, p, alone in rows if alone),
        )
        for key, rows in found.items()
    ]
    sums.sort(key=lambda each: (-each.measured, each.name, each.dtype))
    return PricedTrace(f"{path.parent.name}/{path.name}", name, tuple(sums))


def _beside(device: DeviceOps) -> np.ndarray:
    """Device operations → whether each ran while a kernel of another stream did, too.

    Kernels of a stream run one after the other, so that the first that ends behind the beginning of
    an operation is the one that could overlap it.
    """
    kernels = np.asarray(device.kind) == KERNEL
    beside = np.zeros(len(device), dtype=bool)
    for stream in np.unique(device.stream[kernels]).tolist():
        of_stream = np.flatnonzero(kernels & (device.stream == stream))
        own = of_stream[np.argsort(device.begin[of_stream], kind="stable")]
        others = np.flatnonzero(device.stream != stream)
        ends = np.maximum.accumulate(device.end[own])
        first = np.searchsorted(ends, device.begin[others], side="right")
        inside = first < len(own)
        begins = device.begin[own[np.minimum(first, len(own) - 1)]]
        beside[others] |= inside & (begins < device.end[others])
    return beside


def tabulate(traces: Sequence[PricedTrace]) -> dict[str, dict[str, dict[str, Any]]]:
    """Priced traces → errors by operator, by type and by GPU, of operators that the table knows.

    Parameters
    ----------
    traces : sequence of PricedTrace

    Returns
    -------
    dict
        For each grouping the groups, those of most time first: ``n`` calls, ``seconds`` measured,
        ``total`` (relative error of all together), and of single calls ``mape``, ``median``,
        ``p90``, ``bias``.
    """
    tables: dict[str, dict[str, list[OperatorSum]]] = {"operator": {}, "type": {}, "gpu": {}}
    for trace in traces:
        for each in trace.sums:
            if each.known:
                for grouping, name in zip(tables, (each.name, each.dtype, trace.gpu)):
                    tables[grouping].setdefault(name, []).append(each)
    return {
        grouping: dict(
            sorted(
                ((name, _figures(sums)) for name, sums in groups.items()),
                key=lambda item: -item[1]["seconds"],
            )
        )
        for grouping, groups in tables.items()
    }


def by_job(traces: Sequence[PricedTrace]) -> dict[str, tuple[float, float, float, float]]:
    """Priced traces → by job, medians over its traces of two |errors| and two shares named.

    Parameters
    ----------
    traces : sequence of PricedTrace
        Those in one folder are of one job.

    Returns
    -------
    dict of str to (float, float, float, float)
        By folder: |error| of all and of what ran alone, share named of all kernel time and of that
        whose shapes were recorded.
    """
    jobs: dict[str, list[PricedTrace]] = {}
    for each in traces:
        jobs.setdefault(each.name.rpartition("/")[0], []).append(each)
    return {
        name: (
            median(abs(t.error) for t in own),
            median(abs(t.error_alone) for t in own),
            median(t.named for t in own),
            median(t.named_of_shaped for t in own),
        )
        for name, own in jobs.items()
    }


def _figures(sums: Sequence[OperatorSum]) -> dict[str, Any]:
    errors = [error for each in sums for error in each.errors]
    measured = sum(each.measured for each in sums)
    return {
        "seconds": measured,
        "total": sum(each.predicted for each in sums) / measured - 1 if measured else None,
        **summary(errors),
        "bias": float(np.median(errors)) if errors else None,
    }
