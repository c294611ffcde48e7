#!/usr/bin/env python3
"""How fast programs are generated, and how much memory that takes.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/generate.py [NAME …] [--json FILE]

NAMEs are experiments (``mpisim list experiments``); by default some of the largest published runs.
Each is generated in a process of its own: seconds from the experiment to the program, imports
apart, and the most memory the whole process had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = (
    "llama3-8b-8-h100",
    "echo-gpt3-175b-1024-h800",
    "echo-gpt3-175b-8192-h800",
    "deepseek-v3-2048-h800",
    "llama3-405b-16384-h100",
)

ONE = """
import json, resource, sys, time
from mpisim.experiment import load
from mpisim.prediction.prepared import prepare
_, experiment = load(sys.argv[1], ["run.allow_oom=true"])
begin = time.perf_counter()
program = prepare(experiment).program
print(json.dumps({
    "seconds": time.perf_counter() - begin,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "ranks": program.n_ranks,
    "tables": len(program.tables),
    "table_rows": sum(map(len, program.tables)),
    "rank_rows": program.n_rows,
}))
"""


def measured(name: str) -> dict[str, Any]:
    """Generate one experiment in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ONE, name], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    figures = {}
    head = ("s", "MB", "ranks", "tables", "rows of tables", "rows of ranks")
    print(" ".join(f"{text:>14s}" for text in head), " experiment")
    for name in args.names:
        found = figures[name] = measured(name)
        cells = (
            f"{found['seconds']:.3f}",
            f"{found['memory'] / 1e6:.0f}",
            f"{found['ranks']:,}",
            f"{found['tables']:,}",
            f"{found['table_rows']:,}",
            f"{found['rank_rows']:,}",
        )
        print(" ".join(f"{cell:>14s}" for cell in cells), "", name, flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
