"""Whole models on one GPU beside NeuSight's measurements of them.

NeuSight (ASPLOS 2025, github:sitar-lab/NeuSight, `neusight/Tracing/trace.py`) times models of
Hugging Face's transformers in fp32 with eager attention: the forward pass, in inference without
dropout, and for training forward and backward apart. The loss itself is computed between the two
and timed with neither, its gradient with the backward; there is no optimizer. BERT has a
classifier in inference and all of its heads in training.

The kernels come from the workload generator, which writes what Megatron-LM launches. Where Hugging
Face's eager code launches others, :mod:`.eager_transformers` says so; ``torch.compile`` is taken to
launch what the generator's fused kernels are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..base.csv_files import CsvRow, read_table
from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..base.schema import build
from ..experiment import ClusterChoice, Experiment, Plan, Transformer
from ..experiment.model_presets import find_model
from ..kernels import KernelModel
from ..kernels.measured import gpu_name
from ..kernels.operations import Gemm, Kernel
from ..workloads import lay_out
from ..workloads.operators import Compute, Operator
from ..workloads.transformer.shapes import VOCABULARY_MULTIPLE
from .cases import Case, Validation
from .eager_transformers import Eager

__all__ = ["is_whole_models", "steps", "validate_whole_models"]

T = TypeVar("T", int, float)

COLUMNS = ("gpu", "model", "mode", "seq_len", "batch", "option", "e2e_ms", "fwd_ms", "bwd_ms")

MODELS = {
    "bert_large": "bert-large",
    "gpt2_large": "gpt2-large",
    "gpt3_27": "gpt3-2.7b",
    "gpt3_xl": "gpt3-xl-neusight",
    "opt_13": "opt-1.3b",
}
"""Presets by NeuSight's names; its mixtures of experts (Switch) pad every expert's tokens in a loop
of Python, which no framework for training does."""

HEAVY_ALLOCATION = 0.75
"""Forward over backward time above which a row counts as one whose allocations took long: the
allocator's cache is emptied before the forward pass, and the arithmetic alone makes it 0.5."""


def is_whole_models(path: str | Path) -> bool:
    """Whether a file is a table of whole models; one that cannot be read is not."""
    headings: list[str] = []
    with suppress(InputError):
        read_table(path, headings.extend)
    return set(COLUMNS) <= set(headings)


def validate_whole_models(
    paths: Sequence[str | Path], make: Callable[[str], KernelModel], gpus: Sequence[str] = ()
) -> Validation:
    """Predict every row.

    Parameters
    ----------
    paths : sequence of str or Path
    make : callable
        From the name of a GPU to its kernel model.
    gpus : sequence of str
        Only rows of these; all if empty.

    Returns
    -------
    Validation
        Times in seconds; with each case the relative standard error that the model states
        (``stated_error``), and for training those of both passes (``forward``, ``backward``).

    Raises
    ------
    InputError
        If a row is not as it must be.
    """
    found = Validation("kernels of whole models")
    wanted = {gpu_name(each) for each in gpus}
    models: dict[str, KernelModel] = {}
    for path in paths:
        for line, row in read_table(path).rows:
            try:
                gpu = gpu_name(row["gpu"])
                if wanted and gpu not in wanted:
                    continue
                reason = _unfit(row)
                if reason:
                    found.skipped[reason] += 1
                    continue
                if gpu not in models:
                    models[gpu] = make(gpu)
                found.cases.append(_case(row, gpu, models[gpu]))
            except (ValueError, KeyError, InputError) as error:
                raise InputError(f"{path}, line {line}: {error}") from error
    return found


def _unfit(row: CsvRow) -> str:
    """Say why a row cannot be predicted; nothing if it can."""
    if row["model"] not in MODELS:
        return f"no generator for {row['model']}"
    if row["option"] not in ("", "fusion"):
        return "four GPUs"
    return ""


def _case(row: CsvRow, gpu: str, kernels: KernelModel) -> Case:
    training = row["mode"] == "train"
    fused = row["option"] == "fusion"
    batch, seq_len = (_positive(row.whole, row, each) for each in ("batch", "seq_len"))
    passes = steps(row["model"], batch, seq_len, training, fused)
    forward, backward = (_time(each, kernels) for each in passes)
    predicted = forward.seconds + (backward.seconds if training else 0.0)
    effects: dict[str, float] = {}
    for each in (forward, backward) if training else (forward,):
        for name, seconds in each.resting.items():
            effects[name] = effects.get(name, 0.0) + seconds
    numbers = kernels.numbers
    error = math.hypot(*(s / predicted * numbers[name].error for name, s in effects.items()))
    measured = _positive(row.number, row, "e2e_ms") * 1e-3
    heavy = training and row.number("fwd_ms") > HEAVY_ALLOCATION * row.number("bwd_ms")
    columns = {
        "gpu": gpu,
        "model": row["model"],
        "mode": row["mode"] + (" fusion" if fused else ""),
        "allocation": "heavy" if heavy else "light",
    }
    extra = {"stated_error": error}
    if training:
        extra |= {"forward": forward.seconds, "backward": backward.seconds}
    name = f"{row['gpu']} {row['model']} {row['mode']} {row['batch']}×{row['seq_len']}"
    return Case(f"{name} {row['option']}".strip(), measured, predicted, columns, extra)


def _positive(read: Callable[[str], T], row: CsvRow, column: str) -> T:
    """Return a number above 0, as `read` reads it from the row."""
    value = read(column)
    if value <= 0:
        raise row.error(column, "above 0")
    return value


@dataclass
class _Pass:
    """The time of a pass, and how much of it rests on each number of the kernel model."""

    seconds: float
    resting: dict[str, float]


def _time(kernels: Sequence[Kernel], model: KernelModel) -> _Pass:
    """Add kernels up, or the CPU's time for launching them where that is longer."""
    device = 0
    resting: dict[str, float] = {}
    for kernel in kernels:
        estimate = model.estimate(kernel)
        device += estimate.duration
        for name, share in estimate.shares.items():
            seconds = share * estimate.duration / PICOSECONDS
            resting[name] = resting.get(name, 0.0) + seconds
    gpu = model.gpu
    host = len(kernels) * (gpu.host_gap.si + gpu.launch_call.si)
    return _Pass(max(device / PICOSECONDS, host), resting)


def steps(
    name: str, batch: int, seq_len: int, training: bool, fused: bool = False
) -> tuple[list[Kernel], list[Kernel]]:
    """Return the kernels of the forward and of the backward pass.

    Parameters
    ----------
    name : str
        Of `MODELS`.
    batch, seq_len : int
    training : bool
        Whether dropout is on, and the backward pass wanted.
    fused : bool
        Whether ``torch.compile`` fuses elementwise kernels.
    """
    model: Any = build(Transformer, dict(find_model(MODELS[name])), name)
    model = replace(model, seq_len=seq_len, dropout=training)
    plan = Plan(
        global_batch=batch,
        micro_batch=batch,
        precision="fp32",
        kernels="eager",
        fused=fused,
        dp_style="ddp",
    )
    eager = Eager(model, batch)
    layout = lay_out(Experiment(model, plan, ClusterChoice("none")), 1)
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    for layer in layout.networks[0].layers:
        for operator in layer.operators:
            if not training and _left_out(operator.name, model):
                continue
            if operator.name != "loss":
                forward += _fused(operator) if fused else eager.forward(operator)
            if training:
                backward += eager.backward(operator)
    return [_unpadded(each, model.vocab) for each in forward], [
        _unpadded(each, model.vocab) for each in backward
    ]


def _unpadded(kernel: Kernel, vocab: int) -> Kernel:
    """Return a product with the vocabulary as it is: Megatron-LM rounds it up, others do not."""
    padded = -(-vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    if not isinstance(kernel, Gemm):
        return kernel
    sizes = {name: vocab for name in ("m", "n", "k") if getattr(kernel, name) == padded}
    return replace(kernel, **sizes) if sizes else kernel  # type: ignore[arg-type]


def _left_out(name: str, model: Transformer) -> bool:
    """Whether BERT has an operator for training alone: the classifier needs the pooler only."""
    return model.family == "bert" and name.startswith(("head", "logits", "loss"))


def _fused(operator: Operator) -> Iterator[Kernel]:
    """Yield the kernels of an operator's forward pass as the generator has them."""
    return (step.kernel for step in operator.forward if isinstance(step, Compute))
