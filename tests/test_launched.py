"""Every command under ``mpirun``: its errors reach all processes, once, and nothing hangs.

A launch costs most of a second, so each command is launched with one error of each kind that ends
it in another place: usage, an input that is not there, an output that cannot be written.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bad_files import GOOD, program

from mpisim.cli import COMMANDS, _parser

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None and not (Path(sys.executable).parent / "mpirun").exists(),
    reason="there is no mpirun",
)

LIMIT = 20
"""Seconds until a run counts as hanging, on a machine that has other work."""

NO_FILE = [
    (["run", "no.toml"], "no.toml: cannot be read: No such file"),
    (["new", "--model", "llama-3-8"], "llama-3-8b"),
    (["list", "models", "nonesuch"], "none of"),
    (["topo", "show", "no.toml"], "no.toml"),
    (["comm", "all_reduce", "--cluster", "no.toml", "--size", "1M"], "no.toml"),
    (["packets", "no.csv", "--cluster", "dgx-h100"], "no.csv: cannot be read"),
    (["replay", "no"], "no: no such file or directory"),
    (["extrapolate", "no"], "no: no such file or directory"),
    (["report", "no.h5"], "no.h5: there is no such file"),
    (["compare", "no.h5", "there.h5"], "no.h5: there is no such file"),
    (["export", "no.h5", "--format", "csv", "-o", "out.csv"], "no.h5: there is no such file"),
    (["program", "show", "no.h5"], "no.h5: there is no such file"),
    (["program", "run", "no.h5"], "no.h5: there is no such file"),
    (["program", "import", "no.txt", "-o", "out.h5"], "no.txt"),
    (["program", "export", "no.h5", "-o", "out"], "no.h5: there is no such file"),
    (["trace", "show", "no.json"], "no.json"),
    (["validate", "published", "--markdown", "no/page.md"], "there is no folder"),
    (["validate", "traces", "no"], "no: no such file or directory"),
    (["validate", "kernels", "no.csv"], "no.csv"),
    (["validate", "collectives", "no.csv"], "no.csv"),
    (["validate", "e2e", "no.csv"], "no.csv"),
    (["calibrate", "kernels", "no.csv", "-o", "out.toml"], "no.csv"),
    (["calibrate", "collectives", "no.csv", "-o", "out.toml"], "no.csv"),
    (["calibrate", "e2e", "no.csv", "-o", "out.toml"], "no.csv"),
    (["calibrate", "overlap", "no.csv", "-o", "out.toml"], "no.csv"),
    (["validate", "plans", "no.csv"], "no.csv"),
    (["validate", "power", "--json", "no/x.json"], "there is no folder"),
    (["validate", "memory", "--json", "no/x.json"], "there is no folder"),
    (["validate", "job", "--json", "no/x.json"], "there is no folder"),
    (["search", "no.toml", "--vary", "auto"], "no.toml: cannot be read"),
    (["job", "no.toml"], "no.toml: cannot be read"),
    (["decentralized", "no.toml", "--graph", "ring"], "no.toml: cannot be read"),
    (["profile", "no.toml"], "no.toml: cannot be read"),
    (["shard", "no.toml"], "no.toml: cannot be read"),
    (["tables", "no.pt", "no.toml"], "no.toml: cannot be read"),
    (["sensitivity", "no.toml"], "no.toml: cannot be read"),
    (["validate", "operators", "no"], "no: no such file or directory"),
    (["memory", "no.pickle"], "no.pickle"),
    (["capture", "--", "python", "no.py"], ""),
    (["watch", "no.json"], "no.json: cannot be read: No such file"),
]
"""Of every command: an input that is not there, and what the line says."""

MISSING = "there is no folder"
NO_OUTPUT = [
    (["run", "-o", "no/out.h5"], MISSING),
    (["run", "--save-program", "there.h5"], "there.h5: exists already"),
    (["new", "no/mine.toml"], MISSING),
    (["topo", "show", "dgx-h100", "--draw", "no/x.svg"], MISSING),
    (["comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1M", "--json", "no/x"], MISSING),
    (["packets", "there.csv", "--cluster", "dgx-h100", "-o", "no/x.h5"], MISSING),
    (["replay", "there", "-o", "there.h5"], "there.h5: exists already"),
    (["export", "there.h5", "--format", "chrome", "-o", "no/out"], MISSING),
    (["export", "there.h5", "--format", "csv", "-o", "no/out.csv"], MISSING),
    (["report", "there.h5", "--json", "no/x.json"], MISSING),
    (["compare", "there.h5", "there.h5", "--json", "no/x.json"], MISSING),
    (["program", "run", "there.h5", "-o", "no/x.h5"], MISSING),
    (["program", "import", "there.csv", "-o", "no/x.h5"], MISSING),
    (["program", "export", "there.h5", "-o", "no/folder"], MISSING),
    (["validate", "traces", "there", "--json", "no/x.json"], MISSING),
    (["validate", "kernels", "there.csv", "--json", "no/x.json"], MISSING),
    (["validate", "collectives", "there.csv", "--json", "no/x.json"], MISSING),
    (["validate", "e2e", "there.csv", "--plot", "no/x.png"], MISSING),
    (["calibrate", "kernels", "there.csv", "-o", "no/x.toml"], MISSING),
    (["calibrate", "collectives", "there.csv", "-o", "there.h5"], "there.h5: exists already"),
    (["calibrate", "e2e", "there.csv", "-o", "no/x.toml"], MISSING),
    (["search", "llama3-8b-8-h100", "--vary", "plan.zero=1,3", "-o", "no/x.h5"], MISSING),
    (["profile", "llama3-8b-8-h100", "--kernels", "no/x.csv"], MISSING),
    (["sensitivity", "llama3-8b-8-h100", "--draw", "no/x.svg"], MISSING),
    (["run", "--monitor", "no/s.json"], MISSING),
    (["validate", "kernels", "there.csv", "--monitor", "there.csv"], "is no status file"),
]
"""Outputs that cannot be where they are asked for."""


def leaves(parser: argparse.ArgumentParser) -> list[tuple[str, ...]]:
    """Return the words of every command that can be run."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [(name, *rest) for name, sub in action.choices.items() for rest in leaves(sub)]
    return [()]


COMMAND_WORDS = leaves(_parser("", COMMANDS))


def test_every_command_is_here():
    for words in COMMAND_WORDS:
        assert any(tuple(args[: len(words)]) == words for args, _ in NO_FILE), words


@pytest.fixture
def fail(run_mpisim, tmp_path):
    """Run a command that must fail: one line that says something, exit code 2, nothing left."""
    program(tmp_path / "there.h5", GOOD, GOOD)
    (tmp_path / "there.csv").write_text("a,b\n1,2\n")
    (tmp_path / "there").mkdir()

    def run(args, says, nprocs):
        before = sorted(os.listdir(tmp_path))
        done = run_mpisim(args, nprocs, timeout=LIMIT)
        assert done.rc == 2, done
        assert len(done.errors) == 1, done
        assert says in done.errors[0]
        assert "Traceback" not in done.stdout + done.stderr
        assert sorted(os.listdir(tmp_path)) == before

    return run


@pytest.mark.parametrize(("args", "says"), NO_FILE, ids=lambda each: " ".join(each[:2]))
def test_no_input(fail, args, says):
    fail(args, says, 2)


@pytest.mark.parametrize(("args", "says"), NO_OUTPUT, ids=lambda each: " ".join(each[-2:]))
def test_no_output(fail, args, says):
    fail(args, says, 2)


@pytest.mark.parametrize("words", COMMAND_WORDS[::6], ids=" ".join)
def test_usage(run_mpisim, words):
    done = run_mpisim([*words, "--nonesuch"], 2, timeout=LIMIT)
    assert (done.rc, len(done.errors)) == (2, 1), done
    assert "unknown option '--nonesuch'" in done.errors[0]


@pytest.mark.parametrize(
    "args", [["list", "nonesuch"], ["report", "no.h5"], ["run", "-o", "no/out.h5"]], ids=" ".join
)
def test_four_processes(run_mpisim, args):
    """A parser's error, one of a command of one process, one of a command that all run."""
    done = run_mpisim(args, 4, timeout=LIMIT)
    assert (done.rc, len(done.errors)) == (2, 1), done


@pytest.mark.parametrize("nprocs", [1, 2])
def test_one_process_prints(run_mpisim, nprocs):
    done = run_mpisim(["list", "models", "llama-3-8b"], nprocs, timeout=LIMIT)
    assert done.rc == 0
    assert done.stderr == ""
    assert done.stdout.count("Llama 3 8B") == 1


TRANSPORTS = """
import os
settings = {key: value for key, value in os.environ.items() if key.startswith("OMPI_MCA_")}
from mpisim.cli.launch import world
world().Barrier()
assert settings == {k: v for k, v in os.environ.items() if k.startswith("OMPI_MCA_")}
print([line for line in open("/proc/self/maps") if "/dev/shm/" in line])
"""


@pytest.mark.parametrize("settings", [{}, {"OMPI_MCA_pml": "", "OMPI_MCA_btl": ""}], ids=["", "no"])
def test_a_process_without_launcher_leaves_no_shared_memory(launch_environment, settings):
    """With the settings of env.sh and with none; what mpirun inherits stays as it was."""
    environment = {k: v for k, v in {**launch_environment, **settings}.items() if v}
    done = subprocess.run(
        [sys.executable, "-c", TRANSPORTS], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


# --- ends of another kind ------------------------------------------------------------------------

# Commands that one process runs, and one that all run, which end in every way there is.
PROGRAM = """\
import os, sys, time, types

from mpisim import cli

command = types.ModuleType("trial")
command.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("trial", None)


def add_parser(subparsers):
    parser = subparsers.add_parser("trial")
    parser.add_argument("way")
    parser.set_defaults(run=run, collective=sys.argv[1].startswith("all-"))


def run(args):
    from mpisim.cli import launch
    from mpisim.base.errors import InputError
    from mpisim.base.files import write_whole
    way = args.way.removeprefix("all-")
    if args.way != way:
        comm = launch.world()
        if comm.rank != comm.size - 1:
            comm.Barrier()  # the last never comes
    if way == "input":
        raise InputError("bad input")
    if way == "bug":
        raise ZeroDivisionError("a bug")
    if way == "disk":
        raise OSError(28, "No space left on device", "out.h5")
    if way == "missing":
        open("no/such/file")
    if way == "pipe":
        raise BrokenPipeError(32, "Broken pipe")
    if way == "memory":
        raise MemoryError
    if way == "interrupt":
        raise KeyboardInterrupt
    if way == "exit":
        sys.exit(3)
    if way == "world":
        launch.world()
    if way == "wait":
        with write_whole("out.json") as file:
            file.write(b"half")
            with open("begun.tmp", "w") as begun:
                begun.write(str(os.getpid()))
            os.rename("begun.tmp", "begun")
            time.sleep(60)
    return 0


command.add_parser = add_parser
sys.modules["trial"] = command
sys.exit(cli.main(["trial", *sys.argv[1:]], commands=["trial"]))
"""

ENDS = {
    "input": (2, "mpisim: error: bad input"),
    "disk": (1, "mpisim: error: out.h5: No space left on device"),
    "missing": (2, "mpisim: error: no/such/file: No such file or directory"),
    "pipe": (1, "mpisim: error: standard output was closed"),
    "memory": (1, "mpisim: error: there is not enough memory"),
    "interrupt": (130, "mpisim: interrupted"),
    "bug": (1, "ZeroDivisionError: a bug"),
    "exit": (3, ""),
}


@pytest.fixture
def trial(tmp_path):
    path = tmp_path / "trial.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("who", ["", "all-"])
@pytest.mark.parametrize("way", ENDS)
def test_ends(run_mpisim, trial, way, who):
    """The first process of two fails alone, or the last while the other waits for it in MPI."""
    code, line = ENDS[way]
    done = run_mpisim([who + way], 2, program=trial, timeout=LIMIT)
    assert done.rc == code, done
    lines = [each for each in done.stderr.splitlines() if "mpisim: " in each]
    if way != "bug":
        assert lines == ([line] if line else [])
        assert "Traceback" not in done.stderr + done.stdout
    else:
        assert done.stderr.count(line) == 1


def test_a_command_of_one_process_cannot_communicate(run_mpisim, trial):
    done = run_mpisim(["world"], 2, program=trial, timeout=LIMIT)
    assert done.rc == 1
    assert "a command that one process runs must not communicate" in done.stderr


@pytest.mark.parametrize("who", ["", "all-"])
@pytest.mark.parametrize("nprocs", [1, 2])
def test_terminated(launch_environment, trial, tmp_path, nprocs, who):
    """SIGTERM to the process that writes: all end, and what is half written is gone."""
    mpirun = shutil.which("mpirun", path=launch_environment["PATH"])
    launcher = [mpirun, "-n", str(nprocs)] if nprocs > 1 else []
    with subprocess.Popen(
        [*launcher, sys.executable, str(trial), f"{who}wait"],
        env=launch_environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(int((tmp_path / "begun").read_text()), signal.SIGTERM)
        stderr = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 143
    assert stderr.count(b"mpisim: terminated") == 1
    assert sorted(os.listdir(tmp_path)) == ["begun", "trial.py"]
