"""FSDP in a pipeline: when units are gathered and reduced, and what of it is exposed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing import layer, stepped, told
from toys import Free, Times, block, layout

from mpisim import engine
from mpisim.program import Operation, check_matching
from mpisim.topo import Price
from mpisim.workloads import Workload, training_step
from mpisim.workloads.operators import LayerStack

FSDP = {"dp_style": "fsdp", "zero": 2, "order": "tp-cp-ep-pp-dp"}
GATHER, SCATTER = "parameter all-gather", "gradient reduce-scatter"


class Wire(Free):
    """Gathers and reduce-scatters take the times given, in ps; all else is free."""

    def __init__(self, gather: int, scatter: int) -> None:
        self.times = {Operation.ALL_GATHER: gather, Operation.REDUCE_SCATTER: scatter}

    def price(self, operation: Operation, bytes: int, group: int) -> Price:
        """Return the time."""
        return Price(self.times.get(operation, 0))


def piped(layers: int, stages: int, chunks: int, micro_batches: int, **plan: object) -> Workload:
    """Layers of 300 ps forward and 600 backward, two replicas."""
    net = LayerStack(tuple(block(f"l{i}", 300, 300, 300) for i in range(layers)), 6, 1)
    keys = {**FSDP, "pp": stages, "vpp": chunks, "global_batch": 2 * micro_batches, **plan}
    keys["schedule"] = "interleaved" if chunks > 1 else plan.get("schedule", "1f1b")
    return training_step(layout(net, 2 * stages, **keys), Times())


def took(done: Workload, gather: int = 0, scatter: int = 0) -> int:
    check_matching(done.program)
    return engine.simulate(done.program, network=Wire(gather, scatter)).step_time


def first(rows: list[str], what: str) -> int:
    return next(i for i, row in enumerate(rows) if row.startswith(what))


# --- structure ------------------------------------------------------------------------------------

NET = (layer("embedding", 8), layer("a", 40, 6), layer("b", 40, 6), layer("head", 8))


def test_gathers_come_first_and_reductions_follow_the_last_backward_of_their_unit() -> None:
    net = (layer("embedding", 8), *(layer(name, 40) for name in "abcd"), layer("head", 8))
    done = stepped(net, 4, **FSDP, pp=2, global_batch=8)
    rows = told(done.program)  # the first stage: embedding, a, b
    assert rows[0] == f"{GATHER} [dp 16]"  # one unit ahead, before anything is received
    # The next is on its way before the kernels of the first one, and waits for no kernel.
    assert rows[1] == f"{GATHER} [dp 80]"
    assert rows[2] == f"copy parameters out < {GATHER}"
    assert first(rows, "embedding forward") == 3
    table = done.program.table_of(0)
    assert table.wait_index[2] == 0
    # The third takes the first one's buffer, when the first was copied.
    assert rows[4].startswith(f"{GATHER} [dp 80] < copy parameters out")
    assert rows[5:7] == [f"copy parameters out < {GATHER}", "a forward"]
    # 4 micro-batches; each unit's gradients are added up, reduced once, and waited for at the end.
    assert rows.count("gradient accumulation") == 4 * 3
    scatters = [i for i, row in enumerate(rows) if row.startswith(SCATTER)]
    assert [rows[i].partition("[")[2].partition("]")[0] for i in scatters] == [
        "dp 80",
        "dp 80",
        "dp 16",
    ]
    names = ("b", "a", "embedding")
    last = [max(i for i, r in enumerate(rows) if r.startswith(f"{x} backward")) for x in names]
    assert last[0] < scatters[0] < last[1] < scatters[1] < last[2] < scatters[2]
    waiting = [row for row in rows if SCATTER in row and not row.startswith(SCATTER)]
    assert waiting[:2] == [f"copy gradients in < {SCATTER}"] * 2
    # Of this unit's own: nothing of the passes waits.
    assert all("backward" not in row for row in waiting)
    assert waiting[-1].count(SCATTER) == 3


def test_gathers_go_on_over_model_chunks() -> None:
    rows = told(piped(8, 2, 4, 4).program)
    gathers = [i for i, row in enumerate(rows) if row.startswith(GATHER)]
    forwards = [first(rows, f"l{i} forward") for i in (0, 2, 4, 6)]
    # Each chunk's parameters are asked for before the first forward of the chunk before it.
    assert all(gathers[i + 1] < forwards[i] for i in range(3))
    assert len(gathers) == 4


def test_prefetch_says_how_many_are_gathered_ahead() -> None:
    for ahead in range(5):
        rows = told(piped(8, 2, 4, 4, prefetch=ahead).program)
        before = sum(row.startswith(GATHER) for row in rows[: first(rows, "l0 forward")])
        assert before == min(1 + ahead, 4)


@pytest.mark.parametrize("way", ["overlapped", "pytorch"])
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "dualpipe"])
def test_everything_is_gathered_before_its_use_and_reduced_once(way: str, schedule: str) -> None:
    done = piped(4, 4, 1, 8, schedule=schedule, fsdp_pipeline=way)
    check_matching(done.program)
    held = 2 if schedule == "dualpipe" else 1
    for rank in range(0, done.program.n_ranks, 2):
        rows = told(done.program, rank)
        assert sum(row.startswith(GATHER) for row in rows) == held
        assert sum(row.startswith(SCATTER) for row in rows) == held
        copies = [row for row in rows if row.startswith("copy parameters out")]
        assert copies == [f"copy parameters out < {GATHER}"] * held


# --- what is exposed ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(
    stages=st.integers(2, 4),
    chunks=st.sampled_from([1, 2, 3]),
    gather=st.integers(1, 300),
    scatter=st.integers(1, 300),
)
def test_what_is_exposed_is_the_first_gather_and_the_last_reduction(
    stages: int, chunks: int, gather: int, scatter: int
) -> None:
    done = piped(stages * chunks, stages, chunks, 2 * stages)
    assert took(done, gather, scatter) == took(done) + gather + scatter


@settings(deadline=None, max_examples=20)
@given(stages=st.integers(2, 4), chunks=st.sampled_from([1, 2, 3]), gather=st.integers(1, 300))
def test_without_prefetch_every_part_of_the_pipeline_gathers_in_turn(
    stages: int, chunks: int, gather: int
) -> None:
    # The first micro-batch waits for a gather in each part; nothing that follows catches up.
    for keys in ({"prefetch": 0}, {"overlap_dp": False}, {"fsdp_pipeline": "pytorch"}):
        done = piped(stages * chunks, stages, chunks, stages, **keys)
        assert took(done, gather) == took(done) + stages * chunks * gather


sizes = st.integers(0, 3000)


@settings(deadline=None, max_examples=30)
@given(
    stages=st.integers(2, 4),
    chunks=st.sampled_from([1, 2]),
    more=st.integers(0, 1),
    gather=sizes,
    scatter=sizes,
    wrap=st.integers(1, 2),
)
def test_overlap_is_never_slower(
    stages: int, chunks: int, more: int, gather: int, scatter: int, wrap: int
) -> None:
    def time(**keys: object) -> int:
        layers, times = 2 * stages * chunks, stages * (1 + more)
        return took(piped(layers, stages, chunks, times, wrap_layers=wrap, **keys), gather, scatter)

    ahead = [time(prefetch=n) for n in range(4)]
    assert ahead == sorted(ahead, reverse=True)
    assert ahead[1] <= time(fsdp_pipeline="pytorch") <= time(overlap_dp=False)
    assert ahead[0] <= time(overlap_dp=False)
