"""Two pipelines in opposite directions, Chimera and DualPipe: published orders and bubbles.

What holds of every schedule, and what is refused, has tests in test_schedules.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_schedules import TIME, simulate, spell

from mpisim.program import Phase
from mpisim.schedules import pipeline


def test_chimera_by_hand() -> None:
    """The figure of the paper: four stages, four micro-batches; and a unit behind the first."""
    pipe = pipeline("chimera", stages=4, micro_batches=4)
    assert [spell(pipe, stage) for stage in range(4)] == [
        "F0a F1a F2b B2b F3b B3b B0a B1a",
        "F0a F2b F1a F3b B2b B0a B3b B1a",
        "F2b F0a F3b F1a B0a B2b B1a B3b",
        "F2b F3b F0a B0a F1a B1a B2b B3b",
    ]
    two = pipeline("chimera", stages=4, micro_batches=8)
    assert spell(two, 0) == ("F0a F1a F4b B4b F5b B5b B0a F2a B1a F3a F6b B6b F7b B7b B2a B3a")


def test_dualpipe_by_hand() -> None:
    """The eight steps of dualpipe.py, worked through for four stages and eight micro-batches."""
    pipe = pipeline("dualpipe", stages=4, micro_batches=8)
    assert [spell(pipe, stage) for stage in range(4)] == [
        "F0a F1a F2a F4b I4b W4b F5b F3a &B5b F6b &B0a B6b F7b &B1a B7b I2a W2a I3a W3a",
        "F0a F4b F1a F5b F2a B4b F6b &B0a F3a &B5b F7b &B1a B6b B2a I7b I3a W7b W3a",
        "F4b F0a F5b F1a F6b B0a F2a &B4b F7b &B1a F3a &B5b B2a B6b I3a I7b W3a W7b",
        "F4b F5b F6b F0a I0a W0a F1a F7b &B1a F2a &B4b B2a F3a &B5b B3a I6b W6b I7b W7b",
    ]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (6, 12), (8, 20), (16, 64)])
def test_dualpipe_has_the_steps_of_the_published_code(stages: int, micro_batches: int) -> None:
    """Each part has as many passes as step_1 to step_8 of the authors' dualpipe.py."""
    pipe = pipeline("dualpipe", stages, micro_batches)
    for stage, actions in enumerate(pipe.actions):
        half_rank = min(stage, stages - 1 - stage)
        step_3 = step_5 = step_7 = stages // 2 - half_rank - 1
        step_4 = micro_batches // 2 - stages + half_rank + 1
        step_6 = step_8 = half_rank + 1
        middle = stage in (stages // 2 - 1, stages // 2)
        assert sum(a.paired for a in actions) == 2 * step_4 + step_5 - middle
        assert sum(a.split for a in actions) == step_3 + step_6 + step_7
        assert [a.phase for a in actions[-step_8:]] == [Phase.WEIGHT] * step_8


@given(st.integers(1, 5), st.integers(1, 5), TIME, TIME)
def test_bubble_of_chimera(half: int, units: int, f: int, b: int) -> None:
    """p - 2 slots where F and B last equally long, for any number of units (arXiv:2107.06925, 3.1).

    A single unit has p forwards and 2p - 2 backwards on its critical path where these last longer
    (section 3.4: 6 and 10 for six stages), and every further one adds gaps of p - 2 differences.
    """
    p = 2 * half
    idle = simulate(pipeline("chimera", p, units * p), {"F": f, "I": b, "W": 0})
    if f == b:
        assert idle == [(p - 2) * f] * p
    if units == 1 and b >= f:
        assert idle == [p * f + (2 * p - 2) * b - p * (f + b)] * p
    assert idle == [(p - 2) * (max(f, b) + (units - 1) * abs(b - f))] * p


@given(st.integers(1, 5), st.integers(0, 5), st.data())
def test_bubble_of_dualpipe(half: int, more: int, data: st.DataObject) -> None:
    """(p/2 - 1)(F&B + B - 3W) (DeepSeek-V3, table 2; README of deepseek-ai/DualPipe).

    Exact for the two stages in the middle where a forward lasts as long as the backward of the
    inputs and W no longer, as the table assumes; the other stages overlap less, work longer and
    idle less.
    """
    p = 2 * half
    f = data.draw(TIME, "F and backward of the inputs")
    w = data.draw(st.integers(1, f), "W")
    b = f + w
    both = data.draw(st.integers(b, f + b), "F&B")
    idle = simulate(
        pipeline("dualpipe", p, 2 * p + 2 * more), {"F": f, "I": f, "W": w, "F&B": both}
    )
    assert idle[half - 1] == idle[half] == max(idle) == (half - 1) * (both + b - 3 * w)
