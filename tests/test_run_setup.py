"""A run setup that is reused for a program with other durations gives what a new one gives."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference.comparison import assert_equal_runs
from shared_nodes import Nodes
from test_fold import COST, late_starts, odd_speeds, rings, symmetric
from test_fold_shared import cases, placed, ports, seldom, slow_links, ups

from mpisim.base.errors import ProgramError
from mpisim.engine import EquivalenceClasses, Run, SetupCache, SplitReason, simulate
from mpisim.program import UNPRICED, Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

Delays = list[NDArray[np.int64]]


def retimed(
    program: Program, classes: EquivalenceClasses, seed: int, delay: int
) -> tuple[Program, Delays]:
    """The program with new durations of kernels, equal within classes, in some classes equal.

    All communications without a duration are delayed by so many ps.
    """
    rng = random.Random(seed)
    tables, delays, number, of_class = [], [], {}, []
    for rank in classes.representative.tolist():
        key = int(program.table[rank]), rng.choice([0, 0, 1, 2])
        if key not in number:
            table = program.table_of(rank)
            kernels = ~table.is_communication
            times = table.duration + np.where(kernels, key[1] * (np.arange(len(table)) % 3), 0)
            unpriced = table.is_communication & (table.duration == UNPRICED)
            number[key] = len(tables)
            tables.append(table.replace(duration=times))
            delays.append(np.where(unpriced, delay, 0))
        of_class.append(number[key])
    which = np.array(of_class, np.int32)[classes.of_rank]
    return program.replace(tables=tuple(tables), table=which), delays


def assert_as_if_anew(found: Run, anew: Run) -> None:
    assert_equal_runs(found, anew)
    assert found.setup.simulated.program is found.program
    for name in ("of_rank", "representative", "count"):
        np.testing.assert_array_equal(getattr(found.classes, name), getattr(anew.classes, name))
    reasons = [each.classes.split_reason.copy() for each in (found, anew)]
    if n_links(found) != n_links(anew):  # some cannot be full any more: reasons that rest on links
        for each in reasons:
            each[each == SplitReason.PARTNERS] = SplitReason.COMMUNICATORS
    np.testing.assert_array_equal(*reasons)


def n_links(run: Run) -> int:
    """How many links can be full."""
    routes = run.setup.simulated.routes
    return 0 if routes is None else len(routes.capacity)


@given(
    case=cases,
    odd=seldom(odd_speeds),
    late=seldom(late_starts),
    slow=seldom(slow_links),
    port=ports,
    up=ups,
    seed=st.integers(0, 2**32),
    delay=st.sampled_from([0, 1, 500]),
    fold=st.booleans(),
)
@example(  # fewer links can be full: other reasons, the same classes
    case=placed(66, 3, 5, "swapped"),
    odd={},
    late={},
    slow={},
    port=30,
    up=50,
    seed=0,
    delay=500,
    fold=True,
)
@settings(max_examples=120)
def test_refolding_finds_the_same(
    case: tuple[Program, list[int]],
    odd: dict[int, float],
    late: dict[int, int],
    slow: dict[int, float],
    port: int,
    up: int,
    seed: int,
    delay: int,
    fold: bool,
) -> None:
    program, node = case
    program = symmetric(program, odd, late)
    network = Nodes(node, port, up, slow)
    first = simulate(program, network=network, fold=True)
    other, delays = retimed(program, first.classes, seed, delay)
    assert first.setup.is_valid_for(other, network, True, delays)
    found, anew = (
        simulate(
            other,
            network=network,
            fold=fold,
            critical_path=True,
            wire_delays=delays,
            setup=setup,
        )
        for setup in (first.setup, None)
    )
    event("folded" if len(first.classes) < program.n_ranks else "not folded")
    assert_as_if_anew(found, anew)
    again = other
    if fold:
        again, delays = retimed(other, found.classes, seed + 1, delay)
    found, anew = (
        simulate(
            again,
            network=network,
            fold=fold,
            critical_path=True,
            wire_delays=delays,
            setup=setup,
        )
        for setup in (first.setup, None)
    )
    assert_as_if_anew(found, anew)


def test_it_is_not_valid_for_programs_that_differ_in_more() -> None:
    program = rings(4)
    table = program.tables[0]
    assert table is not None
    slow = table.replace(duration=table.duration + 1)
    first = simulate(program, network=COST, fold=True)
    assert len(first.classes) == 1

    def valid(network: AlphaBeta | None = COST, contention: bool = True, **parts: object) -> bool:
        return first.setup.is_valid_for(program.replace(**parts), network, contention)

    assert valid()
    assert valid(tables=(slow,))
    assert not valid(network=None)
    assert not valid(contention=False)
    assert not valid(start=program.start + 1)
    assert not valid(tables=(table.replace(host=table.host + 1),))
    assert not valid(tables=(table, slow), table=np.array([0, 1, 0, 0]))


def test_it_is_not_valid_where_rates_may_be_higher() -> None:
    program, _ = placed(0, 1, 4, "by replica")
    table = program.tables[0]
    assert table is not None
    unpriced = table.is_communication & (table.duration == UNPRICED)
    assert unpriced.any()
    network = Nodes(range(4))
    delays = [np.where(unpriced, 7, 0)]
    setup = simulate(program, network=network, fold=True, wire_delays=delays).setup
    assert setup.is_valid_for(program, network, True, delays)
    assert setup.is_valid_for(program, network, True, [2 * delays[0]])
    assert not setup.is_valid_for(program, network, True)


@pytest.mark.parametrize(
    ("row", "delay", "message"),
    [
        (0, 1, "wire delay of a row with a duration"),
        (1, -1, "wire delays are not one time a row"),
    ],
)
def test_wire_delays_are_checked(row: int, delay: int, message: str) -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("gemm", stream=0, duration=7)
    rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=8)
    builder.add_rank(builder.add_table(rows.build()), [builder.communicator([0])])
    delays = np.zeros(2, np.int64)
    delays[row] = delay
    with pytest.raises(ProgramError, match=message):
        simulate(builder.build(), network=COST, wire_delays=[delays])
    with pytest.raises(ProgramError, match="wire delays of 2 tables; there are 1"):
        simulate(builder.build(), network=COST, wire_delays=[None, None])


@given(
    known=st.lists(
        st.tuples(cases, seldom(odd_speeds), seldom(slow_links)), min_size=2, max_size=5
    ),
    port=ports,
    up=ups,
    order=st.lists(st.integers(0, 4), min_size=3, max_size=8),
    fold=st.sampled_from([None, True]),
)
@settings(max_examples=60)
def test_programs_on_one_network_may_share_setups(
    known: list[tuple[tuple[Program, list[int]], dict[int, float], dict[int, float]]],
    port: int,
    up: int,
    order: list[int],
    fold: bool | None,
) -> None:
    """In any order, and where networks change in between, runs are those of each alone."""
    setups = SetupCache()
    programs = [symmetric(program, odd, {}) for (program, _), odd, _ in known]
    networks = [Nodes(node, port, up, slow) for (_, node), _, slow in known]
    for i in order:
        program, network = programs[i % len(known)], networks[i % len(known)]
        found, anew = (
            simulate(program, network=network, fold=fold, critical_path=True, setups=each)
            for each in (setups, None)
        )
        assert_as_if_anew(found, anew)
        again = simulate(program, network=network, fold=fold, setups=setups)
        assert again.digest == found.digest
        if fold and found.setup.simulated.routes is not None:  # what was kept, and not its equal
            assert again.setup.simulated.routes is found.setup.simulated.routes


@given(case=cases, port=ports, up=ups, slow=seldom(slow_links), seed=st.integers(0, 2**32))
@settings(max_examples=80)
def test_relaxation_may_begin_with_any_times(
    case: tuple[Program, list[int]], port: int, up: int, slow: dict[int, float], seed: int
) -> None:
    program, node = case
    network = Nodes(node, port, up, slow)
    first = simulate(program, network=network, critical_path=True)
    waited = first.setup.waited
    event("relaxation" if waited is not None else first.mode)
    if waited is None:
        return
    rng = np.random.default_rng(seed)
    others = waited + rng.integers(0, 10_000, len(waited)) * (rng.random(len(waited)) < 0.3)
    for each in (waited, others, np.zeros_like(waited)):
        setup = dataclasses.replace(first.setup, waited=each)
        found = simulate(program, network=network, critical_path=True, setup=setup)
        assert_equal_runs(found, first)


def test_communications_alone_are_left_to_the_network() -> None:
    """So no other row can have a wire delay, which only rows without a duration may."""
    table = rings(4).tables[0]
    assert table is not None
    for row in np.flatnonzero(~table.is_communication).tolist():
        duration = table.duration.copy()
        duration[row] = UNPRICED
        with pytest.raises(ProgramError, match=f"row {row}: the duration is negative"):
            table.replace(duration=duration)
