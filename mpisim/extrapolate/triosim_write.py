"""A traced step → TrioSim's two tables, ``trace.csv`` and ``tensor.csv``.

Kineto's traces name no tensors, so that these follow from shapes: an operator reads the output of
the one before where that is as large as its input, and a tensor of its own otherwise. Times are
those of kernels; the CPU has no place in the tables (:mod:`mpisim.formats.triosim`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..base.csv_files import write_table
from ..base.errors import DestinationError
from ..base.files import check_output, os_errors_reported
from ..formats.triosim import TENSOR_COLUMNS, TRACE_COLUMNS
from ..operators.tensors import element_bytes
from .step import TracedKernel, TracedOperator, TracedStep, TracedTask

__all__ = ["check_tables", "write_tables"]

EVALUATE = "autograd::engine::evaluate_function: "


def check_tables(folder: str | Path, *, overwrite: bool = False) -> None:
    """Check that both tables can be written, before the work. Local.

    Parameters
    ----------
    folder : str or Path
        Need not exist; its parent must.
    overwrite : bool
        Whether tables that are there may be replaced.

    Raises
    ------
    OutputError
        If they cannot, or are there.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise DestinationError(f"{folder}: is not a folder; name another for the tables")
    if not folder.exists():
        if not folder.parent.is_dir():
            raise DestinationError(f"{folder}: there is no folder {folder.parent}")
        return
    for name in ("trace.csv", "tensor.csv"):
        check_output(folder / name, overwrite=overwrite)


def write_tables(step: TracedStep, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write a traced step as TrioSim's tables. Local.

    Parameters
    ----------
    step : TracedStep
    folder : str or Path
        Created if need be; its parent must exist.
    overwrite : bool
        Whether tables that are there may be replaced.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    folder = Path(folder)
    check_tables(folder, overwrite=overwrite)
    with os_errors_reported(folder):
        folder.mkdir(exist_ok=True)
    writer = _Writer()
    writer.forward(step.operators)
    writer.backward(step.operators)
    writer.optimizer((*step.zeroing, *step.optimizer))
    for name, columns, rows in (
        ("trace.csv", TRACE_COLUMNS, writer.rows),
        ("tensor.csv", TENSOR_COLUMNS, writer.tensors),
    ):
        write_table(folder / name, columns, rows, overwrite=overwrite)


class _Writer:
    """Rows of both tables, tensors numbered as they come."""

    def __init__(self) -> None:
        self.rows: list[Sequence[object]] = []
        self.tensors: list[Sequence[object]] = []
        self._sizes: dict[int, int] = {}
        self._outputs: list[int] = []
        self._inputs: list[list[int]] = []
        self._weights: list[list[int]] = []

    def tensor(self, shape: tuple[int, ...], dtype: str, kind: str) -> int:
        """Add a tensor; return its number."""
        number, elements = 2 * len(self.tensors) + 2, 1
        for n in shape:
            elements *= n
        row = (len(self.tensors), number, list(shape), elements, element_bytes(dtype), kind)
        self.tensors.append((*row, number + 1, 0))
        self._sizes[number] = elements
        return number

    def row(
        self,
        name: str,
        stage: str,
        time: int,
        inputs: Iterable[int],
        outputs: Iterable[int],
        splits: bool = False,
    ) -> None:
        """Add an operator."""
        read, written = list(inputs), list(outputs)
        sizes = ([self._sizes[i] for i in numbers] for numbers in (read, written))
        took = f"{time / 1e6:.6f}".rstrip("0").rstrip(".")
        lists = [_listed(each) for each in (read, written)]
        counts = [_listed(each) for each in sizes]
        self.rows.append(
            (len(self.rows) + 1, name, *lists, took, took, *counts, 0, stage, int(splits))
        )

    def forward(self, operators: Sequence[TracedOperator]) -> None:
        """Add the forward pass."""
        before = -1
        for place, each in enumerate(operators):
            read: list[int] = []
            for spec in each.inputs:
                known = before >= 0 and not read and self._sizes[before] == spec.elements
                read.append(before if known else self.tensor(spec.shape, spec.dtype, "input"))
            weights = [
                self.tensor(one.shape, one.dtype, "weight" if len(one.shape) > 1 else "bias=None")
                for one in each.parameters
            ]
            following = operators[place + 1].inputs[:1] if place + 1 < len(operators) else ()
            result = each.output or next(iter(following), None)
            shape = () if result is None else result.shape
            before = self.tensor(shape, "float32" if result is None else result.dtype, "output")
            divided = any(len(one.shape) > 1 for one in each.parameters)
            self.row(each.name, "forward", _time(each.forward), read + weights, [before], divided)
            self._outputs.append(before)
            self._inputs.append(read)
            self._weights.append(weights)

    def backward(self, operators: Sequence[TracedOperator]) -> None:
        """Add the backward pass: an operator for each of the forward pass that has one."""
        for place in range(len(operators) - 1, -1, -1):
            each = operators[place]
            if not each.backward:
                continue
            gradients = [
                self.tensor(one.shape, one.dtype, "grad_output") for one in each.parameters
            ]
            stem = each.name.split("::")[-1].replace("_", " ").title().replace(" ", "")
            name = f"{EVALUATE}{stem}Backward0"
            read = [self._outputs[place], *self._inputs[place], *self._weights[place]]
            self.row(name, "backward", _time(each.backward), read, gradients, bool(gradients))

    def optimizer(self, tasks: Iterable[TracedTask]) -> None:
        """Add the optimizer: kernels of one call are one operator."""
        calls: dict[int, list[TracedKernel]] = {}
        for each in tasks:
            if isinstance(each, TracedKernel):
                calls.setdefault(each.call, []).append(each)
        weights = [number for each in self._weights for number in each]
        for kernels in calls.values():
            self.row(kernels[0].operator, "optimizer", _time(kernels), weights, ())


def _time(tasks: Iterable[TracedTask]) -> int:
    return sum(each.duration for each in tasks if isinstance(each, TracedKernel))


def _listed(numbers: Iterable[int]) -> str:
    return f"[{'; '.join(map(str, numbers))}]"
