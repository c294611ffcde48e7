"""The fault table (docs/reliability.md): all of it in this process, a sample under a launcher.

``tests/fault_table.py`` runs all of it on 1, 2 and 4 processes of every MPI.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fault_cases import CASES, Case
from fault_events import EVENTS

from mpisim.cli import main
from mpisim.cli.launch import launched_size

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"

ALONE = pytest.mark.skipif(launched_size() > 1, reason="starts its own processes")


def test_there_are_many():
    """No two cases of a group have one name, and every command is met."""
    names = [(case.group, case.name) for case in CASES]
    assert len(set(names)) == len(names) >= 150
    assert {case.args[0] for case in CASES} >= {
        "run",
        "new",
        "list",
        "topo",
        "comm",
        "replay",
        "report",
        "program",
        "trace",
        "validate",
        "calibrate",
    }


def test_the_page_is_of_these_cases():
    """docs/reliability.md has a row for every case, and says of none that anything is wrong."""
    text = PAGE.read_text()
    for case in CASES:
        words = f"`mpisim {' '.join(case.args)}`".replace("|", "\\|")
        assert f"| {words} | {case.code} |" in text, case.name
    assert "**" not in text, "python tests/fault_table.py writes the page"


@ALONE
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.group != "inputs"], ids=lambda case: case.name
)
def test_in_this_process(tmp_path, capsys, case: Case):
    """Each case of files and words: one line, the right exit code, nothing left behind."""
    folder = tmp_path / "in"
    args = case.prepared(folder)
    before = sorted(map(str, folder.rglob("*")))
    capsys.readouterr()
    code = main(args)
    line = capsys.readouterr().err
    assert not case.wrong(folder, code, line)
    assert line.startswith("mpisim: error: ")
    assert line.count("\n") == 1
    assert sorted(map(str, folder.rglob("*"))) == before


SAMPLE = [
    case
    for case in CASES
    if case.name
    in (
        "program: cut in half",
        "results: zeros",
        "kernel measurements: no such file",
        "experiment: empty",
        "topo show nowhere",
        "calibrate overlap @/none -o @/o",
        "run --set plan.tp=two",
        "run -o @/there.h5",
    )
]


@ALONE
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_on_two_processes(run_mpisim, tmp_path, case: Case):
    folder = tmp_path / "in"
    args = case.prepared(folder)
    before = sorted(map(str, folder.rglob("*")))
    done = run_mpisim(args, 2, timeout=30)
    assert len(done.errors) == 1, done
    assert "Traceback" not in done.stderr
    assert not case.wrong(folder, done.rc, done.errors[0])
    assert sorted(map(str, folder.rglob("*"))) == before


@ALONE
@pytest.mark.parametrize("event", EVENTS[:3], ids=["rank killed", "rank ended", "interrupted"])
def test_struck_in_the_middle(launch_environment, tmp_path, event):
    mpirun = shutil.which("mpirun", path=launch_environment["PATH"])
    assert mpirun
    found = event("MPI", mpirun, launch_environment, tmp_path)
    assert not found.wrong, found


@ALONE
@pytest.mark.parametrize("event", EVENTS[6::4], ids=lambda event: " ".join(map(str, event.args)))
def test_disks(launch_environment, tmp_path: Path, event):
    """Full and read-only disks; where none can be mounted nothing is tested."""
    mpirun = shutil.which("mpirun", path=launch_environment["PATH"])
    assert mpirun
    found = event("MPI", mpirun, launch_environment, tmp_path)
    assert not found.wrong, found
