"""Measured kernel times: tables in CSV as their authors publish them.

A file is recognised by the names of its columns:

========================================  ==========================================================
columns                                   published by
========================================  ==========================================================
op, gpu, split, B, M, N_contract, K_out   NeuSight, matrix products (github:sitar-lab/NeuSight)
op, gpu, split, B, H                      NeuSight, vector operations
op, gpu, batch, c_in, c_out, ksize        NeuSight, convolutions
B, M, N, K, Latency                       NeuSight, fp16 products on an H100
gpu, model, op, tp, M, N, K               Vidur, matrix products (github:microsoft/vidur)
gpu, model, op, tp, tokens, width         Vidur, the other operations of a layer
kind, gpu, dtype, groups, M_per_group     DeepGEMM (github:deepseek-ai/DeepGEMM)
gpu, operation, dtype, batch, heads, …    FlashAttention (``data/calibration/attention.csv``)
gpu, family, operation, median_us         ``run_scripts/collect_gpu.py`` (docs/collecting.md)
gpu, dtype, best_TFLOPS, best_MxNxK       ml-engineering, the fastest products found
========================================  ==========================================================

The last are the best of very many shapes; no fit should take them for typical: they are set aside.

Times of NeuSight were taken with events around a call of PyTorch: the start event passes at once,
so they hold what the call takes on the CPU as well (``launched``). In the file of convolutions this
grew in the course of the author's run, about linearly with the rows before, whatever their shapes:
by 0.3 to 0.7 ms from the first row of a GPU to its last (``elapsed``).
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpisim.errors import InputError, nearest
from mpisim.presets import match, names, packaged

from . import collected
from .analytical.family import ANY, MODULES, stack
from .gpu import FILE
from .operations import (
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

__all__ = ["ASIDE", "TEST", "TRAIN", "Rows", "read", "select"]

TRAIN, TEST, ASIDE = "train", "test", "aside"
"""Splits; rows set aside are not typical of their kind: no fit should see them."""


@dataclass(frozen=True)
class Rows:
    """Measured kernels of one family, one GPU and one format, from one file.

    Attributes
    ----------
    file : str
        Its name, without folders.
    publisher : str
    family : str
        Of `analytical.family.MODULES`.
    gpu : str
        Name of the preset.
    dtype : str
        Format, or ``"any"`` for kernels that have none.
    launched : float
        How many launches of a plain kernel the times hold on top of the kernel: 0 where it was
        timed by itself.
    kernels : tuple of Kernel
    columns : mapping
        As `analytical.family.Columns`.
    seconds : ndarray of float64
        Measured.
    op : ndarray of str
        The author's name of the operation.
    split : ndarray of str
        ``"train"`` or ``"test"``, the author's or by shape, see `read`; or ``"aside"``.
    line : ndarray of int64
        Line of the file, the header being line 1.
    elapsed : ndarray of float64
        How much of the author's run on this GPU was over when the row was taken, 0 to 1, by its
        place in the file; 0 where launches did not grow in its course.
    """

    file: str
    publisher: str
    family: str
    gpu: str
    dtype: str
    launched: float
    kernels: tuple[Kernel, ...]
    columns: Mapping[str, Any]
    seconds: np.ndarray
    op: np.ndarray
    split: np.ndarray
    line: np.ndarray
    elapsed: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    def net(self, launch: Callable[[Rows], float | np.ndarray] | None) -> np.ndarray:
        """Return the times without the launch, in seconds.

        Parameters
        ----------
        launch : callable, optional
            From rows whose times hold the launch to its CPU time in seconds. One that is estimated
            too long leaves a tenth of the time.
        """
        if launch is None or not self.launched:
            return self.seconds
        return np.maximum(self.seconds - self.launched * launch(self), 0.1 * self.seconds)

    def take(self, wanted: np.ndarray) -> Rows:
        """Return some rows: a mask or indices."""
        chosen = np.arange(len(self))[wanted]
        return replace(
            self,
            kernels=tuple(self.kernels[i] for i in chosen.tolist()),
            columns={
                name: column if isinstance(column, str) else column[chosen]
                for name, column in self.columns.items()
            },
            seconds=self.seconds[chosen],
            op=self.op[chosen],
            split=self.split[chosen],
            line=self.line[chosen],
            elapsed=self.elapsed[chosen],
        )


class _Row(NamedTuple):
    """What a row of any file says."""

    gpu: str
    op: str
    kernel: Kernel
    seconds: float
    split: str | None = None
    calls: float = 1.0
    """CPU time of the operation's call, beside that of a plain one of its family."""


GPUS = {
    "A100-80GB": "a100-sxm",
    "A100 SXM": "a100-sxm",
    "A100 PCIe": "a100-pcie-80gb",
    "GH200 SXM": "gh200-96gb",
    "H100 SXM": "h100-sxm",
    "H200 SXM": "h200",
    "H800-SXM": "h800-sxm",
    "B200 SXM": "b200",
    "B300 SXM": "b300",
    "GB200 SXM": "gb200",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "MI250": "mi210",
}
"""Names in these files beside those of ``data/gpus.toml``. PyTorch sees one die of an MI250, which
has the units, the clock and the bandwidth of an MI210."""

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

BINARY = frozenset(("add", "mul", "div", "pow"))
"""NeuSight's operations of two tensors; those that end in ``u``, and activations, read one."""


LINEAR = 1.8
"""Launches of a batched product that a linear layer takes on the CPU: PyTorch asks cuBLASLt for an
algorithm in every call. The shortest rows for training say so: 1.5 to 2.1 on five GPUs."""


def gpu_name(text: str) -> str:
    """Return the name of a preset for a GPU as these files write it."""
    return GPUS.get(text) or match(text, packaged(FILE), "GPU", f"see {FILE}")


def _neusight_product(row: Mapping[str, str]) -> _Row:
    b, m = int(row["B"]), int(row["M"])
    k, n = int(row["N_contract"]), int(row["K_out"])
    if row["op"] == "linear":
        b, m = 1, b * m
    kernel = Gemm(m, n, k, b, dtype="fp32", output="fp32")
    calls = LINEAR if row["op"] == "linear" else 1.0
    return _Row(row["gpu"], row["op"], kernel, float(row["latency_ms"]) * 1e-3, row["split"], calls)


def _neusight_vector(row: Mapping[str, str]) -> _Row:
    rows, width, op = int(row["B"]), int(row["H"]), row["op"]
    kernel: Kernel
    if op == "softmax":
        kernel = Softmax(rows, width, dtype="fp32")
    elif op == "ln":
        kernel = Norm(rows, width, dtype="fp32")
    else:
        kernel = Elementwise((3 if op in BINARY else 2) * 4 * rows * width)
    return _Row(row["gpu"], op, kernel, float(row["latency_ms"]) * 1e-3, row["split"])


def _neusight_convolution(row: Mapping[str, str]) -> _Row:
    side, stride = int(row["ksize"]), int(row["stride"])
    out = (int(row["in_size"]) + 2 * int(row["pad"]) - side) // stride + 1
    sizes = (int(row["batch"]), int(row["c_in"]), int(row["c_out"]), out, out, side, stride)
    return _Row(row["gpu"], row["op"], Convolution(*sizes), float(row["latency_ms"]) * 1e-3)


def _neusight_half(row: Mapping[str, str]) -> _Row:
    b, m, k, n = (int(row[name]) for name in ("B", "M", "N", "K"))
    kernel = Gemm(m, n, k, b, dtype="fp16", output="fp16")
    return _Row("H100-SXM-80GB", "bmm", kernel, float(row["Latency"]) * 1e-3)


def _vidur_product(row: Mapping[str, str]) -> _Row:
    m, n, k = (int(row[name]) for name in ("M", "N", "K"))
    kernel = Gemm(m, n, k, dtype="fp16", output="fp16")
    return _Row(row["gpu"], row["op"], kernel, float(row["median_ms"]) * 1e-3)


def _vidur_other(row: Mapping[str, str]) -> _Row:
    rows, width, op = int(row["tokens"]), int(row["width"]), row["op"]
    kernel: Kernel
    if op == "emb":
        entries = VOCABULARIES[row["model"]] // int(row["tp"])
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
    return _Row(row["gpu"], op, kernel, float(row["median_ms"]) * 1e-3, split)


def _deepgemm(row: Mapping[str, str]) -> _Row:
    groups, m, n, k = (int(row[name]) for name in ("groups", "M_per_group", "N", "K"))
    kernel: Kernel
    if row["kind"] == "dense":
        kernel = Gemm(m, n, k, dtype="fp8", output="bf16")
    else:
        kernel = GroupedGemm(groups * m, groups, n, k, dtype="fp8", output="bf16")
    return _Row(row["gpu"], row["kind"], kernel, float(row["derived_time_us"]) * 1e-6)


def _attention(row: Mapping[str, str]) -> _Row:
    batch, heads, kv_heads, tokens, size = (
        int(row[name]) for name in ("batch", "heads", "kv_heads", "tokens", "head_size")
    )
    dtype: Any = row["dtype"]
    kernel = Attention(
        *(batch, heads, kv_heads, tokens, tokens, size, size),
        causal=row["causal"] == "1",
        backward=row["operation"] == "backward",
        dtype=dtype,
    )
    seconds = kernel.flops / (float(row["tflops"]) * 1e12)
    return _Row(row["gpu"], row["operation"], kernel, seconds)


def _fastest(row: Mapping[str, str]) -> _Row:
    m, n, k = (int(each) for each in row["best_MxNxK"].split("x"))
    dtype: Any = row["dtype"]
    kernel = Gemm(m, n, k, dtype=dtype, output="bf16")
    seconds = kernel.flops / (float(row["best_TFLOPS"]) * 1e12)
    return _Row(row["gpu"], "fastest", kernel, seconds, ASIDE)


def _collected(row: Mapping[str, str]) -> _Row:
    kernel = collected.description(row)
    return _Row(row["gpu"], row["operation"], kernel, float(row["median_us"]) * 1e-6)


class _Form(NamedTuple):
    """A kind of file: who publishes it, the columns it is known by, how a row is read, whether
    launches count, and whether they grew in the course of the run."""

    publisher: str
    columns: tuple[str, ...]
    row: Callable[[Mapping[str, str]], _Row]
    launched: bool
    growing: bool = False


NEUSIGHT = "NeuSight (github:sitar-lab/NeuSight)"
VIDUR = "Vidur (github:microsoft/vidur)"

FORMS = (
    _Form(
        NEUSIGHT,
        ("op", "gpu", "split", "B", "M", "N_contract", "K_out", "latency_ms"),
        _neusight_product,
        True,
    ),
    _Form(NEUSIGHT, ("op", "gpu", "split", "B", "H", "latency_ms"), _neusight_vector, True),
    _Form(
        NEUSIGHT,
        ("op", "gpu", "batch", "c_in", "c_out", "ksize", "in_size", "stride", "pad", "latency_ms"),
        _neusight_convolution,
        True,
        growing=True,
    ),
    _Form(NEUSIGHT, ("B", "M", "N", "K", "Latency"), _neusight_half, True),
    _Form(VIDUR, ("gpu", "model", "op", "tp", "M", "N", "K", "median_ms"), _vidur_product, False),
    _Form(VIDUR, ("gpu", "model", "op", "tp", "tokens", "width", "median_ms"), _vidur_other, False),
    _Form(
        "DeepGEMM (github:deepseek-ai/DeepGEMM)",
        ("kind", "gpu", "dtype", "groups", "M_per_group", "N", "K", "derived_time_us"),
        _deepgemm,
        False,
    ),
    _Form(
        "FlashAttention (arXiv:2307.08691, arXiv:2407.08608, github:Dao-AILab/flash-attention)",
        ("gpu", "operation", "dtype", "batch", "heads", "tokens", "head_size", "tflops"),
        _attention,
        False,
    ),
    _Form("collect_gpu.py", collected.COLUMNS, _collected, False),
    _Form(
        "ml-engineering (github:stas00/ml-engineering)",
        ("gpu", "dtype", "best_TFLOPS", "best_MxNxK"),
        _fastest,
        False,
    ),
)


def read(path: str | Path) -> tuple[list[Rows], dict[str, int]]:
    """Read a file of measured kernels.

    Rows without a split of their author's are divided by shape, so that all rows of one kernel
    description are on one side: a fifth is the test set.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    list of Rows
        One for each family, GPU, format and cost of the call, in the order in which they are met.
    dict
        Rows left out: how many, by reason.

    Raises
    ------
    InputError
        If the file cannot be read, is none of the known kinds, or a row is not as it must be.
    """
    path = Path(path)
    table = _table(path)
    header = next(table)[1]
    form = next((each for each in FORMS if set(each.columns) <= set(header)), None)
    if form is None:
        known = "; ".join(", ".join(each.columns) for each in FORMS)
        raise InputError(
            f"{path}: no known table of kernel times: its columns are {', '.join(header)[:200]}; "
            f"known: {known}"
        )
    found: dict[tuple[str, str, str, float], list[tuple[int, _Row]]] = {}
    skipped: dict[str, int] = {}
    presets = set(names(FILE))
    known_gpus: dict[str, str | None] = {}
    for line, row in table:
        try:
            each = form.row(row)
            if not each.seconds > 0:
                raise ValueError(f"a time of {each.seconds * 1e3:g} ms")
        except (KeyError, ValueError, TypeError, InputError) as error:
            raise InputError(f"{path}, line {line}: {_why(error)}") from error
        if each.gpu not in known_gpus:
            known_gpus[each.gpu] = _known(each.gpu, presets)
        gpu = known_gpus[each.gpu]
        if gpu is None:
            reason = f"GPU {each.gpu!r} is unknown{nearest(each.gpu.casefold(), presets)}"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        dtype = getattr(each.kernel, "dtype", ANY)
        key = (MODULES[each.kernel.family], gpu, dtype, each.calls * form.launched)
        found.setdefault(key, []).append((line, each))
    return [_rows(path.name, key, rows, form) for key, rows in found.items()], skipped


def _table(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the header, then each row as a mapping, with line numbers."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None:
                raise InputError(f"{path}: the file is empty")
            yield 1, list(reader.fieldnames)
            for row in reader:
                yield reader.line_num, row
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8: {error}") from error


def _known(gpu: str, presets: set[str]) -> str | None:
    try:
        found = gpu_name(gpu)
    except InputError:
        return None
    return found if found in presets else None


def _why(error: Exception) -> str:
    return f"no {error} here" if isinstance(error, KeyError) else str(error)


def _rows(
    file: str, key: tuple[str, str, str, float], rows: list[tuple[int, _Row]], form: _Form
) -> Rows:
    family, gpu, dtype, launched = key
    line = np.array([line for line, _ in rows], dtype=np.int64)
    place = (line - line[0]) / max(1, line[-1] - line[0])
    return Rows(
        file=file,
        publisher=form.publisher,
        family=family,
        gpu=gpu,
        dtype=dtype,
        launched=launched,
        kernels=tuple(each.kernel for _, each in rows),
        columns=stack([each.kernel for _, each in rows]),
        seconds=np.array([each.seconds for _, each in rows]),
        op=np.array([each.op for _, each in rows]),
        split=np.array([each.split or _split(each.kernel) for _, each in rows]),
        line=line,
        elapsed=place if form.growing else np.zeros(len(rows)),
    )


def _split(kernel: Kernel) -> str:
    """Divide by the description, the same way on every machine and in every run."""
    return TEST if zlib.crc32(repr(kernel).encode()) % 5 == 0 else TRAIN


def select(
    rows: Iterable[Rows], *, gpus: Iterable[str] = (), splits: Iterable[str] = ()
) -> list[Rows]:
    """Return the rows of some GPUs and splits; none named means all.

    Raises
    ------
    InputError
        For the name of a GPU that is none.
    """
    wanted = {gpu_name(each) for each in gpus}
    sides = set(splits)
    found = []
    for each in rows:
        if wanted and each.gpu not in wanted:
            continue
        kept = each.take(np.isin(each.split, list(sides))) if sides else each
        if len(kept):
            found.append(kept)
    return found
