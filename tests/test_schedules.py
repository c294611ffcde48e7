"""Pipeline schedules: the published orders, their bubbles, and what they keep.

Times are the integers of `simulate`, which knows only who needs whose output: independent of how
a schedule is laid out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_schedules import TIME, in_flight, pipelines, simulate, spell, stage_times

from mpisim.base.errors import InputError
from mpisim.program import Phase
from mpisim.schedules import SCHEDULES, Pipeline, ScheduleName, parts_of_stage, pipeline


def test_every_schedule_can_be_named_in_a_plan() -> None:
    assert get_args(ScheduleName) == tuple(SCHEDULES), (
        "mpisim/schedules/catalogue.py: ScheduleName and SCHEDULES must have the same names in the "
        "same order"
    )


# --- orders by hand -----------------------------------------------------------------------------


def test_gpipe_by_hand() -> None:
    pipe = pipeline("gpipe", stages=4, micro_batches=4)
    assert [spell(pipe, stage) for stage in range(4)] == ["F0 F1 F2 F3 B0 B1 B2 B3"] * 4


def test_1f1b_by_hand() -> None:
    """PipeDream-Flush's figure: three, two, one and no forwards ahead."""
    pipe = pipeline("1f1b", stages=4, micro_batches=8)
    assert [spell(pipe, stage) for stage in range(4)] == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]
    few = pipeline("1f1b", stages=4, micro_batches=2)
    assert [spell(few, stage) for stage in range(4)] == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]


def test_runs_by_hand() -> None:
    pipe = pipeline("1f1b", stages=2, micro_batches=4, run=2)
    assert [spell(pipe, stage) for stage in range(2)] == [
        "F0 F1 B0 B1 F2 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    with pytest.raises(InputError, match=r"plan\.pipeline\.run is 3, which does not divide the 8"):
        pipeline("1f1b", stages=2, micro_batches=8, run=3)
    assert pipeline("1f1b", 1, 8, run=3) == pipeline("1f1b", 1, 8)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_a_pipeline_drains_after_each_run(name: str) -> None:
    chunks = 2 if SCHEDULES[name].interleaved else 1
    times = {"F": 3, "I": 4, "W": 2}
    one = simulate(pipeline(name, 4, 8, chunks), times)
    whole = simulate(pipeline(name, 4, 24, chunks), times)
    several = simulate(pipeline(name, 4, 24, chunks, run=8), times)
    assert several == [3 * each for each in one]
    assert all(drained > once for drained, once in zip(several, whole, strict=True))


def test_interleaved_by_hand() -> None:
    """Figure 4 of arXiv:2104.04473: p = 4, v = 2, m = 8."""
    pipe = pipeline("interleaved", stages=4, micro_batches=8, chunks=2)
    assert spell(pipe, 0) == (
        "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a "
        "F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a "
        "B2a B3a B4b B5b B6b B7b B4a B5a B6a B7a"
    )
    assert spell(pipe, 3) == (
        "F0a F1a F2a F3a "
        "F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a "
        "F4b B4b F5b B5b F6b B6b F7b B7b "
        "B4a B5a B6a B7a"
    )
    # As many micro-batches as stages: the first stage is still warming up when forwards run out.
    short = pipeline("interleaved", stages=4, micro_batches=4, chunks=2)
    assert spell(short, 0) == ("F0a F1a F2a F3a F0b F1b F2b F3b B0b B1b B2b B3b B0a B1a B2a B3a")


def test_paired_passes_by_hand() -> None:
    """Each backward beside the forward before it, as long as there are any; one more warms up."""
    pipe = pipeline("interleaved", stages=2, micro_batches=4, chunks=2, paired=True)
    assert spell(pipe, 1) == (
        "F0a F1a F0b F1b &B0b F2a &B1b F3a &B0a F2b &B1a F3b &B2b B3b B2a B3a"
    )
    with pytest.raises(InputError, match="paired is for the schedule interleaved only"):
        pipeline("1f1b", stages=2, micro_batches=4, paired=True)


def test_interleaved_groups_by_hand() -> None:
    """The example in Megatron-LM's schedules.py: PP2 N3M5 with VP2."""
    pipe = pipeline("interleaved", stages=2, micro_batches=5, chunks=2, group=3)
    assert spell(pipe, 1) == (
        "F0a F1a F2a F0b B0b F1b B1b F2b B2b F3a B0a F4a B1a F3b B2a F4b B3b B4b B3a B4a"
    )


def test_zb_h1_by_hand() -> None:
    """Stage s is s micro-batches behind with its gradients of weights."""
    pipe = pipeline("zb-h1", stages=4, micro_batches=8)
    assert [spell(pipe, stage) for stage in range(4)] == [
        "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
        "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
        "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
        "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7",
    ]
    few = pipeline("zb-h1", stages=4, micro_batches=2)
    assert spell(few, 3) == "F0 I0 F1 I1 W0 W1"


def test_zb_h2_by_hand() -> None:
    """The figure of the paper: enough forwards to fill the wait for the first gradient."""
    pipe = pipeline("zb-h2", stages=4, micro_batches=9)
    assert [spell(pipe, stage) for stage in range(4)] == [
        "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 F8 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7 I8 W8",
        "F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 F8 I4 W2 I5 W3 I6 W4 I7 W5 I8 W6 W7 W8",
        "F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 F8 I6 W2 I7 W3 I8 W4 W5 W6 W7 W8",
        "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 F8 I8 W2 W3 W4 W5 W6 W7 W8",
    ]


def test_zb_v_by_hand() -> None:
    """``ScheduleZBVZeroBubble`` of torch.distributed.pipelining, worked through for two stages."""
    pipe = pipeline("zb-v", stages=2, micro_batches=3, chunks=2)
    assert [spell(pipe, stage) for stage in range(2)] == [
        "F0a F1a F2a F0b I0b W0b F1b I1b W1b I0a W0a F2b I2b W2b I1a W1a I2a W2a",
        "F0a F0b F1a F1b I0b W0b F2a I0a W0a F2b I1b W1b I1a I2b I2a W1a W2b W2a",
    ]
    few = pipeline("zb-v", stages=2, micro_batches=1, chunks=2)
    assert [spell(few, stage) for stage in range(2)] == [
        "F0a F0b I0b W0b I0a W0a",
        "F0a F0b I0b W0b I0a W0a",
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_one_stage_accumulates_gradients(name: str) -> None:
    expected = {
        "gpipe": "F0 F1 F2 B0 B1 B2",
        "1f1b": "F0 B0 F1 B1 F2 B2",
        "zb-h1": "F0 I0 W0 F1 I1 W1 F2 I2 W2",
    }
    pipe = pipeline(name, stages=1, micro_batches=3)
    assert spell(pipe, 0) == expected[name]
    assert pipe.next(0, 0) is pipe.previous(0, 0) is None


# --- which parts a stage holds ------------------------------------------------------------------


def test_parts_in_a_loop() -> None:
    pipe = pipeline("interleaved", stages=3, micro_batches=3, chunks=2)
    assert pipe.parts == 6
    assert [pipe.part(2, 0), pipe.part(0, 1)] == [2, 3]
    assert pipe.next(2, 0) == (0, 1)
    assert pipe.previous(0, 1) == (2, 0)
    assert pipe.next(2, 1) is None
    assert not pipe.mirrored


def test_parts_in_a_v() -> None:
    pipe = pipeline("zb-v", stages=3, micro_batches=6, chunks=2)
    assert (pipe.parts, pipe.chunks, pipe.mirrored) == (6, 2, False)
    assert [[pipe.part(stage, chunk) for chunk in range(2)] for stage in range(3)] == [
        parts_of_stage("zb-v", stage, 3, 2) for stage in range(3)
    ]
    assert [pipe.part(0, 1), pipe.part(1, 1), pipe.part(2, 1)] == [5, 4, 3]
    assert (pipe.next(2, 0), pipe.previous(2, 1)) == ((2, 1), (2, 0))  # to itself
    assert (pipe.next(1, 1), pipe.previous(1, 1)) == ((0, 1), (2, 1))
    assert pipe.next(0, 1) is pipe.previous(0, 0) is None


def test_parts_held_twice() -> None:
    pipe = pipeline("dualpipe", stages=4, micro_batches=8)
    assert (pipe.parts, pipe.chunks, pipe.mirrored) == (4, 2, True)
    assert [pipe.part(1, chunk) for chunk in range(2)] == [1, 2]
    assert (pipe.next(1, 0), pipe.previous(1, 0)) == ((2, 0), (0, 0))
    assert (pipe.next(1, 1), pipe.previous(1, 1)) == ((0, 1), (2, 1))
    assert pipe.next(3, 0) is pipe.next(0, 1) is None


@given(pipelines())
def test_each_micro_batch_passes_every_part_in_sequence(pipe: Pipeline) -> None:
    held = [(stage, chunk) for stage in range(pipe.stages) for chunk in range(pipe.chunks)]
    copies = Counter(pipe.part(*place) for place in held)
    assert copies == dict.fromkeys(range(pipe.parts), 2 if pipe.mirrored else 1)
    firsts = [place for place in held if pipe.previous(*place) is None]
    assert all(pipe.part(*place) == 0 for place in firsts)
    for first in firsts:
        path = [first]
        while (following := pipe.next(*path[-1])) is not None:
            path.append(following)
        assert [pipe.part(*place) for place in path] == list(range(pipe.parts))
        assert all(pipe.previous(*b) == a for a, b in pairwise(path))


# --- what always holds --------------------------------------------------------------------------


@given(pipelines())
def test_every_micro_batch_is_worked_once(pipe: Pipeline) -> None:
    assert len(pipe.actions) == pipe.stages
    seen: Counter[int] = Counter()
    for actions in pipe.actions:
        places = {
            phase: [(a.chunk, a.micro_batch) for a in actions if a.phase is phase]
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT)
        }
        forwards = places[Phase.FORWARD]
        assert len(set(forwards)) == len(forwards)
        assert sorted(places[Phase.BACKWARD]) == sorted(forwards)
        split = [(a.chunk, a.micro_batch) for a in actions if a.split]
        assert sorted(places[Phase.WEIGHT]) == sorted(split)
        assert all(a.phase is Phase.BACKWARD for a in actions if a.split)
        seen.update(i for _, i in forwards)
    assert seen == dict.fromkeys(range(pipe.micro_batches), pipe.parts)


def messages(pipe: Pipeline, phase: Phase, sent: bool) -> Iterator[tuple[tuple[int, int], int]]:
    """Return the messages of a phase in the order of sending or receiving: (from, to) and what."""
    forward = phase is Phase.FORWARD
    for stage, actions in enumerate(pipe.actions):
        for action in actions:
            if action.phase is not phase:
                continue
            step = pipe.next if forward == sent else pipe.previous
            other = step(stage, action.chunk)
            if other is not None:
                ends = (stage, other[0]) if sent else (other[0], stage)
                chunk = action.chunk if sent else other[1]
                yield ends, chunk * pipe.micro_batches + action.micro_batch


@given(pipelines())
def test_messages_are_sent_and_received_in_the_same_order(pipe: Pipeline) -> None:
    """Between every two stages, of all their chunks together, forwards and backwards apart."""
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        orders: list[dict[tuple[int, int], list[int]]] = [{}, {}]
        for sent in (False, True):
            for ends, what in messages(pipe, phase, sent):
                orders[sent].setdefault(ends, []).append(what)
        assert orders[False] == orders[True]


@given(pipelines(), TIME, TIME, TIME)
def test_no_deadlock_and_nothing_kept(pipe: Pipeline, f: int, i: int, w: int) -> None:
    idle = simulate(pipe, {"F": f, "I": i, "W": w, "F&B": f + i + w})
    assert min(idle) >= 0
    for stage, actions in enumerate(pipe.actions):
        held: Counter[int] = Counter()
        for action in actions:
            held[action.chunk] += {Phase.FORWARD: 2, Phase.WEIGHT: -1}.get(action.phase, 0)
            if action.phase is Phase.BACKWARD:
                held[action.chunk] -= 1 if action.split else 2
            assert min(held.values()) >= 0
        assert not any(held.values())
        assert pipe.peak(stage, [2] * pipe.chunks, [1] * pipe.chunks) >= 2


# --- bubbles ------------------------------------------------------------------------------------


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 8), st.integers(1, 24), TIME, TIME)
def test_bubble_of_gpipe_and_1f1b(name: str, p: int, m: int, f: int, b: int) -> None:
    """(p - 1)(F + B), whatever the times (arXiv:2104.04473, section 2.2.1)."""
    idle = simulate(pipeline(name, p, m), {"F": f, "I": b, "W": 0})
    assert idle == [(p - 1) * (f + b)] * p


@given(
    st.integers(2, 6), st.integers(1, 4), st.sampled_from([2, 3, 4]), st.integers(1, 2), TIME, TIME
)
def test_bubble_of_interleaved(p: int, k: int, v: int, g: int, f: int, b: int) -> None:
    """(p - 1)(F + B) / v with F and B of a whole stage, v chunks of f and b (ibid., 2.2.2)."""
    idle = simulate(pipeline("interleaved", p, k * g * p, v, group=g * p), {"F": f, "I": b, "W": 0})
    F, B = v * f, v * b
    assert [v * bubble for bubble in idle] == [(p - 1) * (F + B)] * p


@given(st.integers(1, 8), st.integers(0, 16), TIME, TIME, TIME)
def test_bubble_of_zb_h1(p: int, more: int, f: int, i: int, w: int) -> None:
    """(p - 1)(F + B - 2W) with B = I + W, where W is the shortest (arXiv:2401.10241, table 2).

    The gradients of weights can fill no more of a bubble than they last, and no more than the
    forward or the backward of the inputs that made it.
    """
    idle = simulate(pipeline("zb-h1", p, p + more), {"F": f, "I": i, "W": w})
    assert idle == [(p - 1) * (f + i - min(f, i, w))] * p
    if w <= min(f, i):
        assert idle == [(p - 1) * (f + (i + w) - 2 * w)] * p


@given(st.integers(1, 8), st.integers(0, 16), TIME, TIME, st.data())
def test_bubble_of_zb_h2(p: int, more: int, f: int, i: int, data: st.DataObject) -> None:
    """(p - 1)(F + I - 2W) between a stage's first and last action (arXiv:2401.10241, table 2).

    A step that begins on all stages at once has the longer of this and the last stage's wait for
    its first forward.
    """
    w = data.draw(st.integers(1, min(f, i)))
    found = stage_times(pipeline("zb-h2", p, 2 * p - 1 + more), {"F": f, "I": i, "W": w})
    assert max(end - begin - busy for begin, end, busy in found) == (p - 1) * (f + i - 2 * w)
    end, busy = max(each.end for each in found), found[0].busy
    assert end - busy == (p - 1) * max(f, f + (i + w) - 3 * w)


@given(st.integers(1, 7), st.integers(0, 9), st.integers(1, 20), st.data())
def test_bubble_of_zb_v(p: int, more: int, i: int, data: st.DataObject) -> None:
    """(p - 1) I: with equal times that of the last stage's wait for its first forward, no more."""
    w = data.draw(st.integers(-(-i // 2), i))
    f = data.draw(st.integers(max(1, 2 * (i - w)), i))
    idle = simulate(pipeline("zb-v", p, 2 * p - 1 + more, 2), {"F": f, "I": i, "W": w})
    assert idle == [(p - 1) * i] * p


# --- what is kept -------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(0, 16))
def test_activations_in_flight(p: int, more: int) -> None:
    """DeepSeek-V3, table 2, and arXiv:2205.05198, section 4.2.3, of the first stage."""
    m = 2 * p + more
    assert in_flight(pipeline("gpipe", p, m)) == m
    assert [in_flight(pipeline("1f1b", p, m), stage) for stage in range(p)] == [*range(p, 0, -1)]
    assert in_flight(pipeline("zb-h1", p, m)) == p
    ahead = pipeline("zb-h2", p, m)  # arXiv:2401.10241, table 2: (2p - 1) of either kind, anywhere
    assert [ahead.peak(stage, [1], [1]) for stage in range(p)] == [2 * p - 1] * p
    assert [in_flight(ahead, stage) for stage in range(p)] == [*range(2 * p - 1, 0, -2)]
    half = pipeline("dualpipe-v", p, m, 2)  # README of deepseek-ai/DualPipe: chunks + 1
    assert [in_flight(half, stage) for stage in range(p)] == [2 * p + 1] * p
    in_a_v = pipeline("zb-v", p, m, 2)  # arXiv:2401.10241, section 6: no more than 1F1B, anywhere
    assert [in_flight(in_a_v, stage) / 2 for stage in range(p)] == [p] * p
    if p % 2 == 0:
        dual = pipeline("dualpipe", p, m + m % 2)
        assert [in_flight(dual, stage) for stage in range(p)] == [p + 1] * p
        # arXiv:2107.06925, table 2: from p/2 + 1 at the ends to p in the middle.
        both = pipeline("chimera", p, m + m % 2)
        ends = [*range(p // 2 + 1, p + 1)]
        assert [in_flight(both, stage) for stage in range(p)] == [*ends, *reversed(ends)]
    if p > 1:
        for v in (2, 3, 4):
            chunks = in_flight(pipeline("interleaved", p, 3 * p, v))
            assert chunks / v == pytest.approx(p * (1 + (p - 1) / (p * v)), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_first_stage_keeps_what_the_catalogue_says(name: str) -> None:
    schedule, p, m = SCHEDULES[name], 4, 12
    v = 2 if schedule.interleaved or schedule.v_shaped else 1
    formula = re.sub(r"(?<=\d)(?=[pmv(])", "*", schedule.in_flight)  # 2p as people write it
    stated = eval(formula, {"p": p, "m": m, "v": v})
    assert in_flight(pipeline(name, p, m, v)) / v == stated


@given(st.integers(1, 8), st.integers(0, 16), TIME, TIME)
def test_zb_h1_keeps_no_more_than_1f1b(p: int, more: int, saved: int, for_weights: int) -> None:
    """On every stage; and what all keep is the same where the weights need all of it."""
    for_weights = min(for_weights, saved)
    most = pipeline("1f1b", p, p + more).peak(0, [saved])
    pipe = pipeline("zb-h1", p, p + more)
    for stage in range(p):
        kept = pipe.peak(stage, [saved], [for_weights])
        assert kept <= most
        behind = min(stage, p + more - (p - stage))
        assert kept == (p - stage) * saved + behind * for_weights


def test_peak_weighs_chunks() -> None:
    pipe = pipeline("interleaved", stages=2, micro_batches=2, chunks=2)
    # The last stage: F0a F1a F0b B0b F1b B1b B0a B1a.
    assert pipe.peak(1, [10, 3]) == 23
    dual = pipeline("dualpipe", stages=2, micro_batches=4)
    # The forward of a pair comes before its backward has freed anything.
    assert spell(dual, 0) == "F0a F2b F1a B2b F3b &B0a B3b I1a W1a"
    assert dual.peak(0, [10, 1]) == 21
    assert dual.peak(0, [1, 10]) == 12


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stages", "micro_batches", "chunks", "group", "message"),
    [
        ("1f1", 4, 8, 1, None, "no schedule '1f1' (did you mean '1f1b'?); there are gpipe"),
        ("1f1b", 0, 8, 1, None, "schedule 1f1b: stages is 0; it must be 1 or more"),
        ("gpipe", 4, 0, 1, None, "micro_batches is 0; it must be 1 or more"),
        ("interleaved", 4, 8, 0, None, "chunks is 0; it must be 1 or more"),
        ("1f1b", 4, 8, 2, None, "schedule 1f1b: chunks is for the schedule interleaved only"),
        ("zb-h1", 4, 8, 1, 4, "schedule zb-h1: group is for the schedule interleaved only"),
        ("zb-v", 4, 8, 1, None, "chunks is 1; it must be 2: a stage holds two (vpp = 2)"),
        ("zb-v", 4, 8, 3, None, "chunks is 3; it must be 2"),
        ("dualpipe-v", 4, 8, 1, None, "schedule dualpipe-v: chunks is 1; it must be 2"),
        ("dualpipe-v", 4, 7, 2, None, "micro_batches is 7; it must be at least twice"),
        ("zb-h2", 4, 8, 2, None, "schedule zb-h2: chunks is for the schedule interleaved only"),
        ("interleaved", 4, 8, 1, None, "chunks is 1; both must be 2 or more (1f1b is"),
        ("interleaved", 1, 8, 2, None, "stages is 1 and chunks is 2; both must be 2 or more"),
        ("interleaved", 4, 10, 2, None, "micro_batches is 10; it must be a multiple of the group"),
        ("interleaved", 4, 3, 2, None, "group is 4 (if not given, as many as stages); it must"),
        ("interleaved", 4, 8, 2, 3, "from the number of stages, 4, to the number of micro-batches"),
        ("chimera", 3, 6, 1, None, "schedule chimera: stages is 3; it must be even"),
        ("chimera", 4, 7, 1, None, "schedule chimera: micro_batches is 7; it must be even"),
        ("chimera", 4, 8, 2, None, "schedule chimera: chunks is for the schedule interleaved"),
        ("dualpipe", 1, 8, 1, None, "schedule dualpipe: stages is 1; it must be even"),
        ("dualpipe", 5, 20, 1, None, "schedule dualpipe: stages is 5; it must be even"),
        ("dualpipe", 4, 9, 1, None, "micro_batches is 9; it must be even, and at least twice"),
        ("dualpipe", 4, 6, 1, None, "twice the number of stages: 8 or more"),
        ("dualpipe", 4, 8, 2, None, "schedule dualpipe: chunks is for the schedule interleaved"),
    ],
)
def test_refusals(
    name: str, stages: int, micro_batches: int, chunks: int, group: int | None, message: str
) -> None:
    with pytest.raises(InputError) as refusal:
        pipeline(name, stages, micro_batches, chunks, group=group)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
