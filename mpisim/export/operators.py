"""A generated step on one GPU → operators and modules around its launches, as PyTorch records them.

With ``record_shapes=True`` and ``with_modules=True`` a profile has, around each launch, the
operator that made it with the sizes of its tensors, in the forward pass the modules it belongs to,
and in the backward pass the node of autograd, behind which the gradients that it completes are
accumulated. A generated step knows all this; written down, it can be read like any recorded step
(:mod:`mpisim.extrapolate`).

Where PyTorch has no operator for a kernel of the generator (a fused one, say), one stands for it
that moves as many bytes. Steps of several micro-batches, stages or ranks that share layers, or with
layers computed again, have the operators with their sizes alone: what autograd records there is
another matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpisim.kernels.operations import (
    Attention,
    Convolution,
    CrossEntropy,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    Softmax,
)

from ..experiment import Transformer
from ..prediction.prepared import PreparedExperiment
from ..program import Kind, Phase, Table
from ..traces.export_communications import Around
from ..workloads.data_parallel.buckets import chunk_parameters
from ..workloads.operators import Compute, Layer, Operator, Parameter
from ..workloads.pricing import Pricing

__all__ = ["operators_around"]

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
OPTIMIZER = "Optimizer.step#Optimizer.step"
"""Names of autograd's nodes, of gradients that are complete, and of the optimizer's step."""

_TYPES = {"fp32": "float", "tf32": "float", "fp16": "c10::Half", "bf16": "c10::BFloat16"}

Sizes = list[int]


def operators_around(prepared: PreparedExperiment, rank: int) -> Mapping[int, Sequence[Around]]:
    """Return the operators and modules around the launches of a rank, by row.

    Parameters
    ----------
    prepared : PreparedExperiment
    rank : int

    Returns
    -------
    mapping of int to sequence of Around
        With nodes of autograd, modules and gradients where one GPU runs the model as it is;
        otherwise operators alone.
    """
    return _with_autograd(prepared, rank) or _calls_around(prepared, rank)


def _with_autograd(prepared: PreparedExperiment, rank: int) -> Mapping[int, Sequence[Around]]:
    """Return what is around launches in PyTorch's profile; none if rows and layers do not fit."""
    workload = prepared.workload
    layout, plan = workload.layout, prepared.experiment.plan
    once = layout.pipeline.micro_batches == 1 and layout.pipeline.stages * plan.vpp == 1
    if not once or plan.recompute.granularity != "none" or layout.grid.tp > 1:
        return {}
    network = 0 if len(layout.networks) == 1 else int(layout.network[rank])
    layers = layout.chunks(0, network)[0].layers
    table = prepared.program.table_of(rank)
    writer = _Writer(table, prepared.program.names, workload.pricing_of(rank), plan.micro_batch)
    element = "float"
    if layers and plan.precision.products in ("fp16", "bf16", "fp8", "nvfp4"):
        transformer = isinstance(prepared.experiment.model, Transformer)
        weights = plan.resolved(transformer=transformer).weight_format  # autocast keeps fp32
        element = _TYPES.get(weights, "float")
    return writer.write(layers, element)


def _calls_around(prepared: PreparedExperiment, rank: int) -> Mapping[int, Sequence[Around]]:
    """Return the operators around the launches of a rank alone."""
    table, names = prepared.program.table_of(rank), prepared.program.names
    pricing = prepared.workload.pricing_of(rank)
    batch = prepared.experiment.plan.micro_batch
    found: dict[int, Sequence[Around]] = {}
    for row in np.flatnonzero(table.kind == Kind.KERNEL).tolist():
        kernel = pricing.kernels.get((names[table.name[row]], int(table.duration[row])))
        if kernel is not None:
            found[row] = [Around("cpu_op", *call_of(kernel, batch), row)]
    return found


class _Writer:
    """Go through the rows of a step beside the operators that wrote them.

    Parameters
    ----------
    table : Table
    names : sequence of str
        Of rows.
    pricing : Pricing
    batch : int
        Samples.
    """

    def __init__(self, table: Table, names: Sequence[str], pricing: Pricing, batch: int) -> None:
        self.table, self.pricing, self.batch = table, pricing, batch
        self.name = [names[i] for i in table.name.tolist()]
        self.kernels = [
            row for row, kind in enumerate(table.kind.tolist()) if kind in (Kind.KERNEL, Kind.COPY)
        ]
        self.at = 0
        self.around: dict[int, list[Around]] = {}
        self.sequence = 0
        self.node: dict[tuple[int, int], int] = {}

    def write(self, layers: Sequence[Layer], element: str) -> Mapping[int, Sequence[Around]]:
        """Return what is around rows; nothing if rows and operators do not fit each other."""
        owned: dict[tuple[int, int], list[Parameter]] = {}
        for each in chunk_parameters(layers):
            owned.setdefault((each.layer, each.operator), []).append(each.parameter)
        for i, layer in enumerate(layers):
            begin = self.at
            for j, operator in enumerate(layer.operators):
                if not self._forward((i, j), operator):
                    return {}
            if self.at > begin:
                first, last = self.kernels[begin], self.kernels[self.at - 1]
                name = f"nn.Module: {layer.role.capitalize()}_{i}"
                self._open(first, Around("python_function", name, {}, last), outermost=True)
        for i in range(len(layers) - 1, -1, -1):
            for j in range(len(layers[i].operators) - 1, -1, -1):
                operator = layers[i].operators[j]
                if not self._backward((i, j), operator, owned.get((i, j), []), element):
                    return {}
        rest = self.kernels[self.at :]
        if any(self.table.phase[row] != Phase.OPTIMIZER for row in rest):
            return {}
        for row in rest:
            self._call(row)
        if rest:
            step = Around("user_annotation", OPTIMIZER, {}, rest[-1])
            self._open(rest[0], step, outermost=True)
        return self.around

    def _open(self, row: int, what: Around, *, outermost: bool = False) -> None:
        spans = self.around.setdefault(row, [])
        if outermost:
            spans.insert(0, what)
        else:
            spans.append(what)

    def _take(self, tasks: Sequence[object]) -> list[int] | None:
        """Return the rows of tasks, which come next; None if others do."""
        found = []
        for task in tasks:
            if not isinstance(task, Compute):
                continue
            if self.at >= len(self.kernels) or self.name[self.kernels[self.at]] != task.name:
                return None
            found.append(self.kernels[self.at])
            self.at += 1
        return found

    def _forward(self, place: tuple[int, int], operator: Operator) -> bool:
        rows = self._take(operator.forward)
        if rows is None:
            return False
        largest = max(rows, key=lambda row: self._weight(row), default=-1)
        biased = self._biased(rows)
        for row in rows:
            if row in biased.values():
                continue
            self._call(row, sequence=self.sequence, bias=biased.get(row))
            if row == largest:
                self.node[place] = self.sequence
            self.sequence += 1
        if not rows:
            self.node[place] = self.sequence
            self.sequence += 1
        return True

    def _biased(self, rows: Sequence[int]) -> dict[int, int]:
        """Return the convolutions whose operator adds a bias in a kernel of its own, and that."""
        found = {}
        by_name = {self.name[row]: row for row in rows}
        for name, row in by_name.items():
            added = by_name.get(f"{name} bias")
            if added is not None and isinstance(self._kernel(row), Convolution):
                found[row] = added
        return found

    def _weight(self, row: int) -> tuple[int, int]:
        kernel = self._kernel(row)
        return (0, 0) if kernel is None else (kernel.flops, kernel.traffic)

    def _backward(
        self,
        place: tuple[int, int],
        operator: Operator,
        parameters: Sequence[Parameter],
        element: str,
    ) -> bool:
        rows = self._take(operator.backward)
        if rows is None:
            return False
        if not rows:
            return not parameters
        for row in rows:
            self._call(row)
        node = f"{EVALUATE}{operator.name.title().replace(' ', '')}Backward0"
        args = {"Sequence number": self.node[place], "Fwd thread id": 0}
        self._open(rows[0], Around("cpu_op", node, args, rows[-1]), outermost=True)
        shapes = dict(_weights(operator))
        for each in reversed(parameters):
            sizes = shapes.get(each.size, [each.size])
            gradient = {"Input Dims": [sizes], "Input type": [element]}
            self._open(rows[-1], Around("cpu_op", ACCUMULATE, gradient, -1))
        return True

    def _kernel(self, row: int) -> Kernel | None:
        return self.pricing.kernels.get((self.name[row], int(self.table.duration[row])))

    def _call(self, row: int, *, sequence: int | None = None, bias: int | None = None) -> None:
        """Put the operator of a kernel around its launch, and around that which adds a bias."""
        kernel = self._kernel(row)
        name, args = (
            ("aten::relu", _given([[1]], "float"))
            if kernel is None
            else call_of(kernel, self.batch)
        )
        if sequence is not None:
            args["Sequence number"] = sequence
        if bias is not None and isinstance(kernel, Convolution):
            args["Input Dims"][2], args["Input type"][2] = [kernel.outputs], args["Input type"][0]
        self._open(row, Around("cpu_op", name, args, row if bias is None else bias))


def _weights(operator: Operator) -> Iterator[tuple[int, Sizes]]:
    """Yield sizes of the weights that an operator's kernels show, by their elements."""
    for task in operator.forward:
        if not isinstance(task, Compute):
            continue
        kernel = task.kernel
        if isinstance(kernel, Gemm) and kernel.batch == 1:
            yield kernel.n * kernel.k, [kernel.n, kernel.k]
        elif isinstance(kernel, GroupedGemm):
            experts = [kernel.groups, kernel.n, kernel.k]
            yield kernel.groups * kernel.n * kernel.k, experts
        elif isinstance(kernel, Convolution):
            inputs = kernel.inputs // kernel.groups
            sizes = [kernel.outputs, inputs, kernel.kernel, kernel.kernel]
            yield kernel.outputs * inputs * kernel.kernel**2, sizes
        elif isinstance(kernel, Embedding):
            yield kernel.entries * kernel.width, [kernel.entries, kernel.width]


# --- kernels as operators -------------------------------------------------------------------------


def call_of(kernel: Kernel, batch: int) -> tuple[str, dict[str, Any]]:
    """Kernel → the operator of PyTorch that launches it, and its arguments as Kineto writes them.

    Parameters
    ----------
    kernel : Kernel
    batch : int
        Samples, into which lookups of tokens are divided.
    """
    kind = _TYPES.get(getattr(kernel, "dtype", "fp32"), "float")
    match kernel:
        case Gemm():
            a, b = [kernel.m, kernel.k], [kernel.k, kernel.n]
            if kernel.batch > 1:
                return "aten::bmm", _given([[kernel.batch, *a], [kernel.batch, *b]], kind)
            return "aten::mm", _given([a, b], kind)
        case GroupedGemm():
            offsets = [kernel.groups]
            a, b = [kernel.rows, kernel.k], [kernel.groups, kernel.k, kernel.n]
            if kernel.weight:
                a, b = [kernel.k, kernel.rows], [kernel.rows, kernel.n]
            given = _given([a, b, offsets], kind)
            given["Input type"][2] = "int"
            return "aten::_grouped_mm", given
        case Convolution():
            return _convolution(kernel, kind)
        case Attention():
            return _attention(kernel, kind)
        case Norm():
            return _norm(kernel, kind)
        case Softmax() | CrossEntropy():
            return _softmax(kernel, kind)
        case Embedding() if not kernel.backward and kernel.pooling == 1:
            lookups = [kernel.lookups]
            if kernel.lookups % batch == 0 and kernel.lookups > batch:
                lookups = [batch, kernel.lookups // batch]
            given = _given([[kernel.entries, kernel.width], lookups], kind)
            given["Input type"][1] = "long int"
            return "aten::embedding", given
    # An elementwise operator reads as much as it writes.
    return "aten::relu", _given([[max(1, kernel.traffic // 8)]], "float")


def _given(
    dims: list[Sizes], kind: str, concrete: Mapping[int, str] | None = None, count: int = 0
) -> dict[str, Any]:
    """Arguments of an operator: tensors first, then `count` in all, of which some have values."""
    given = dict(concrete or {})
    count = max(count, len(dims), *(i + 1 for i in given), 0) if given else max(count, len(dims))
    rest = count - len(dims)
    found: dict[str, Any] = {
        "Input Dims": [*dims, *([] for _ in range(rest))],
        "Input type": [*(kind for _ in dims), *("Scalar" for _ in range(rest))],
    }
    if given:
        found["Concrete Inputs"] = [given.get(i, "") for i in range(count)]
    return found


def _convolution(kernel: Convolution, kind: str) -> tuple[str, dict[str, Any]]:
    side, inputs = kernel.kernel, kernel.inputs
    image = [kernel.batch, inputs, kernel.height * kernel.stride, kernel.width * kernel.stride]
    result = [kernel.batch, kernel.outputs, kernel.height, kernel.width]
    weight = [kernel.outputs, inputs // kernel.groups, side, side]
    settings = [
        f"[{kernel.stride}, {kernel.stride}]",
        f"[{(side - 1) // 2}, {(side - 1) // 2}]",
        "[1, 1]",
        "False",
        "[0, 0]",
        str(kernel.groups),
    ]
    last = [1, image[1], image[3] * image[1], image[1]]  # channels are innermost
    if kernel.direction == "forward":
        given = _given([image, weight], kind, dict(enumerate(settings, start=3)))
        given["Input Strides"] = [[last[3] * last[2], 1, last[2], last[3]], []]
        return "aten::convolution", given
    mask = ("input", "weight", "bias")
    settings.append(f"[{', '.join(str(each == kernel.direction) for each in mask)}]")
    given = _given([result, image, weight], kind, dict(enumerate(settings, start=4)))
    given["Input Strides"] = [[], [last[3] * last[2], 1, last[2], last[3]], []]
    return "aten::convolution_backward", given


def _attention(kernel: Attention, kind: str) -> tuple[str, dict[str, Any]]:
    q = [kernel.batch, kernel.heads, kernel.queries, kernel.head_size]
    k = [kernel.batch, kernel.kv_heads, kernel.keys, kernel.head_size]
    v = [kernel.batch, kernel.kv_heads, kernel.keys, kernel.value_size]
    causal = str(kernel.causal)
    if kernel.backward:
        name = "aten::_scaled_dot_product_flash_attention_backward"
        return name, _given([q, q, k, v], kind, {11: causal})
    return "aten::_scaled_dot_product_flash_attention", _given([q, k, v], kind, {4: causal})


def _norm(kernel: Norm, kind: str) -> tuple[str, dict[str, Any]]:
    x = [kernel.rows, kernel.columns]
    if kernel.kind == "batch":
        if kernel.backward:
            return "aten::native_batch_norm_backward", _given([x, x], kind)
        return "aten::native_batch_norm", _given([x], kind, {5: "True"})
    over = f"[{kernel.columns}]"
    stem = "aten::native_layer_norm" if kernel.kind == "layer" else "aten::rms_norm"
    if kernel.backward:
        stem = "aten::_fused_rms_norm" if kernel.kind == "rms" else stem
        return f"{stem}_backward", _given([x, x], kind, {2: over})
    return stem, _given([x], kind, {1: over})


def _softmax(kernel: Softmax | CrossEntropy, kind: str) -> tuple[str, dict[str, Any]]:
    x = [kernel.rows, kernel.columns]
    name = "aten::_softmax" if isinstance(kernel, Softmax) else "aten::_log_softmax"
    if kernel.backward:
        return f"{name}_backward_data", _given([x, x], kind)
    return name, _given([x], kind)
