"""TrioSim's two tables → a traced step.

They have an operator a row, with its time, the tensors it reads and writes by number, and its
stage: forward, backward or optimizer. Weights and biases have those kinds in the table of tensors;
a row of the backward pass belongs to the latest operator of its kind that has none yet, since the
backward pass comes through the operators in reverse. The CPU is not in the tables: kernels follow
each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ..base.errors import InputError
from ..formats.triosim import TriosimOperator, TriosimTrace, read_triosim
from ..kernels import gpu_name
from ..kernels.operations import Convolution, Elementwise, Gemm, Kernel
from ..operators import OperatorCall, TensorSpec, kernels_of
from ..traces.sources import is_kineto, json_files
from .layers import layer_names
from .step import TracedKernel, TracedOperator, TracedParameter, TracedStep

__all__ = ["is_triosim", "read_triosim_step"]

_GRADIENTS: Mapping[str, str] = {
    "convolution": "conv",
    "addmm": "linear",
    "mm": "linear",
    "t": "linear",
    "nllloss": "crossentropyloss",
    "logsoftmax": "crossentropyloss",
    "nativedropout": "dropout",
    "maxpool2dwithindices": "maxpool2d",
    "nativelayernorm": "layernorm",
    "nativebatchnorm": "batchnorm",
    "cudnnbatchnorm": "batchnorm",
}
"""Stem of an autograd node → stem of the operator that TrioSim's tracer lists for it."""

_TYPES = {2: "float16", 4: "float32", 8: "float64"}


def is_triosim(path: Path | str) -> bool:
    """Path → whether it holds TrioSim's tables: a ``trace.csv``, or a folder with one.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    bool
    """
    path = Path(path)
    if path.is_dir():
        return any((path / name).is_file() for name in ("trace.csv", "trace.csv.gz"))
    return path.name.startswith("trace.csv")


def read_triosim_step(
    path: Path | str, *, gpu: str | None = None, batch: int | None = None
) -> TracedStep:
    """Read the step that TrioSim's tables hold. Local.

    Parameters
    ----------
    path : Path or str
        The folder, or its ``trace.csv``.
    gpu : str, optional
        The GPU it was recorded on, which the tables do not name.
    batch : int, optional
        Samples of the step; by default the first size of the first input.

    Raises
    ------
    InputError
        If the tables cannot be read, or hold no training step.
    """
    trace = read_triosim(path)
    if gpu is None:
        text = (
            f"{path}: TrioSim's tables do not say on which GPU they were recorded; --traced-gpu "
            "does"
        )
        inside = json_files(Path(path)) if Path(path).is_dir() else []
        if kineto := next(filter(is_kineto, inside), None):
            text += f"; or name the Kineto trace beside them, {kineto}"
        raise InputError(text)
    return _Reader(trace, path).step(gpu_name(gpu), batch)


class _Reader:
    def __init__(self, trace: TriosimTrace, path: Path | str) -> None:
        self.trace, self.path = trace, path

    def step(self, gpu: str, batch: int | None) -> TracedStep:
        """Return the step."""
        rows = self.trace.operators
        forward = [each for each in rows if each.stage == "forward"]
        backward = [each for each in rows if each.stage == "backward"]
        if not forward or not backward:
            lacks = "forward" if not forward else "backward"
            raise InputError(f"{self.path}: has no row of the stage {lacks!r}; a training step has")
        found: list[list[TracedKernel]] = [[] for _ in forward]
        at = len(forward) - 1
        for row in backward:
            at = _operator_of(row, forward, at)
            found[at].append(self._kernel(row, forward[at]))
        operators = [
            TracedOperator(
                name=row.name,
                layer="",
                forward=(self._kernel(row, row),),
                backward=tuple(gradients),
                parameters=tuple(self._parameters(row)),
                inputs=tuple(self._tensors(row, weights=False)),
                output=next(iter(self._specs(row.outputs)), None),
                statistics=self._statistics(row),
            )
            for row, gradients in zip(forward, found, strict=True)
        ]
        layers, embedding, head = layer_names(operators, [()] * len(operators))
        operators = [
            replace(each, layer=layer) for each, layer in zip(operators, layers, strict=True)
        ]
        if not any(each.parameters for each in operators):
            raise InputError(f"{self.path}: no operator reads a tensor of the kind 'weight'")
        optimizer = tuple(self._kernel(row, row) for row in rows if row.stage == "optimizer")
        samples = batch or (operators[0].inputs[0].shape[0] if operators[0].inputs else 0)
        if not samples:
            raise InputError(
                f"{self.path}: how many samples a step has is not clear; --traced-batch"
            )
        return TracedStep(
            source=str(self.path),
            gpu=gpu,
            batch=samples,
            operators=tuple(operators),
            optimizer=optimizer,
            measured=sum(each.duration for each in rows),
            embedding=embedding,
            head=head,
            notes=("the CPU is not in TrioSim's tables: kernels follow each other without a gap",),
        )

    def _kernel(self, row: TriosimOperator, of: TriosimOperator) -> TracedKernel:
        """Return a row as a kernel, described by the operator `of` whose pass it is."""
        kernels = self._described(row, of)
        return TracedKernel(
            name=row.name,
            operator=row.name,
            call=row.id,
            duration=row.duration,
            kernels=kernels or (self._streamed(row),),
            known=True,
        )

    def _streamed(self, row: TriosimOperator) -> Kernel:
        size = self.trace.input_bytes(row) + self.trace.output_bytes(row)
        return Elementwise(bytes=max(1, size))

    def _described(self, row: TriosimOperator, of: TriosimOperator) -> tuple[Kernel, ...]:
        """Return the products of a convolution or a linear layer; empty for other operators."""
        weights = [each for each in self._tensors(of, weights=True) if len(each.shape) > 1]
        inputs = self._tensors(of, weights=False)
        outputs = self._specs(of.outputs)
        if not weights or not inputs or not outputs:
            if row is of and row.stage == "forward":
                launched = kernels_of(OperatorCall(row.name, tuple(self._specs(row.inputs))))
                return launched.kernels if launched.known else ()
            return ()
        weight, x, y = weights[0], inputs[0], outputs[0]
        if len(weight.shape) == 4 and len(y.shape) == 4:
            return self._convolutions(row, x, weight, y)
        if len(weight.shape) == 2 and "linear" in of.name:
            tokens = x.elements // weight.shape[1]
            n, k = weight.shape
            if row.stage == "forward":
                return (Gemm(tokens, n, k, dtype="fp32", output="fp32"),)
            return (
                Gemm(tokens, k, n, dtype="fp32", output="fp32"),
                Gemm(n, k, tokens, dtype="fp32", output="fp32"),
            )
        return ()

    def _convolutions(
        self, row: TriosimOperator, x: TensorSpec, weight: TensorSpec, y: TensorSpec
    ) -> tuple[Kernel, ...]:
        def kernel(direction: str) -> Convolution:
            return Convolution(
                x.shape[0],
                x.shape[1],
                y.shape[1],
                y.shape[2],
                y.shape[3],
                weight.shape[2],
                max(1, round(x.shape[2] / y.shape[2])),
                groups=max(1, x.shape[1] // weight.shape[1]),
                direction=direction,  # type: ignore[arg-type]
                dtype="tf32",
            )

        if row.stage == "forward":
            return (kernel("forward"),)
        first = x.shape[1] <= 3
        return (kernel("weight"),) if first else (kernel("input"), kernel("weight"))

    def _parameters(self, row: TriosimOperator) -> Iterable[TracedParameter]:
        for spec in self._tensors(row, weights=True):
            yield TracedParameter(spec.shape, spec.dtype)

    def _statistics(self, row: TriosimOperator) -> int:
        shapes = [each.shape for each in self._tensors(row, weights=True)]
        return shapes[0][0] if "batch_norm" in row.name and shapes else 0

    def _tensors(self, row: TriosimOperator, *, weights: bool) -> list[TensorSpec]:
        """Return the inputs of a row that are weights, or those that are not."""
        return self._specs(i for i in row.inputs if (i in self.trace.weights) == weights)

    def _specs(self, numbers: Iterable[int]) -> list[TensorSpec]:
        tensors = (self.trace.tensors[i] for i in numbers)
        return [
            TensorSpec(_TYPES.get(each.element_bytes, "float32"), each.shape) for each in tensors
        ]


def _stem(name: str) -> str:
    last = name.split(": ")[-1].split("::")[-1].rstrip("0123456789").removesuffix("Backward")
    return last.replace("_", "").lower()


def _operator_of(row: TriosimOperator, forward: list[TriosimOperator], at: int) -> int:
    """Return the forward operator of a row of the backward pass; the one at work if none fits."""
    stem = _stem(row.name)
    stem = _GRADIENTS.get(stem, stem)
    for i in range(at, -1, -1):
        other = _stem(forward[i].name)
        if stem in other or other in stem:
            return i
    return at
