"""The shell of the command line: what it prints, how it fails, that nothing hangs."""

import argparse
import re
import signal
import subprocess
import sys
import time

import pytest

import mpisim
from mpisim import cli
from mpisim.cli.signals import Terminated, ended_by_signals

# A command whose runs end in every way there is.
PROGRAM = """\
import sys, types

from mpisim import cli

command = types.ModuleType("trial")
command.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("trial", None)


def add_parser(subparsers):
    parser = subparsers.add_parser("trial", help="end in some way")
    parser.add_argument("way", nargs="?", default="well", choices=("well", "agreed", "lonely",
        "early", "bug", "long", "full"))
    parser.add_argument("--scale-compute", type=float)
    parser.set_defaults(run=run, collective=True)


def run(args):
    from mpisim.base.errors import InputError, OutputError
    from mpisim.cli.launch import world
    assert "mpi4py.MPI" not in sys.modules
    if args.way == "early":
        raise InputError("before MPI")
    comm = world()
    from mpisim.mpi.parallel import collective_errors
    last = comm.rank == comm.size - 1
    if args.way == "agreed":
        with collective_errors(comm):
            if last:
                raise InputError("file x.json, row 3:\\nbytes is -1")
    elif args.way == "lonely":
        if last:
            raise OutputError("only one rank knows")
        comm.Barrier()
    elif args.way == "bug":
        if last:
            raise ZeroDivisionError("one rank only")
        comm.Barrier()
    elif args.way == "full":
        raise OSError(28, "No space left on device", "out.h5")
    elif args.way == "long":
        for line in range(100_000):
            print("line", line)
    print(f"rank {comm.rank} of {comm.size} is done")
    return 0


command.add_parser = add_parser
sys.modules["trial"] = command
sys.exit(cli.main(commands=["trial"]))
"""


@pytest.fixture
def trial(run_mpisim, tmp_path):
    """Run the trial command: ``trial(args, nprocs)``."""
    program = tmp_path / "trial.py"
    program.write_text(PROGRAM)

    def run(args, nprocs=1, **settings):
        return run_mpisim(args, nprocs, program=program, **settings)

    return run


processes = pytest.mark.parametrize("nprocs", [1, 2])


@processes
def test_default_command_runs(trial, nprocs):
    done = trial([], nprocs)
    assert done.rc == 0
    assert sorted(done.stdout.splitlines()) == [
        f"rank {rank} of {nprocs} is done" for rank in range(nprocs)
    ]
    assert done.stderr == ""


@processes
def test_version_and_help_are_printed_once(trial, run_mpisim, nprocs):
    done = run_mpisim(["--version"], nprocs)
    assert done == (0, f"mpisim {mpisim.__version__}\n", "")
    done = trial(["--help"], nprocs)
    assert done.rc == 0
    assert done.stdout.count("usage: mpisim") == 1
    assert "examples:" in done.stdout


@processes
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trail"], "'trail' is not one of trial (did you mean 'trial'?); see 'mpisim --help'"),
        (["trial", "wel"], "'wel' is not one of well"),
        (
            ["trial", "--scale-comput", "2"],
            "unknown option '--scale-comput' (did you mean '--scale-compute'?); "
            "see 'mpisim trial --help'",
        ),
        (["--scale-comp=2"], "unknown option '--scale-comp' (did you mean '--scale-compute'?)"),
        # "scale" is not an option either, but comes after the end of the options
        (["trial", "--", "--scale"], "'--scale' is not one of well"),
        (["trial", "-x"], "unknown option '-x'; see"),
        (["trial", "well", "again"], "unexpected argument 'again'"),
        (["trial", "--scale-compute", "two"], "invalid float value: 'two'"),
        (["trial", "early"], "before MPI"),
        (["trial", "agreed"], "file x.json, row 3: bytes is -1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trial, nprocs, args, message):
    done = trial(args, nprocs)
    assert done.rc == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout == ""


@processes
@pytest.mark.parametrize(
    ("way", "message"),
    [("lonely", "only one rank knows"), ("full", "out.h5: No space left on device")],
)
def test_failure_at_run_time_is_one_line_and_exit_code_1(trial, nprocs, way, message):
    done = trial(["trial", way], nprocs)
    assert done.rc == 1
    assert done.errors == [f"mpisim: error: {message}"]
    assert "Traceback" not in done.stdout + done.stderr


@processes
def test_a_bug_on_one_rank_shows_its_traceback_and_ends_all(trial, nprocs):
    done = trial(["trial", "bug"], nprocs)
    assert done.rc == 1
    prefix = "[1/2] " if nprocs == 2 else ""
    assert f"{prefix}ZeroDivisionError: one rank only" in done.stderr.splitlines()


def test_a_closed_pipe_is_no_traceback(launch_environment, trial, tmp_path):
    trial(["trial"])  # writes the program
    with subprocess.Popen(
        [sys.executable, tmp_path / "trial.py", "trial", "long"],
        env=launch_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_full_disk_under_standard_output_is_one_line(launch_environment, trial, tmp_path):
    trial(["trial"])
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, tmp_path / "trial.py", "trial", "well"],
            env=launch_environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "mpisim: error: output: No space left on device\n",
    )


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_standard_streams_are_no_traceback(launch_environment, tmp_path, closed):
    """As daemons start programs: what goes there goes nowhere, not to the other one."""
    command = f'exec "{sys.executable}" -m mpisim run {closed}>&-'
    for words, code in ((command, 0), (command.replace("run", "rnu"), 2)):
        done = subprocess.run(
            ["bash", "-c", words],
            env=launch_environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert bool(done.stdout) == (closed == 2 and code == 0)
        assert bool(done.stderr) == (closed == 1 and code == 2)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_is_not_lost_while_an_object_is_freed(capsys, number, raised):
    """Python passes no exception on from there; it would print it and go on."""

    class Freed:
        def __del__(self):
            signal.raise_signal(number)

    with pytest.raises(raised), ended_by_signals():
        Freed()
        time.sleep(10)
    assert capsys.readouterr().err == ""


def test_no_home_directory_is_needed(launch_environment):
    """Open MPI refuses to start without; services and containers often have none."""
    settings = {key: value for key, value in launch_environment.items() if key != "HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "mpisim", "run"], env=settings, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_locale_without_the_characters_of_a_report_is_no_error(run_mpisim):
    done = run_mpisim(["run"], env={"PYTHONIOENCODING": "ascii"})
    assert done.rc == 0
    assert re.match(r"step time   [\d.]+ ms  \? [\d.]+ %", done.stdout)


def test_a_launcher_of_another_mpi_is_refused(trial):
    # As under an MPICH launcher: the second process of two, with nobody to talk to.
    done = trial(["trial"], env={"PMI_SIZE": "2", "PMI_RANK": "0"})
    assert done.rc == 2
    assert "started 2 processes but MPI sees only one" in done.errors[0]
    done = trial(["trial"], env={"PMI_SIZE": "2", "PMI_RANK": "1"})
    assert (done.rc, done.errors) == (2, [])


def test_help_needs_no_heavy_import(launch_environment):
    code = (
        "import sys; from mpisim.cli import main; main(['--help']);"
        "print({m for m in ('numpy', 'h5py', 'mpi4py', 'networkx', 'scipy') if m in sys.modules})"
    )
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=launch_environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert time.perf_counter() - begun < 10


NOT_OF_A_RUN = (
    "h5py",
    "matplotlib",
    "msgspec",
    "mpisim.formats",
    "mpisim.kernels.fitting",
    "mpisim.kernels.measured",
    "mpisim.memory.remedies",
    "mpisim.replay",
    "mpisim.traces",
    "mpisim.validate",
    "multiprocessing",
    "networkx",
    "numpy.ma",
    "numpy.random",
    "orjson",
    "scipy",
    "tomllib",
)
"""Modules that ``mpisim`` alone has no use for; loading them takes from 2 to 200 ms."""


def test_a_run_loads_what_it_needs(launch_environment):
    code = "import sys; from mpisim.cli import main; main([]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=launch_environment, capture_output=True, text=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "mpisim.simulate" in loaded
    assert sorted(loaded & {*NOT_OF_A_RUN}) == []


def test_the_package_offers_functions_not_modules():
    code = (
        "import mpisim, types; from mpisim.base.errors import MpisimError\n"
        "module = types.ModuleType('mpisim.simulate')\n"
        "mpisim.simulate = module  # what importing the submodule does\n"
        "assert 'simulate' not in vars(mpisim)\n"
        "assert 'simulate' in dir(mpisim)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def commands_with(option):
    """Yield the words of each command that has an option, and its parser."""

    def within(parser, words):
        actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        for action in actions:
            for name, inner in action.choices.items():
                yield from within(inner, [*words, name])
        if option in parser._option_string_actions:
            yield words, parser

    return within(cli._parser("", cli.COMMANDS), [])


def test_every_command_that_writes_figures_can_overwrite_them():
    found = list(commands_with("--json"))
    assert len(found) > 15
    for words, parser in found:
        assert "--overwrite" in parser._option_string_actions, words


@pytest.mark.parametrize(
    "words",
    [
        ["comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1M"],
        ["job", "llama3-8b-8-h100", "--set", "job.tokens=20e9"],
        ["run"],
        ["search", "llama3-8b-8-h100", "--vary", "plan.tp=1,2"],
        ["sensitivity", "llama3-8b-8-h100", "--no-simulate"],
        ["topo", "show", "dgx-h100"],
        ["validate", "power"],
        ["validate", "published"],
        ["validate", "kernels", "there.csv"],
        ["validate", "collectives", "there.csv"],
        ["validate", "e2e", "there.csv"],
        ["validate", "plans", "there.csv"],
        ["validate", "traces", "there"],
    ],
    ids=" ".join,
)
def test_no_file_of_figures_is_replaced_unasked(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text("mine")
    assert cli.main([*words, "--json", "mine.json"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "mpisim: error: mine.json: exists already; name another file, or --overwrite it\n"
    )
    assert (tmp_path / "mine.json").read_text() == "mine"


def test_figures_are_replaced_where_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text("mine")
    assert cli.main(["topo", "show", "dgx-h100", "--json", "mine.json", "--overwrite"]) == 0
    assert (tmp_path / "mine.json").read_text().startswith("{")
