#!/usr/bin/env python3
"""Measured kernels, collectives, steps, traces, memory → headline errors, none above its threshold.

    python run_scripts/headline_errors.py             compare; exit code 1 if one rose
    python run_scripts/headline_errors.py --refresh   then write today's values into the thresholds
    python run_scripts/headline_errors.py e2e traces  only these groups

``tests/thresholds.toml`` says what is computed by which commands and how far it may move. Measured
data is looked for where ``MPISIM_SHARED`` points, or in ``shared`` beside the repository. Without
it nothing is compared: where ``CI`` is set that is a failure, elsewhere it is said.

All of it takes about 4 minutes on two cores. Commands of a group run one after another in a folder
of their own, those of a list among them side by side; groups side by side, the steps (two
processes) after the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Measure", "compared", "figure", "measures", "refreshed"]

REPOSITORY = Path(__file__).resolve().parent.parent
THRESHOLDS = REPOSITORY / "tests" / "thresholds.toml"
BOUNDS = {"at_most": 1.0, "at_least": -1.0}
"""Keys that bound a value, and the side on which it gets worse."""


class Measure(NamedTuple):
    """A figure that must not get worse."""

    name: str
    group: str
    what: str
    figure: tuple[str, ...]
    """A file of the group, and the keys of the figure in it."""
    value: float
    """When the thresholds were last written."""
    bound: str
    """``at_most`` or ``at_least``."""
    allowed: float

    def worse(self, now: float) -> bool:
        """Whether a value is beyond what is allowed; what is no number is."""
        side = BOUNDS[self.bound]
        return not side * now <= side * self.allowed


def read(path: Path = THRESHOLDS) -> tuple[dict[str, list[list[str]]], list[Measure]]:
    """A file of thresholds → commands by group, those of a list side by side, and the measures."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    commands = {
        name: [[each] if isinstance(each, str) else list(each) for each in group["commands"]]
        for name, group in table["groups"].items()
    }
    return commands, measures(table["measures"])


def measures(table: Mapping[str, Mapping[str, Any]]) -> list[Measure]:
    """The table ``[measures]`` → measures; each has one bound."""
    found = []
    for name, row in table.items():
        (bound,) = set(row) & set(BOUNDS)
        keys = (row["group"], row["what"], tuple(row["figure"]), row["value"], bound, row[bound])
        found.append(Measure(name, *keys))
    return found


def figure(keys: Sequence[str], folder: Path) -> float:
    """A file and the keys in it → the number there."""
    data = json.loads((folder / keys[0]).read_text(encoding="utf-8"))
    return float(reduce(lambda table, key: table[key], keys[1:], data))


def compared(measure: Measure, now: float) -> str:
    """A measure and its value now → one line of the report."""
    verdict = "ok"
    if measure.worse(now):
        verdict = "WORSE"
    elif BOUNDS[measure.bound] * (now - measure.value) < 0 and not _same(now, measure.value):
        verdict = "better"
    bound = "<=" if measure.bound == "at_most" else ">="
    return (
        f"{verdict:<7} {measure.name:<34} {now:<10.4g} was {measure.value:<10.4g} "
        f"{bound} {measure.allowed:<10.4g} {measure.what}"
    )


def _same(one: float, other: float) -> bool:
    """Whether two values are equal as they are written."""
    return f"{one:.6g}" == f"{other:.6g}"


def refreshed(text: str, now: Mapping[str, float], slack: float) -> str:
    """The text of the thresholds → the same with today's values and bounds.

    An error may rise by the part `slack` of it, and by 0.0002; a count may not move.
    """
    parts = re.split(r"(?m)^(?=\[)", text)
    for index, part in enumerate(parts):
        head = re.match(r"\[measures\.([\w-]+)\]", part)
        if head is None or head[1] not in now:
            continue
        value = now[head[1]]
        part = re.sub(r"(?m)^value = .*$", f"value = {value:.6g}", part)
        off = 0.0 if value >= 1 else value * slack + 2e-4
        for bound, side in BOUNDS.items():
            part = re.sub(rf"(?m)^{bound} = .*$", f"{bound} = {value + side * off:.6g}", part)
        parts[index] = part
    return "".join(parts)


def run(commands: Sequence[Sequence[str]], folder: Path, shared: Path) -> None:
    """Commands of a group, lists side by side → their files in `folder`; a failure ends it.

    Raises
    ------
    RuntimeError
    """
    settings = os.environ | {
        "SHARED": str(shared),
        "TESTS": str(REPOSITORY / "tests"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }

    def one(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", f'source "{REPOSITORY}/run_scripts/env.sh" && {command}'],
            cwd=folder,
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr[-2000:]}")

    with ThreadPoolExecutor() as pool:
        for beside in commands:
            list(pool.map(one, beside))


def main() -> int:
    """Compute, compare, print, write if asked to → 0, or 1 if a figure is worse than allowed."""
    commands, wanted = read()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", metavar="GROUP", nargs="*", help=", ".join(commands))
    parser.add_argument("--refresh", action="store_true", help="write today's values and bounds")
    args = parser.parse_args()
    unknown = [name for name in args.groups if name not in commands]
    if unknown:
        parser.error(f"there is no group {unknown[0]!r}; there are {', '.join(commands)}")
    shared = Path(os.environ.get("MPISIM_SHARED") or REPOSITORY.parent / "shared").resolve()
    if not (shared / "groundtruth").is_dir():
        print(f"headline errors not compared: no ground truth at {shared}; set MPISIM_SHARED")
        return 1 if os.environ.get("CI") else 0
    chosen = args.groups or list(commands)
    last = [
        name
        for name in chosen
        if any("mpirun" in line for beside in commands[name] for line in beside)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in chosen:
            (folder / each).mkdir()
        with ThreadPoolExecutor(2) as pool:
            first = [each for each in chosen if each not in last]
            list(pool.map(lambda each: run(commands[each], folder / each, shared), first))
        for each in last:
            run(commands[each], folder / each, shared)
        now = {
            each.name: figure(each.figure, folder / each.group)
            for each in wanted
            if each.group in chosen
        }
    worse = 0
    for each in wanted:
        if each.name in now:
            worse += each.worse(now[each.name])
            print(compared(each, now[each.name]))
    print(f"{len(now)} of {len(wanted)} headline figures compared, {worse} worse than allowed")
    if args.refresh:
        slack = tomllib.loads(THRESHOLDS.read_text(encoding="utf-8"))["slack"]
        THRESHOLDS.write_text(refreshed(THRESHOLDS.read_text(encoding="utf-8"), now, slack))
        return 0
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
