"""Run under ``mpirun -n 8``: print the digest of a trace replayed on 1, 2, 3, 4 and 8 processes.

Each process reads the files of its own ranks. Where ranks are shuffled, they lie on any process.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from mpi4py import MPI

from mpisim.engine import block_placement, simulate
from mpisim.traces import find_sources, read_program


def main() -> None:
    """Print one line a run: processes, placement, digest, step time in ps."""
    world = MPI.COMM_WORLD
    sources = find_sources([sys.argv[1]])
    for size, shuffled in (
        (1, False),
        (2, False),
        (3, False),
        (3, True),
        (4, False),
        (8, False),
        (8, True),
    ):
        part = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
        if part == MPI.COMM_NULL:
            continue
        placement = block_placement(len(sources), size)
        if shuffled:
            draw = random.Random(size)
            placement = np.array([draw.randrange(size) for _ in sources], np.int32)
        traces = read_program(sources, part, placement)
        run = simulate(traces.program, part, placement=placement)
        if part.rank == 0:
            kind = "shuffled" if shuffled else "blocks"
            print(size, kind, run.digest, run.step_time, flush=True)
        part.Free()


if __name__ == "__main__":
    main()
