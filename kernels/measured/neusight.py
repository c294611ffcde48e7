"""NeuSight's tables (github:sitar-lab/NeuSight, scripts/asplos/data).

Its times were taken with events around a call of PyTorch: the start event passes at once, so they
hold what the call takes on the CPU as well. In the file of convolutions this grew in the course of
the author's run, about linearly with the rows before, whatever their shapes: by 0.3 to 0.7 ms from
the first row of a GPU to its last. Each operation was measured in a run of its own, that of the
rows for training another than that of those for tests.
"""

from __future__ import annotations

from mpisim.base.csv_files import CsvRow

from ..operations import Convolution, Elementwise, Gemm, Kernel, Norm, Softmax
from .rows import Form, Row

__all__ = ["FORMS"]

BINARY = frozenset(("add", "mul", "div", "pow"))
"""NeuSight's operations of two tensors; those that end in ``u``, and activations, read one."""

LINEAR = 1.8
"""Launches of a batched product that a linear layer takes on the CPU: PyTorch asks cuBLASLt for an
algorithm in every call. The shortest rows for training say so: 1.5 to 2.1 on five GPUs."""


def _product(row: CsvRow) -> Row:
    b, m = row.whole("B"), row.whole("M")
    k, n = row.whole("N_contract"), row.whole("K_out")
    if row["op"] == "linear":
        b, m = 1, b * m
    kernel = Gemm(m, n, k, b, dtype="fp32", output="fp32")
    calls = LINEAR if row["op"] == "linear" else 1.0
    seconds = row.number("latency_ms") * 1e-3
    return Row(row["gpu"], row["op"], kernel, seconds, row["split"], calls, _run(row))


def _vector(row: CsvRow) -> Row:
    rows, width, op = row.whole("B"), row.whole("H"), row["op"]
    kernel: Kernel
    if op == "softmax":
        kernel = Softmax(rows, width, dtype="fp32")
    elif op == "ln":
        kernel = Norm(rows, width, dtype="fp32")
    else:
        kernel = Elementwise((3 if op in BINARY else 2) * 4 * rows * width)
    seconds = row.number("latency_ms") * 1e-3
    return Row(row["gpu"], op, kernel, seconds, row["split"], run=_run(row))


def _convolution(row: CsvRow) -> Row:
    side, stride = row.whole("ksize"), row.whole("stride")
    out = (row.whole("in_size") + 2 * row.whole("pad") - side) // stride + 1
    sizes = (row.whole("batch"), row.whole("c_in"), row.whole("c_out"), out, out, side, stride)
    return Row(row["gpu"], row["op"], Convolution(*sizes), row.number("latency_ms") * 1e-3)


def _half(row: CsvRow) -> Row:
    b, m, k, n = (row.whole(name) for name in ("B", "M", "N", "K"))
    kernel = Gemm(m, n, k, b, dtype="fp16", output="fp16")
    return Row("H100-SXM-80GB", "bmm", kernel, row.number("Latency") * 1e-3)


def _run(row: CsvRow) -> str:
    return f"{row['op']} {row['split']}"


NEUSIGHT = "NeuSight (github:sitar-lab/NeuSight)"

FORMS = (
    Form(
        NEUSIGHT,
        ("op", "gpu", "split", "B", "M", "N_contract", "K_out", "latency_ms"),
        _product,
        True,
    ),
    Form(NEUSIGHT, ("op", "gpu", "split", "B", "H", "latency_ms"), _vector, True),
    Form(
        NEUSIGHT,
        ("op", "gpu", "batch", "c_in", "c_out", "ksize", "in_size", "stride", "pad", "latency_ms"),
        _convolution,
        True,
        growing=True,
    ),
    Form(NEUSIGHT, ("B", "M", "N", "K", "Latency"), _half, True),
)
