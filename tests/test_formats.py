"""``mpisim program import`` and ``export``: formats by content, outputs whole or absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import random_program

from mpisim.formats import FORMATS, import_program
from mpisim.formats.recognise import recognise
from mpisim.program import load, save

Run = Callable[..., Any]

WORKLOAD = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 1 pp: 1 ga: 1 all_gpus: 4
1
layer -1 1000 ALLREDUCE 4096 1000 NONE 0 1000 ALLREDUCE 4096 0
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    save(random_program(7), tmp_path / "step.h5")
    return tmp_path / "step.h5"


def test_there_and_back(call_mpisim: Run, program: Path, tmp_path: Path) -> None:
    done = call_mpisim(["program", "export", program, "-o", "et", "--format", "chakra"])
    assert (done.rc, done.stderr) == (0, "")
    assert sorted(p.name for p in (tmp_path / "et").iterdir())[-1] == "step.json"
    done = call_mpisim(["program", "import", "et", "-o", "back.h5"])
    assert done.rc == 0
    assert "ranks" in done.stdout
    shown = [
        call_mpisim(["program", "show", name, "--rank", 0]).stdout
        for name in ("step.h5", "back.h5")
    ]
    assert shown[0] == shown[1]
    digests = [
        line
        for name in ("step.h5", "back.h5")
        for line in call_mpisim(["program", "run", name]).stdout.splitlines()
        if line.startswith("digest")
    ]
    assert digests[0] == digests[1]


def test_a_cluster_prices_what_has_no_duration(run_mpisim: Run, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(WORKLOAD)
    assert run_mpisim(["program", "import", "w.txt", "-o", "w.h5"]).rc == 0
    bare = run_mpisim(["program", "run", "w.h5"])
    assert (bare.rc, len(bare.errors)) == (2, 1)
    assert "the communication has no duration" in bare.errors[0]
    done = run_mpisim(["program", "run", "w.h5", "--cluster", "dgx-h100"], nprocs=2)
    assert (done.rc, done.errors) == (0, [])
    assert "step time" in done.stdout
    wrong = run_mpisim(["program", "run", "w.h5", "--cluster", "dgx-h1000"])
    assert wrong.rc == 2
    assert "did you mean 'dgx-h100'?" in wrong.errors[0]


def test_outputs_are_whole_or_absent(call_mpisim: Run, program: Path, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(WORKLOAD)
    before = program.read_bytes()
    for args, says in (
        (["import", "w.txt", "-o", "step.h5"], "step.h5: exists already"),
        (["import", "w.txt", "-o", "w.txt"], "would write over the input"),
        (["import", "w.txt", "-o", "no/w.h5"], "there is no folder"),
        (["export", "step.h5", "-o", "."], "holds step.h5 already"),
        (["export", "step.h5", "-o", "step.h5", "--overwrite"], "would write over the input"),
        (["export", "step.h5", "-o", ".", "--overwrite"], "step.h5, which is no Chakra file"),
        (["export", "w.txt", "-o", "et"], "w.txt"),
    ):
        done = call_mpisim(["program", *args])
        assert (done.rc != 0, len(done.errors)) == (True, 1), args
        assert says in done.errors[0]
    assert program.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.h5", "w.txt"]
    assert call_mpisim(["program", "import", "w.txt", "-o", "step.h5", "--overwrite"]).rc == 0
    assert load(program).n_ranks == 4


def test_one_error_under_a_launcher(run_mpisim: Run, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(WORKLOAD.replace("4096", "many"))
    done = run_mpisim(["program", "import", "w.txt", "-o", "w.h5"], nprocs=2)
    assert done.rc == 2
    assert len(done.errors) == 1
    assert "w.txt: line 3: forward: the size is 'many'" in done.errors[0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "hello\nworld\n", "a.txt: the format is unknown; what can be imported: Chakra"),
        ("a.json", '{"traceEvents": []}', "use 'mpisim replay FILE --save-program'"),
        ("a.sqlite", "SQLite format 3\0" + "x" * 100, "use 'mpisim replay FILE --save-program'"),
        ("a.h5", "\N{REPLACEMENT CHARACTER}", "the format is unknown"),
        ("a.txt", "", "the format is unknown"),
        ("a.et", "hello\nworld\n" * 20, "no Chakra execution trace"),
        ("trace.csv", "a,b\n1,2\n", "there is no tensor.csv"),
    ],
)
def test_what_is_not_read(
    call_mpisim: Run, tmp_path: Path, name: str, content: str, says: str
) -> None:
    (tmp_path / name).write_text(content)
    done = call_mpisim(["program", "import", name, "-o", "x.h5"])
    assert (done.rc, len(done.errors)) == (2, 1)
    assert says in done.errors[0]
    assert not (tmp_path / "x.h5").exists()


def test_formats_by_content(shared: Path, tmp_path: Path) -> None:
    """Whatever the files are called."""
    traces = shared / "traces"
    named = {
        "chakra": traces / "chakra_et_samples" / "astrasim_all_reduce.0.et.gz",
        "simai": traces / "simai_workloads" / "microAllReduce.txt.gz",
    }
    for kind, path in named.items():
        copy = tmp_path / kind
        copy.write_bytes(path.read_bytes())
        assert recognise([copy]) == kind
        assert import_program([copy]).n_rows
    assert recognise([traces / "triosim_vgg13_h100_1gpu"]) == "triosim"
    assert set(FORMATS) == {*named, "triosim", "aicb"}  # the last: tests/test_aicb.py
