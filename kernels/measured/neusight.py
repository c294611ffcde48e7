"""NeuSight's tables (github:sitar-lab/NeuSight, scripts/asplos/data).

Its times were taken with events around a call of PyTorch: the start event passes at once, so they
hold what the call takes on the CPU as well. In the file of convolutions this grew in the course of
the author's run, about linearly with the rows before, whatever their shapes: by 0.3 to 0.7 ms from
the first row of a GPU to its last. Each operation was measured in a run of its own, that of the
rows for training another than that of those for tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..operations import Convolution, Elementwise, Gemm, Kernel, Norm, Softmax
from .rows import Form, Row

__all__ = ["FORMS"]

BINARY = frozenset(("add", "mul", "div", "pow"))
"""NeuSight's operations of two tensors; those that end in ``u``, and activations, read one."""

LINEAR = 1.8
"""Launches of a batched product that a linear layer takes on the CPU: PyTorch asks cuBLASLt for an
algorithm in every call. The shortest rows for training say so: 1.5 to 2.1 on five GPUs."""


def _product(row: Mapping[str, str]) -> Row:
    b, m = int(row["B"]), int(row["M"])
    k, n = int(row["N_contract"]), int(row["K_out"])
    if row["op"] == "linear":
        b, m = 1, b * m
    kernel = Gemm(m, n, k, b, dtype="fp32", output="fp32")
    calls = LINEAR if row["op"] == "linear" else 1.0
    seconds = float(row["latency_ms"]) * 1e-3
    return Row(row["gpu"], row["op"], kernel, seconds, row["split"], calls, _run(row))


def _vector(row: Mapping[str, str]) -> Row:
    rows, width, op = int(row["B"]), int(row["H"]), row["op"]
    kernel: Kernel
    if op == "softmax":
        kernel = Softmax(rows, width, dtype="fp32")
    elif op == "ln":
        kernel = Norm(rows, width, dtype="fp32")
    else:
        kernel = Elementwise((3 if op in BINARY else 2) * 4 * rows * width)
    seconds = float(row["latency_ms"]) * 1e-3
    return Row(row["gpu"], op, kernel, seconds, row["split"], run=_run(row))


def _convolution(row: Mapping[str, str]) -> Row:
    side, stride = int(row["ksize"]), int(row["stride"])
    out = (int(row["in_size"]) + 2 * int(row["pad"]) - side) // stride + 1
    sizes = (int(row["batch"]), int(row["c_in"]), int(row["c_out"]), out, out, side, stride)
    return Row(row["gpu"], row["op"], Convolution(*sizes), float(row["latency_ms"]) * 1e-3)


def _half(row: Mapping[str, str]) -> Row:
    b, m, k, n = (int(row[name]) for name in ("B", "M", "N", "K"))
    kernel = Gemm(m, n, k, b, dtype="fp16", output="fp16")
    return Row("H100-SXM-80GB", "bmm", kernel, float(row["Latency"]) * 1e-3)


def _run(row: Mapping[str, str]) -> str:
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
