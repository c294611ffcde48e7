"""Command lines of a file, one after the other on all processes → codes and lines, a file.

Run under a launcher by ``fault_table.py``: ``python fault_worker.py FOLDER``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

from mpi4py import MPI

from mpisim.cli import main


def serve(folder: Path) -> None:
    """Run the cases of ``cases.json``; an answer a line is added to ``answers.jsonl``."""
    comm = MPI.COMM_WORLD.Dup()
    real = sys.stderr
    for case, args in json.loads((folder / "cases.json").read_text()):
        comm.Barrier()
        out, err = io.StringIO(), _Both(real)
        began = time.monotonic()
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
            code = main(args)
        seconds = time.monotonic() - began
        everyone = comm.gather((code, err.getvalue()))
        if everyone is not None:
            codes, lines = zip(*everyone)
            answer = {"case": case, "codes": codes, "lines": lines, "seconds": seconds}
            with open(folder / "answers.jsonl", "a") as file:
                file.write(json.dumps(answer) + "\n")


class _Both(io.StringIO):
    """Keeps what is written, and passes it on: a case may end all processes."""

    def __init__(self, other: io.TextIOBase) -> None:
        super().__init__()
        self.other = other

    def write(self, text: str) -> int:
        self.other.write(text)
        self.other.flush()
        return super().write(text)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
