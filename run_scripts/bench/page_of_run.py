#!/usr/bin/env python3
"""Report pages of runs: rows that they show, size, and CPU time beyond that of the run.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/page_of_run.py [--repeat N] [--only WORDS]

`mpisim run --html` less `mpisim run`, medians. How long pages take to open: `page.py`.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

from commands import gpt, taken

MPISIM = (sys.executable, "-m", "mpisim")
JITTER = ("--set", "variation.kernels=0.02", "--set", "network.contention=false")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Llama-3-8B on 8 GPUs": ("", ()),
    "GPT-3 175B on 8,192 GPUs": (gpt(8_192), ()),
    "2 % jitter": (gpt(8_192), (*JITTER, "--set", "overlap.model=off")),
    "4,096 micro-batches": (gpt(1_024, micro_batches=4_096), ()),
}
"""Text of an experiment, and options."""


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose titles have these words")
    arguments = parser.parse_args()
    print(f"{'run':26}  {'rows':>9}  {'MB':>5}  {'CPU s':>6}  {'beyond the run':>14}")
    for title, (text, options) in CASES.items():
        if arguments.only in title:
            print(_line(title, text, options, arguments.repeat))


def _line(title: str, text: str, options: tuple[str, ...], repeat: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [*MPISIM, "run", *options]
        if text:
            (Path(folder) / "mine.toml").write_text(text)
            command.append("mine.toml")
        page = Path(folder) / "page.html"
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeat):
            for with_page in times:
                more = ["--html", page.name, "--overwrite"] if with_page else []
                times[with_page].append(taken([*command, *more], folder=Path(folder)).cpu)
        written = page.read_text(encoding="utf-8")
    plain, paged = (statistics.median(each) for each in times.values())
    rows = sum(map(int, re.findall(r'"first":\d+,"count":(\d+)', written)))
    size = len(written.encode()) / 1e6
    return f"{title:26}  {rows:9,}  {size:5.2f}  {paged:6.2f}  {paged - plain:14.2f}"


if __name__ == "__main__":
    main()
