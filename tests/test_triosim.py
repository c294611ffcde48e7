"""TrioSim's traces: operators, tensors, the program of one GPU, and bad files."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.formats import import_program, read_triosim, triosim_program
from mpisim.program import Kind, Phase

TRACE = (
    "OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatime,"
    "Operator_cudatimenooverlap,InputSize,OutputSize,gpuid,stage,tpflag"
)
TENSOR = (
    "Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid"
)
TENSORS = (
    '0,4,"[2, 3]",6,4,input,5,0',
    "1,6,[3],3,2,weight,7,0",
    "2,8,[],1,8,bias=None,9,0",
)
OPERATORS = (
    "1,aten::mm,[4; 6],[8],12.5,12,[6; 3],[1],0,forward,1",
    "2,aten::mm_backward,[8],[],7,7,[1],[],0,backward,0",
    "9,aten::_foreach_add_,[6; 6],[6],3,2,[3; 3],[3],0,optimizer,0",
)


def written(
    folder: Path,
    operators: tuple[str, ...] = OPERATORS,
    tensors: tuple[str, ...] = TENSORS,
    heads: tuple[str, str] = (TRACE, TENSOR),
) -> Path:
    for name, head, rows in zip(("trace", "tensor"), heads, (operators, tensors), strict=True):
        (folder / f"{name}.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder


def test_operators_and_tensors(tmp_path: Path) -> None:
    trace = read_triosim(written(tmp_path))
    first = trace.operators[0]
    assert (first.name, first.inputs, first.outputs) == ("aten::mm", (4, 6), (8,))
    assert (first.kernel_time, first.duration, first.splits) == (12_500_000, 12_000_000, True)
    assert trace.tensors[4].shape == (2, 3)
    assert (trace.tensors[4].bytes, trace.tensors[8].bytes) == (24, 8)
    assert trace.input_bytes(first) == 6 * 4 + 3 * 2
    assert trace.output_bytes(first) == 8


def test_the_program_runs_them_one_after_the_other(tmp_path: Path) -> None:
    program = triosim_program(written(tmp_path) / "trace.csv")
    table = program.table_of(0)
    assert [Phase(p).name for p in table.phase] == ["FORWARD", "BACKWARD", "OPTIMIZER"]
    assert set(table.kind.tolist()) == {Kind.KERNEL}
    run = engine.simulate(program)
    assert run.rows(0).end.tolist() == [us * 10**6 for us in (12, 19, 21)]


def test_a_real_trace(shared: Path) -> None:
    folder = shared / "traces" / "triosim_vgg13_h100_1gpu"
    trace = read_triosim(folder)
    with gzip.open(folder / "trace.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(trace.operators) == len(rows) == 77
    total = sum(int(row["Operator_cudatimenooverlap"]) for row in rows) * 10**6
    run = engine.simulate(import_program([folder]))
    assert max(run.rank_end) == total
    # VGG-13's first convolution: 64 filters of 3 × 3 on 3 channels, 128 pictures of 224 × 224.
    first = trace.operators[0]
    assert first.input_elements == (128 * 3 * 224 * 224, 64 * 3 * 3 * 3, 64)
    assert trace.output_bytes(first) == 4 * 128 * 64 * 224 * 224


def changed(row: int, column: int, text: str) -> tuple[str, ...]:
    fields = OPERATORS[row].split(",")
    fields[column] = text
    return (*OPERATORS[:row], ",".join(fields), *OPERATORS[row + 1 :])


BAD = [
    ({"operators": ("1,aten::mm",)}, r"trace.csv, line 2: has 2 cells; there are 11 headings"),
    ({"operators": ()}, "trace.csv: has headings, but no rows"),
    ({"operators": changed(0, 4, "fast")}, r"line 2: Operator_cudatime: 'fast' is no time in µs"),
    ({"operators": changed(1, 5, "-1")}, "line 3: Operator_cudatimenooverlap: '-1' is no time"),
    ({"operators": changed(1, 5, "nan")}, "line 3: Operator_cudatimenooverlap: 'nan' is no time"),
    ({"operators": changed(2, 9, "optimiser")}, r"line 4: stage: .*did you mean 'optimizer'"),
    ({"operators": changed(0, 2, "4; 6")}, "line 2: Operator_input: '4; 6' is no list in square"),
    ({"operators": changed(0, 2, "[4; 77]")}, "Operator_input: tensor 77 is not in tensor.csv"),
    ({"operators": changed(0, 6, "[6]")}, "line 2: InputSize: 1 sizes for 2 tensors"),
    ({"operators": changed(0, 8, "1")}, "line 2: gpuid: 1; a trace of one GPU has 0 everywhere"),
    ({"operators": changed(0, 10, "yes")}, "line 2: tpflag: 'yes' is neither 0 nor 1"),
    ({"tensors": ("0,4,[2],two,4,input,5,0",)}, "tensor.csv: line 2: TensorNumElement: 'two'"),
    ({"tensors": ('0,4,"[2, 3,6,4,input,5,0',)}, "tensor.csv, line 2: .*unexpected end of data"),
    ({"heads": (TRACE.replace("stage", "Stage"), TENSOR)}, r"no column 'stage' .did you mean 'St"),
    ({"heads": (TRACE, TENSOR[:-6])}, "line 1: there is no column 'gpuid'"),
]


@pytest.mark.parametrize(("parts", "says"), BAD)
def test_bad_files_are_one_line(tmp_path: Path, parts: dict[str, object], says: str) -> None:
    written(tmp_path, **parts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=says) as caught:
        import_program([tmp_path])
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    (written(tmp_path) / "tensor.csv").unlink()
    with pytest.raises(InputError, match=r"there is no tensor\.csv"):
        import_program([tmp_path])
