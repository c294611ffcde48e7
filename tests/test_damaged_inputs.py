"""Files of the user's that are damaged or come from other programs: one line names the file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpisim.base.csv_files import read_table
from mpisim.base.errors import InputError
from mpisim.experiment import load
from mpisim.experiment.huggingface_config import read_config
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import KernelCalibration
from mpisim.kernels.measured import read as read_kernels
from mpisim.overlap.pairs import read_pairs
from mpisim.prediction.step_constants import StepConstants
from mpisim.topo import find_cluster
from mpisim.topo.collectives.calibration import CollectiveCalibration
from mpisim.topo.collectives.read import read as read_collectives
from mpisim.traces.raw import open_text, read_head
from mpisim.validate.e2e.predict import stored
from mpisim.validate.e2e.rows import read as read_steps

Reader = Callable[[Path], Any]

EXPERIMENT = """\
[model]
preset = "llama3-8b"

[plan]
tp = 8
global_batch = 8
micro_batch = 1

[cluster]
preset = "dgx-h100"
nodes = 1
"""
KERNELS = """\
op,gpu,split,B,H,latency_ms
add,P4,train,10,20,1
"mul",P4,test,10,40,2
"""
CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64}, indent=1)

WHOLE: dict[str, tuple[str, Reader, str]] = {
    "experiment": ("x.toml", lambda path: load(path)[1].plan, EXPERIMENT),
    "kernel times": ("x.csv", lambda path: [len(r) for r in read_kernels(path)[0]], KERNELS),
    "config.json": ("x.json", lambda path: read_config(path).table, CONFIG),
}
"""Files that can be read: name, reader, contents."""

READERS: dict[str, tuple[str, Reader]] = {
    **{name: (file, reader) for name, (file, reader, _) in WHOLE.items()},
    "cluster": ("x.toml", find_cluster),
    "GPU": ("x.toml", find_gpu),
    "kernel calibration": ("x.toml", KernelCalibration.read),
    "collective calibration": ("x.toml", CollectiveCalibration.read),
    "step constants": ("x.toml", StepConstants.read),
    "collectives": ("x.csv", lambda path: read_collectives([path])),
    "pairs": ("x.csv", read_pairs),
    "measured steps": ("x.csv", read_steps),
    "outcomes": ("x.json", stored),
}

DAMAGES: dict[str, tuple[bytes, str]] = {
    "UTF-16": ("tp = 8\n".encode("utf-16"), "is a text in UTF-16; save it in UTF-8"),
    "UTF-16, big": (codecs.BOM_UTF16_BE + b"\0t", "is a text in UTF-16"),
    "UTF-32": ("tp = 8\n".encode("utf-32"), "is a text in UTF-32"),
    "Latin-1": ("# zwölf\n".encode("latin-1"), "not a text file in UTF-8 (line 1, byte 4)"),
    "later line": (b"a,b\n# zw\xf6lf\n", "not a text file in UTF-8 (line 2, byte 8)"),
    "gzip": (b"\x1f\x8b\x08\0\0\0", "not a text file in UTF-8"),
    "null bytes": (b"\0" * 40, ""),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "not a text file in UTF-8"),
    "words": (b"This is a letter to my mother.\n", ""),
    "brackets": (b"[" * 3000, ""),
    "open quote": (b'a = "never closed\n', ""),
    "a page": (b"<!DOCTYPE html><html><body>404: Not Found</body></html>\n", ""),
}
"""Contents that no reader takes, and what each says at least."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, reader: str, damage: str) -> None:
    name, read = READERS[reader]
    contents, said = DAMAGES[damage]
    path = tmp_path / name
    path.write_bytes(contents)
    with pytest.raises(InputError) as caught:
        read(path)
    line = str(caught.value)
    assert str(path) in line
    assert said in line
    assert "\n" not in line
    assert "invalid literal" not in line
    assert len(line) < 1500


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("change", ["mark", "carriage returns", "both"])
def test_what_editors_add_is_no_damage(tmp_path: Path, kind: str, change: str) -> None:
    name, read, contents = WHOLE[kind]
    path = tmp_path / name
    path.write_text(contents)
    expected = read(path)
    image = contents.encode()
    if change != "mark":
        image = image.replace(b"\n", b"\r\n")
    if change != "carriage returns":
        image = codecs.BOM_UTF8 + image
    path.write_bytes(image)
    assert read(path) == expected


def test_traces_may_begin_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(codecs.BOM_UTF8 + b'{"traceEvents": []}' + b" " * 80)
    assert open_text(path).startswith(b'{"')
    assert read_head(path).startswith(b'{"')


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("", "x.csv: the file is empty; it must have a line of headings and rows"),
        ("\n\n", "x.csv: the file is empty"),
        ("a,b\n", "x.csv: has headings, but no rows"),
        ("a,b\n , \n", "x.csv: has headings, but no rows"),
        ("a;b\n1;2\n", "x.csv: cells are separated by semicolons; they must be by commas"),
        ("a\tb\n1\t2\n", "x.csv: cells are separated by tabs"),
        ("a,b,a\n1,2,3\n", "x.csv, line 1: there are two columns 'a'"),
        ("a,b\n1,2\n\n1\n", "x.csv, line 4: has 1 cells; there are 2 headings"),
        ("a,b\n1,2,3\n", "x.csv, line 2: has 3 cells; there are 2 headings"),
        ('a,b\n1,"2\n', "x.csv, line 2: not comma-separated values: unexpected end of data"),
        ('a,b\n1,"2"3\n', "x.csv, line 2: not comma-separated values: ',' expected after"),
    ],
)
def test_a_damaged_table(tmp_path: Path, contents: str, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(contents)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{tmp_path}/{said}")


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"H": "two"}, "column 'H' is 'two'; it must be a whole number"),
        ({"H": ""}, "column 'H' is ''; it must be a whole number"),
        ({"B": "1.5"}, "column 'B' is '1.5'; it must be a whole number"),
        ({"latency_ms": "soon"}, "column 'latency_ms' is 'soon'; it must be a number"),
        ({"latency_ms": "nan"}, "column 'latency_ms' is 'nan'; it must be a number"),
        ({"latency_ms": "-5 %"}, "column 'latency_ms' is '-5 %'; it must be a number"),
        ({"latency_ms": "1,5"}, "line 2: has 7 cells; there are 6 headings"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, cells: dict[str, str], said: str) -> None:
    head, row, _ = KERNELS.splitlines()
    changed = dict(zip(head.split(","), row.split(","), strict=True)) | cells
    path = tmp_path / "x.csv"
    path.write_text(f"{head}\n{','.join(changed.values())}\n")
    with pytest.raises(InputError) as caught:
        read_kernels(path)
    assert f"{path}, line 2: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("tp = 8", "tp: 8"), "(at line 5, column 3), which reads 'tp: 8'"),
        (("tp = 8", "tpp = 8"), "unknown key 'tpp' in [plan] (did you mean 'tp'?); docs/exper"),
        (("tp = 8", "zzz = 8"), "unknown key 'zzz' in [plan]; docs/experiments.md and 'mpi"),
        (('preset = "dgx-h100"', 'preset = "zz"'), "'zz'; 'mpisim list clusters' shows them"),
        (("[plan]", "[plna]"), "unknown key 'plna' at the top level (did you mean 'plan'?)"),
    ],
)
def test_a_slip_in_an_experiment(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT.replace(*change))
    with pytest.raises(InputError) as caught:
        from mpisim.prediction.prepared import prepare

        prepare(load(path)[1])
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))
