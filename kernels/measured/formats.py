"""Table formats of measured kernels, by publisher.

A format is recognised by the names of its columns (`FORMATS`). Each section below turns the rows of
one publisher into kernel descriptions with times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from mpisim.base.csv_files import CsvRow
from mpisim.base.errors import InputError, nearest

from .. import operations
from ..numbers import number
from ..operations import (
    ATTENTION_VARIANTS,
    Attention,
    Convolution,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    Softmax,
)
from .rows import ASIDE, MeasuredKernel

__all__ = ["COLLECTED_FAMILIES", "FORMATS", "TableFormat", "collected_kernel"]


class TableFormat(NamedTuple):
    """A format of tables.

    Attributes
    ----------
    publisher : str
    columns : tuple of str
        Names of the columns by which the format is recognised.
    row : callable
        From the cells of a row to a `MeasuredKernel`.
    launched : bool
        Whether the times hold the launch of the kernel.
    growing : bool
        Whether launches grew in the course of the author's run.
    """

    publisher: str
    columns: tuple[str, ...]
    row: Callable[[CsvRow], MeasuredKernel]
    launched: bool
    growing: bool = False


# --- NeuSight -------------------------------------------------------------------------------------
#
# github:sitar-lab/NeuSight, scripts/asplos/data. Times were taken with events around a call of
# PyTorch: the start event passes at once, so they hold what the call takes on the CPU as well. In
# the file of convolutions this grew in the course of the author's run, about linearly with the rows
# before, whatever their shapes: by 0.3 to 0.7 ms from the first row of a GPU to its last. Each
# operation was measured in a run of its own, that of the rows for training another than that of
# those for tests.

NEUSIGHT_BINARY = frozenset(("add", "mul", "div", "pow"))
"""NeuSight's operations of two tensors; those that end in ``u``, and activations, read one."""

NEUSIGHT_LINEAR_LAUNCHES = number("neusight_linear_launches")
"""Launches of a batched product that a linear layer takes on the CPU."""


def _neusight_product(row: CsvRow) -> MeasuredKernel:
    b, m = row.whole("B"), row.whole("M")
    k, n = row.whole("N_contract"), row.whole("K_out")
    if row["op"] == "linear":
        b, m = 1, b * m
    kernel = Gemm(m, n, k, b, dtype="fp32", output="fp32")
    calls = NEUSIGHT_LINEAR_LAUNCHES if row["op"] == "linear" else 1.0
    seconds = row.number("latency_ms") * 1e-3
    return MeasuredKernel(
        row["gpu"], row["op"], kernel, seconds, row["split"], calls, _neusight_run(row)
    )


def _neusight_vector(row: CsvRow) -> MeasuredKernel:
    rows, width, op = row.whole("B"), row.whole("H"), row["op"]
    kernel: Kernel
    if op == "softmax":
        kernel = Softmax(rows, width, dtype="fp32")
    elif op == "ln":
        kernel = Norm(rows, width, dtype="fp32")
    else:
        kernel = Elementwise((3 if op in NEUSIGHT_BINARY else 2) * 4 * rows * width)
    seconds = row.number("latency_ms") * 1e-3
    return MeasuredKernel(row["gpu"], op, kernel, seconds, row["split"], run=_neusight_run(row))


def _neusight_convolution(row: CsvRow) -> MeasuredKernel:
    side, stride = row.whole("ksize"), row.whole("stride")
    out = (row.whole("in_size") + 2 * row.whole("pad") - side) // stride + 1
    sizes = (row.whole("batch"), row.whole("c_in"), row.whole("c_out"), out, out, side, stride)
    return MeasuredKernel(
        row["gpu"], row["op"], Convolution(*sizes), row.number("latency_ms") * 1e-3
    )


def _neusight_half(row: CsvRow) -> MeasuredKernel:
    b, m, k, n = (row.whole(name) for name in ("B", "M", "N", "K"))
    kernel = Gemm(m, n, k, b, dtype="fp16", output="fp16")
    return MeasuredKernel("H100-SXM-80GB", "bmm", kernel, row.number("Latency") * 1e-3)


def _neusight_run(row: CsvRow) -> str:
    return f"{row['op']} {row['split']}"


NEUSIGHT = "NeuSight (github:sitar-lab/NeuSight)"


# --- Vidur ----------------------------------------------------------------------------------------
#
# github:microsoft/vidur. Times of kernels alone, one model's layers profiled after another's.

VIDUR_VOCABULARIES = {
    "Qwen/Qwen-72B": 152064,
    "codellama/CodeLlama-34b-Instruct-hf": 32000,
    "internlm/internlm-20b": 103168,
    "meta-llama/Llama-2-70b-hf": 32000,
    "meta-llama/Llama-2-7b-hf": 32000,
    "meta-llama/Meta-Llama-3-70B": 128256,
    "meta-llama/Meta-Llama-3-8B": 128256,
    "microsoft/phi-2": 51200,
}
"""Entries of the models' tables, from their ``config.json``; Vidur's rows do not say."""


VIDUR_PRODUCT_BOARDS = {"A100-80GB": "A100-PCIe-80GB"}
"""Boards of Vidur's products, by the name of its tables: its own network tables of an A100 are of
Azure's NC96ads_A100_v4 (docs/profiling.md), whose boards are PCIe ones of 300 W, and its products
run as on a board at the limit of its power (docs/kernels.md). What streams tells no board."""


def _vidur_product(row: CsvRow) -> MeasuredKernel:
    m, n, k = (row.whole(name) for name in ("M", "N", "K"))
    kernel = Gemm(m, n, k, dtype="fp16", output="fp16")
    seconds = row.number("median_ms") * 1e-3
    board = VIDUR_PRODUCT_BOARDS.get(row["gpu"], row["gpu"])
    return MeasuredKernel(board, row["op"], kernel, seconds, run=row["model"])


def _vidur_other(row: CsvRow) -> MeasuredKernel:
    rows, width, op = row.whole("tokens"), row.whole("width"), row["op"]
    kernel: Kernel
    if op == "emb":
        entries = row.choice("model", VIDUR_VOCABULARIES) // row.whole("tp")
        kernel = Embedding(rows, width, entries, dtype="fp16")
    elif op == "input_layernorm":
        kind: Any = "layer" if row["model"] == "microsoft/phi-2" else "rms"
        kernel = Norm(rows, width, kind, dtype="fp16")
    else:
        # A gate multiplies the activation in all of these models but one; rotary embeddings are
        # applied in place.
        gated = op == "mlp_act" and row["model"] != "microsoft/phi-2"
        kernel = Elementwise((3 if gated or op == "add" else 2) * 2 * rows * width)
    # vLLM's own kernels load single elements of two bytes, half the rate of PyTorch's on large
    # GPUs: no fit should take them for typical.
    split = ASIDE if op in ("mlp_act", "attn_rope") else None
    seconds = row.number("median_ms") * 1e-3
    return MeasuredKernel(row["gpu"], op, kernel, seconds, split, run=row["model"])


VIDUR = "Vidur (github:microsoft/vidur)"


# --- DeepGEMM, FlashAttention, ml-engineering: tables of rates ------------------------------------


def _deepgemm(row: CsvRow) -> MeasuredKernel:
    groups, m, n, k = (row.whole(name) for name in ("groups", "M_per_group", "N", "K"))
    kernel: Kernel
    if row["kind"] == "dense":
        kernel = Gemm(m, n, k, dtype="fp8", output="bf16")
    else:
        kernel = GroupedGemm(groups * m, groups, n, k, dtype="fp8", output="bf16")
    return MeasuredKernel(row["gpu"], row["kind"], kernel, row.number("derived_time_us") * 1e-6)


def _flash_attention(row: CsvRow) -> MeasuredKernel:
    batch, heads, kv_heads, tokens, size = (
        row.whole(name) for name in ("batch", "heads", "kv_heads", "tokens", "head_size")
    )
    value_size = row.whole("value_size") if row.get("value_size") else size
    window = row.whole("window") if row.get("window") else None
    dtype: Any = row["dtype"]
    kernel = Attention(
        *(batch, heads, kv_heads, tokens, tokens, size, value_size),
        causal=row["causal"] == "1",
        backward=row["operation"] == "backward",
        dtype=dtype,
        window=window,
        variant=row.choice("kernel", ATTENTION_VARIANTS),
    )
    seconds = kernel.flops / (row.number("tflops") * 1e12)
    return MeasuredKernel(row["gpu"], row["operation"], kernel, seconds)


def _fastest(row: CsvRow) -> MeasuredKernel:
    sizes = row["best_MxNxK"].split("x")
    if len(sizes) != 3 or not all(each.strip().isdigit() for each in sizes):
        raise row.error("best_MxNxK", "three whole numbers, as 4096x4096x8192")
    m, n, k = map(int, sizes)
    dtype: Any = row["dtype"]
    kernel = Gemm(m, n, k, dtype=dtype, output="bf16")
    seconds = kernel.flops / (row.number("best_TFLOPS") * 1e12)
    return MeasuredKernel(row["gpu"], "fastest", kernel, seconds, ASIDE)


# --- run_scripts/collect_gpu.py -------------------------------------------------------------------

COLLECTED_COLUMNS = ("gpu", "family", "operation", "median_us", "repeats")
"""Columns that such a table is recognised by."""

COLLECTED_FAMILIES: dict[str, type[Kernel]] = {
    each.family: each
    for each in vars(operations).values()
    if isinstance(each, type)
    and issubclass(each, Kernel)
    # No kernel in particular; and one that no row can describe, as its misses are a curve.
    and each not in (Kernel, operations.Counted, operations.EmbeddingTables)
}


def collected_kernel(row: Mapping[str, str]) -> Kernel:
    """Return the kernel that a row of ``run_scripts/collect_gpu.py`` describes.

    The row names a description of :mod:`mpisim.kernels.operations` by its ``family`` and holds its
    numbers in columns of their names; those that the family does not have are empty.

    Raises
    ------
    InputError
        If the family is none, or a number is missing or not as it must be.
    """
    family = row["family"]
    if family not in COLLECTED_FAMILIES:
        raise InputError(
            f"unknown family {family!r}{nearest(family, COLLECTED_FAMILIES)}; "
            f"allowed: {', '.join(COLLECTED_FAMILIES)}"
        )
    kind = COLLECTED_FAMILIES[family]
    hints = get_type_hints(kind)
    given = {
        each.name: _cell_value(row[each.name], hints[each.name], each.name)
        for each in fields(kind)
        if row.get(each.name)
    }
    missing = [
        each.name for each in fields(kind) if each.default is MISSING and each.name not in given
    ]
    if missing:
        raise InputError(f"{', '.join(missing)} of a {family} kernel: empty")
    return kind(**given)


def _cell_value(text: str, hint: Any, name: str) -> Any:
    """Return a cell as the description has it: a truth value, one of some words, a whole number."""
    if NoneType in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if hint is bool:
        if text not in ("0", "1"):
            raise InputError(f"{name} is {text!r}; it must be 0 or 1")
        return text == "1"
    if get_origin(hint) is Literal:
        words = get_args(hint)
        if text not in words:
            raise InputError(
                f"{name} is {text!r}{nearest(text, words)}; allowed: {', '.join(words)}"
            )
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; it must be a whole number") from None


def _collected(row: CsvRow) -> MeasuredKernel:
    kernel = collected_kernel(row)
    seconds = row.number("median_us") * 1e-6
    return MeasuredKernel(row["gpu"], row["operation"], kernel, seconds, row.get("split") or None)


FORMATS = (
    TableFormat(
        NEUSIGHT,
        ("op", "gpu", "split", "B", "M", "N_contract", "K_out", "latency_ms"),
        _neusight_product,
        True,
    ),
    TableFormat(NEUSIGHT, ("op", "gpu", "split", "B", "H", "latency_ms"), _neusight_vector, True),
    TableFormat(
        NEUSIGHT,
        ("op", "gpu", "batch", "c_in", "c_out", "ksize", "in_size", "stride", "pad", "latency_ms"),
        _neusight_convolution,
        True,
        growing=True,
    ),
    TableFormat(NEUSIGHT, ("B", "M", "N", "K", "Latency"), _neusight_half, True),
    TableFormat(
        VIDUR, ("gpu", "model", "op", "tp", "M", "N", "K", "median_ms"), _vidur_product, False
    ),
    TableFormat(
        VIDUR, ("gpu", "model", "op", "tp", "tokens", "width", "median_ms"), _vidur_other, False
    ),
    TableFormat(
        "DeepGEMM (github:deepseek-ai/DeepGEMM)",
        ("kind", "gpu", "dtype", "groups", "M_per_group", "N", "K", "derived_time_us"),
        _deepgemm,
        False,
    ),
    TableFormat(
        "FlashAttention (arXiv:2307.08691, arXiv:2407.08608, github:Dao-AILab/flash-attention)",
        ("gpu", "kernel", "operation", "dtype", "batch", "heads", "tokens", "head_size", "tflops"),
        _flash_attention,
        False,
    ),
    TableFormat("collect_gpu.py", COLLECTED_COLUMNS, _collected, False),
    TableFormat(
        "ml-engineering (github:stas00/ml-engineering)",
        ("gpu", "dtype", "best_TFLOPS", "best_MxNxK"),
        _fastest,
        False,
    ),
)
