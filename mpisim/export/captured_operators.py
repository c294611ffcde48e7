"""A captured step → operators and modules around its launches, as PyTorch records them.

A program captured on one rank keeps its calls with their shapes, the nodes of autograd, the modules
and when each gradient was complete (:mod:`mpisim.capture.kept_step`). Written around the launches
of a run they make its export a recording like any other, which ``mpisim extrapolate`` reads. What
Kineto does not write is left out: types of the tensors in a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..base.kinds import Kind, Phase
from ..capture.kept_step import recording_of
from ..capture.recording import ACCUMULATES, Item, ItemKind, Recording
from ..operators import Argument, OperatorCall, TensorSpec
from ..operators.table import kernels_of
from ..operators.tensors import kineto_type
from ..program import KEPT_STEP, Program
from ..traces.export_communications import Around
from .operators import ACCUMULATE, EVALUATE, OPTIMIZER

__all__ = ["captured_operators_around"]


def captured_operators_around(program: Program) -> Mapping[int, Sequence[Around]]:
    """Captured program → what is around the launches of its one rank, by row.

    Parameters
    ----------
    program : Program

    Returns
    -------
    mapping of int to sequence of Around
        Empty if no step is kept in it, or its rows are not those of the step.
    """
    text = program.attributes.get(KEPT_STEP)
    if text is None or program.n_ranks != 1:
        return {}
    return _Writer(recording_of(text, "program"), program).written()


class _Writer:
    """Goes through the items of a recording beside the rows that were made of them."""

    def __init__(self, recording: Recording, program: Program) -> None:
        self.recording = recording
        table = program.table_of(0)
        self.kinds = [Kind(kind) for kind in table.kind.tolist()]
        self.names = [program.names[name] for name in table.name.tolist()]
        self.around: dict[int, list[Around]] = {}

    def written(self) -> Mapping[int, Sequence[Around]]:
        """Return what is around rows; nothing if they do not fit the items."""
        rows = self._rows()
        if rows is None:
            return {}
        self._modules(rows)
        node = 0
        for number, own in rows:
            item = self.recording.items[number]
            if item.origin.engine or item.phase == Phase.RECOMPUTE:
                self._backward(item, own)
            elif item.phase == Phase.FORWARD:
                # The node that autograd makes next has the number that it had before.
                self._call(item, own, sequence=node)
                node = max(node, item.origin.node)
            else:
                self._call(item, own)
        self._optimizer(rows)
        self._gradients(rows)
        return self.around

    def _rows(self) -> list[tuple[int, list[int]]] | None:
        """Numbers of items that launch something, each with its rows; None if others are there."""
        found: list[tuple[int, list[int]]] = []
        at = 0
        for number, item in enumerate(self.recording.items):
            if item.kind is ItemKind.HOST_WAIT:
                at += at < len(self.kinds) and self.kinds[at] is Kind.HOST_WAIT
                continue
            if item.kind is ItemKind.HOST_WORK:
                at += 2
                continue
            count = 0
            if item.kind is ItemKind.CALL:
                count = len(kernels_of(self.recording.calls[item.number]).kernels)
            elif item.kind is ItemKind.COPY:
                count = 1
            own = list(range(at, at + count))
            at += count
            if at > len(self.kinds) or not all(self._is_of(row, item) for row in own):
                return None
            if own:
                found.append((number, own))
        return found if at == len(self.kinds) else None

    def _is_of(self, row: int, item: Item) -> bool:
        kinds = (Kind.KERNEL, Kind.COPY)
        return self.kinds[row] in kinds and self.names[row].startswith(item.name)

    def _open(self, row: int, what: Around, *, outermost: bool = False) -> None:
        spans = self.around.setdefault(row, [])
        spans.insert(0 if outermost else len(spans), what)

    def _call(self, item: Item, rows: Sequence[int], *, sequence: int | None = None) -> None:
        """Put the operator of an item around its launches."""
        if item.kind is not ItemKind.CALL:
            return
        call = self.recording.calls[item.number]
        args = arguments_of(call)
        if sequence is not None:
            args["Sequence number"] = sequence
        self._open(rows[0], Around("cpu_op", call.name, args, rows[-1]))

    def _backward(self, item: Item, rows: Sequence[int]) -> None:
        """Put the node of autograd around an item of the backward pass."""
        args: dict[str, Any] = {}
        name = f"{EVALUATE}Backward0"
        if item.origin.node >= 0:
            args = {"Sequence number": item.origin.node, "Fwd thread id": 0}
        if item.origin.node == ACCUMULATES:
            name = f"{EVALUATE}{ACCUMULATE}"
        self._open(rows[0], Around("cpu_op", name, args, rows[-1]))
        self._call(item, rows)

    def _gradients(self, rows: Sequence[tuple[int, list[int]]]) -> None:
        """Put each gradient that is complete behind the last launch before."""
        at = 0
        for each in self.recording.completed:
            while at + 1 < len(rows) and rows[at + 1][0] < each.item:
                at += 1
            spec = self.recording.parameters[each.parameter]
            given = {"Input Dims": [list(spec.shape)], "Input type": [kineto_type(spec.dtype)]}
            self._open(rows[at][1][-1], Around("cpu_op", ACCUMULATE, given, -1))

    def _optimizer(self, rows: Sequence[tuple[int, list[int]]]) -> None:
        """Put the optimizer's step around what it launches."""
        items = self.recording.items
        for phase, run in groupby(rows, key=lambda each: items[each[0]].phase):
            if phase == Phase.OPTIMIZER:
                own = [row for _, rows in run for row in rows]
                self._open(
                    own[0], Around("user_annotation", OPTIMIZER, {}, own[-1]), outermost=True
                )

    def _modules(self, rows: Sequence[tuple[int, list[int]]]) -> None:
        """Put modules around the launches of the forward pass, the outermost first."""
        for first, last, name in _spans([(self._path(n), own) for n, own in rows]):
            self._open(first, Around("python_function", f"nn.Module: {name}", {}, last))

    def _path(self, number: int) -> tuple[str, ...]:
        item = self.recording.items[number]
        forward = item.phase == Phase.FORWARD and not item.origin.engine
        return self.recording.modules[item.origin.module] if forward else ()


def _spans(
    rows: Sequence[tuple[tuple[str, ...], list[int]]], depth: int = 0
) -> Iterator[tuple[int, int, str]]:
    """Modules around launches → first row, last row and name of each, those around others first.

    Examples
    --------
    >>> list(_spans([(("A", "B"), [0]), (("A", "B"), [1, 2]), (("A",), [3]), ((), [4])]))
    [(0, 3, 'A'), (0, 2, 'B')]
    """
    for name, run in groupby(rows, key=lambda each: each[0][depth : depth + 1]):
        inside = list(run)
        if name:
            yield inside[0][1][0], inside[-1][1][-1], name[0]
            yield from _spans(inside, depth + 1)


def arguments_of(call: OperatorCall) -> dict[str, Any]:
    """Call → its arguments as Kineto writes them.

    Parameters
    ----------
    call : OperatorCall
    """
    written = [_argument(each) for each in call.inputs]
    return {
        "Input Dims": [each[0] for each in written],
        "Input type": [each[1] for each in written],
        "Input Strides": [each[2] for each in written],
        "Concrete Inputs": [each[3] for each in written],
    }


def _argument(value: Argument) -> tuple[list[Any], str, list[Any], str]:
    """Argument → its sizes, type, strides and text."""
    if isinstance(value, TensorSpec):
        strides = [] if value.strides is None else list(value.strides)
        return list(value.shape), kineto_type(value.dtype), strides, ""
    if isinstance(value, tuple):
        tensors = [each for each in value if isinstance(each, TensorSpec)]
        if tensors:
            return [list(each.shape) for each in tensors], "TensorList", [], ""
        return [], "ScalarList", [], f"[{', '.join(map(str, value))}]"
    return [], "" if value is None else "Scalar", [], "" if value is None else str(value)
