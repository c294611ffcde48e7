#!/usr/bin/env python3
"""What mpisim predicts today → ``tests/golden.csv``, what it is known to predict.

    python run_scripts/golden.py [WORD ...]       compare; prints what moved, exit code 1 if any did
    python run_scripts/golden.py --refresh        the same, then write the file anew

The table has a row for each packaged experiment (``run NAME``: step time, digest) and for each of a
choice of communications (``comm ...``: time, what NCCL chooses and what limits it). Times are
integers of picoseconds, so they are compared exactly. ``--refresh`` adds experiments that are new
and drops those that are gone; to add a communication, add a line with its command alone. With WORDs
only rows that have all of them are looked at.

Nothing in the table was seen to depend on the machine: numpy 2.1 with scipy 1.14 and numpy 2.4 with
scipy 1.17, with the processor's AVX-512 and without (``NPY_DISABLE_CPU_FEATURES``), give the same
picoseconds and digests. Should a version of a library round otherwise, rows move by about a
picosecond, by less than 1e-9 of their time, and no choice changes: then take the version into use
and refresh. Anything larger is a change of the model.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["TABLE", "Figure", "compute", "moved", "read", "wanted"]

TABLE = Path(__file__).resolve().parent.parent / "tests" / "golden.csv"
COLUMNS = ("command", "picoseconds", "fingerprint")


class Figure(NamedTuple):
    """What a command predicts: a time, and what must be equal besides."""

    picoseconds: int
    """Of the step, or of the communication."""
    fingerprint: str
    """The digest of a run; algorithm, protocol, channels and limit of a communication."""


def read(path: Path = TABLE) -> dict[str, Figure | None]:
    """A table → figures by command; None where a row has only its command."""
    found: dict[str, Figure | None] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = bool(row["picoseconds"])
            found[row["command"]] = (
                Figure(int(row["picoseconds"]), row["fingerprint"]) if known else None
            )
    return found


def write(figures: Mapping[str, Figure], path: Path = TABLE) -> None:
    """Figures by command → the table, whole or not at all."""
    from mpisim.base.csv_files import write_table

    rows = ((command, *figure) for command, figure in figures.items())
    write_table(path, COLUMNS, rows, overwrite=True)


def wanted(table: Iterable[str]) -> list[str]:
    """Commands of a table → those it should have: all packaged experiments, its communications."""
    from mpisim.data import names

    runs = [f"run {name}" for name in names("experiments")]
    return runs + [command for command in table if not command.startswith("run ")]


def compute(command: str) -> Figure:
    """A command without the word ``mpisim`` → what it predicts, in this process."""
    kind, *words = shlex.split(command)
    if kind == "run":
        return _run(words[0])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        return _comm([kind, *words, "--json", str(file)], file)


def _run(name: str) -> Figure:
    from mpi4py import MPI

    from mpisim.experiment import load
    from mpisim.prediction.prepared import prepare
    from mpisim.simulate import simulate

    text, experiment = load(name)
    results = simulate(prepare(experiment), MPI.COMM_SELF, text=text)
    assert results is not None  # there is one process
    return Figure(int(results.step_time_ps), results.digest)


def _comm(words: list[str], file: Path) -> Figure:
    from mpisim.cli import main

    with contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    if code != 0:
        raise RuntimeError(f"mpisim {shlex.join(words)}: exit code {code}")
    (row,) = json.loads(file.read_text())["rows"]
    parts = (row["algorithm"], row["protocol"], row["channels"], "channels, limit:", row["limit"])
    return Figure(round(row["seconds"] * 1e12), " ".join(map(str, parts)))


def moved(command: str, old: Figure | None, new: Figure | None) -> str:
    """A command's figures before and now → one line on what moved, empty if nothing did."""
    if old == new:
        return ""
    if old is None or new is None:
        return f"{command}: {'new' if old is None else 'gone'}"
    if old.picoseconds == new.picoseconds:
        return f"{command}: same time, {old.fingerprint} -> {new.fingerprint}"
    change = new.picoseconds / old.picoseconds - 1
    line = f"{command}: {old.picoseconds / 1e9:,.6f} -> {new.picoseconds / 1e9:,.6f} ms"
    line += f", {100 * change:+.3g} %"
    if not command.startswith("run ") and old.fingerprint != new.fingerprint:
        line += f", {old.fingerprint} -> {new.fingerprint}"
    return line


def main() -> int:
    """Compare, print, write if asked to → 0, or 1 if something moved and was not written."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("words", metavar="WORD", nargs="*", help="only rows with all of these")
    parser.add_argument("--refresh", action="store_true", help="write what is predicted today")
    args = parser.parse_args()
    table = read()
    commands = wanted(table)
    chosen = [command for command in commands if all(word in command for word in args.words)]
    lines = []
    figures = {command: figure for command, figure in table.items() if figure is not None}
    for command in chosen:
        figures[command] = compute(command)
        lines.append(moved(command, table.get(command), figures[command]))
    lines += [moved(gone, table[gone], None) for gone in table if gone not in commands]
    lines = [line for line in lines if line]
    summary = f"{len(chosen)} of {len(commands)} rows compared, {len(lines)} moved"
    print("\n".join([*lines, summary]))
    if args.refresh:
        write({command: figures[command] for command in commands if command in figures})
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
