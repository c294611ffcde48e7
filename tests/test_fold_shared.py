"""Folding changes nothing where communications share links, either: bit for bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from programs import ProgramWriter
from reference.max_min import NO_END, SharedLinks
from shared_nodes import WAYS, Nodes
from test_fold import check, late_starts, odd_speeds, rings, symmetric

from mpisim.engine import SplitReason, simulate
from mpisim.engine.contention import find_contention, shares_links
from mpisim.engine.fold import fold_ranks
from mpisim.engine.routes import Routes
from mpisim.program import UNPRICED, Operation, Program, ProgramBuilder
from mpisim.topo.network import WEIGHT_ONE

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.two_processes]

T = TypeVar("T")

LAYOUTS = ("alone", "by table", "by replica", "in pairs", "swapped", "any")


def placed(seed: int, n_tables: int, n_replicas: int, layout: str) -> tuple[Program, list[int]]:
    """A random program, and the node of every rank."""
    writer = ProgramWriter(random.Random(seed), n_tables, n_replicas, unpriced=True, backwards=True)
    node = list(range(n_tables * n_replicas))
    for i, rank in enumerate(writer.numbers):
        table, replica = divmod(i, n_replicas)
        node[rank] = {
            "alone": i,
            "by table": table,
            "by replica": replica,
            "in pairs": table * n_replicas + replica // 2,
            "swapped": replica,
            "any": seed % (i + 1),
        }[layout]
    if layout == "swapped":
        a, b = writer.numbers[0], writer.numbers[-1]
        node[a], node[b] = node[b], node[a]
    return writer.write(25), node


cases = st.builds(
    placed,
    seed=st.integers(0, 2**32 - 1),
    n_tables=st.integers(1, 3),
    n_replicas=st.integers(2, 6),
    layout=st.sampled_from(LAYOUTS),
)
slow_links = st.dictionaries(st.integers(0, 99), st.sampled_from([0.3, 0.5, 1e-12]), max_size=2)
ports, ups = st.sampled_from([30, 100, 130]), st.sampled_from([50, 150, 1000])


def seldom(some: st.SearchStrategy[dict[int, T]]) -> st.SearchStrategy[dict[int, T]]:
    """Nothing in three of four cases."""
    nothing: st.SearchStrategy[dict[int, T]] = st.builds(dict)
    return st.one_of(nothing, nothing, nothing, some)


@given(
    case=cases,
    odd=seldom(odd_speeds),
    late=seldom(late_starts),
    slow=seldom(slow_links),
    port=ports,
    up=ups,
)
@settings(max_examples=220)
def test_random_programs(
    world: Intracomm,
    case: tuple[Program, list[int]],
    odd: dict[int, float],
    late: dict[int, int],
    slow: dict[int, float],
    port: int,
    up: int,
) -> None:
    """Odd ranks and slow links, ranks on nodes evenly and unevenly."""
    program, node = case
    program = symmetric(program, odd, late)
    network = Nodes(node, port, up, slow)
    folded = check(program, world, network)
    alone = simulate(program, network=network, contention=False)
    shared = "shared" if alone.digest != folded.digest else "not shared"
    event(f"{shared}, {'folded' if len(folded.classes) < program.n_ranks else 'not folded'}")


def flowed(routes: Routes, active: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """Let flows (route, begin, volume, cap) run; return (route, end, first rate) of each."""
    sharing = SharedLinks(routes.capacity, routes.index, routes.link, routes.weight)
    first: dict[int, int] = {}
    found = []
    time, left = 0, sorted(active, key=lambda flow: flow[1])
    while True:
        for route, begin, volume, cap in left:
            if begin == time:
                sharing.begin(route, route, time, volume, cap)
        sharing.solve(time)
        for route, begin, *_ in active:
            if begin == time:
                first[route] = sharing.rate(route)
        time = min([sharing.next_end(), *(begin for _, begin, *_ in left if begin > time)])
        if time == NO_END:
            return found
        while (route := sharing.pop_ended(time)) >= 0:
            found.append((route, time, first[route]))
        sharing.solve(time)


@given(case=cases, slow=slow_links, port=ports, up=ups, seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_rates_on_the_quotient(
    case: tuple[Program, list[int]], slow: dict[int, float], port: int, up: int, seed: int
) -> None:
    """The flow of a class has the rates and the end of every flow that it stands for."""
    from mpi4py import MPI

    program, node = case
    program = symmetric(program, {}, {})
    network = Nodes(node, port, up, slow)
    contention = find_contention(program, network, MPI.COMM_SELF)
    for ranks in (0, 1, program.n_ranks // 2):
        assert shares_links(program, network, ranks) == (contention is not None)
    if contention is None:
        event("nothing is shared")
        return
    routes = contention.routes
    cast = fold_ranks(program, network, routes=routes)
    assert cast is not None
    folded = cast.routes
    assert folded is not None
    event("folded" if len(folded) < len(routes) else "not folded")
    # The class of each route of the whole program.
    class_of: dict[int, int] = {}
    for rank in range(program.n_ranks):
        own = program.slots_of(rank).tolist()
        simulated = int(cast.classes.of_rank[rank])
        there = cast.slots[cast.slot_index[simulated] : cast.slot_index[simulated + 1]].tolist()
        class_of.update(zip(own, there, strict=True))
    number = {key: i for i, key in enumerate(zip(folded.group.tolist(), folded.pattern.tolist()))}
    stands = [
        number[class_of[group], pattern]
        for group, pattern in zip(routes.group.tolist(), routes.pattern.tolist(), strict=True)
    ]
    assert set(stands) == set(range(len(folded)))

    rng = random.Random(seed)
    flows = {
        route: (rng.choice([0, 0, 3]), rng.choice([1, 70, 999]), rng.choice([1, 10**9, 10**14]))
        for route in range(len(folded))
        if rng.random() < 0.8
    }
    small = flowed(folded, [(route, *flow) for route, flow in flows.items()])
    large = flowed(routes, [(i, *flows[route]) for i, route in enumerate(stands) if route in flows])
    reasons = {route: (end, rate) for route, end, rate in small}
    assert len(large) == sum(route in flows for route in stands)
    for i, end, rate in large:
        assert (end, rate) == reasons[stands[i]]


def test_rates_on_the_quotient_are_equal_to_the_last_bit() -> None:
    """Three flows of a class and a light one: by floor division all of them stop at 1."""
    one = np.array([1])
    quarter = WEIGHT_ONE // 4

    def rates(weights: list[int]) -> list[int]:
        n = len(weights)
        sharing = SharedLinks(one, np.arange(n + 1), np.zeros(n, np.int64), np.array(weights))
        for route in range(n):
            sharing.begin(route, route, 0, 1000, 10**12)
        sharing.solve(0)
        return [sharing.rate(route) for route in range(n)]

    assert rates([quarter, quarter, quarter, 1]) == [1, 1, 1, 1]
    assert rates([3 * quarter, 1]) == [1, 1]


class OneWire(Nodes):
    """One link of each rank for both directions."""

    def _load(self, members: list[int], pattern: str) -> dict[int, int]:
        return {WAYS * rank: WEIGHT_ONE for rank in members}


def test_ranks_of_rings_of_different_lengths_are_equivalent(comm: Intracomm) -> None:
    """Each wire carries what its rank sends and what it receives.

    4 ps, then 1000 bytes at half of 100 bytes/ps. One class of pairs weighs twice on a wire then.
    """
    program = rings(6, 3, 3)
    table = program.tables[0]
    assert table is not None
    n = len(table)
    program = program.replace(
        tables=(table.replace(duration=np.full(n, UNPRICED), bytes=np.full(n, 1000)),)
    )
    run = check(program, comm, OneWire(range(12)))
    assert len(run.classes) == 1
    assert run.step_time == 4 + 1000 // 50


def pairs(n: int) -> Program:
    """Ranks 0 and 1 add up 1000 bytes, ranks 2 and 3, and so on; all by one table."""
    builder = ProgramBuilder()
    rows = builder.table()
    rows.collective(Operation.ALL_REDUCE, 0, 0, 1000)
    builder.add_table(rows.build())
    for rank in range(2 * n):
        builder.add_rank(0, [builder.communicator((rank - rank % 2, rank - rank % 2 + 1), "pair")])
    return builder.build()


def test_two_equal_flows_over_a_link_count_twice(comm: Intracomm) -> None:
    """Two pairs go between nodes 0 and 1, one between 2 and 3: half of 100 bytes/ps, and all."""
    network = Nodes([0, 1, 0, 1, 2, 3], port=1000, up=100, rate=120)
    run = check(pairs(3), comm, network)
    assert run.classes.count.tolist() == [4, 2]
    assert run.rank_end.tolist() == [4 + 1000 // 50] * 4 + [4 + 1000 // 100] * 2


def test_a_slow_link_splits_classes(comm: Intracomm) -> None:
    """The last pair's link down has half of 100 bytes/ps."""
    network = Nodes(range(6), port=1000, up=100, rate=120, slow={WAYS * 5 + 3: 0.5})
    run = check(pairs(3), comm, network)
    assert run.rank_end.tolist() == [4 + 1000 // 100] * 4 + [4 + 1000 // 50] * 2
    assert run.classes.count.tolist() == [4, 2]
    assert run.classes.split_reason.tolist() == [SplitReason.NONE, SplitReason.COMMUNICATORS]


def test_a_neighbour_on_a_link_splits_classes(comm: Intracomm) -> None:
    """Pairs 0 and 1 share links, and so do 2 and 3; rank 0 is late.

    Pair 1 is as fast as alone until pair 0 begins.
    """
    network = Nodes([0, 1, 0, 1, 2, 3, 2, 3], port=1000, up=100, rate=120)
    start = np.zeros(8, np.int64)
    start[0] = 5
    run = check(pairs(4).replace(start=start), comm, network)
    # Pair 1 has moved 500 bytes by 9, then 500 at half the rate until 19; pair 0 the rest of its
    # 1000 alone: 500 until 24.
    assert run.rank_end.tolist() == [24, 24, 19, 19, 24, 24, 24, 24]
    assert run.classes.count.tolist() == [1, 1, 2, 4]
    assert run.classes.split_reason.tolist() == [
        SplitReason.START,
        SplitReason.PARTNERS,
        SplitReason.PARTNERS,
        SplitReason.NONE,
    ]
