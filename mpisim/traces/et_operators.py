"""Execution trace → operators in order, and what each launches.

An operator counts as Kineto's host events do: what lies in no other, annotations aside. Of the
nodes in it the outermost that the table of operators answers for launches its kernels
(:mod:`mpisim.operators.table`); copies between host and device are told by the devices of the
tensors, which execution traces name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.frozen import frozen
from ..kernels.operations import Copy, Kernel
from ..operators import Argument, Launched, OperatorCall, TensorSpec, kernels_of
from ..operators.tensors import all_tensors, torch_dtype, touched
from .et_model import EtCommunication, ExecutionTrace, Values
from .gradients import Partners, is_backward

__all__ = ["EtLaunch", "EtOperator", "et_operators"]

_ANNOTATION = 7
"""Scope of what a program marks by ``record_function`` (RecordScope::USER_SCOPE)."""
_CPU = "cpu"
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to", "aten::_pin_memory", "aten::pin_memory")
_READS = "aten::_local_scalar_dense"
_PARAMS = "record_param_comms"


@frozen
class EtLaunch:
    """What an operator, or one inside of it, launches at once.

    Attributes
    ----------
    name : str
        Of the inner operator.
    launched : Launched or None
        Its kernels; None for communications.
    call : OperatorCall or None
        Of which these are; None for communications and copies between host and device.
    communication : EtCommunication or None
    awaits : bool
        Whether it is no launch but a wait for the oldest communication that none has waited for.
    blocks : bool
        Whether the CPU waits for its end: copies to the host.
    """

    name: str
    launched: Launched | None = None
    call: OperatorCall | None = None
    communication: EtCommunication | None = None
    awaits: bool = False
    blocks: bool = False


@frozen
class EtOperator:
    """An operator that lies in no other.

    Attributes
    ----------
    name : str
    thread : int
    launches : tuple of EtLaunch
        In order; empty if it stays on the host.
    """

    name: str
    thread: int
    launches: tuple[EtLaunch, ...]


def et_operators(et: ExecutionTrace) -> list[EtOperator]:
    """Return the operators of an execution trace in order of begin.

    Parameters
    ----------
    et : ExecutionTrace
        Read with its arguments.
    """
    walk = _Walk(et)
    found = []
    for node in range(len(et)):
        if walk.is_outer(node):
            launches = tuple(walk.launches(node))
            found.append(EtOperator(et.name[node], int(et.thread[node]), launches))
    return found


class _Walk:
    """What the nodes of an execution trace launch."""

    def __init__(self, et: ExecutionTrace) -> None:
        self.et = et
        self.parent = et.parent.tolist()
        self.children: list[list[int]] = [[] for _ in range(len(et))]
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                self.children[parent].append(node)
        self.communications = {each.node: each for each in et.communications}
        self.partners = Partners(et.name, et.sequence.tolist())
        self._wraps = [
            et.is_structure(node) or scope == _ANNOTATION
            for node, scope in enumerate(et.scope.tolist())
        ]

    def is_outer(self, node: int) -> bool:
        """Whether a node is an operator, and lies in annotations alone."""
        if self._wraps[node]:
            return False
        parent = self.parent[node]
        while parent >= 0:
            if not self._wraps[parent]:
                return False
            parent = self.parent[parent]
        return True

    def launches(self, node: int) -> Iterator[EtLaunch]:
        """Return what a node and those in it launch, in order."""
        name = self.et.name[node]
        if name == _PARAMS:
            communication = self.communications.get(node)
            yield EtLaunch(name, communication=communication, awaits=communication is None)
            return
        copied = self._host_copy(node)
        if copied is not None:
            yield copied
            return
        on_device = any(each != _CPU for each in self._devices(node))
        if on_device and name not in _COPIES[1:]:
            call = self._call(node)
            launched = kernels_of(call)
            if launched.kernels and (launched.known or self._is_unknown_leaf(node)):
                # What a kernel needs of the host is copied by operators inside.
                yield from self._host_copies_inside(node)
                yield EtLaunch(name, launched, call)
                return
        elif on_device and name == "aten::_to_copy" and _CPU not in self._devices(node):
            call = self._call(node)
            launched = kernels_of(call)
            if launched.known and launched.kernels:
                yield EtLaunch(name, launched, call)
                return
        for child in self.children[node]:
            yield from self.launches(child)

    def _is_unknown_leaf(self, node: int) -> bool:
        """Whether an operator that the table does not know must launch by itself."""
        return not self.children[node] and bool(self.et.op_schema[node] or self.et.backend[node])

    def _host_copies_inside(self, node: int) -> Iterator[EtLaunch]:
        for child in self.children[node]:
            copied = self._host_copy(child)
            if copied is not None:
                yield copied
            else:
                yield from self._host_copies_inside(child)

    def _host_copy(self, node: int) -> EtLaunch | None:
        """Return the copy between host and device that a node is, if it is one."""
        name = self.et.name[node]
        if name not in (_COPIES[0], _READS):
            return None
        inputs = self.et.inputs
        entries = inputs.of(node)
        devices = [inputs.devices[i] for i in inputs.device[entries].tolist()]
        call = self._call(node)
        given = tuple(all_tensors(call.inputs))
        if name == _READS:
            if not given or devices[:1] in ([], [_CPU]):
                return None
            return EtLaunch(name, _copied(given[0]), blocks=True)
        if len(devices) < 2 or len(given) < 2 or (devices[0] == _CPU) == (devices[1] == _CPU):
            return None
        to_host = devices[0] == _CPU
        later = len(call.inputs) > 2 and bool(call.inputs[2])
        return EtLaunch(name, _copied(given[0]), blocks=to_host and not later)

    def _devices(self, node: int) -> set[str]:
        """Return the devices of the tensors that a node was given or returned."""
        found: set[str] = set()
        for side in (self.et.inputs, self.et.outputs):
            numbers = side.device[side.of(node)].tolist()
            found.update(side.devices[i] for i in numbers)
        return found

    def _call(self, node: int) -> OperatorCall:
        name = self.et.name[node]
        given, returned = self.et.arguments[node]
        inputs, outputs = _arguments(given), _arguments(returned)
        if self.et.backend[node] == "triton":
            name = f"triton::{name}"
        elif is_backward(name):
            forward = self.partners.forward(node)
            before = () if forward < 0 else _arguments(self.et.arguments[forward][0])
            inputs = (*inputs, before)
        return OperatorCall(name, inputs, outputs)


def _copied(spec: TensorSpec) -> Launched:
    kernels: tuple[Kernel, ...] = (Copy(bytes=touched(spec), path="host"),) if spec.elements else ()
    return Launched(kernels, known=True)


def _arguments(side: Values) -> tuple[Argument, ...]:
    return tuple(
        _argument(value, kind, _at(side.shapes, i), _at(side.strides, i))
        for i, (value, kind) in enumerate(zip(side.values, side.types))
    )


def _at(values: list[Any], i: int) -> Any:
    return values[i] if i < len(values) else None


def _argument(value: Any, kind: str, shape: Any, strides: Any) -> Argument:
    """Return one argument as an execution trace writes it."""
    if kind.startswith("Tensor("):
        dtype = torch_dtype(kind[len("Tensor(") : -1])
        if dtype is None or not isinstance(shape, list):
            return None
        sizes = tuple(n for n in shape if isinstance(n, int))
        steps = None
        if isinstance(strides, list) and len(strides) == len(sizes):
            steps = tuple(n if isinstance(n, int) else 1 for n in strides)
        return TensorSpec(dtype, sizes, steps)
    if kind.startswith("GenericList[") and isinstance(value, list):
        kinds = _kinds(kind[len("GenericList[") : -1])
        return tuple(
            _argument(
                each,
                kinds[min(i, len(kinds) - 1)],
                _at(shape, i) if isinstance(shape, list) else None,
                _at(strides, i) if isinstance(strides, list) else None,
            )
            for i, each in enumerate(value)
        )
    if isinstance(value, (int, float)):
        return value
    return None if not isinstance(value, str) or value == "<None>" else value


def _kinds(text: str) -> list[str]:
    """Types of a list's elements, which may hold brackets of their own → one text each."""
    found, depth, begun = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            found.append(text[begun:i])
            begun = i + 1
    return [*found, text[begun:]]
