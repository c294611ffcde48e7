"""The command line: one module a subcommand, and one policy for errors.

A subcommand is a module of this package with two functions: ``add_parser(subparsers)``, which
adds its parser and calls ``set_defaults(run=run)`` on it, and ``run(args) -> int``, which returns
the exit code. Under a launcher the first process runs it, and the others wait for its end; a
command whose work is shared says ``set_defaults(run=run, collective=True)``, runs on all, and gets
its communicator from :func:`mpisim.cli.launch.world`; in place of True it may give a function that
tells it from the arguments. These modules are imported to build the
parser, so whatever is slow to load, MPI above all, is imported inside ``run``.

Exit codes: 0 all is well, 1 a failure at run time, 2 bad input or usage.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from mpisim.base.errors import InputError, MpisimError, OutputError
from mpisim.base.version import __version__
from mpisim.built import check_built
from mpisim.cli import launch
from mpisim.cli.parser import Parser, parse
from mpisim.cli.signals import Terminated, ended_by_signals

__all__ = ["COMMANDS", "main"]

COMMANDS = (
    "mpisim.cli.run",
    "mpisim.cli.search",
    "mpisim.cli.profile",
    "mpisim.cli.shard",
    "mpisim.cli.tables",
    "mpisim.cli.job",
    "mpisim.cli.decentralized",
    "mpisim.cli.new",
    "mpisim.cli.list",
    "mpisim.cli.topo",
    "mpisim.cli.comm",
    "mpisim.cli.packets",
    "mpisim.cli.replay",
    "mpisim.cli.extrapolate",
    "mpisim.cli.capture",
    "mpisim.cli.report",
    "mpisim.cli.compare",
    "mpisim.cli.sensitivity",
    "mpisim.cli.export",
    "mpisim.cli.program",
    "mpisim.cli.trace",
    "mpisim.cli.memory",
    "mpisim.cli.validate",
    "mpisim.cli.calibrate",
    "mpisim.cli.watch",
)
"""Modules of the subcommands, in the order of the help. The first runs when none is named."""

UNTIL_COLLECTED = 100_000
"""Objects made between two looks for garbage, by default 700: at the start nearly all objects made
are kept, and the looks would take a tenth of the time."""

EXAMPLES = """\
examples:
  mpirun -n 8 python -m mpisim            simulate Llama-3-8B on 8 GPUs, one rank a process
  mpisim run mine.toml --set plan.tp=8    simulate an experiment of your own, one key changed
  mpisim replay TRACES/ -o run.h5         replay recorded traces, save the result
  mpisim replay TRACES/ --scale-comm 0.5  what if communication took half as long?
  mpisim report run.h5                    where did the time go?
  mpisim run mine.toml --html run.html    ... as a page to look at, or to send to someone
  mpisim export run.h5 --format perfetto -o run.pftrace    ... and look at it in ui.perfetto.dev
  mpisim COMMAND --help                   the options and examples of one command
"""


def main(argv: Sequence[str] | None = None, commands: Sequence[str] = COMMANDS) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of this process.
    commands : sequence of str
        Modules of the subcommands, the default one first.

    Returns
    -------
    int
        0 if all is well, 1 for a failure at run time, 2 for bad input or usage.
    """
    gc.set_threshold(UNTIL_COLLECTED)
    atexit.register(_leave_garbage)
    keep_freed_memory()
    _open_closed_streams()
    _print_any_text()
    # Not list(...): importing the subcommand of that name has put its module in this namespace.
    words = [*(sys.argv[1:] if argv is None else argv)]
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, commands[0].rpartition(".")[2])
    try:
        check_built()
        arguments = parse(_parser(words[0], commands), words)
    except MpisimError as error:
        return launch.end(error.exit_code, launch.error_line(str(error)))
    except SystemExit as ending:  # --help and --version: the same on all processes
        return _code(ending)
    try:
        with ended_by_signals():
            _monitor(arguments, words)
            return launch.end(_finished(arguments))
    except MpisimError as error:
        return launch.end(error.exit_code, launch.error_line(str(error)))
    except KeyboardInterrupt:
        return launch.end(130, "mpisim: interrupted")
    except Terminated:
        return launch.end(143, "mpisim: terminated")
    except SystemExit as ending:
        return launch.end(_code(ending))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        only = launch.launched_size() == 1
        return launch.end(1, "" if only else launch.error_line("standard output was closed"))
    except OSError as error:
        from mpisim.base.files import is_full, is_refused

        # Wherever it strikes, a full disk is no bug, nor a file that cannot be reached: one line,
        # no traceback.
        if not is_full(error) and error.filename is None:
            return launch.abort()
        _drop_output()
        code = InputError.exit_code if is_refused(error) else OutputError.exit_code
        return launch.end(
            code, launch.error_line(f"{error.filename or 'output'}: {error.strerror}")
        )
    except MemoryError:
        return launch.end(1, launch.error_line("there is not enough memory"))
    except Exception:
        return launch.abort()


def _monitor(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Have the status of this run written from here to its end, where that is asked for."""
    if getattr(arguments, "monitor", None) is None:
        return
    import shlex

    from mpisim.mpi.monitor import Monitor
    from mpisim.mpi.phases import phases

    first = launch.launched_rank() == 0
    command = shlex.join(["mpisim", *words])
    monitor = Monitor(
        arguments.monitor, command, phases.status, first=first, processes=launch.launched_size()
    )
    phases.monitor = monitor

    def finish(code: int, line: str) -> None:
        phases.monitor = None
        monitor.finish(code, line)

    launch.at_end(finish)
    alone = launch.launched_size() == 1 or not getattr(arguments, "collective", False)
    if monitor.error is not None and alone:
        raise monitor.error


def _finished(arguments: argparse.Namespace) -> int:
    """Run a command, on all processes or on the first, and return the exit code here."""
    collective = getattr(arguments, "collective", False)
    if collective(arguments) if callable(collective) else collective:
        code: int = arguments.run(arguments)
    else:
        launch.start_mpi()
        if launch.launched_rank() != 0:
            return 0
        with launch.first_process_only():
            code = arguments.run(arguments)
    sys.stdout.flush()  # while an error can still be reported
    return code


def _open_closed_streams() -> None:
    """Let what goes to a stream that was closed (``mpisim run >&-``) go nowhere.

    Python has None in place of such a stream, and prints what was meant for the other one there.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _print_any_text() -> None:
    """Have a terminal or file whose encoding lacks a character show a question mark for it.

    Reports hold ±, × and names of files, which locales other than UTF-8 cannot write.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def keep_freed_memory() -> None:
    """Have glibc keep memory that is freed, for the next array, rather than give it back.

    A run makes and drops many large arrays. Memory that the system gives anew it clears page by
    page: a quarter of the time of a run of 8,192 ranks. Other C libraries are left alone.
    """
    import ctypes  # as numpy does

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # parameters of glibc's mallopt(3)
        mallopt(trim_threshold, -1)  # never
        # Before version 2.34 it takes no more than 32 MiB.
        mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 1 << 25)


def _code(ending: SystemExit) -> int:
    """Return the exit code that an exit asks for."""
    return ending.code if isinstance(ending.code, int) else int(ending.code is not None)


def _parser(chosen: str, commands: Sequence[str]) -> Parser:
    """Build the parser, of the chosen command alone if there is such a command."""
    parser = Parser(
        prog="mpisim",
        description="How long will one training step take, and why?",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"mpisim {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    present = [module for module in commands if find_spec(module)]
    chosen_only = [module for module in present if module.rpartition(".")[2] == chosen]
    for module in chosen_only or present:
        import_module(module).add_parser(subparsers)
    return parser


def _leave_garbage() -> None:
    """Leave out the garbage collections at the end of a process, which take 50 ms.

    Not where h5py is loaded: HDF5 ends after the interpreter, and calls it for files that are still
    open because garbage, such as the traceback of an error, refers to them.
    """
    if "h5py" not in sys.modules:
        gc.freeze()


def _drop_output() -> None:
    """Send the rest of standard output nowhere, so that the interpreter can exit quietly."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
