#!/usr/bin/env python3
"""How fast: the compiled core, the start of eight processes, reading traces.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/replay.py [TRACE.json.gz …] [--json FILE]

Each figure is the median of several runs. Traces named on the command line are read; the largest
is also repeated until it holds 100 MB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from mpisim.engine import simulate
from mpisim.experiment import load
from mpisim.prediction.prepared import prepare
from mpisim.traces.read import read_rank
from mpisim.traces.sources import find_sources


def median_of(runs: int, run: Callable[[], float]) -> float:
    """Median of what several runs return."""
    return statistics.median(run() for _ in range(runs))


def core_figures(layers: int, micro_batches: int) -> dict[str, float]:
    """Nanoseconds a row of the simulate phase, on a step of Llama-3-8B's layers on 8 ranks."""
    _, experiment = load(
        changes=[
            f"model.layers={layers}",
            f"plan.global_batch={2 * micro_batches}",
            "plan.tp=4",
            "plan.dp=2",
            "plan.zero=1",
            "run.allow_oom=true",
        ]
    )
    case = prepare(experiment)
    rows = case.program.n_rows

    def timed() -> float:
        return simulate(case.program, network=case.network).wall["simulate"]

    return {"rows": rows, "ns a row": 1e9 * median_of(7, timed) / rows}


def start_figures(runs: int) -> dict[str, float]:
    """Seconds of whole runs of the default experiment, launcher and interpreters included."""

    def whole(command: list[str]) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begin

        return run

    def launched(processes: int, *rest: str) -> list[str]:
        return ["mpirun", "-n", str(processes), sys.executable, *rest]

    bare = "from mpi4py import MPI; import numpy, h5py"
    return {
        "s, mpirun -n 8, imports alone": median_of(runs, whole(launched(8, "-c", bare))),
        "s, mpirun -n 8 python -m mpisim": median_of(runs, whole(launched(8, "-m", "mpisim"))),
        "s, mpirun -n 2 python -m mpisim": median_of(runs, whole(launched(2, "-m", "mpisim"))),
        "s, python -m mpisim": median_of(runs, whole([sys.executable, "-m", "mpisim"])),
    }


def repeated(path: Path, folder: Path, size: int) -> Path:
    """Write a trace that holds another's events again and again, one after the other in time."""
    data = orjson.loads(gzip.decompress(path.read_bytes()))
    events = [e for e in data["traceEvents"] if isinstance(e.get("ts"), (int, float))]
    first = min(e["ts"] for e in events)
    length = max(e["ts"] + (e.get("dur") or 0) for e in events) - first + 1000
    once = len(orjson.dumps(data["traceEvents"]))
    largest = max(
        (e["args"]["correlation"] for e in events if "correlation" in e.get("args", {})), default=0
    )
    copies = []
    for nth in range(-(-size // once)):
        for event in events:
            moved = {**event, "ts": event["ts"] + nth * length}
            if "correlation" in event.get("args", {}):
                number = event["args"]["correlation"] + nth * (largest + 1)
                moved["args"] = {**event["args"], "correlation": number}
            copies.append(moved)
    target = folder / "repeated.json"
    target.write_bytes(orjson.dumps({**data, "traceEvents": copies}))
    return target


def reading_figures(paths: list[Path]) -> dict[str, float]:
    """MB of JSON a second, from the file to waits, latencies and communications of its rank."""
    figures: dict[str, float] = {}

    def seconds(path: Path) -> float:
        (source,) = find_sources([path])
        begin = time.perf_counter()
        rank = read_rank(source)
        figures["MB"] = rank.trace.size / 1e6
        return time.perf_counter() - begin

    largest = max(paths, key=lambda p: len(gzip.decompress(p.read_bytes())))
    for path in paths:
        taken = median_of(3, lambda path=path: seconds(path))  # type: ignore[misc]
        figures[f"MB/s, {path.parent.name}/{path.name}"] = figures["MB"] / taken
    with tempfile.TemporaryDirectory() as folder:
        long = repeated(largest, Path(folder), 100_000_000)
        taken = median_of(3, lambda: seconds(long))
        figures[f"s, {figures['MB']:.0f} MB"] = taken
    del figures["MB"]
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path, help="Kineto traces to read")
    parser.add_argument(
        "--layers", type=int, nargs="*", default=[16, 96], help="layers of the GPT (16 and 96)"
    )
    parser.add_argument("--micro-batches", type=int, default=32, help="micro-batches (32)")
    parser.add_argument("--runs", type=int, default=5, help="runs of the start-up figures (5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    figures = {
        f"core, GPT step of {layers} layers": core_figures(layers, args.micro_batches)
        for layers in args.layers
    }
    figures["start"] = start_figures(args.runs)
    if args.traces:
        figures["reading"] = reading_figures(args.traces)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}; load {os.getloadavg()[0]:.1f}"
    )
    for title, group in figures.items():
        print(title)
        for name, value in group.items():
            print(f"  {value:14,.2f}  {name}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
