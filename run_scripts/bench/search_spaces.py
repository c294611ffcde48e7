#!/usr/bin/env python3
"""Random search spaces, searched and enumerated: how often does a search lose the best?

    source run_scripts/env.sh
    [mpirun -n 2] .venv/bin/python run_scripts/bench/search_spaces.py [--spaces N] [--first SEED]

Each space is drawn by its number (`random_spaces.py` has what is drawn: models, clusters,
frameworks, keys of plans, objectives, limits, jobs, prices, slow GPUs). It is searched with rounds
of two to eight candidates, and each of its candidates is simulated as `mpisim run` does it. Lost is
an answer whose best, front, or best of each value is worse than that of all candidates by more than
the error of the step times that searches use (0.2 %); wrong are a bound above a step, a step, a
verdict on memory or validity that is not so, and a candidate shown that breaks a limit.

Printed are each space with a loss, and how many spaces, candidates, simulations and losses there
are; what the spaces consist of with --kinds. Exits with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from random import Random

import numpy as np
from mpi4py import MPI
from random_spaces import brute_force, losses, random_space, searched

from mpisim.search.records import Status


def main() -> int:
    """Search and enumerate the spaces, and print what was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spaces", type=int, default=300, metavar="N", help="default: 300")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first space")
    parser.add_argument("--kinds", action="store_true", help="print what the spaces consist of")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    began = time.process_time()
    for seed in range(args.first + comm.rank, args.first + args.spaces, comm.size):
        space = random_space(Random(seed))
        truth, found = brute_force(space), searched(space, (2, 4, 8)[seed % 3])
        lost = losses(space, truth, found)
        for line in lost:
            print(f"space {seed}: {line}", flush=True)
        counts += Counter(
            spaces=1,
            candidates=len(space),
            valid=int((truth.step > 0).sum()),
            allowed=len(truth.allowed),
            lost=bool(lost),
        )
        if found is not None:
            status = found[0].status
            counts += Counter(
                empty=not found[1].best,
                closely=int((found[0].step > 0).sum()),
                unseen=int(np.count_nonzero(status == Status.BOUNDED)),
            )
        kinds += Counter([space.tables["model"]["preset"], *space.keys, *space.choice.objectives])
        kinds += Counter(
            [f"[{name}]" for name in space.tables if name not in ("model", "plan", "cluster")]
        )
    cpu = comm.reduce(time.process_time() - began)
    all_counts, all_kinds = comm.reduce(counts), comm.reduce(kinds)
    lost_any = comm.bcast(all_counts["lost"] if comm.rank == 0 else 0)
    if comm.rank == 0:
        print(
            "{spaces:,} spaces ({empty:,} in which no candidate is valid, fits and keeps the "
            "limits), {candidates:,} candidates".format_map(all_counts)
        )
        print(
            "{valid:,} of them valid, {allowed:,} fit and keep the limits; searches simulated "
            "{closely:,} in full, and left out {unseen:,} by a bound".format_map(all_counts)
        )
        print(f"{lost_any:,} spaces with losses; {cpu:,.0f} s of CPU on {comm.size} processes")
        if args.kinds:
            for name, number in sorted(all_kinds.items(), key=lambda each: (-each[1], each[0])):
                print(f"{number:5}  {name}")
    return int(lost_any > 0)


if __name__ == "__main__":
    sys.exit(main())
