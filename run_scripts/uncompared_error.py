#!/usr/bin/env python3
"""Comparisons with measured steps → error bars of what they lack: framework, GPU, model's code.

    mpirun -n 2 python -m mpisim validate e2e all.csv --json out.json
    python -m mpisim validate e2e data/validation/steps.csv --json 1.json
    (and so on for each of `TABLES`)
    python run_scripts/uncompared_error.py out.json 1.json 2.json 3.json 4.json 5.json 6.json 7.json

Writes ``data/calibration/uncompared.toml``: the frameworks, with a division of the work and a
design of GPUs, whose predictions were compared with measured steps for long, with the width of the
narrowest model, and by how much steps of others are farther off than their intervals say; and
the same of steps whose way was compared, but on a library that leaves the model's code to the user,
or not by the recipe for performance that the framework has. That is found on the rows of `TABLES`,
but for the half of the newest that is held back: it is the check; if any of these rows is absent
from the files given, nothing is written. Intervals are to hold nine tenths of the rows and, since
those of one publisher are off together, nine tenths also when each publisher counts the same
(`sufficient_error`).

An error that the file has is not made smaller: the larger of it and the one found is written, and
beside it what was found. As long as intervals hold less than they say, new rows do not make them
narrower. Without the file, errors are those found.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from step_files import column_of, compared_cases

from mpisim.kernels.gpu import find_gpu
from mpisim.prediction.step_constants import parse_constant_name
from mpisim.prediction.uncertainty import LEFT_OPEN, UNCOMPARED, design_name, is_part
from mpisim.validate.e2e.interval_errors import (
    counted_by,
    not_narrower,
    publisher,
    sufficient_error,
)

__all__ = ["FILE", "main", "missing_error"]

DATA = Path(__file__).resolve().parent.parent / "data"

FILE = DATA / "calibration" / "uncompared.toml"

TABLES = (
    "steps.csv",
    "more_steps.csv",
    "third_steps.csv",
    "fourth_steps.csv",
    "fifth_steps.csv",
    "sixth_steps.csv",
    "seventh_steps.csv",
)
"""Steps that had not been compared, in halves."""

HEAD = """\
# What transformers add to their error bar (one standard deviation, relative) with a framework, a
# division of the work and a design of GPUs of which together predictions were not compared with
# measured steps. Those that were (at least {least} rows of trust A, B): library, design, division
# (any part of it counts, too), width of the narrowest model (0: any), those of mixtures of experts
# apart. Which libraries frameworks run. Which leave the model's code open, and what that adds, and
# a recipe for performance that a framework has and the experiment does not name.
# Written by: run_scripts/uncompared_error.py.

"""

MIN_COMPARED = 10
"""Rows from which a framework, with a division and a design of GPUs, counts as compared."""

MIN_OTHERS = 15
"""Rows from which an error can be found."""

LIBRARY = {
    "composer": "fsdp",
    "torchtitan": "fsdp",
    "megatron-bridge": "megatron-core",
    "nemo": "megatron-core",
}
"""Frameworks → the library that they run; what runs one library counts as one."""

OPEN = ("ddp", "deepspeed", "fsdp")
"""Frameworks that run a model of the user's own: which kernels it has, their names do not say."""

DENSE, EXPERTS = "dense transformer", "mixture of experts"

Way = tuple[str, str, str, int]
"""Library, design of GPUs, along which axes the work is divided, and the width of the model."""


def framework_of(case: dict[str, Any]) -> str | None:
    """Case of a comparison → the name that its framework's launches go by; None if it has none."""
    names = (parse_constant_name(name) for name in case["outcome"]["lengths"])
    found = [key for kind, key in filter(None, names) if kind == "host"]
    return None if found in ([], ["any framework"]) else found[0]


def way_of(case: dict[str, Any]) -> Way:
    """Case of a comparison → its library ("" if no framework is named), GPU, division, width."""
    framework = framework_of(case) or ""
    library = LIBRARY.get(framework, framework)
    # Products of experts are small in any model: its width says little.
    width = 0 if case["kind"] == EXPERTS else case["hidden"]
    return library, design_of(case), case["parallelism"], width


def often(ways: Iterable[Way]) -> list[Way]:
    """Ways of rows → those of at least `MIN_COMPARED` rows with the least width, sorted.

    Rows that name no framework are left out, and those whose steps no launch of theirs makes longer
    (CUDA graphs of whole iterations): their ways are those of other rows.
    """
    widths: dict[tuple[str, str, str], list[int]] = {}
    for library, design, division, width in ways:
        if library:
            widths.setdefault((library, design, division), []).append(width)
    return sorted((*kind, min(all_)) for kind, all_ in widths.items() if len(all_) >= MIN_COMPARED)


def covered(way: Way, ways: Iterable[Way]) -> bool:
    """Way → whether one of `ways` has all its axes, and a model at most twice as wide."""
    return any(
        way[:2] == each[:2] and is_part(way[2], each[2]) and each[3] <= 2 * way[3] for each in ways
    )


def unlike(case: dict[str, Any], ways: list[Way]) -> bool:
    """Case, compared ways → whether it is none of them, by itself or by what it was predicted as.

    Of rows that name no framework the design of GPUs decides.
    """
    return (
        design_of(case) not in {design for _, design, *_ in ways}
        or (framework_of(case) is not None and not covered(way_of(case), ways))
        or UNCOMPARED in case["outcome"]["effects"]
    )


def leaves_open(case: dict[str, Any]) -> bool:
    """Case → whether the name of its framework leaves the model's code or the recipe open."""
    return framework_of(case) in OPEN or LEFT_OPEN in case["outcome"]["effects"]


def judged(cases: Iterable[dict[str, Any]], counted: set[str], kind: str) -> list[dict[str, Any]]:
    """Cases of `TABLES`, ids that count → those of a kind of model, without suspect ones."""
    return [
        case
        for case in cases
        if case["id"] in counted and case["kind"] == kind and not case["suspect"]
    ]


def missing_error(used: list[dict[str, Any]], publishers: Mapping[str, str]) -> float:
    """Cases, who printed each → least error with which 90 % intervals hold 90 % of them.

    Raises
    ------
    ValueError
        If there are too few.
    """
    names = [publishers[case["id"]] for case in used]
    if len(used) < MIN_OTHERS:
        raise ValueError(f"{len(used)} rows; at least {MIN_OTHERS} are needed")
    logs = [math.log(case["predicted"] / case["measured"]) for case in used]
    return sufficient_error(logs, [_stated_without(case) for case in used], names)


def design_of(case: dict[str, Any]) -> str:
    """Case of a comparison → the design of its GPU."""
    return design_name(find_gpu(case["gpu"]))


def _stated_without(case: dict[str, Any]) -> float:
    """Return the stated error of a case without what this file may have added to it."""
    effects = case["outcome"]["effects"]
    added = math.hypot(*(effects.get(name, 0.0) for name in (UNCOMPARED, LEFT_OPEN)))
    return math.sqrt(max(0.0, float(case["stated_error"]) ** 2 - added**2))


def _entry(key: str, error: float, source: str) -> str:
    """Return the line of an error."""
    return f'{key} = {{ value = 1, unit = "1", error = {error:.3f}, source = "{source}" }}\n'


def _source(used: list[dict[str, Any]], publishers: Mapping[str, str], what: str) -> str:
    """Return what the error that is found on the cases rests on."""
    names = f"{', '.join(TABLES[:-1])} and {TABLES[-1]}"
    logs = [math.log(case["measured"] / case["predicted"]) for case in used]
    longer = math.exp(math.fsum(logs) / len(logs))
    by = counted_by([publishers[case["id"]] for case in used])
    return (
        f"with it 90 % intervals hold 90 % of {len(used)} steps{by}{',' if by else ''} "
        f"of data/validation/{names}, but for the half of the last that is held back: {what}; in "
        f"the geometric mean these took {longer:.2f} times as long as predicted"
    )


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("compared", type=Path)
    parser.add_argument("steps", type=Path, nargs="+")
    args = parser.parse_args()
    rows = {
        row
        for name in TABLES
        for row, half in column_of(DATA / "validation" / name, "half").items()
        if name != TABLES[-1] or half == "causes"
    }
    publishers = {
        row: publisher(source)
        for name in TABLES
        for row, source in column_of(DATA / "validation" / name, "source").items()
    }
    large = compared_cases(args.compared)
    others = [case for path in args.steps for case in compared_cases(path)]
    absent = sorted(rows - {case["id"] for case in others})
    if absent:
        print(
            f"uncompared_error.py: {len(absent)} rows that count are not in the files of steps, as "
            f"{absent[0]}; give the comparisons of {', '.join(TABLES)}",
            file=sys.stderr,
        )
        return 2
    counted = [case for case in large if case["trust"] in ("A", "B")]
    ways = often(way_of(case) for case in counted if case["kind"] == DENSE)
    expert_ways = often(way_of(case) for case in counted if case["kind"] == EXPERTS)
    dense, experts = judged(others, rows, DENSE), judged(others, rows, EXPERTS)
    new = [case for case in dense if unlike(case, ways)]
    new_experts = [case for case in experts if unlike(case, expert_ways)]
    own = [case for case in dense if not unlike(case, ways) and leaves_open(case)]
    before = tomllib.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    found = {
        key: not_narrower(
            missing_error(used, publishers), _source(used, publishers, what), before.get(key)
        )
        for key, used, what in (
            ("dense", new, "dense transformers in ways not listed"),
            ("experts", new_experts, "mixtures of experts in ways not listed"),
            (
                "left_open",
                own,
                "dense transformers in ways that are listed, on open libraries or without the "
                "recipe",
            ),
        )
    }
    libraries = ", ".join(f"{name} = {json.dumps(of)}" for name, of in LIBRARY.items())
    lines = [
        "ways = [\n",
        *(f"  {json.dumps(way)},\n" for way in ways),
        "]\n\nexpert_ways = [\n",
        *(f"  {json.dumps(way)},\n" for way in expert_ways),
        f"]\n\nlibraries = {{ {libraries} }}\n\nopen = {json.dumps(OPEN)}\n\n",
        *(_entry(key, *each) for key, each in found.items()),
    ]
    FILE.write_text(HEAD.format(least=MIN_COMPARED) + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
