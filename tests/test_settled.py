"""What one run has settled holds for programs that differ in times alone: as if settled anew."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from reference.comparison import assert_equal_runs
from shared_nodes import Nodes
from test_fold import COST, late_starts, odd_speeds, rings, symmetric
from test_fold_shared import cases, placed, ports, seldom, slow_links, ups

from mpisim.engine import Apart, Classes, Run, simulate
from mpisim.program import UNPRICED, Program
from mpisim.topo.alpha_beta import AlphaBeta


def retimed(program: Program, classes: Classes, seed: int, longer: int) -> Program:
    """The program with new durations of kernels, equal within classes, some classes alike.

    All communications without a duration take so many ps longer.
    """
    rng = random.Random(seed)
    tables, number, of_class = [], {}, []
    for rank in classes.representative.tolist():
        key = int(program.table[rank]), rng.choice([0, 0, 1, 2])
        if key not in number:
            table = program.table_of(rank)
            kernels = ~table.is_communication
            times = table.duration + np.where(kernels, key[1] * (np.arange(len(table)) % 3), 0)
            unpriced = table.is_communication & (table.duration == UNPRICED)
            number[key] = len(tables)
            tables.append(table.replace(duration=times, longer=np.where(unpriced, longer, 0)))
        of_class.append(number[key])
    which = np.array(of_class, np.int32)[classes.of_rank]
    return program.replace(tables=tuple(tables), table=which)


def assert_as_if_anew(found: Run, anew: Run) -> None:
    assert_equal_runs(found, anew)
    assert found.settled.cast.program is found.program
    for name in ("of_rank", "representative", "count"):
        np.testing.assert_array_equal(getattr(found.classes, name), getattr(anew.classes, name))
    reasons = [each.classes.apart.copy() for each in (found, anew)]
    if n_links(found) != n_links(anew):  # some cannot be full any more: reasons that rest on links
        for each in reasons:
            each[each == Apart.NEIGHBOURS] = Apart.GROUPS
    np.testing.assert_array_equal(*reasons)


def n_links(run: Run) -> int:
    """How many links can be full."""
    routes = run.settled.cast.routes
    return 0 if routes is None else len(routes.capacity)


@given(
    case=cases,
    odd=seldom(odd_speeds),
    late=seldom(late_starts),
    slow=seldom(slow_links),
    port=ports,
    up=ups,
    seed=st.integers(0, 2**32),
    longer=st.sampled_from([0, 1, 500]),
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
    longer=500,
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
    longer: int,
    fold: bool,
) -> None:
    program, node = case
    program = symmetric(program, odd, late)
    network = Nodes(node, port, up, slow)
    first = simulate(program, network=network, fold=True)
    other = retimed(program, first.classes, seed, longer)
    assert first.settled.holds_for(other, network, True)
    found, anew = (
        simulate(other, network=network, fold=fold, critical_path=True, settled=settled)
        for settled in (first.settled, None)
    )
    event("folded" if len(first.classes) < program.n_ranks else "not folded")
    assert_as_if_anew(found, anew)
    again = retimed(other, found.classes, seed + 1, longer) if fold else other
    found, anew = (
        simulate(again, network=network, fold=fold, critical_path=True, settled=settled)
        for settled in (first.settled, None)
    )
    assert_as_if_anew(found, anew)


def test_it_does_not_hold_for_programs_that_differ_in_more() -> None:
    program = rings(4)
    table = program.tables[0]
    assert table is not None
    slow = table.replace(duration=table.duration + 1)
    first = simulate(program, network=COST, fold=True)
    assert len(first.classes) == 1

    def holds(network: AlphaBeta | None = COST, contention: bool = True, **parts: object) -> bool:
        return first.settled.holds_for(program.replace(**parts), network, contention)

    assert holds()
    assert holds(tables=(slow,))
    assert not holds(network=None)
    assert not holds(contention=False)
    assert not holds(start=program.start + 1)
    assert not holds(tables=(table.replace(host=table.host + 1),))
    assert not holds(tables=(table, slow), table=np.array([0, 1, 0, 0]))


def test_it_does_not_hold_where_rates_may_be_higher() -> None:
    program, _ = placed(0, 1, 4, "by replica")
    table = program.tables[0]
    assert table is not None
    unpriced = table.is_communication & (table.duration == UNPRICED)
    assert unpriced.any()
    network = Nodes(range(4))
    longer = program.replace(tables=(table.replace(longer=np.where(unpriced, 7, 0)),))
    settled = simulate(longer, network=network, fold=True).settled
    assert settled.holds_for(longer, network, True)
    assert not settled.holds_for(program, network, True)
