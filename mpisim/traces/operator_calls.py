"""Kineto trace with shapes → calls of operators, and the kernels that each launched.

Operators lie in each other. Of those around a launch the outermost counts for which the table of
operators has kernels (:mod:`mpisim.operators.table`); if there is none, the innermost, which is
then not known. Of linear layers and ``matmul`` that launch more than a product, and of a loss that
is composed, what they call counts. Results are not recorded. For operators whose gradient is
computed in the same trace they follow from it: the gradient of a result has its shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import InputError, TraceError
from ..base.frozen import frozen
from ..kernels.operations import Gemm, GemmVariant
from ..operators import Argument, Launched, OperatorCall, TensorSpec, kernels_of
from ..operators.collectives import is_collective
from ..operators.streams import column_sums
from ..operators.tensors import all_tensors, numbers, result, torch_dtype
from .gradients import EVALUATE, Partners, is_backward
from .host import is_communication_kernel
from .kineto import KERNEL, Arguments, KinetoTrace, Spans
from .nsys_export import is_nsys

__all__ = [
    "TF32",
    "LaunchedCall",
    "enclosing_operators",
    "launched_calls",
    "recorded_inputs",
    "records_shapes",
]

_PARTED = ("aten::split", "aten::chunk", "aten::unbind", "aten::unsafe_split", "aten::tensor_split")
"""Operators whose gradient puts together again what they have parted."""

TF32 = re.compile(r"tf32|s1688gemm", re.I)
"""Names of kernels that multiply fp32 tensors in tf32: cuBLAS and cuDNN say it, CUTLASS has the
instruction (m16n8k8 of matrix units, with fp32 results) in the name."""

_SINGLE_WORDS = re.compile(r"s1688(tf32)?gemm\w*_align1\b")
"""Names of CUTLASS's kernels that multiply in tf32 and copy single elements."""

_OF_COLUMNS = re.compile(r"\breduce_kernel<\d+, [24],")
"""PyTorch's reductions of which a thread makes two or four results beside each other, which is
where the first dimensions are summed (``output_vec_size`` of
aten/src/ATen/native/cuda/Reduce.cuh)."""

_COMPOSED = ("aten::linear", "aten::matmul", "aten::binary_cross_entropy_with_logits")
"""Operators that call others for all that they launch."""

_ONE_KERNEL = (*_COMPOSED, "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
"""What they call where they are the kernel that the table takes them for. For an input of three
dimensions that does not lie densely PyTorch copies it first, and adds the bias in a kernel of its
own (aten/src/ATen/native/Linear.cpp). The loss is composed of elementwise operators (Loss.cpp).
Then what they call counts."""

_MOST_ELEMENTS = 10**15
"""Of a tensor; what the largest node holds has fewer bytes, and times of kernels fit 64 bits."""

_Text = tuple[bytes, ...]

_BY_LAYER_NAME = (
    "vllm::moe_forward",
    "vllm::moe_forward_shared",
    "vllm::unified_attention_with_output",
)
"""Operators that are given the name of a layer, in whose place they find weights, key-value caches
and lengths (vLLM, ``get_forward_context().no_compile_layers[layer_name]`` in fused_moe/layer.py and
attention/layer.py). What their kernels read is therefore not among the recorded inputs."""


@frozen
class LaunchedCall:
    """A call of an operator in a trace, with what it launched.

    Attributes
    ----------
    operator : int
        Position among the operators of the trace; -1: launched outside of any.
    call : OperatorCall
    launched : Launched
        By the table.
    ops : tuple of int
        Device operations that it launched: kernels, and copies and fills within the device.
    """

    operator: int
    call: OperatorCall
    launched: Launched
    ops: tuple[int, ...]


def launched_calls(trace: KinetoTrace) -> list[LaunchedCall]:
    """Trace → calls of operators that launched kernels, in order of their first.

    Communications are left out, and copies between host and device, and what was launched before
    recording began.

    Raises
    ------
    TraceError
        If the trace holds no shapes.
    """
    operators = trace.operators
    if not any(args is not None and len(bytes(args.dims)) > 2 for args in operators.args):
        nsys = is_nsys(trace.path)
        how = "run it in torch.autograd.profiler.emit_nvtx(record_shapes=True)"
        raise TraceError(
            f"{trace.path}: records no shapes of tensors; "
            + (how if nsys else "profile with record_shapes=True, or an execution trace beside it")
        )
    reader = _Reader(trace.path, operators)
    chains = enclosing_operators(trace)
    taken_apart = _taken_apart(chains, reader)
    found: dict[int, list[int]] = {}
    for op in range(len(trace.device)):
        if not _counts(trace, op):
            continue
        if op not in chains:  # launched before recording began
            continue
        chain = chains[op]
        if any(is_collective(operators.name[i]) for i in chain):
            continue
        claimed = next((i for i in chain if reader.is_known(i)), chain[-1] if chain else -1)
        if claimed in taken_apart:
            claimed = next(
                (i for i in chain if reader.is_known(i) and i not in taken_apart), claimed
            )
        if claimed >= 0 and not reader.is_known(claimed):
            reader.complete(claimed, chain)
        found.setdefault(claimed, []).append(op)
    calls = []
    for operator, ops in found.items():
        if operator < 0:
            nothing = OperatorCall("(no operator)", ())
            calls += [LaunchedCall(-1, nothing, kernels_of(nothing), (op,)) for op in ops]
        else:
            call, launched = reader.of(operator)
            names = [trace.device.name[op] for op in ops]
            launched = _in_recorded_format(_of_columns(call, launched, names), names)
            calls.append(LaunchedCall(operator, call, launched, tuple(ops)))
    return sorted(calls, key=lambda each: each.ops[0])


def _taken_apart(chains: dict[int, list[int]], reader: _Reader) -> set[int]:
    """Operators around launches → those composed of others that launch more than a kernel."""
    name = reader.operators.name
    found: set[int] = set()
    for chain in chains.values():
        composed = [i for i in chain if name[i] in _COMPOSED and i not in found]
        if composed:
            inside = chain[chain.index(composed[0]) :]
            if any(name[i] not in _ONE_KERNEL and reader.is_known(i) for i in inside):
                found.update(composed)
    return found


def _of_columns(call: OperatorCall, launched: Launched, names: list[str]) -> Launched:
    """Sums are of columns where the name of a kernel says so, and nothing says which dimensions.

    Dimensions are seldom recorded. Where they are, the table knows better: of more than two
    dimensions some may be left besides the last.
    """
    source = next(all_tensors(call.inputs), None)
    if call.name != "aten::sum" or source is None or len(source.shape) < 2 or numbers(call, 1):
        return launched
    to = result(call)
    rows = source.elements // max(1, source.shape[-1] if to is None else to.elements)
    if rows < 2 or rows == source.elements or not any(_OF_COLUMNS.search(each) for each in names):
        return launched
    return Launched(column_sums(source, rows, to), launched.known)


def _in_recorded_format(launched: Launched, names: list[str]) -> Launched:
    """Products of fp32 tensors are in tf32 where the name of a kernel says so.

    Types of tensors do not tell it: PyTorch may use tf32 for them
    (``torch.backends.cuda.matmul.allow_tf32``, on by default from 1.7 to 1.11). Names also tell
    kernels for rows of an odd length.
    """
    if not any(isinstance(each, Gemm) and each.dtype == "fp32" for each in launched.kernels):
        return launched
    if not any(TF32.search(name) for name in names):
        return launched
    variant: GemmVariant | None = "single_words" if any(map(_SINGLE_WORDS.search, names)) else None
    kernels = tuple(
        replace(each, dtype="tf32", variant=variant)
        if isinstance(each, Gemm) and each.dtype == "fp32"
        else each
        for each in launched.kernels
    )
    return Launched(kernels, launched.known)


def _counts(trace: KinetoTrace, op: int) -> bool:
    """Whether a device operation is a kernel, or a copy or fill within the device."""
    name = trace.device.name[op]
    if trace.device.kind[op] == KERNEL:
        return not is_communication_kernel(name)
    return "DtoH" not in name and "HtoD" not in name


def records_shapes(call: OperatorCall) -> bool:
    """Whether a trace can record the shapes of what a call's kernels read and write.

    It cannot for launches outside of any operator, for lists of tensors in older recorders, and for
    operators that get the name of a layer in place of its tensors.
    """
    if call.name in _BY_LAYER_NAME:
        return False
    return next(all_tensors((*call.inputs, *call.outputs)), None) is not None


def enclosing_operators(trace: KinetoTrace) -> dict[int, list[int]]:
    """Trace → operators around the launch of each device operation, the outermost first."""
    launched: dict[int, list[int]] = {}
    for op, correlation in enumerate(trace.device.correlation.tolist()):
        if correlation >= 0:
            launched.setdefault(correlation, []).append(op)
    operators, calls = trace.operators, trace.calls
    events: dict[int, list[tuple[int, int, int, int]]] = {}
    begin, end, thread = (
        each.tolist() for each in (operators.begin, operators.end, operators.thread)
    )
    for i in range(len(operators)):
        events.setdefault(thread[i], []).append((begin[i], 0, -end[i], i))
    begin, thread = calls.begin.tolist(), calls.thread.tolist()
    for i, args in enumerate(calls.args):
        if args is not None and args.correlation in launched:
            events.setdefault(thread[i], []).append((begin[i], 1, 0, args.correlation))
    found: dict[int, list[int]] = {}
    for own in events.values():
        own.sort()
        stack: list[tuple[int, int]] = []
        for at, is_launch, ends, number in own:
            while stack and stack[-1][0] < at:
                stack.pop()
            if not is_launch:
                stack.append((-ends, number))
                continue
            chain = [i for until, i in stack if until >= at]
            for op in launched.get(number, ()):
                found.setdefault(op, chain)
    return found


class _Reader:
    """Calls of a trace's operators, read when they are asked for."""

    def __init__(self, path: Path, operators: Spans) -> None:
        self.path, self.operators = path, operators
        self._kept: dict[int, tuple[OperatorCall, Launched]] = {}
        # Layers and micro-batches repeat their operators. By name and recorded texts: of values
        # 1, 1.0 and True are equal.
        self._by_text: dict[tuple[str, _Text, _Text], tuple[OperatorCall, Launched]] = {}
        order = [-1 if a is None or a.sequence is None else a.sequence for a in operators.args]
        self._partners = Partners(operators.name, order)

    def is_known(self, operator: int) -> bool:
        """Whether the table has kernels for an operator."""
        _, launched = self.of(operator)
        return launched.known and bool(launched.kernels)

    def of(self, operator: int) -> tuple[OperatorCall, Launched]:
        """Operator of the trace → its call and what the table says it launches."""
        found = self._kept.get(operator)
        if found is None:
            name, args = self.operators.name[operator], self.operators.args[operator]
            other = None if args is None else self._partner(operator)
            key = name, _text(args), _text(other)
            found = self._by_text.get(key)
            if found is None:
                try:
                    call = _call(name, args, other)
                    found = self._by_text[key] = call, kernels_of(call)
                except InputError as error:
                    raise TraceError(f"{self.path}: operator {name!r}: {error}") from None
            self._kept[operator] = found
        return found

    def complete(self, operator: int, chain: list[int]) -> None:
        """Take the result of an operator without shapes from the gradient that it is called in.

        Older recorders leave out the shapes of lists, as of ``cat``. Where such an operator is all
        of a gradient (of ``split``, of ``unbind``), its result has the shape of what the forward
        operator was given.

        Parameters
        ----------
        operator : int
        chain : list of int
            It, and the operators around it.
        """
        call, _ = self.of(operator)
        names = self.operators.name
        if next(all_tensors((*call.inputs, *call.outputs)), None) is not None:
            return
        around = [i for i in chain if is_backward(names[i]) and not names[i].startswith(EVALUATE)]
        forward = self._partners.forward(around[-1]) if around else -1
        if forward < 0 or not names[forward].startswith(_PARTED):
            return
        given = next(all_tensors(recorded_inputs(self.operators.args[forward])), None)
        if given is not None:
            dense = TensorSpec(given.dtype, given.shape)
            call = OperatorCall(call.name, call.inputs, (dense,))
            self._kept[operator] = call, kernels_of(call)

    def _partner(self, operator: int) -> Arguments | None:
        """Arguments of the forward operator of a gradient, or of an operator's gradient."""
        backward = is_backward(self.operators.name[operator])
        partners = self._partners
        other = partners.forward(operator) if backward else partners.gradient(operator)
        return None if other < 0 else self.operators.args[other]


def _text(args: Arguments | None) -> _Text:
    """All that `recorded_inputs` reads."""
    if args is None:
        return ()
    return bytes(args.dims), bytes(args.types), bytes(args.steps), bytes(args.concrete)


def _call(name: str, args: Arguments | None, partner: Arguments | None) -> OperatorCall:
    """Name and arguments of an operator, and of its partner as of `_Reader` → its call."""
    if args is None:
        return OperatorCall(name, ())
    own, other = recorded_inputs(args), recorded_inputs(partner)
    if is_backward(name):
        return OperatorCall(name, (*own, other))
    tensors = tuple(each for each in other if isinstance(each, TensorSpec))
    return OperatorCall(name, own, tensors[:1])


def recorded_inputs(args: Arguments | None) -> tuple[Argument, ...]:
    """Arguments of an operator's event → its inputs; none if they were not recorded.

    Where sizes alone were recorded, as in NVTX ranges, all tensors are taken for fp32.
    """
    if args is None:
        return ()
    dims, types, strides, concrete = (
        _list(raw) for raw in (args.dims, args.types, args.steps, args.concrete)
    )
    if not bytes(args.types):
        types = ["float" if each and _is_shape(each) else "" for each in dims]
    return tuple(
        _argument(dims[i], types[i] if i < len(types) else "", _at(strides, i), _at(concrete, i))
        for i in range(len(dims))
    )


def _is_shape(dims: Any) -> bool:
    return isinstance(dims, list) and all(isinstance(n, int) for n in dims)


def _list(raw: msgspec.Raw) -> list[Any]:
    text = bytes(raw)
    try:
        found = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return found if isinstance(found, list) else []


def _at(values: list[Any], i: int) -> Any:
    return values[i] if i < len(values) else None


def _argument(dims: Any, kind: Any, strides: Any, concrete: Any) -> Argument:
    """Return one argument as Kineto writes it: sizes, a type's name, strides, a number's text."""
    kind = kind if isinstance(kind, str) else ""
    if kind in ("TensorList", "GenericList[Tensor]", "OptionalTensorList") or (
        isinstance(dims, list) and dims and all(isinstance(each, list) for each in dims)
    ):
        # A list names no type of its elements; most lists are of one type, which is not known.
        return tuple(_tensor(each, "float32", None) for each in _shapes(dims))
    dtype = torch_dtype(kind)
    if dtype is not None and isinstance(dims, list) and all(isinstance(n, int) for n in dims):
        if not dims and isinstance(concrete, str) and concrete:
            return _number(concrete)
        return _tensor(dims, dtype, strides)
    return _number(concrete) if isinstance(concrete, str) else None


def _tensor(dims: list[int], dtype: str, strides: Any) -> TensorSpec:
    """Sizes, type and strides, if recorded → a tensor; no GPU holds one of so many elements."""
    if min(dims, default=0) < 0 or math.prod(dims) > _MOST_ELEMENTS:
        raise InputError(
            f"a tensor of sizes {' × '.join(map(str, dims))}; they must be 0 or more, and give "
            f"{_MOST_ELEMENTS:.0e} elements at most"
        )
    steps = None
    if isinstance(strides, list) and len(strides) == len(dims):
        steps = tuple(each if isinstance(each, int) else 1 for each in strides)
    return TensorSpec(dtype, tuple(dims), steps)


def _shapes(dims: Any) -> Iterable[list[int]]:
    for each in dims if isinstance(dims, list) else ():
        if isinstance(each, list) and all(isinstance(n, int) for n in each):
            yield each


def _number(text: str) -> Argument:
    """Number, list of numbers, truth value or name as Kineto writes it."""
    if text in ("True", "False"):
        return int(text == "True")
    if text[:1] == "[" and text[-1:] == "]":
        return tuple(_number(part.strip()) for part in text[1:-1].split(",") if part.strip())
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text or None
