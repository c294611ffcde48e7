"""A step of which every figure is known: one slow rank that all others wait for.

Each rank runs, in µs: a kernel "gemm" of 100 (the last rank: 150) from 10 on, the latency of its
launch; a copy of 20 right after it; an all-reduce of 50 of wire on another stream, from the end of
the gemm of the slowest; "adam" of 30 after that; and a last 1 on the CPU::

    time       10      110  130   160     210   240 241
    others      | gemm |copy|             | adam | |
                       | all-reduce: waits |     |
                       |    50    | wire 50|
    last        | gemm            |copy|  | adam | |
                                  |  wire 50|
"""

from __future__ import annotations

from mpisim.program import Kind, Operation, Program, ProgramBuilder

__all__ = ["BREAKDOWN", "LAST", "OTHERS", "STEP", "US", "straggler"]

US = 1_000_000
"""Picoseconds."""
STEP = 241 * US

BREAKDOWN = (
    "compute",
    "copy",
    "communication",
    "exposed",
    "exposed_wire",
    "exposed_waiting",
    "idle",
    "host_busy",
    "host_waiting",
)
# The CPU makes four calls of 2 µs, waits, and works 1 µs more.
OTHERS = (150, 20, 100, 80, 50, 30, 11, 9, 232)
LAST = (200, 20, 50, 30, 30, 0, 11, 9, 232)
"""µs of each class for the last rank, and for every other."""


def straggler(n_ranks: int = 2, steps: int = 1, labels: bool = True) -> Program:
    """Return the program; with several `steps`, one after the other."""
    builder = ProgramBuilder()
    everyone = builder.communicator(range(n_ranks), "data parallel")
    tables = []
    for gemm in (100, 150):
        table = builder.table("slow" if gemm > 100 else "fast")
        for step in range(steps):
            table.tags(step=step if labels else -1)
            first = table.kernel("gemm", 0, gemm * US, launch=10 * US, launch_cost=2 * US)
            table.kernel("HtoD", 0, 20 * US, kind=Kind.COPY, launch_cost=2 * US, bytes=1 << 20)
            met = table.collective(
                Operation.ALL_REDUCE,
                0,
                1,
                4096,
                duration=50 * US,
                waits=[first],
                launch_cost=2 * US,
            )
            last = table.kernel("adam", 0, 30 * US, waits=[met], launch_cost=2 * US)
            table.host_wait([last], tail=1 * US)
        tables.append(builder.add_table(table.build()))
    for rank in range(n_ranks):
        builder.add_rank(tables[rank == n_ranks - 1], [everyone])
    return builder.build({"source": "by hand"})
