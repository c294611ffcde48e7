"""TrioSim's traces: the operators of one training iteration on one GPU, and their tensors.

Two files, ``trace.csv`` and ``tensor.csv``, as sarchlab/triosim (``tracer/``, ``trace.go``) writes
and reads them. Times are µs, sizes are numbers of elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base.csv_files import parse_table
from ..base.errors import InputError, nearest
from ..base.files import decode_text
from ..base.frozen import frozen
from ..program import Phase, Program, ProgramBuilder
from ..traces.raw import open_text

__all__ = [
    "TENSOR_COLUMNS",
    "TRACE_COLUMNS",
    "TriosimOperator",
    "TriosimTensor",
    "TriosimTrace",
    "read_triosim",
    "triosim_program",
]

TRACE, TENSOR = "trace.csv", "tensor.csv"
TRACE_COLUMNS = (
    "OperatorID",
    "OperatorName",
    "Operator_input",
    "Operator_output",
    "Operator_cudatime",
    "Operator_cudatimenooverlap",
    "InputSize",
    "OutputSize",
    "gpuid",
    "stage",
    "tpflag",
)
TENSOR_COLUMNS = (
    "Index",
    "TensorID",
    "TensorShape",
    "TensorNumElement",
    "TensorEachByte",
    "TensorType",
    "TensorStorgeid",
    "gpuid",
)
_PHASES = {
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}
_WEIGHTS = ("weight", "bias")
_MOST_US = 1e12
_MAX_NUMBER = 2**62
"""Times, and sizes, above which a table is damaged; both fit an int64, times in ps."""


@frozen
class TriosimTensor:
    """A tensor.

    Attributes
    ----------
    id : int
    shape : tuple of int
    elements, element_bytes : int
    kind : str
        ``input``, ``weight``, ``bias=None``, …, as in the file.
    storage, gpu : int
    """

    id: int
    shape: tuple[int, ...]
    elements: int
    element_bytes: int
    kind: str
    storage: int
    gpu: int

    @property
    def bytes(self) -> int:
        """Size of the tensor."""
        return self.elements * self.element_bytes


@frozen
class TriosimOperator:
    """An operator: all the kernels that it launched.

    Attributes
    ----------
    id : int
    name : str
    inputs, outputs : tuple of int
        Tensors, by id.
    kernel_time : int
        Sum over its kernels, in ps.
    duration : int
        The same without what overlapped on other streams, in ps: the time that TrioSim takes.
    input_elements, output_elements : tuple of int
        Elements of each input and output.
    gpu : int
    stage : str
        ``forward``, ``backward`` or ``optimizer``.
    splits : bool
        Whether tensor parallelism divides it.
    """

    id: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel_time: int
    duration: int
    input_elements: tuple[int, ...]
    output_elements: tuple[int, ...]
    gpu: int
    stage: str
    splits: bool


@frozen
class TriosimTrace:
    """A trace: operators in the order of execution, and tensors by id.

    Attributes
    ----------
    operators : tuple of TriosimOperator
    tensors : mapping of int to TriosimTensor
    weights : frozenset of int
        Tensors that any row calls a weight or a bias; later rows may call them inputs.
    """

    operators: tuple[TriosimOperator, ...]
    tensors: Mapping[int, TriosimTensor]
    weights: frozenset[int] = frozenset()

    def input_bytes(self, operator: TriosimOperator) -> int:
        """Return the bytes that an operator reads: each tensor as large as it is there."""
        return self._bytes(operator.inputs, operator.input_elements)

    def output_bytes(self, operator: TriosimOperator) -> int:
        """Return the bytes that an operator writes."""
        return self._bytes(operator.outputs, operator.output_elements)

    def _bytes(self, ids: tuple[int, ...], elements: tuple[int, ...]) -> int:
        return sum(n * self.tensors[i].element_bytes for i, n in zip(ids, elements))


def read_triosim(path: Path | str) -> TriosimTrace:
    """Read the trace in a folder.

    Parameters
    ----------
    path : Path or str
        The folder, or its ``trace.csv``; both files plain or gzip (``.csv.gz``).

    Raises
    ------
    InputError
        If a file is missing or cannot be understood; the message names the line.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    tensors: dict[int, TriosimTensor] = {}
    weights: set[int] = set()
    for row in _rows(_find(folder, TENSOR), TENSOR_COLUMNS):
        tensor = _tensor(row)
        tensors[tensor.id] = tensor  # ids are used again; the last one counts, as in TrioSim
        if tensor.kind.startswith(_WEIGHTS) and tensor.elements:
            weights.add(tensor.id)
    rows = _rows(_find(folder, TRACE), TRACE_COLUMNS)
    operators = tuple(_operator(row, tensors) for row in rows)
    return TriosimTrace(operators, tensors, frozenset(weights))


def triosim_program(trace: TriosimTrace | Path | str) -> Program:
    """Return the program of one rank that executes a trace's operators one after the other.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    if not isinstance(trace, TriosimTrace):
        trace = read_triosim(trace)
    builder = ProgramBuilder()
    rows = builder.table("rank 0")
    for operator in trace.operators:
        rows.tags(phase=_PHASES[operator.stage])
        rows.kernel(operator.name, 0, operator.duration)
    builder.add_table(rows.build())
    builder.add_rank(0)
    without = sum(not operator.duration for operator in trace.operators)
    of_all = f"{without:,} of {len(trace.operators):,} operators"
    attributes = {"no time": f"{of_all}, which take none"} if without else {}
    return builder.build({"source": "TrioSim", **attributes})


# --- files --------------------------------------------------------------------------------------


@frozen
class _Row:
    """One line of a file."""

    path: Path
    line: int
    values: Mapping[str, str]

    def error(self, column: str, text: str) -> InputError:
        return InputError(f"{self.path}: line {self.line}: {column}: {text}")

    def whole(self, column: str, text: str | None = None) -> int:
        """Return a number from 0 on."""
        text = self.values[column] if text is None else text
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not 0 <= value <= _MAX_NUMBER:
            raise self.error(column, f"{text!r} is no whole number, 0 or more")
        return value

    def picoseconds(self, column: str) -> int:
        """Return a time that is written in µs."""
        try:
            value = float(self.values[column])
        except ValueError:
            value = math.nan
        if not 0 <= value <= _MOST_US:
            raise self.error(column, f"{self.values[column]!r} is no time in µs, 0 or more")
        return round(value * 1e6)

    def wholes(self, column: str, separator: str = ";") -> tuple[int, ...]:
        """Return the numbers of a list such as ``[4; 6; 8]``."""
        text = self.values[column].strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise self.error(column, f"{text[:40]!r} is no list in square brackets")
        inside = text[1:-1].strip()
        parts = inside.split(separator) if inside else []
        return tuple(self.whole(column, part.strip().strip("'")) for part in parts)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(f"{folder}: there is no {name}; a TrioSim trace is {TRACE} and {TENSOR}")


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    def check(found: list[str]) -> None:
        if tuple(found) != columns:
            missing = [c for c in columns if c not in found]
            lacks = f"there is no column {missing[0]!r}{nearest(missing[0], found)}; "
            columns_text = f"the columns must be {','.join(columns)}"
            raise InputError(f"{path}: line 1: {lacks if missing else ''}{columns_text}")

    _, rows = parse_table(decode_text(open_text(path), path), path, check)
    return (_Row(path, line, cells) for line, cells in rows)


def _tensor(row: _Row) -> TriosimTensor:
    return TriosimTensor(
        id=row.whole("TensorID"),
        shape=row.wholes("TensorShape", ","),
        elements=row.whole("TensorNumElement"),
        element_bytes=row.whole("TensorEachByte"),
        kind=row.values["TensorType"],
        storage=row.whole("TensorStorgeid"),
        gpu=row.whole("gpuid"),
    )


def _operator(row: _Row, tensors: Mapping[int, TriosimTensor]) -> TriosimOperator:
    stage = row.values["stage"]
    if stage not in _PHASES:
        raise row.error(
            "stage",
            f"unknown stage {stage!r}{nearest(stage, _PHASES)}; allowed: {', '.join(_PHASES)}",
        )
    lists = {}
    for ids, sizes in (("Operator_input", "InputSize"), ("Operator_output", "OutputSize")):
        lists[ids], lists[sizes] = row.wholes(ids), row.wholes(sizes)
        if len(lists[ids]) != len(lists[sizes]):
            raise row.error(
                sizes, f"{len(lists[sizes])} sizes for {len(lists[ids])} tensors in {ids}"
            )
        unknown = [i for i in lists[ids] if i not in tensors]
        if unknown:
            raise row.error(ids, f"tensor {unknown[0]} is not in {TENSOR}")
    if row.values["tpflag"] not in ("0", "1"):
        raise row.error("tpflag", f"{row.values['tpflag']!r} is neither 0 nor 1")
    gpu = row.whole("gpuid")
    if gpu:
        raise row.error("gpuid", f"{gpu}; a trace of one GPU has 0 everywhere")
    return TriosimOperator(
        id=row.whole("OperatorID"),
        name=row.values["OperatorName"],
        inputs=lists["Operator_input"],
        outputs=lists["Operator_output"],
        kernel_time=row.picoseconds("Operator_cudatime"),
        duration=row.picoseconds("Operator_cudatimenooverlap"),
        input_elements=lists["InputSize"],
        output_elements=lists["OutputSize"],
        gpu=gpu,
        stage=stage,
        splits=row.values["tpflag"] == "1",
    )
