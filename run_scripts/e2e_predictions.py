#!/usr/bin/env python3
"""Predictions of measured steps → rows that moved since ``tests/e2e_predictions.csv`` was written.

    mpirun -n 2 python -m mpisim validate e2e all.csv --json steps.json
    python run_scripts/e2e_predictions.py steps.json             what moved; exit code 1 if any did
    python run_scripts/e2e_predictions.py steps.json --refresh   then write the file anew

The file has the predicted seconds of each row of trust A to C, by its id; what was measured stays
in the table. ``run_scripts/headline_errors.py`` bounds the errors; here it can be seen which rows
they come from.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from step_files import column_of, compared_cases

from mpisim.base.text import percentage

__all__ = ["TABLE", "moved", "read"]

TABLE = Path(__file__).resolve().parent.parent / "tests" / "e2e_predictions.csv"
ALIKE = 1e-4
"""Relative change that is none."""
SHOWN = 40


def read(path: Path = TABLE) -> dict[str, float]:
    """Table → predicted seconds by row."""
    return {row: float(seconds) for row, seconds in column_of(path, "seconds").items()}


def predicted(path: Path) -> dict[str, float]:
    """File of ``mpisim validate e2e --json`` → predicted seconds by row, trust A to C."""
    cases = compared_cases(path)
    return {case["id"]: case["predicted"] for case in cases if case["trust"] != "F"}


def moved(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """Predictions before and now → a line for each row that moved, came or went; largest first."""
    changes = {
        name: now[name] / before[name] - 1 for name in before.keys() & now.keys() if before[name]
    }
    lines = [
        f"{name}: {percentage(change, 2, signed=True)}, {before[name]:.6g} s before, "
        f"{now[name]:.6g} s now"
        for name, change in sorted(changes.items(), key=lambda each: -abs(each[1]))
        if abs(change) > ALIKE
    ]
    lines += [f"{name}: new, {now[name]:.6g} s" for name in sorted(now.keys() - before.keys())]
    return lines + [f"{name}: no longer predicted" for name in sorted(before.keys() - now.keys())]


def main() -> int:
    """Compare, and write the table where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", type=Path, help="of mpisim validate e2e --json")
    parser.add_argument("--refresh", action="store_true", help="write the table anew")
    args = parser.parse_args()
    before, now = read() if TABLE.exists() else {}, predicted(args.steps)
    lines = moved(before, now)
    print("\n".join(lines[:SHOWN]))
    print(f"{len(lines)} of {len(before | now)} rows moved, came or went")
    if args.refresh:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("id", "seconds"))
            rows.writerows((name, f"{now[name]:.8g}") for name in sorted(now))
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
