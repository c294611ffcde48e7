"""A program is simulated, written as Kineto traces, read back and replayed: nothing is lost.

The new style is exact: in programs with times of whole ns every end of every rank comes back to the
picosecond, as recorded and when both sides are changed alike. Otherwise times are rounded to the
file's resolution (ns, or µs in the old style) once a row, and errors add up along a path.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import US, recordable_programs, replayed

from mpisim.cli.launch import launched_size
from mpisim.engine import simulate
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.replay.what_if import WhatIf, apply_what_if

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.two_processes]

ALONE = launched_size() == 1
"""Several processes are to show that they agree; the examples are for one."""

CHANGES = (
    WhatIf(),
    WhatIf(compute=2.0),
    WhatIf(comm=3.0),
    WhatIf(host=1.5),
    WhatIf(delay={1: 0.002}),
    WhatIf(compute=0.5, kernels=[("kernel [01]", 3.0)], delay={0: 0.0005}),
)


def changed_ends(program: Program, what: WhatIf, comm: Intracomm) -> np.ndarray:
    """When each rank ends if the program itself is changed, in ps."""
    ranks = list(range(program.n_ranks))
    return simulate(apply_what_if(program, what, ranks), comm).rank_end


@given(program=recordable_programs(), seed=st.integers(0, 1000), hosts=st.booleans())
@settings(max_examples=60 if ALONE else 12)
def test_new_style_is_exact(world: Intracomm, program: Program, seed: int, hosts: bool) -> None:
    rng = random.Random(seed)
    # Clocks of one host agree to 100 µs, those of two to some ms.
    offset = {
        rank: rng.randint(-100_000, 100_000) * 1_000 + 3_000 * US * (hosts and rank % 2)
        for rank in range(program.n_ranks)
    }
    job, runs = replayed(program, world, *CHANGES, clock_offset=offset)
    assert job.counts["kernels without a partner"] == 0
    assert job.late == (0, 0.0)
    for what, found in zip(CHANGES, runs, strict=True):
        expected = changed_ends(program, what, world)
        np.testing.assert_array_equal(found.run.rank_end, expected, err_msg=str(what.describe()))
    for step in runs[0].steps:
        assert step.replayed == step.measured


@given(program=recordable_programs(max_events=20))
@settings(max_examples=15 if ALONE else 5)
def test_rounding_to_ns_is_all_that_is_lost(world: Intracomm, program: Program) -> None:
    uneven = apply_what_if(
        program, WhatIf(compute=0.9371, comm=1.0713, host=1.0917), range(program.n_ranks)
    )
    _, runs = replayed(uneven, world, WhatIf(), WhatIf(compute=2.0))
    # Each of a call's and an operation's begin and end is rounded down by less than 1 ns; a path
    # goes through each row of each rank once at most.
    rows = sum(len(program.table_of(rank)) for rank in range(program.n_ranks))
    for what, found in zip((WhatIf(), WhatIf(compute=2.0)), runs, strict=True):
        expected = changed_ends(uneven, what, world)
        np.testing.assert_allclose(found.run.rank_end, expected, rtol=0, atol=rows * 4_000)


# --- the old style, on patterns of real training jobs -------------------------------------------

SYNC: dict[str, Any] = {"host": 20 * US, "tail": 10 * US}
WHOLE_US = [
    WhatIf(),
    WhatIf(compute=2.0),
    WhatIf(compute=0.5),
    WhatIf(comm=3.0),
    WhatIf(host=1.5),
    WhatIf(delay={1: 0.002}),
]


def call() -> dict[str, Any]:
    """Columns of a launch in a trace of PyTorch: 60 µs of CPU time, 7 µs until it starts."""
    return {"host": 60 * US, "launch": 7 * US, "launch_cost": 5 * US, "gap": US}


def tensor_parallel(n_ranks: int = 4, layers: int = 6) -> Program:
    """Every layer ends with an all-reduce that the next layer waits for; ranks drift apart."""
    builder = ProgramBuilder()
    pair = [builder.communicator([r, r + 1]) for r in range(0, n_ranks, 2)]
    everyone = builder.communicator(range(n_ranks))
    for rank in range(n_ranks):
        rows = builder.table()
        rows.tags(step=0)
        done: list[int] = []
        for layer in range(layers):
            rows.kernel("gemm", 0, (400 + 50 * rank) * US, waits=done, **call())
            last = rows.kernel("gelu", 0, (90 + 10 * layer) * US, **call())
            reduced = rows.collective(
                Operation.ALL_REDUCE, 0, 1, 4096 * 1024, duration=130 * US, waits=[last], **call()
            )
            done = [reduced]
        last = rows.kernel("loss", 0, 40 * US, waits=done, **call())
        for _ in range(4):
            total = rows.collective(
                Operation.ALL_REDUCE, 1, 2, 4096, duration=30 * US, waits=[last], **call()
            )
            last = rows.kernel("clip", 0, 15 * US, waits=[total], **call())
        rows.host_wait([last], **SYNC)
        table = builder.add_table(rows.build())
        builder.add_rank(table, [pair[rank // 2], everyone], start=rank * 40 * US)
    return builder.build()


def data_parallel(n_ranks: int = 3, buckets: int = 6) -> Program:
    """Buckets of gradients are reduced behind the backward pass; the optimizer waits for all."""
    builder = ProgramBuilder()
    everyone = builder.communicator(range(n_ranks))
    for rank in range(n_ranks):
        rows = builder.table()
        rows.tags(step=0)
        rows.kernel("forward", 0, 900 * US, **call())
        reduced: list[int] = []
        for bucket in range(buckets):
            last = rows.kernel("backward", 0, (300 + 40 * rank + 10 * bucket) * US, **call())
            reduced.append(
                rows.collective(
                    Operation.ALL_REDUCE, 0, 1, 1 << 20, duration=350 * US, waits=[last], **call()
                )
            )
        for bucket in range(buckets):
            rows.kernel("adam", 0, 50 * US, waits=[reduced[bucket]], **call())
        last = rows.kernel("zero", 0, 20 * US, **call())
        rows.host_wait([last, reduced[-1]], **SYNC)
        builder.add_rank(builder.add_table(rows.build()), [everyone], start=rank * 25 * US)
    return builder.build()


def pipeline(micro_batches: int = 6) -> Program:
    """Two replicas of two stages: activations go on, gradients come back, then all-reduce."""
    builder = ProgramBuilder()
    forward = {r: builder.communicator([r, r + 2]) for r in (0, 1)}
    backward = {r: builder.communicator([r + 2, r]) for r in (0, 1)}
    replicas = {r: builder.communicator([r - r % 2, r - r % 2 + 1]) for r in range(4)}
    for rank in range(4):
        first = rank < 2
        rows = builder.table()
        rows.tags(step=0)
        for _ in range(micro_batches):
            done: list[int] = []
            if not first:
                got = rows.point_to_point(
                    Kind.RECV, 0, 1, 1 << 20, duration=90 * US, **call(), waits=done
                )
                done = [got]
            last = rows.kernel("forward", 0, (500 + 30 * rank) * US, waits=done, **call())
            if first:
                rows.point_to_point(
                    Kind.SEND, 0, 1, 1 << 20, duration=90 * US, waits=[last], **call()
                )
                got = rows.point_to_point(
                    Kind.RECV, 1, 1, 1 << 20, duration=90 * US, waits=[last], **call()
                )
                last = rows.kernel("backward", 0, 700 * US, waits=[got], **call())
            else:
                last = rows.kernel("backward", 0, 800 * US, **call())
                rows.point_to_point(
                    Kind.SEND, 1, 1, 1 << 20, duration=90 * US, waits=[last], **call()
                )
            reduced = rows.collective(
                Operation.ALL_REDUCE, 2, 2, 1 << 20, duration=200 * US, waits=[last], **call()
            )
            last = rows.kernel("adam", 0, 60 * US, waits=[reduced], **call())
        rows.host_wait([last], **SYNC)
        pair = rank % 2
        builder.add_rank(
            builder.add_table(rows.build()),
            [forward[pair], backward[pair], replicas[rank]],
            start=rank * 30 * US,
        )
    return builder.build()


@pytest.mark.parametrize("make", [tensor_parallel, data_parallel, pipeline])
def test_old_style_is_inferred(world: Intracomm, make: Callable[[], Program]) -> None:
    """Times of whole µs: exact, too, though no file says what waits for what."""
    program = make()
    offset = {rank: (17 * rank % 40) * US for rank in range(program.n_ranks)}
    job, runs = replayed(program, world, *WHOLE_US, clock_offset=offset, style="old")
    assert job.counts["kernels without a partner"] == 0
    for what, found in zip(WHOLE_US, runs, strict=True):
        expected = changed_ends(program, what, world)
        np.testing.assert_array_equal(found.run.rank_end, expected, err_msg=str(what.describe()))
