"""The kernels of a recording → their times on another GPU.

Where shapes are on record the call of an operator that launched a kernel is priced by the kernel
models on both GPUs (`mpisim.operators`), and the recorded time is multiplied by their ratio: what
the model does not know of this kernel it does not know on either GPU. Copies from and to the host
go with the rates of the links.

Where a recording has no shapes, names tell the rest: products go with the matrix rate, copies from
and to the host with the link, all other kernels with the bandwidth of the memory. Beside known
kernels names are no help: over recordings on V100 and A800 that were carried to A100, H100 and B200
the ratio of all known kernels together is as near to that of one as the ratio by its name, or
nearer (one standard deviation of the logarithm 0.2 to 1.0 and 0.2 to 1.9).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import InputError, TraceError
from ..kernels import Gpu
from ..operators.pricing import OperatorPricing, Priced
from ..program import Kind
from ..traces.host import copy_path
from ..traces.kineto_file import read_kineto
from ..traces.operator_calls import TF32, launched_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..traces import Source
    from ..traces.operator_calls import LaunchedCall

__all__ = [
    "HOST",
    "MEASURED",
    "MODELLED",
    "NAMED",
    "SCALED",
    "UNKNOWN",
    "RankTimes",
    "RatesByName",
    "rank_times",
]

MEASURED = ("exact", "interpolated")
SCALED, MODELLED, UNKNOWN, HOST = "scaled", "model", "unknown", "host copies"
NAMED = "by name"
"""What else a kernel's time comes from: the recording times a ratio of models; a model; the ratio
that others have; the ratio of links; what its name tells."""

PRODUCT = re.compile(r"gemm|cutlass|xmma|wgrad|dgrad|conv|matmul|flash|fmha|attention", re.I)
"""Names of kernels that matrix units limit."""

FORMATS = (
    ("bf16", re.compile(r"bf16|bfloat16", re.I)),
    ("tf32", TF32),
    ("fp32", re.compile(r"sgemm|fp32", re.I)),
    ("fp16", re.compile(r"fp16|f16|half|hmma|h884|h1688", re.I)),
)
"""Number formats that names of kernels tell."""


class RankTimes:
    """Times of one rank's device operations on another GPU.

    Parameters
    ----------
    n : int
        Device operations.

    Attributes
    ----------
    duration : float64 array, shape (n,)
        In ps; negative where no call is known.
    error : float64 array, shape (n,)
        Relative.
    source : list of str
        What each time comes from.
    recorded : float64 array, shape (n,)
        In ps.
    """

    def __init__(self, n: int) -> None:
        self.duration = np.full(n, -1.0)
        self.error = np.zeros(n)
        self.source = [UNKNOWN] * n
        self.recorded = np.zeros(n)


def rank_times(
    source: Source,
    before: OperatorPricing,
    after: OperatorPricing,
    *,
    everything: bool = False,
    needs_shapes: bool = True,
) -> RankTimes | None:
    """Return the times of one rank's recording, which is read once more. Local.

    Parameters
    ----------
    source : Source
    before, after : OperatorPricing
        Of the GPU of the recording, and of the new one.
    everything : bool
        Whether models alone say what known kernels take; else the recording times a ratio.
    needs_shapes : bool
        Whether a recording without shapes is refused.

    Returns
    -------
    RankTimes or None
        None for a recording without shapes, or of whose calls none is known.

    Raises
    ------
    TraceError
        If it has no shapes, though they are needed.
    InputError
        If the new GPU lacks a number format of the recording.
    """
    if source.process >= 0:
        if not needs_shapes:
            return None
        raise TraceError(
            f"{source.path}: a recording of Nsight Systems names no operators; --price needs "
            "Kineto traces with shapes (record_shapes=True)"
        )
    trace = read_kineto(source.path)
    try:
        calls = launched_calls(trace)
    except TraceError:
        if needs_shapes:
            raise
        return None
    device = trace.device
    found = RankTimes(len(device))
    found.recorded = (device.end - device.begin).astype(float)
    for each in calls:
        _add_call(found, each, before, after, everything)
    if (found.duration < 0).all():
        return None
    was, now = before.model.gpu, after.model.gpu
    for op, name in enumerate(device.name):
        if found.duration[op] < 0 and ("HtoD" in name or "DtoH" in name):
            ratio = _link(was) / _link(now)
            found.duration[op] = found.recorded[op] * ratio
            found.error[op] = 0.0 if was == now else math.hypot(was.pcie.error, now.pcie.error)
            found.source[op] = HOST
    return found


def _add_call(
    found: RankTimes,
    each: LaunchedCall,
    before: OperatorPricing,
    after: OperatorPricing,
    everything: bool,
) -> None:
    """Add the times of what one call launched, if anything is known of it."""
    ops = list(each.ops)
    recorded = found.recorded[ops]
    total = float(recorded.sum())
    priced = after.price(each.launched, each.call)
    measured = priced.how in MEASURED
    same = after.model.gpu == before.model.gpu
    old = None if same or measured else before.price(each.launched)
    if not measured and old is not None and old.known and not priced.known:
        was, now = before.model.gpu, after.model.gpu
        raise InputError(
            f"--gpu: {now.title} cannot run {each.call.name} as it was recorded on {was.title}; "
            f"its number formats are {', '.join(now.formats)}"
        )
    if not measured and (not priced.known or not priced.duration or not total):
        return
    if measured:
        took, error, origin = float(priced.duration), priced.error, str(priced.how)
    elif everything:
        took, error, origin = float(priced.duration), priced.error, MODELLED
    elif old is None:
        took, error, origin = total, 0.0, SCALED
    elif old.known and old.duration:
        took, origin = total * priced.duration / old.duration, SCALED
        error = _ratio_error(priced, old)
    else:
        return
    parts = recorded / total if total else np.full(len(ops), 1 / len(ops))
    found.duration[ops] = took * parts
    found.error[ops] = error
    for op in ops:
        found.source[op] = origin


def _ratio_error(after: Priced, before: Priced) -> float:
    """Error of a ratio of two models of one kernel, taken as if they were off by themselves.

    They share formulas, and often constants, so that this is more than their difference is off.
    """
    return math.hypot(after.error, before.error)


def _link(gpu: Gpu) -> float:
    return gpu.pcie.si * gpu.pcie_fraction.si


class RatesByName:
    """Times on one GPU over times on another, of kernels of which only the name is known.

    Parameters
    ----------
    old, new : Gpu
    """

    def __init__(self, old: Gpu, new: Gpu) -> None:
        self._gpus = old, new
        self._known: dict[tuple[str, int], float] = {}

    def ratio(self, name: str, kind: int) -> float:
        """Return the new time over the old one.

        Parameters
        ----------
        name : str
        kind : int
            A `mpisim.program.Kind`.
        """
        key = name, kind
        if key not in self._known:
            both: Sequence[str] = [f for f in self._gpus[0].formats if f in self._gpus[1].formats]
            old, new = (self._rate(gpu, name, kind, both) for gpu in self._gpus)
            self._known[key] = old / new
        return self._known[key]

    @staticmethod
    def _rate(gpu: Gpu, name: str, kind: int, both: Sequence[str]) -> float:
        if kind == Kind.COPY and copy_path(name) == "host":
            return _link(gpu)
        if kind == Kind.KERNEL and PRODUCT.search(name):
            named = [dtype for dtype, pattern in FORMATS if pattern.search(name)]
            dtype = next((d for d in (*named, "bf16", "fp16") if d in both), "fp32")
            fraction = gpu.fp32_fraction if dtype == "fp32" else gpu.gemm_fraction
            return gpu.peak(dtype).si * fraction.si
        return gpu.bandwidth.si * gpu.memory_fraction.si
