"""How the tests run: the same files in one process and under ``mpirun``.

In one process every test runs, those marked ``mpi`` included. Under ``mpirun -n 2`` and more only
those marked ``mpi`` run, on all ranks in the same order; the first failure on any rank is printed
by that rank and ends all of them, since the others may be waiting for it. Tests that start
``mpirun`` themselves (fixture ``run_mpisim``), or call the command line (``call_mpisim``), run in
one process only.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import pytest

from mpisim.cli import UNTIL_COLLECTED, main
from mpisim.cli.launch import launched_rank, launched_size, without_launcher
from mpisim.mpi.library import no_transports

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm
    from parallel_jobs import Job

    from mpisim.capture.lower import Part
    from mpisim.replay import TraceJob

REPOSITORY = Path(__file__).resolve().parent.parent
LONGEST = {
    name: place
    for place, name in enumerate(
        (
            "test_docs.py",
            "test_launched.py",
            "test_capture.py",
            "test_capture_tensors.py",
            "test_capture_scripts.py",
            "test_capture_steps.py",
            "test_capture_operators.py",
            "test_capture_stand_ins.py",
            "test_capture_ranks.py",
            "test_capture_compiled.py",
            "test_extrapolate_captured.py",
            "test_extrapolate_parallel_stages.py",
            "test_extrapolate_parallel.py",
            "test_capture_sequences.py",
            "test_capture_own_parts.py",
            "test_capture_stand_ins_attention.py",
            "test_fuzz.py",
            "test_page_browser.py",
            "test_page_screens.py",
            "test_batch_systems.py",
            "test_experiments_data.py",
            "test_search_traces.py",
            "test_search_spaces.py",
            "test_search_exact.py",
            "test_search_interrupted.py",
            "test_search_exhaustive.py",
            "test_search.py",
            "test_extrapolate_parallel_rounds.py",
            "test_capture_memory.py",
            "test_faults.py",
            "test_run.py",
            "test_extrapolate_parallel_gpus.py",
            "test_extrapolate.py",
            "test_extrapolate_closed_loop.py",
            "test_export_command.py",
            "test_decentralized.py",
        )
    )
}
"""Files that come first: one of them, begun last, would keep one of the workers busy alone."""

LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")

# Examples must be the same on all ranks, and a rank that shrinks its failure leaves the others
# waiting in a collective.
hypothesis.settings.register_profile("serial", deadline=None)
hypothesis.settings.register_profile(
    "mpi",
    deadline=None,
    database=None,
    derandomize=True,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("mpi" if launched_size() > 1 else "serial")


# --- running under a launcher -------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    # Containers often have Python keep nothing that it compiles (PYTHONDONTWRITEBYTECODE): every
    # process of every run of the tests would compile all of them again.
    sys.dont_write_bytecode = False
    gc.set_threshold(UNTIL_COLLECTED)  # as the command does: looks took a seventh of some tests
    # A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if without_launcher():
        with no_transports():  # else each run of the tests leaves a segment in /dev/shm
            import mpi4py.MPI  # noqa: F401
    if launched_size() > 1:
        config.option.no_summary = True  # failures are printed as they happen, below
    if launched_rank() > 0:
        config.option.no_header = True
        config.option.verbose = -2


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under a launcher, leave unread the files that have no test of several processes.

    With one marker asked for (``-m mpi_calls``), those that do not have it, too.
    """
    if launched_size() == 1 or collection_path.suffix != ".py":
        return None
    text, asked = collection_path.read_text(encoding="utf-8"), config.option.markexpr
    if asked.isidentifier() and f"mark.{asked}" not in text:
        return True
    return "mark.mpi" not in text or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # pytest-mpi skips tests marked mpi unless it is told this; they are meant for one process too.
    config.option.with_mpi = True
    if launched_size() > 1:
        kept = [item for item in items if item.get_closest_marker("mpi") and not _launches(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    items.sort(key=lambda item: LONGEST.get(item.path.name, len(LONGEST)))


def _launches(item: pytest.Item) -> bool:
    return not {"run_mpisim", "call_mpisim"}.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Let rank 0 alone draw the dots."""
    if launched_rank() > 0 and not report.failed:
        return report.outcome, "", ""
    return None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _end_all(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _end_all(report)


def _end_all(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Print a failure and end all ranks, if there is more than one."""
    if not report.failed or launched_size() == 1:
        return
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    where = getattr(report, "when", None) or "collection"
    text = f"\n[{world.rank}/{world.size}] FAILED {report.nodeid} ({where})\n"
    text += report.longreprtext + "\n"
    for title, content in report.sections:
        text += f"--- {title}\n{content}\n"
    os.write(2, text.encode())
    world.Abort(1)


# --- fixtures -----------------------------------------------------------------------------------


@pytest.fixture
def comm() -> Iterator[Intracomm]:
    """A communicator of all processes that the test has to itself."""
    from mpi4py import MPI

    private = MPI.COMM_WORLD.Dup()
    yield private
    private.Free()


@pytest.fixture
def shared_folder(comm: Intracomm, tmp_path: Path) -> Path:
    """A new folder, the same on all processes."""
    return Path(comm.bcast(os.fspath(tmp_path), root=0))


@pytest.fixture(scope="module")
def world() -> Iterator[Intracomm]:
    """A communicator of all processes for the examples of a property, which share one fixture."""
    from mpi4py import MPI

    private = MPI.COMM_WORLD.Dup()
    yield private
    private.Free()


class Finished(NamedTuple):
    """What a subprocess left: exit code and decoded output."""

    rc: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """The error lines of mpisim; a launcher adds words of its own to standard error."""
        return [line for line in self.stderr.splitlines() if line.startswith("mpisim: error:")]


@pytest.fixture(scope="session")
def launch_environment() -> dict[str, str]:
    """The environment for a subprocess: this one, without its launcher's traces, with env.sh."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    here = str(Path(sys.executable).parent)
    if here not in clean.get("PATH", "").split(os.pathsep):  # with_mpi.sh puts another mpirun first
        clean["PATH"] = os.pathsep.join([here, clean.get("PATH", "")])
    script = REPOSITORY / "run_scripts" / "env.sh"
    listing = subprocess.run(
        ["bash", "-c", 'source "$1" && env -0', "bash", str(script)],
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    settings = dict(entry.split("=", 1) for entry in listing.split("\0") if "=" in entry)
    settings["MPISIM_PROGRESS"] = "0"
    return settings


@pytest.fixture
def run_mpisim(launch_environment: dict[str, str], tmp_path: Path) -> Callable[..., Finished]:
    """Run the command line, in one process without a launcher or in several under ``mpirun``.

    Call it as ``run_mpisim(args, nprocs=1, *, env=None, cwd=None, timeout=60, program=None)``:
    `args` follow ``python -m mpisim``, or ``python program`` if given; `env` adds to the
    environment; the working folder is the test's own unless `cwd` is given. A run that is not over
    after `timeout` seconds fails the test.
    """

    def run(
        args: list[str],
        nprocs: int = 1,
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
        program: Path | None = None,
    ) -> Finished:
        settings = launch_environment | (env or {})
        command = [sys.executable, *(["-m", "mpisim"] if program is None else [str(program)])]
        if nprocs > 1:
            mpirun = shutil.which("mpirun", path=settings["PATH"])
            assert mpirun, "no mpirun on PATH"
            command = [mpirun, "-n", str(nprocs), *command]
        done = subprocess.run(
            [*command, *map(str, args)],
            env=settings,
            cwd=cwd or tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
        # Under mpirun standard output is a terminal, which ends lines its own way.
        stdout, stderr = (
            stream.decode(errors="replace").replace("\r\n", "\n")
            for stream in (done.stdout, done.stderr)
        )
        return Finished(done.returncode, stdout, stderr)

    return run


@pytest.fixture
def call_mpisim(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Finished]:
    """Run the command line in this process: half a second less a call than ``run_mpisim``.

    For what is said and written; ``run_mpisim`` is for how processes start, print and end, of which
    tests/test_cli.py, test_run.py, test_launched.py and test_faults.py have every kind.

    Call it as ``call_mpisim(args, *, cwd=None)``; the working folder is the test's own unless `cwd`
    is given.
    """

    def call(args: list[str], *, cwd: Path | None = None) -> Finished:
        with monkeypatch.context() as patch:
            patch.chdir(cwd or tmp_path)
            patch.setenv("MPISIM_PROGRESS", "0")
            capfd.readouterr()
            code = main([*map(str, args)])
            return Finished(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of ground truth: ``MPISIM_SHARED``, or ``shared`` beside the repository."""
    folder = Path(os.environ.get("MPISIM_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no ground truth at {folder}; set MPISIM_SHARED")
    return folder


# --- recorded jobs of several ranks -------------------------------------------------------------


@pytest.fixture(scope="session")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A generated step of GPT as a recorded job: a pipeline with a distributed optimizer."""
    from parallel_jobs import GPT, recorded

    return recorded(GPT, 32, tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A generated step of Llama as a recorded job: FSDP over 8 ranks."""
    from parallel_jobs import LLAMA, recorded

    return recorded(LLAMA, 8, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def megatron(shared: Path) -> TraceJob:
    """Megatron-LM's GPT on 8 A800, recorded on all ranks; its groups are not on record."""
    from mpi4py import MPI
    from parallel_jobs import MEGATRON

    from mpisim.replay import read_job

    return read_job([shared / "traces" / MEGATRON], MPI.COMM_SELF)


# --- captured scripts ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> list[Part]:
    """The parts of a plain script of one GPU."""
    from captures import ONE_GPU, alone, script, written

    return alone(script(written(tmp_path_factory.mktemp("one"), ONE_GPU)))


@pytest.fixture
def in_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be where modules of the captured scripts are found, without a network."""
    monkeypatch.chdir(Path(__file__).parent / "captured")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# --- a formula for tests --------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a formula of products that can be worked by hand in place of the model's."""
    import toy_formula

    toy_formula.install(monkeypatch)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from browser_pages import launched

    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Report pages of all kinds, each in a file."""
    from browser_pages import KINDS

    from mpisim.page.html import page_html

    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for kind, payload in KINDS.items():
        made[kind] = folder / f"{kind.replace(' ', '-')}.html"
        made[kind].write_text(page_html(payload()), encoding="utf-8")
    return made


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Any:
    """Kind of a report page, options of a browser's context → the page, open."""
    from browser_pages import opened_page

    return lambda kind, **options: opened_page(browser, files[kind], **options)
