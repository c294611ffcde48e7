"""Stages that share blocks: their tables are those of stages that each write their own."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from plans import GPT_STEP, plan_text

from mpisim.experiment import load, read
from mpisim.kernels import Roofline, find_gpu
from mpisim.program import COLUMNS, Table
from mpisim.simulate import simulate
from mpisim.workloads import Workload, lay_out, training_step
from mpisim.workloads.blocks import BlockBuilder, BlockMark
from mpisim.workloads.data_parallel.megatron import Megatron
from mpisim.workloads.data_parallel.strategy import Strategy
from mpisim.workloads.stage_writer import StageWriter

PLANS = {
    "1f1b": 'pp = 4\ntp = 2\nglobal_batch = 8\nschedule = "1f1b"',
    "sequence parallel": "pp = 4\ntp = 2\nsp = true\nglobal_batch = 8",
    "two stages": 'pp = 2\ntp = 2\nglobal_batch = 8\nschedule = "1f1b"\nzero = 1',
    "interleaved": 'pp = 4\nvpp = 2\nglobal_batch = 8\nschedule = "interleaved"',
    "recomputed": 'pp = 4\nglobal_batch = 8\nrecompute = "full"\nrecompute_layers = 1',
    "weights put off": 'pp = 4\nglobal_batch = 8\nschedule = "zb-h1"',
    "in a V": 'pp = 4\nvpp = 2\nglobal_batch = 8\nschedule = "zb-v"',
    "far ahead": 'pp = 4\nglobal_batch = 8\nschedule = "zb-h2"',
    "paired in a V": 'pp = 4\nvpp = 2\nglobal_batch = 32\nschedule = "dualpipe-v"',
    "mirrored": 'pp = 4\nglobal_batch = 32\nschedule = "dualpipe"',
    "mirrored, not paired": 'pp = 4\nglobal_batch = 32\nschedule = "chimera"',
    "uneven": "pp = 4\nglobal_batch = 8\nstages = [1, 3, 2, 2]",
    "buckets": "tp = 2\nglobal_batch = 8\nzero = 1\nbucket = 40000",
    "buckets, selective": 'tp = 2\nglobal_batch = 16\nbucket = 40000\nrecompute = "selective"',
}

WRITTEN_INTO = [
    'tp = 2\nglobal_batch = 16\ndp_style = "deepspeed"\nzero = 1',
    'global_batch = 16\ndp_style = "fsdp"\nzero = 3',
]
"""Plans whose data parallelism may write something in every pass of every layer."""


def workload(plan: str) -> Workload:
    """The step of a plan."""
    layout = lay_out(read(GPT_STEP.format(model="", plan=plan_text(plan)), "test.toml"), 8)
    return training_step(layout, Roofline(find_gpu("h100-sxm")))


def tables(plan: str) -> Iterator[tuple[Table, int]]:
    """The tables of a plan, and how many slots each has."""
    for table in workload(plan).program.tables:
        assert table is not None
        yield table, table.n_slots


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_tables_are_as_if_every_stage_wrote_its_own(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = StageWriter._write

    def counted(self: StageWriter, passes: object, first: int) -> object:
        written[-1] += 1
        return write(self, passes, first)  # type: ignore[arg-type]

    monkeypatch.setattr(StageWriter, "_write", counted)
    written.append(0)
    shared = list(tables(plan))
    monkeypatch.setattr(Megatron, "first_and_last_only", False)
    monkeypatch.setattr(Megatron, "operators_written", Strategy.operators_written)
    monkeypatch.setattr(StageWriter, "key", lambda *_: None)
    written.append(0)
    assert_equal(shared, list(tables(plan)))
    assert written[0] <= written[1]
    if plan == PLANS["1f1b"]:
        assert written[0] < written[1]


@pytest.mark.parametrize(
    "plan",
    [
        "tp = 2\nglobal_batch = 16",
        "tp = 2\nsp = true\nglobal_batch = 16",
        'cp = 2\nglobal_batch = 16\nrecompute = "selective"',
        'tp = 2\nglobal_batch = 16\nrecompute = "full"\nrecompute_layers = 5',
        "tp = 2\nglobal_batch = 16\nzero = 1\nbucket = 200000",
        'tp = 2\nglobal_batch = 16\ndp_style = "ddp"',
        *WRITTEN_INTO,
        'pp = 2\nglobal_batch = 8\nschedule = "zb-h1"',
        "tp = 2\nglobal_batch = 16\nlaunch_blocking = true",
    ],
)
def test_equal_layers_are_repeated_as_if_each_was_written(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated: list[bool] = []
    repeat = BlockBuilder.repeat_layer

    def noted(self: BlockBuilder, before: BlockMark, layers: list[int]) -> bool:
        repeated.append(repeat(self, before, layers))
        return repeated[-1]

    monkeypatch.setattr(BlockBuilder, "repeat_layer", noted)
    found = list(tables(plan))
    assert any(repeated) == (plan not in WRITTEN_INTO)
    monkeypatch.setattr(BlockBuilder, "repeat_layer", lambda *_: False)
    assert_equal(found, list(tables(plan)))


def assert_equal(found: list[tuple[Table, int]], wanted: list[tuple[Table, int]]) -> None:
    """Fail unless tables are equal, and have as many slots."""
    assert len(found) == len(wanted)
    for (one, slots), (other, others) in zip(found, wanted, strict=True):
        assert slots == others
        for column in (*COLUMNS, "wait_index", "wait_row"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column), column)


ONE_EACH = [
    "global_batch = 8",
    'global_batch = 8\ndp_style = "ddp"',
    'global_batch = 8\nzero = 2\ndp_style = "deepspeed"',
    "global_batch = 8\nzero = 3",
]
"""Plans with one micro-batch a replica, whose layers add no gradients up."""


@pytest.mark.parametrize(
    "plan", [*PLANS.values(), *ONE_EACH], ids=[*PLANS, "one", "ddp", "deepspeed", "fsdp"]
)
def test_a_longer_step_is_written_of_the_same_blocks(plan: str) -> None:
    short = workload(plan)
    replicas = short.layout.grid.dp
    batch = short.layout.experiment.plan.global_batch
    other = short.with_micro_batches(2 * batch // replicas)
    whole = workload(plan.replace(f"global_batch = {batch}", f"global_batch = {2 * batch}"))
    assert (other.tokens, other.flops) == (whole.tokens, whole.flops)
    assert other.executed_flops == whole.executed_flops
    for one, table in zip(other.program.tables, whole.program.tables, strict=True):
        assert one is not None
        assert table is not None
        for column in (*COLUMNS, "wait_index", "wait_row"):
            mine, theirs = getattr(one, column), getattr(table, column)
            if column == "name":  # numbered by when they were first used
                mine = np.array(other.program.names)[mine]
                theirs = np.array(whole.program.names)[theirs]
            elif column in ("stream", "slot"):
                mine, theirs = renumbered(mine), renumbered(theirs)
            np.testing.assert_array_equal(mine, theirs, column)


def renumbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number them as they first come."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def test_chunks_that_share_operators_agree_on_the_messages_between_them(tmp_path: Path) -> None:
    """94 layers with experts in 32 chunks: rows of one chunk serve others, in other slots."""
    file = tmp_path / "experts.toml"
    file.write_text(
        """
        [model]
        preset = "qwen3-235b-a22b"
        [plan]
        tp = 2
        sp = true
        pp = 8
        vpp = 4
        dp = 16
        ep = 32
        etp = 1
        global_batch = 2048
        micro_batch = 1
        [plan.pipeline]
        schedule = "interleaved"
        account_for_embedding = true
        account_for_loss = true
        [plan.recompute]
        granularity = "none"
        modules = ["layernorm", "moe_act"]
        [framework]
        name = "megatron-core"
        moe_dispatcher = "flex"
        moe_multihot_fusion = true
        recipe = "performance"
        [cluster]
        preset = "dgx-h100"
        nodes = 32
        [run]
        allow_oom = true
        """
    )
    assert simulate(load(file)[1]) is not None
