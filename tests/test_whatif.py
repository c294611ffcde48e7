"""Changes to a program's times, each rounded once, and what cannot be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from programs import partial

from mpisim.base.errors import InputError
from mpisim.engine import simulate
from mpisim.program import UNPRICED, Kind, Operation, Program, ProgramBuilder
from mpisim.replay.what_if import WhatIf, apply_what_if

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes


def program() -> Program:
    """Two ranks with tables of their own, alike but for a second kernel name."""
    builder = ProgramBuilder()
    both = builder.communicator([0, 1])
    for rank in (0, 1):
        rows = builder.table()
        first = rows.kernel(f"gemm {rank}", 0, 101, host=9, launch=5, launch_cost=3, gap=1)
        rows.kernel("Memcpy DtoH", 0, 50, host=4, kind=Kind.COPY)
        rows.collective(Operation.ALL_REDUCE, 0, 1, 8, duration=71, waits=[first], host=1000)
        rows.collective(Operation.ALL_REDUCE, 0, 1, 8, duration=UNPRICED)
        rows.host(33)
        rows.host_wait([first], host=2, tail=7)
        builder.add_rank(builder.add_table(rows.build()), [both])
    return builder.build()


def changed(what: WhatIf, rank: int = 0) -> dict[str, list[int]]:
    table = apply_what_if(program(), what, [10, 11]).table_of(rank)
    return {c: getattr(table, c).tolist() for c in ("duration", "host", "launch_cost", "launch")}


def test_nothing() -> None:
    before = program()
    after = apply_what_if(before, WhatIf(), [10, 11])
    for rank in (0, 1):
        for column in ("duration", "host", "launch_cost", "gap"):
            np.testing.assert_array_equal(
                getattr(after.table_of(rank), column), getattr(before.table_of(rank), column)
            )
    assert WhatIf().describe() == []


def test_factors() -> None:
    assert changed(WhatIf(compute=0.5))["duration"] == [50, 25, 71, UNPRICED, 0, 0]
    assert changed(WhatIf(comm=2.0))["duration"] == [101, 50, 142, UNPRICED, 0, 0]
    found = changed(WhatIf(host=3.0))
    assert found["host"] == [27, 12, 3000, 0, 99, 6]
    assert found["launch_cost"] == [9, 0, 0, 0, 0, 21]
    assert found["launch"] == [5, 0, 0, 0, 0, 0]  # the device's own latency
    assert found["duration"] == [101, 50, 71, UNPRICED, 0, 0]


def test_patterns_come_on_top() -> None:
    what = WhatIf(compute=2.0, kernels=[("gemm*", 0.5), ("*", 3.0)])
    assert changed(what)["duration"] == [303, 300, 213, UNPRICED, 0, 0]


def test_caps() -> None:
    assert changed(WhatIf(cap_host_gap=20e-12))["host"] == [9, 4, 20, 0, 20, 2]
    # A rank's own cap takes the place of the common one.
    what = WhatIf(cap_host_gap=20e-12, cap_rank_gap={11: 50e-12})
    assert changed(what, rank=0)["host"] == [9, 4, 20, 0, 20, 2]
    assert changed(what, rank=1)["host"] == [9, 4, 50, 0, 33, 2]


def test_delay_is_for_one_rank() -> None:
    after = apply_what_if(program(), WhatIf(delay={11: 5e-12}), [10, 11])
    assert after.start.tolist() == [0, 5]


def test_ranks_that_share_a_table_can_differ() -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 0, 10, host=100)
    table = builder.add_table(rows.build())
    for _ in range(3):
        builder.add_rank(table)
    after = apply_what_if(builder.build(), WhatIf(cap_rank_gap={1: 30e-12}), [0, 1, 2])
    assert simulate(after).rank_end.tolist() == [110, 40, 110]
    assert len(after.tables) == 2


def test_describe() -> None:
    what = WhatIf(compute=2.0, delay={3: 0.01}, kernels=[("*gemm*", 0.7)], cap_rank_gap={1: 0.5})
    assert what.describe() == [
        "kernel and copy times × 2",
        "rows named '*gemm*' × 0.7",
        "rank 3 starts 0.01 s late",
        "CPU gaps of rank 1 longer than 0.5 s are cut to that",
    ]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (WhatIf(delay={4: 1.0}), "rank 4 is not in this program; its ranks are 10, 11"),
        (WhatIf(cap_rank_gap={0: 1.0}), "rank 0 is not in this program"),
        (WhatIf(kernels=[("relu*", 2.0)]), "no kernel name matches 'relu\\*'"),
    ],
)
def test_what_is_not_there(what: WhatIf, said: str) -> None:
    with pytest.raises(InputError, match=said):
        apply_what_if(program(), what, [10, 11])


@pytest.mark.mpi
def test_patterns_are_looked_for_on_all_processes(comm: Intracomm) -> None:
    """Each process holds the names of its own ranks only; one of them has the kernel."""
    whole = program()
    hosted = {rank for rank in (0, 1) if rank % comm.size == comm.rank}
    foreign = {f"gemm {rank}" for rank in (0, 1) if rank not in hosted}
    names = tuple("" if name in foreign else name for name in whole.names)
    mine = partial(whole, hosted).replace(names=names)
    after = apply_what_if(mine, WhatIf(kernels=[("gemm 1", 2.0)]), [10, 11], comm)
    for rank, expected in ((0, 101), (1, 202)):
        if rank in hosted:
            assert after.table_of(rank).duration[0] == expected
    with pytest.raises(InputError, match="no kernel name matches 'relu'"):
        apply_what_if(mine, WhatIf(kernels=[("relu", 2.0)]), [10, 11], comm)
