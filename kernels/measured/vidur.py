"""Vidur's tables (github:microsoft/vidur): times of kernels alone, one model's layers
profiled after another's."""

from __future__ import annotations

from typing import Any

from mpisim.base.csv_files import CsvRow

from ..operations import Elementwise, Embedding, Gemm, Kernel, Norm
from .rows import ASIDE, Form, Row

__all__ = ["FORMS"]

VOCABULARIES = {
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


def _product(row: CsvRow) -> Row:
    m, n, k = (row.whole(name) for name in ("M", "N", "K"))
    kernel = Gemm(m, n, k, dtype="fp16", output="fp16")
    seconds = row.number("median_ms") * 1e-3
    return Row(row["gpu"], row["op"], kernel, seconds, run=row["model"])


def _other(row: CsvRow) -> Row:
    rows, width, op = row.whole("tokens"), row.whole("width"), row["op"]
    kernel: Kernel
    if op == "emb":
        entries = row.choice("model", VOCABULARIES) // row.whole("tp")
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
    return Row(row["gpu"], op, kernel, seconds, split, run=row["model"])


VIDUR = "Vidur (github:microsoft/vidur)"

FORMS = (
    Form(VIDUR, ("gpu", "model", "op", "tp", "M", "N", "K", "median_ms"), _product, False),
    Form(VIDUR, ("gpu", "model", "op", "tp", "tokens", "width", "median_ms"), _other, False),
)
