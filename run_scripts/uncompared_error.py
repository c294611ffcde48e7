#!/usr/bin/env python3
"""Comparisons with measured steps → what a framework or GPU that they lack adds as an error bar.

    mpirun -n 2 python -m mpisim validate e2e all.csv --json out.json
    mpirun -n 2 python -m mpisim validate e2e data/validation/steps.csv --json steps.json
    mpirun -n 2 python -m mpisim validate e2e data/validation/more_steps.csv --json more.json
    python run_scripts/uncompared_error.py out.json steps.json more.json

Writes ``data/calibration/uncompared.toml``: the frameworks, with a division of the work and a
design of GPUs, whose predictions were compared with measured steps for long, and by how much steps
of others are farther off than their intervals say. That is found on the halves of `TABLES` that
serve to find causes, so that the intervals of the other halves are a check.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scipy.optimize import brentq
from step_files import column_of, compared_cases

from mpisim.kernels.gpu import find_gpu
from mpisim.prediction.step_constants import parse_constant_name
from mpisim.prediction.uncertainty import UNCOMPARED, design_name, is_part

__all__ = ["FILE", "main", "missing_error"]

DATA = Path(__file__).resolve().parent.parent / "data"

FILE = DATA / "calibration" / "uncompared.toml"

TABLES = ("steps.csv", "more_steps.csv")
"""Steps that had not been compared, in halves."""

HEAD = """\
# What dense transformers add to their error bar (one standard deviation, relative) with a
# framework, a division of the work and a design of GPUs of which together predictions were not
# compared with measured steps; those that were (at least {least} rows of trust A and B): library,
# design, division (any part of it counts, too); and the libraries that frameworks run. Written by:
# run_scripts/uncompared_error.py.

"""

MIN_COMPARED = 10
"""Rows from which a framework, with a division and a design of GPUs, counts as compared."""

MIN_OTHERS = 15
"""Rows of others from which an error can be found."""

LIBRARY = {
    "composer": "fsdp",
    "torchtitan": "fsdp",
    "megatron-bridge": "megatron-core",
    "nemo": "megatron-core",
}
"""Frameworks → the library that they run; what runs one library counts as one."""

DENSE = "dense transformer"

Way = tuple[str, str, str]
"""Library, design of GPUs, and along which axes the work is divided."""


def framework_of(case: dict[str, Any]) -> str | None:
    """Case of a comparison → the name that its framework's launches go by; None if it has none."""
    names = (parse_constant_name(name) for name in case["outcome"]["lengths"])
    found = [key for kind, key in filter(None, names) if kind == "host"]
    return None if found in ([], ["any framework"]) else found[0]


def way_of(case: dict[str, Any]) -> Way:
    """Case of a comparison → its library ("" if no framework is named), GPU and division."""
    framework = framework_of(case) or ""
    return LIBRARY.get(framework, framework), design_of(case), case["parallelism"]


def often(ways: Iterable[Way]) -> list[Way]:
    """Ways of rows → those of at least `MIN_COMPARED` rows, in alphabetical order."""
    return sorted(way for way, n in Counter(ways).items() if n >= MIN_COMPARED)


def covered(way: Way, ways: Iterable[Way]) -> bool:
    """Way → whether it is one of `ways`, or divides the work along some axes of one of them."""
    return any(way[:2] == each[:2] and is_part(way[2], each[2]) for each in ways)


def missing_error(
    cases: list[dict[str, Any]], causes: set[str], ways: list[Way]
) -> tuple[float, int]:
    """Cases of `TABLES` → error with which they are as far off as they say; how many.

    Residuals over their error bars then have the mean square 1. Of so few rows the share in their
    intervals would say less.

    Parameters
    ----------
    cases : list of dict
    causes : set of str
        Rows of the half that serves to find causes.
    ways : list of tuple
        Those that were compared; their rows, and those of parts of them, do not count, unless
        predictions say that the version of the framework was not. Of rows that name no framework
        the design of GPUs decides.

    Raises
    ------
    ValueError
        If too few rows are left.
    """
    designs = {design for _, design, _ in ways}
    used = [
        case
        for case in cases
        if case["id"] in causes and case["kind"] == DENSE and not case["suspect"]
        if design_of(case) not in designs
        or (framework_of(case) and not covered(way_of(case), ways))
        or UNCOMPARED in case["outcome"]["effects"]
    ]
    if len(used) < MIN_OTHERS:
        raise ValueError(f"{len(used)} rows of others; at least {MIN_OTHERS} are needed")
    logs = [math.log(case["predicted"] / case["measured"]) for case in used]
    stated = [_stated_without(case) for case in used]

    def excess(error: float) -> float:
        """Return the mean square of residuals over their error bars, less 1."""
        squares = [r * r / (s * s + error * error) for r, s in zip(logs, stated, strict=True)]
        return math.fsum(squares) / len(used) - 1

    return (0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, 10.0)), len(used)


def design_of(case: dict[str, Any]) -> str:
    """Case of a comparison → the design of its GPU."""
    return design_name(find_gpu(case["gpu"]))


def _stated_without(case: dict[str, Any]) -> float:
    """Return the stated error of a case without what this file may have added to it."""
    added = float(case["outcome"]["effects"].get(UNCOMPARED, 0.0))
    return math.sqrt(max(0.0, float(case["stated_error"]) ** 2 - added**2))


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("compared", type=Path)
    parser.add_argument("steps", type=Path, nargs="+")
    args = parser.parse_args()
    causes = {
        row
        for name in TABLES
        for row, half in column_of(DATA / "validation" / name, "half").items()
        if half == "causes"
    }
    large = compared_cases(args.compared)
    others = [case for path in args.steps for case in compared_cases(path)]
    counted = [case for case in large if case["trust"] in ("A", "B") and case["kind"] == DENSE]
    ways = often(map(way_of, counted))
    error, n = missing_error(others, causes, ways)
    libraries = ", ".join(f"{name} = {json.dumps(of)}" for name, of in LIBRARY.items())
    lines = [
        "ways = [\n",
        *(f"  {json.dumps(way)},\n" for way in ways),
        f"]\n\nlibraries = {{ {libraries} }}\n\n",
        f'dense = {{ value = 1, unit = "1", error = {error:.3f}, source = "with it residuals '
        f"of {n} steps of data/validation/{' and '.join(TABLES)}, halves for causes, ways not "
        'listed, are as large as their error bars" }\n',
    ]
    FILE.write_text(HEAD.format(least=MIN_COMPARED) + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
