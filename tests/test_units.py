"""Units of a stage's actions as columns, and ports of all uses at once, against loops over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.program import COLUMNS, Kind, Phase
from mpisim.schedules import SCHEDULES, Action, Pipeline, pipeline
from mpisim.schedules.units import Units
from mpisim.workloads.assembly import TableAssembler
from mpisim.workloads.block_rows import BEFORE, LAST, PENDING, RowBlock


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    interleaved = SCHEDULES[name].interleaved
    stages = draw(st.integers(1, 6))
    paired = draw(st.booleans()) and (interleaved or (name == "1f1b" and stages == 1))
    chunks = draw(st.integers(2, 4)) if interleaved else 2 if SCHEDULES[name].v_shaped else 1
    sizes = stages, draw(st.integers(1, 20)), chunks
    try:
        return pipeline(name, *sizes, paired=paired)
    except InputError:
        assume(False)
        raise


def grouped(actions: Sequence[Action], joins_turns: bool) -> list[list[list[int]]]:
    """Units, their turns, the actions of these; one after another."""
    turns: list[list[int]] = []
    for i, action in enumerate(actions):
        if not action.paired:
            turns.append([])
        turns[-1].append(i)
    phases = [actions[turn[0]].phase for turn in turns]
    units: list[list[list[int]]] = []
    for i, turn in enumerate(turns):
        steady = i > 0 and phases[i - 1 : i + 1] == [Phase.FORWARD, Phase.BACKWARD]
        before = len(units) > 1 and len(units[-2]) == 2
        after = phases[i + 1 : i + 2] == [Phase.FORWARD]
        if joins_turns and steady and len(units[-1]) == 1 and (before or after):
            units[-1].append(turn)
        else:
            units.append([turn])
    return units


def flat(turns: Sequence[Sequence[int]]) -> list[int]:
    return [i for turn in turns for i in turn]


@given(pipelines(), st.booleans(), st.data())
def test_units_are_those_of_a_loop(whole: Pipeline, joins_turns: bool, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, whole.stages - 1))
    actions = whole.actions[stage]
    found = Units.of(whole.columns[stage], joins_turns=joins_turns)
    units = grouped(actions, joins_turns)
    seen: list[int] = []
    for number, (before, after) in enumerate(zip([[], *units], [*units, []], strict=True)):
        own, turns = found.steps[found.step[number]]
        # The example is of the same kinds, as far from the first action as these.
        for one, other in ((own, flat(before)), (flat(turns), flat(after))):
            assert [_kind(actions[i], found.edge[i]) for i in one] == [
                _kind(actions[i], found.edge[i]) for i in other
            ]
        assert [len(turn) for turn in turns] == [len(turn) for turn in after]
        assert found.first[number] == (flat(before) + flat(after))[0]
        seen += [found.step[number]] if found.step[number] not in seen else []
    assert seen == list(range(len(found.steps)))


@given(pipelines())
def test_edges_are_first_forwards_and_last_gradients(whole: Pipeline) -> None:
    for stage, actions in enumerate(whole.actions):
        edges = np.flatnonzero(Units.of(whole.columns[stage], joins_turns=False).edge).tolist()
        expected = []
        for chunk in range(whole.chunks):
            own = [i for i, each in enumerate(actions) if each.chunk == chunk]
            expected.append(next(i for i in own if actions[i].phase is Phase.FORWARD))
            rest = [i for i in own if actions[i].phase is not Phase.FORWARD]
            expected.append(next(i for i in reversed(rest) if not actions[i].split))
        assert edges == sorted(expected)


def _kind(action: Action, edge: bool) -> tuple[object, ...]:
    return action.phase, action.chunk, action.split, action.paired, bool(edge)


# --- ports ----------------------------------------------------------------------------------------

NAMES = ("gathered", "reduced")


@st.composite
def any_block(draw: st.DrawFn) -> RowBlock:
    n = draw(st.integers(0, 4))
    values = np.zeros((n, len(COLUMNS)), np.int64)
    values[:, list(COLUMNS).index("kind")] = Kind.KERNEL
    values[:, list(COLUMNS).index("bytes")] = -1
    values[:, list(COLUMNS).index("slot")] = -1
    rows = st.integers(0, n - 1) if n else st.nothing()
    some = st.lists(rows, max_size=3) if n else st.just([])
    ports = st.sampled_from((LAST, PENDING, BEFORE, *NAMES))
    outside = st.lists(st.tuples(rows, ports), max_size=4) if n else st.just([])
    return RowBlock(
        values=values,
        waiter=np.zeros(0, np.int64),
        awaited=np.zeros(0, np.int64),
        outside=tuple(draw(outside)),
        exports={name: tuple(draw(some)) for name in NAMES if draw(st.booleans())},
        last=draw(st.integers(-1, n - 1)),
        pending=tuple(draw(some)),
        keeps_pending=draw(st.booleans()),
        flops=draw(st.integers(0, 2**70)),
        duration=draw(st.integers(0, 2**40)),
    )


@given(st.lists(any_block(), min_size=1, max_size=4), st.data())
def test_ports_are_those_of_a_loop(blocks: list[RowBlock], data: st.DataObject) -> None:
    used = data.draw(st.lists(st.integers(0, len(blocks) - 1), min_size=1, max_size=12))
    awaited: list[list[int]] = []
    last: list[int] = []
    before: list[int] = []
    pending: list[int] = []
    exports: dict[str, list[int]] = {}
    for block in (blocks[number] for number in used):
        at = len(awaited)
        awaited += [[] for _ in range(len(block))]
        meant = {LAST: last, BEFORE: before, PENDING: pending}
        for row, port in block.outside:
            rows = meant[port] if isinstance(port, int) else exports.get(port, [])
            awaited[at + row] += rows
        if block.last >= 0:
            before, last = last, [at + block.last]
        pending = [*(pending if block.keeps_pending else []), *(at + row for row in block.pending)]
        for name, exported in block.exports.items():
            exports.setdefault(name, []).extend(at + row for row in exported)
    rows = TableAssembler("test")
    cut = data.draw(st.integers(0, len(used)))
    for number in used[:cut]:
        rows.add(blocks[number], 0)
    rest = np.array(used[cut:], np.int64)
    rows.extend(blocks, rest, np.zeros((len(rest), 2), np.int64))
    table = rows.table()
    found = np.split(table.wait_row, table.wait_index[1:-1])[: len(awaited)]
    assert [each.tolist() for each in found] == [sorted(each) for each in awaited]
    assert rows.flops == sum(blocks[number].flops for number in used)
    assert rows.duration == sum(blocks[number].duration for number in used)
