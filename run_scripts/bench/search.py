#!/usr/bin/env python3
"""How fast a search is: candidates screened a second, and the whole of it.

    source run_scripts/env.sh
    [mpirun -n 2] .venv/bin/python run_scripts/bench/search.py [--screen] [--nodes N] [--batch N]
        [--held]

GPT-3 175B on 512 GPUs (DGX A100), all that ``vary = "auto"`` combines. With --screen the search
ends before the first simulation. Printed are seconds, of CPU over all processes, too; candidates
and valid ones a second; what became of the candidates, and how many were simulated without slowdown
and in full; and the memory of the largest process after the screening and at the end. With --held
the memory that is held is printed after every 1,000 candidates that were judged, too.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections import Counter
from typing import Any

from mpi4py import MPI

from mpisim.base.machine_memory import resident
from mpisim.cli import UNTIL_COLLECTED, keep_freed_memory
from mpisim.search import answer, explore, read_search
from mpisim.search.answer import answer_lines
from mpisim.search.records import Records, Status

HELD_EVERY = 1_000
"""Candidates judged after which --held prints the memory that is held."""


def _memory() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def counting(name: str, counts: Counter[str]) -> None:
    """Count how often the search calls a function, on this process."""
    module = sys.modules[explore.__module__]
    function = getattr(module, name)

    def counted(*args: Any, **keys: Any) -> Any:
        counts[name] += 1
        return function(*args, **keys)

    setattr(module, name, counted)


def main() -> None:
    """Search and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--screen", action="store_true", help="screen only")
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs (default: 64)")
    parser.add_argument("--batch", type=int, default=512, help="sequences a step (default: 512)")
    parser.add_argument(
        "--held", action="store_true", help="print memory after every 1,000 candidates judged"
    )
    args = parser.parse_args()
    gc.set_threshold(UNTIL_COLLECTED)  # as the command does: objects are many, and few are garbage
    keep_freed_memory()  # likewise
    comm = MPI.COMM_WORLD
    tables = {
        "model": {"preset": "gpt3-175b"},
        "plan": {"global_batch": args.batch},
        "cluster": {"preset": "dgx-a100", "nodes": args.nodes},
        "search": {"vary": "auto"},
    }
    space = read_search(tables, "search.toml")
    began, marks, held = time.perf_counter(), [], [0]

    def note(records: Records) -> None:
        if records.count(Status.UNKNOWN):
            return
        marks.append((time.process_time(), time.perf_counter() - began))
        valid = len(records) - records.count(Status.INVALID)
        if len(marks) == 1:
            cpu, wall = marks[0]
            print(
                f"screened {len(records):,} candidates in {wall:.1f} s, {cpu:.1f} s of CPU here: "
                f"{len(records) / wall:,.0f} a second, {valid / wall:,.0f} valid ones",
                flush=True,
            )
            print(f"{_memory():.0f} MiB", flush=True)
            if args.screen:
                comm.Abort(0) if comm.size > 1 else exit(0)
        judged = int((records.peak > 0).sum())
        if args.held and judged // HELD_EVERY > held[-1]:
            held.append(judged // HELD_EVERY)
            print(f"{resident() / 2**20:,.0f} MiB after {judged:,} were judged", flush=True)

    counts: Counter[str] = Counter()
    for name in ("least_step_time", "step_time"):
        counting(name, counts)
    records = explore(space, comm, show=True, each_round=note)
    found = answer(space, records, comm)
    cpu = comm.reduce(time.process_time())
    least, full = (comm.reduce(counts[name]) for name in ("least_step_time", "step_time"))
    memory = comm.reduce(_memory(), MPI.MAX)
    if comm.rank == 0:
        wall = time.perf_counter() - began
        valid = len(records) - records.count(Status.INVALID)
        judged = int((records.peak > 0).sum())
        print(f"{wall:.0f} s in all, {cpu:.0f} s of CPU on {comm.size} processes: ", end="")
        print(
            f"{valid:,} valid candidates, {valid / wall:.0f} a second; {judged:,} judged by memory"
        )
        print(f"{least:,} simulated without slowdown, {full:,} in full")
        print(f"{len(marks)} rounds; {memory:.0f} MiB in the largest process")
        print("\n".join(answer_lines(space, found)))


if __name__ == "__main__":
    main()
