"""Chimera, DualPipe and DualPipeV: published orders and bubbles.

What holds of every schedule, and what is refused, has tests in test_schedules.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_schedules import TIME, simulate, spell

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.experiment.load import load
from mpisim.prediction.prepared import prepare
from mpisim.program import Phase, Program
from mpisim.schedules import Pipeline, pipeline
from mpisim.topo import AlphaBeta


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


def test_dualpipe_v_by_hand() -> None:
    """The eight steps of dualpipev.py, worked through for two stages and five micro-batches."""
    pipe = pipeline("dualpipe-v", stages=2, micro_batches=5, chunks=2)
    assert [spell(pipe, stage) for stage in range(2)] == [
        "F0a F1a F2a F0b I0b W0b F1b F3a &B1b F2b &B0a F4a &B2b F3b &B1a B3b F4b &B2a "
        "B4b I3a W3a I4a W4a",
        "F0a F0b F1a F1b F2a B0b F2b &B0a F3a &B1b F3b &B1a F4a &B2b F4b &B2a "
        "B3b B3a I4b I4a W4b W4a",
    ]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 2), (2, 4), (3, 7), (8, 16), (8, 21)])
def test_dualpipe_v_is_the_order_of_pytorch(stages: int, micro_batches: int) -> None:
    """Action by action, ``ScheduleDualPipeV`` of the PyTorch that is installed."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    pipe = pipeline("dualpipe-v", stages, micro_batches, 2)
    sizes = SimpleNamespace(pp_group_size=stages, _n_microbatches=micro_batches)
    letters = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
    for stage in range(stages):
        order = schedules.ScheduleDualPipeV._calculate_single_rank_operations(sizes, stage)
        written = [
            "&" * place
            + letters[each.computation_type.name]
            + f"{each.microbatch_index}{'a' if each.stage_index < stages else 'b'}"
            for action in order
            for place, each in enumerate(action.sub_actions or (action,))
        ]
        assert spell(pipe, stage) == " ".join(written)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 2), (2, 5), (4, 8), (5, 13)])
def test_dualpipe_v_is_a_half_of_dualpipe(stages: int, micro_batches: int) -> None:
    """Its stages do what the first half of DualPipe's do with as many micro-batches either way."""
    whole = pipeline("dualpipe", 2 * stages, 2 * micro_batches)
    half = pipeline("dualpipe-v", stages, micro_batches, 2)

    def kinds(pipe: Pipeline, stage: int) -> list[tuple[Phase, int, int, bool, bool]]:
        return [
            (a.phase, a.chunk, a.micro_batch % micro_batches, a.split, a.paired)
            for a in pipe.actions[stage]
        ]

    assert all(kinds(whole, stage) == kinds(half, stage) for stage in range(stages))


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
    idle less. Of DualPipeV, p counts the chunks of all stages: two of each.
    """
    p = 2 * half
    f = data.draw(TIME, "F and backward of the inputs")
    w = data.draw(st.integers(1, f), "W")
    b = f + w
    both = data.draw(st.integers(b, f + b), "F&B")
    times = {"F": f, "I": f, "W": w, "F&B": both}
    idle = simulate(pipeline("dualpipe", p, 2 * p + 2 * more), times)
    assert idle[half - 1] == idle[half] == max(idle) == (half - 1) * (both + b - 3 * w)
    in_a_v = simulate(pipeline("dualpipe-v", half, p + more, 2), times)
    assert in_a_v[-1] == max(in_a_v) == (half - 1) * (both + b - 3 * w)


MIRRORED = ["plan.pp=4", "plan.dp=2", "plan.zero=0", "plan.global_batch=16", "model.layers=8"]


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_gradients_of_both_directions_are_added_up_early_or_at_the_end(
    schedule: str, overlap: str
) -> None:
    """Each chunk's as its last backward ends, in the order of ends; or all of a stage at once."""
    changes = [*MIRRORED, f"plan.pipeline={schedule}", f"plan.overlap.dp={overlap}"]
    late, early = (
        prepare(load("llama3-8b-8-h100", [*changes, f"plan.overlap.mirror={each}"])[1]).program
        for each in ("false", "true")
    )
    pipe = pipeline(schedule, stages=4, micro_batches=8)
    parts: dict[int, set[int]] = {}  # of the model: bytes of its sums
    for stage in range(4):
        (at_end,), table = mirror_rows(late, stage), early.tables[stage]
        found = mirror_rows(early, stage)
        assert late.tables[stage].bytes[at_end] == table.bytes[found].sum()
        ends = last_gradients(pipe, stage)
        assert len(ends) == len(found) == 2
        kernels = table.is_device & ~table.is_communication
        for row, (chunk, micro_batch) in zip(found, ends.items(), strict=True):
            parts.setdefault(pipe.part(stage, chunk), set()).add(int(table.bytes[row]))
            assert table.micro_batch[row] == micro_batch
        # Other passes follow the first of them.
        behind = table.phase[found[0] :][kernels[found[0] :]]
        assert (behind != Phase.OPTIMIZER).any()
    assert all(len(sizes) == 1 for sizes in parts.values())  # both stages of a part agree
    network = AlphaBeta(latency=1e-6, bandwidth=1e9)
    times = [
        max(int(run.rows(i).end.max()) for i in range(early.n_ranks))
        for run in (engine.simulate(each, network=network) for each in (late, early))
    ]
    assert times[1] < times[0]


def mirror_rows(program: Program, stage: int) -> np.ndarray:
    """Rows of a stage's table that add gradients up with the stage of the other direction."""
    table = program.tables[stage]
    rank = next(each for each in range(program.n_ranks) if program.table_of(each) is table)
    mirrored = [
        slot
        for slot, number in enumerate(program.slots_of(rank).tolist())
        if program.communicators.names[number].startswith("mirror")
    ]
    return np.flatnonzero(table.is_communication & np.isin(table.slot, mirrored))


def last_gradients(pipe: Pipeline, stage: int) -> dict[int, int]:
    """Chunks of a stage in the order in which their gradients are complete → the micro-batch."""
    found: dict[int, int] = {}
    for action in pipe.actions[stage]:
        if action.phase is not Phase.FORWARD and not action.split:
            found.pop(action.chunk, None)
            found[action.chunk] = action.micro_batch
    return found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["plan.pp=2"], "pipeline.schedule = '1f1b' holds no part twice; allowed: 'chimera', 'dua"),
        (
            ["plan.pp=2", "plan.pipeline=chimera", "plan.zero=1"],
            "overlap.mirror is true with zero = 1: whole gradients are added up early",
        ),
    ],
)
def test_what_is_not_added_up_early(changes: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load("llama3-8b-8-h100", [*changes, "plan.overlap.mirror=true"])
