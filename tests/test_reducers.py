"""DistributedDataParallel of Apex and of old PyTorch, and its search for unused parameters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.experiment.load import read
from mpisim.prediction.prepared import prepare
from mpisim.program import Kind, Operation, Table

PARAMETERS = 25_557_032
"""Of ResNet-50."""

NUMBER = 161
"""Its parameters: 53 convolutions, scales and shifts of 53 norms, weight and bias of the head."""

FILE = """
[model]
preset = "resnet-50"

[plan]
micro_batch = 64
global_batch = 512
precision = "fp32"

[cluster]
preset = "dgx-v100"

[framework]
name = "none"
dp_style = "ddp"
broadcast_buffers = false
"""


class Rows:
    """Rows of a rank with their names."""

    def __init__(self, *changes: str) -> None:
        program = prepare(read(FILE, "test", [f"framework.{each}" for each in changes])).program
        self.table: Table = program.table_of(0)
        self.names = [program.names[i] for i in self.table.name.tolist()]

    def named(self, name: str) -> list[int]:
        return [row for row, each in enumerate(self.names) if each == name]

    def waits(self, row: int) -> list[str]:
        found = self.table
        rows = found.wait_row[found.wait_index[row] : found.wait_index[row + 1]]
        return [self.names[each] for each in rows.tolist()]

    def reduced(self) -> list[int]:
        of = self.table
        rows = (of.kind == Kind.COLLECTIVE) & (of.operation == Operation.ALL_REDUCE)
        return np.flatnonzero(rows).tolist()


def test_apex_joins_at_least_ten_million_gradients() -> None:
    rows = Rows("reducer=apex")
    sizes = (rows.table.bytes[rows.reduced()] // 4).tolist()
    assert sum(sizes) == PARAMETERS
    assert all(size >= 10_000_000 for size in sizes[:-1])
    assert len(rows.named("join gradients")) == len(sizes)
    assert not rows.named("copy gradient into bucket")
    assert not rows.named("divide bucket")


def test_apex_divides_reduces_and_multiplies_on_a_stream_of_its_own() -> None:
    rows = Rows("reducer=apex-predivide", "bucket=1000000000")
    (reduced,) = rows.reduced()
    chain = ["join gradients", "divide bucket", None, "multiply bucket"]
    stages = [*chain, "copy gradients from bucket"]
    found = [reduced if name is None else rows.named(name)[0] for name in stages]
    for before, after in itertools.pairwise(found):
        assert rows.names[before] in rows.waits(after)
    streams = rows.table.stream[found].tolist()
    assert streams[0] != streams[1] == streams[3] == streams[4]
    # The optimizer waits for what is copied back, not for the sum alone.
    behind = next(row for row in range(len(rows.names)) if row > found[-1])
    assert "copy gradients from bucket" in rows.waits(behind)


def test_apex_without_overlap_reduces_the_same() -> None:
    text = FILE.replace("[plan]", "[plan]\noverlap.dp = false")
    program = prepare(read(text, "test", ["framework.reducer=apex"])).program
    table = program.table_of(0)
    rows = table.operation == Operation.ALL_REDUCE
    assert table.bytes[rows].sum() == 4 * PARAMETERS


def test_old_buckets_are_divided_once_full() -> None:
    new, old = Rows(), Rows("divides_buckets=true")
    assert new.table.bytes[new.reduced()].tolist() == old.table.bytes[old.reduced()].tolist()
    assert len(old.named("divide bucket")) == len(old.reduced())
    assert all("divide bucket" in old.waits(row) for row in old.reduced())
    assert not new.named("divide bucket")


def test_old_versions_divide_buckets() -> None:
    text = FILE.replace('name = "none"', 'name = "ddp"\nversion = "1.5"')
    assert prepare(read(text, "test", [])).experiment.plan.framework.divides_buckets
    text = text.replace("1.5", "1.6")
    assert not prepare(read(text, "test", [])).experiment.plan.framework.divides_buckets


def test_unused_parameters_are_looked_for_once_a_step() -> None:
    rows = Rows("find_unused_parameters=true")
    (searched,) = rows.named("unused parameters")
    launch = rows.table.host[rows.named("copy used parameters")[0] - 1]
    assert launch > 0
    # 161 parameters and some operators, each 0.08 of a launch: 35 us on the host of a V100.
    assert 0.08 * 35e6 * NUMBER < rows.table.host[searched] < 0.08 * 35e6 * 4 * NUMBER
    *gradients, used = rows.reduced()
    assert rows.table.bytes[gradients].sum() == 4 * PARAMETERS
    assert rows.table.bytes[used] == 4 * NUMBER
    assert rows.waits(used) == ["copy used parameters"]
    last = max(rows.named("copy gradient from bucket"))
    assert rows.names[used] in rows.waits(last + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["framework.cycle_time=5.0"], "framework.cycle_time is 5.0: Horovod reduces gradients"),
        (
            ["framework.find_unused_parameters=true"],
            "framework.find_unused_parameters is true: it looks for none",
        ),
        (["framework.dp_style=fsdp", "plan.zero=3"], "dp_style is 'fsdp': it reduces under 'ddp'"),
        (["plan.zero=1"], "zero is 1: it shards nothing"),
    ],
)
def test_apex_does_not_do_what_others_do(changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(read(FILE, "test", ["framework.reducer=apex", *changes]))


TRANSFORMER = """
[model]
preset = "llama-3-8b"

[plan]
tp = 2
zero = 0
global_batch = 8

[framework]
reducer = "apex"

[cluster]
preset = "dgx-h100"
"""


@pytest.mark.parametrize(
    ("plan", "style", "origin"),
    [
        (["framework.name=fsdp", "plan.zero=2"], "fsdp", "is what framework.name = 'fsdp' sets"),
        (["framework.name=megatron-lm"], "megatron", "is what framework.name = 'megatron-lm' sets"),
        (["framework.name=none"], "megatron", "is the default for this plan"),
        ([], "megatron", "is the default for this plan"),
    ],
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "framework.reducer is 'apex', but framework.dp_style is {style}: it reduces"),
        (
            ["framework.reducer=pytorch", "framework.cycle_time=5"],
            "framework.cycle_time is given, but framework.dp_style is {style}; Horovod reduces",
        ),
    ],
)
def test_refusals_say_where_the_style_came_from(
    plan: list[str], style: str, origin: str, changes: list[str], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        prepare(read(TRANSFORMER, "test", [*plan, *changes]))
    assert message.format(style=repr(style)) in str(refused.value)
    assert str(refused.value).count(f"; framework.dp_style {origin}") == 1
