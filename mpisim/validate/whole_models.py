"""Whole models on one GPU beside NeuSight's measurements of them.

NeuSight (ASPLOS 2025, github:sitar-lab/NeuSight, `neusight/Tracing/trace.py`) times models of
Hugging Face's transformers in fp32 with eager attention: the forward pass, in inference without
dropout, and for training forward and backward separately. The loss itself is computed between the
two and timed with neither, its gradient with the backward; there is no optimizer. BERT has a
classifier in inference and all of its heads in training.

The kernels come from the workload generator, which writes what Megatron-LM launches;
``torch.compile`` is taken to launch what the generator's fused kernels are. An ordinary experiment
cannot say what is measured here: forward passes alone, BERT's classifier alone, passes without loss
and optimizer, a vocabulary that is not padded, dropout of blocks but not of attention (OPT), and
the kernels by which Hugging Face scales, masks and copies. So `HuggingFace` replaces kernels where
its code with ``attn_implementation="eager"`` (github:huggingface/transformers,
src/transformers/models) runs on other operators of PyTorch, forward and backward:

- Biases are added within the products (``addmm``).
- BERT and OPT have a product each for queries, keys and values; GPT-2 one for all, whose gradients
  are concatenated.
- Heads are brought together in copies before the products of attention: in OPT by ``contiguous``,
  in GPT-2 and BERT within ``torch.matmul``, which needs none for a batch of one. The gradients
  go back the same way; those of queries, keys and values always by copies.
- Scores are scaled and masked by two kernels: divided and chosen in GPT-2, divided and added to in
  BERT; in OPT, whose queries are scaled before, added to and compared with the least number. Of
  these, additions have no backward kernel, and the comparison has five (``maximum`` in PyTorch's
  derivatives.yaml halves the gradients of what is equal).
- OPT drops no probabilities (``attention_dropout`` is 0).
- GPT-2's ``gelu_new`` is composed of elementary operations, through each of which autograd runs
  back; the gradients of its input are added up one by one.

Gradients of parameters are added to those of the iteration before: NeuSight's loop never sets them
to zero, which the plan says by a second micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..base.csv_files import CsvRow, read_table
from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import PICOSECONDS
from ..base.schema import build
from ..experiment import (
    ClusterChoice,
    Experiment,
    FrameworkOptions,
    Plan,
    PrecisionOptions,
    Transformer,
)
from ..experiment.model_presets import find_model
from ..kernels import KernelModel
from ..kernels.measured import gpu_name
from ..kernels.operations import BYTES, Elementwise, Gemm, Kernel
from ..workloads import lay_out
from ..workloads.operators import Compute, Operator
from ..workloads.transformer.shapes import VOCABULARY_MULTIPLE
from .cases import Case, Validation

__all__ = ["is_whole_models", "steps", "validate_whole_models"]

Number = TypeVar("Number", int, float)

COLUMNS = ("gpu", "model", "mode", "seq_len", "batch", "option", "e2e_ms", "fwd_ms", "bwd_ms")

MODELS: dict[str, dict[str, object]] = {
    "bert_large": find_model("bert-large"),
    "gpt2_large": find_model("gpt2-large"),
    "gpt3_27": find_model("gpt3-2.7b"),
    "gpt3_xl": find_model("gpt3-2.7b") | {"layers": 24, "hidden": 3072, "heads": 24},
    "opt_13": find_model("opt-1.3b"),
}
"""Models by NeuSight's names; its mixtures of experts (Switch) pad every expert's tokens in a loop
of Python, which no framework for training does."""

FP32 = BYTES["fp32"]
MASK_SHARE = 1 / FP32
"""Of the bytes of a tensor in fp32, those of one of truth values."""

MAXIMUM_BACKWARD = (1 + MASK_SHARE, 2, 3 + MASK_SHARE, 1 + MASK_SHARE, 2 + MASK_SHARE)
"""Tensors that each kernel of the way back of ``maximum`` reads and writes: what is equal, half the
gradient, the choice of the two, what is less, zeros there."""

HEAVY_ALLOCATION = 0.75
"""Forward over backward time above which a row counts as one whose allocations took long: the
allocator's cache is emptied before the forward pass, and the arithmetic alone makes it 0.5."""


def is_whole_models(path: str | Path) -> bool:
    """Path → whether it is a table of whole models; one that cannot be read is not.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    bool
    """
    headings: list[str] = []
    with suppress(InputError):
        read_table(path, headings.extend)
    return set(COLUMNS) <= set(headings)


def validate_whole_models(
    paths: Sequence[str | Path], make: Callable[[str], KernelModel], gpus: Sequence[str] = ()
) -> Validation:
    """Tables of measurements → the prediction of every row.

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
                reason = _skip_reason(row)
                if reason:
                    found.skipped[reason] += 1
                    continue
                if gpu not in models:
                    models[gpu] = make(gpu)
                found.cases.append(_case(row, gpu, models[gpu]))
            except (ValueError, KeyError, InputError) as error:
                raise InputError(f"{path}, line {line}: {error}") from error
    return found


def _skip_reason(row: CsvRow) -> str:
    """Row → why it cannot be predicted; empty if it can."""
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
        for name, seconds in each.by_number.items():
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


def _positive(read: Callable[[str], Number], row: CsvRow, column: str) -> Number:
    """Column of a row → its number, which must be above 0; `read` reads it."""
    value = read(column)
    if value <= 0:
        raise row.error(column, "above 0")
    return value


@dataclass
class _Pass:
    """The time of a pass, and how much of it depends on each number of the kernel model."""

    seconds: float
    by_number: dict[str, float]


def _time(kernels: Sequence[Kernel], model: KernelModel) -> _Pass:
    """Kernels → their time together, or the CPU's for launching them where that is longer."""
    gpu = model.gpu
    device = 0
    by_number: dict[str, float] = {}
    for kernel in kernels:
        estimate = model.estimate(kernel)
        device += estimate.duration
        for name, share in estimate.shares.items():
            seconds = share * estimate.duration / PICOSECONDS
            by_number[name] = by_number.get(name, 0.0) + seconds
    host = len(kernels) * (gpu.host_gap.si + gpu.launch_call.si)
    gaps = len(kernels) * gpu.kernel_gap.si
    return _Pass(max(device / PICOSECONDS + gaps, host), by_number)


@frozen
class HuggingFace:
    """Kernels of Hugging Face's eager code, in fp32, in place of those of the generator.

    Attributes
    ----------
    model : Transformer
    batch : int
    """

    model: Transformer
    batch: int

    @property
    def source(self) -> Literal["gpt2", "opt", "bert"]:
        """Model file of Hugging Face's transformers; of the decoders, OPT has ReLUs."""
        if self.model.family == "bert":
            return "bert"
        return "opt" if self.model.activation == "relu" else "gpt2"

    def forward(self, operator: Operator) -> Iterator[Kernel]:
        """Operator → kernels of its forward pass."""
        for step in operator.forward:
            if isinstance(step, Compute) and not step.name.endswith(" bias"):
                yield from self._step(step, self._forward)

    def backward(self, operator: Operator) -> Iterator[Kernel]:
        """Operator → kernels of its backward pass."""
        for step in operator.backward:
            if isinstance(step, Compute):
                yield from self._step(step, self._backward)

    def _step(
        self, step: Compute, rules: Callable[[str, Kernel], Iterator[Kernel] | None]
    ) -> Iterator[Kernel]:
        found = rules(step.name, step.kernel)
        return iter((step.kernel,)) if found is None else found

    def _forward(self, name: str, kernel: Kernel) -> Iterator[Kernel] | None:
        """Name and kernel → kernels in place of it; None: the kernel itself."""
        match name, self.source:
            case "qkv", "bert" | "opt":
                return self._separate_products(kernel, "n", scaled=True)
            case "attention heads in batches", _:
                copies = 3 if self.source == "opt" or self.batch > 1 else 0
                return _passes(self._tensor, (2,) * copies)
            case "attention scale", "opt":
                return iter(())
            case "attention mask", "opt":
                return iter((kernel, kernel))
            case "attention dropout", "opt":
                return iter(())
        return None

    def _backward(self, name: str, kernel: Kernel) -> Iterator[Kernel] | None:
        """Name and kernel → kernels in place of it; None: the kernel itself."""
        match name, self.source:
            case "attention transposition backward", _:
                return _passes(self._tensor, (2,) * (1 if self.batch > 1 else 0))
            case "attention dropout backward", "opt":
                return iter(())
            case "attention scale backward", "opt":
                return iter(())
            case "attention mask backward", "bert":
                return iter(())
            case "attention mask backward", "opt":
                return _passes(kernel.traffic // 2, MAXIMUM_BACKWARD)
            case "attention concatenated gradients", "gpt2":
                return self._after_copies(kernel, 3)
            case "attention concatenated gradients", _:
                return _passes(self._tensor, (2, 2, 2))
            case "qkv input gradient", "bert" | "opt":
                return self._separate_products(kernel, "k", scaled=True, summed=True)
            case "qkv weight gradient", "bert" | "opt":
                return self._separate_products(kernel, "m")
            case "qkv bias gradient", "bert" | "opt":
                return _passes(self._tensor, (1, 1, 1))
            case "feed-forward gelu gradient sum", "gpt2":
                return _passes(kernel.traffic // 4, (3, 3))
        return None

    @property
    def _tensor(self) -> int:
        """Bytes of the hidden states."""
        return FP32 * self.batch * self.model.seq_len * self.model.hidden

    def _after_copies(self, kernel: Kernel, copies: int) -> Iterator[Kernel]:
        yield from _passes(self._tensor, (2,) * copies)
        yield kernel

    def _separate_products(
        self, kernel: Kernel, size: str, *, scaled: bool = False, summed: bool = False
    ) -> Iterator[Kernel]:
        """One product of queries, keys and values → three, each a third of it.

        In OPT with the queries' scaling; `summed` with the sums of the gradients of their input.
        """
        assert isinstance(kernel, Gemm)
        third: dict[str, int] = {size: getattr(kernel, size) // 3}
        for _ in range(3):
            yield replace(kernel, **third)  # type: ignore[arg-type]
        if scaled and self.source == "opt":
            yield from _passes(self._tensor, (2,))
        if summed:
            yield from _passes(self._tensor, (3, 3))


def _passes(tensor: int, passes: tuple[float, ...]) -> Iterator[Kernel]:
    """Kernels that each read and write a tensor of so many bytes so many times, together."""
    for each in passes:
        yield Elementwise(int(each * tensor))


def steps(
    name: str, batch: int, seq_len: int, training: bool, fused: bool = False
) -> tuple[list[Kernel], list[Kernel]]:
    """Model and batch → kernels of the forward and of the backward pass.

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
    model: Any = build(Transformer, dict(MODELS[name]), name)
    model = replace(model, seq_len=seq_len, dropout=training)
    eager = HuggingFace(model, batch)
    plan = Plan(
        global_batch=2 * batch,  # the second adds its gradients to those of the first
        micro_batch=batch,
        precision=PrecisionOptions("fp32"),
        framework=FrameworkOptions(
            kernels="eager",
            fused=fused,
            primitive=("gelu",) if eager.source == "gpt2" and not fused else (),
            dp_style="ddp",
        ),
    )
    layout = lay_out(Experiment(model, plan, ClusterChoice("none")), 1)
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    for layer in layout.networks[0].layers:
        for operator in layer.operators:
            if not training and _is_for_training(operator.name, model):
                continue
            if operator.name != "loss":
                forward += _fused(operator) if fused else eager.forward(operator)
            if training:
                backward += eager.backward(operator)
    return [_unpadded(each, model.vocab) for each in forward], [
        _unpadded(each, model.vocab) for each in backward
    ]


def _unpadded(kernel: Kernel, vocab: int) -> Kernel:
    """Product → the same with the vocabulary as it is, which Megatron-LM alone rounds up."""
    padded = -(-vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    if not isinstance(kernel, Gemm):
        return kernel
    sizes = {name: vocab for name in ("m", "n", "k") if getattr(kernel, name) == padded}
    return replace(kernel, **sizes) if sizes else kernel  # type: ignore[arg-type]


def _is_for_training(name: str, model: Transformer) -> bool:
    """Whether BERT has an operator for training alone: the classifier needs the pooler only."""
    return model.family == "bert" and name.startswith(("head", "logits", "loss"))


def _fused(operator: Operator) -> Iterator[Kernel]:
    """Operator → kernels of its forward pass as the generator has them."""
    return (step.kernel for step in operator.forward if isinstance(step, Compute))
