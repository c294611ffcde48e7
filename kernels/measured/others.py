"""Tables that give rates: DeepGEMM's, FlashAttention's and those of ml-engineering; and our own."""

from __future__ import annotations

from typing import Any

from mpisim.base.csv_files import CsvRow

from .. import collected
from ..fused_attention import ATTENTION
from ..operations import Gemm, GroupedGemm, Kernel
from .rows import ASIDE, Form, Row

__all__ = ["FORMS"]


def _deepgemm(row: CsvRow) -> Row:
    groups, m, n, k = (row.whole(name) for name in ("groups", "M_per_group", "N", "K"))
    kernel: Kernel
    if row["kind"] == "dense":
        kernel = Gemm(m, n, k, dtype="fp8", output="bf16")
    else:
        kernel = GroupedGemm(groups * m, groups, n, k, dtype="fp8", output="bf16")
    return Row(row["gpu"], row["kind"], kernel, row.number("derived_time_us") * 1e-6)


def _attention(row: CsvRow) -> Row:
    batch, heads, kv_heads, tokens, size = (
        row.whole(name) for name in ("batch", "heads", "kv_heads", "tokens", "head_size")
    )
    value_size = row.whole("value_size") if row.get("value_size") else size
    window = row.whole("window") if row.get("window") else None
    dtype: Any = row["dtype"]
    kinds = {str(name): kind for name, kind in ATTENTION.items()}
    kernel = row.choice("kernel", kinds)(
        *(batch, heads, kv_heads, tokens, tokens, size, value_size),
        causal=row["causal"] == "1",
        backward=row["operation"] == "backward",
        dtype=dtype,
        window=window,
    )
    seconds = kernel.flops / (row.number("tflops") * 1e12)
    return Row(row["gpu"], row["operation"], kernel, seconds)


def _fastest(row: CsvRow) -> Row:
    sizes = row["best_MxNxK"].split("x")
    if len(sizes) != 3 or not all(each.strip().isdigit() for each in sizes):
        raise row.error("best_MxNxK", "three whole numbers, as 4096x4096x8192")
    m, n, k = map(int, sizes)
    dtype: Any = row["dtype"]
    kernel = Gemm(m, n, k, dtype=dtype, output="bf16")
    seconds = kernel.flops / (row.number("best_TFLOPS") * 1e12)
    return Row(row["gpu"], "fastest", kernel, seconds, ASIDE)


def _collected(row: CsvRow) -> Row:
    kernel = collected.description(row)
    return Row(row["gpu"], row["operation"], kernel, row.number("median_us") * 1e-6)


FORMS = (
    Form(
        "DeepGEMM (github:deepseek-ai/DeepGEMM)",
        ("kind", "gpu", "dtype", "groups", "M_per_group", "N", "K", "derived_time_us"),
        _deepgemm,
        False,
    ),
    Form(
        "FlashAttention (arXiv:2307.08691, arXiv:2407.08608, github:Dao-AILab/flash-attention)",
        ("gpu", "kernel", "operation", "dtype", "batch", "heads", "tokens", "head_size", "tflops"),
        _attention,
        False,
    ),
    Form("collect_gpu.py", collected.COLUMNS, _collected, False),
    Form(
        "ml-engineering (github:stas00/ml-engineering)",
        ("gpu", "dtype", "best_TFLOPS", "best_MxNxK"),
        _fastest,
        False,
    ),
)
