"""Command lines on standard input → what each left, on standard output; memory is bounded.

Run by :mod:`fuzzing`. Every line is a JSON object with ``args`` and ``memory`` (bytes that the
command may take besides what this process has already). The answer has ``rc``, ``out`` and ``err``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from pathlib import Path

from mpisim.cli import main


def taken() -> int:
    """Return the size of this process's address space, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
PICKLED = ("mpisim", "numpy", "builtins", "collections", "pathlib", "copyreg")
"""Where classes of what processes send each other come from."""


def forbid(event: str, args: tuple[object, ...]) -> None:
    """Refuse what no reader may do: run a program, or code that a file holds."""
    code = event == "pickle.find_class" and str(args[0]).split(".")[0] not in PICKLED
    program = event in PROGRAMS and args[0] != "uname"  # Python's module platform asks it
    if code or program:
        sys.__stderr__.write(f"forbidden: {event} {args}\n")
        os._exit(99)


def serve() -> None:
    """Run each command line and write what it left."""
    answers = os.fdopen(os.dup(1), "w")
    sys.addaudithook(forbid)
    for line in sys.stdin:
        asked = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken() + asked["memory"], hard))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(asked["args"])
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        answer = {"rc": code, "out": out.getvalue()[-2000:], "err": err.getvalue()[-9000:]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
