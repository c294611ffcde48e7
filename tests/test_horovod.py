"""Horovod's cycles: which gradients are reduced together, and how long they wait."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.experiment.load import read
from mpisim.prediction.prepared import prepare
from mpisim.program import Kind, Operation, Phase, Table

MS = 10**9

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
"""


def table(*changes: str) -> tuple[Table, list[str]]:
    """The table of a rank, and the names of its rows."""
    program = prepare(read(FILE, "test", [f"framework.{each}" for each in changes])).program
    found = program.table_of(0)
    return found, [program.names[i] for i in found.name.tolist()]


def reductions(found: Table) -> list[int]:
    return np.flatnonzero(
        (found.kind == Kind.COLLECTIVE) & (found.operation == Operation.ALL_REDUCE)
    ).tolist()


def waits(found: Table, row: int) -> list[int]:
    return found.wait_row[found.wait_index[row] : found.wait_index[row + 1]].tolist()  # type: ignore[no-any-return]


def test_all_gradients_are_reduced_once() -> None:
    whole = 4 * 25_557_032
    for changes in (["cycle_time=5.0"], ["cycle_time=1.0"], ["cycle_time=5.0", "bucket=1000000"]):
        found, _ = table(*changes)
        assert found.bytes[reductions(found)].sum() == whole


def test_buckets_are_as_old_as_a_cycle() -> None:
    """No bucket has gradients of more than one cycle, and two that follow are of two cycles."""
    cycle = 5 * MS
    found, names = table("cycle_time=5.0", "bucket=1000000000")
    compute = (found.kind == Kind.KERNEL) & (found.phase == Phase.BACKWARD)
    ended = np.cumsum(np.where(compute, found.duration, 0))
    times = []
    for row in reductions(found):
        copy = waits(found, row)[0]
        delay = waits(found, copy)[0] if names[copy].startswith("copy") else copy
        assert names[delay] == "wait for cycle"
        assert found.duration[delay] == pytest.approx(cycle / 2 + 0.2 * MS)
        times.append(int(ended[waits(found, delay)[0]]))
    whole = int(ended[-1])
    assert len(times) <= -(-whole // cycle) + 1
    assert len(times) >= whole // cycle // 2
    steps = [b - a for a, b in itertools.pairwise(times)]
    assert min(steps[:-1]) > 0


def test_a_longer_cycle_has_fewer_buckets() -> None:
    counts = [len(reductions(table(f"cycle_time={each}")[0])) for each in (0.5, 2.0, 8.0, 1000.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 1


def test_the_buffer_is_never_exceeded() -> None:
    found, _ = table("cycle_time=1000.0", "bucket=16777216")
    sizes = found.bytes[reductions(found)]
    assert sizes.max() <= 16777216
    assert len(sizes) >= 4 * 25_557_032 / 16777216


def test_one_gradient_by_itself_is_not_copied() -> None:
    """With no cycle each kernel's gradients are reduced by themselves: nccl_operations.cc."""
    found, names = table("cycle_time=0.0")
    alone = 0
    for row in reductions(found):
        copied = [names[each] for each in waits(found, row)]
        alone += copied == ["wait for cycle"]
    assert alone > 50


def test_tensorflow_enqueues_what_it_launches() -> None:
    """Buckets go by the CPU's time, which is far ahead: fewer of them; and they wait for no one."""
    ended, launched = (
        table("cycle_time=5.0")[0],
        table("cycle_time=5.0", "gradients_ready=launched"),
    )
    found, names = launched
    assert len(reductions(found)) < len(reductions(ended))
    assert "wait for cycle" not in names
    late = found.launch[reductions(found)] - np.median(found.launch[found.kind == Kind.KERNEL])
    assert late.tolist() == [pytest.approx(2.7 * MS)] * len(late)


def test_statistics_stay_where_they_are() -> None:
    found, _ = table("cycle_time=5.0")
    assert not (found.operation == Operation.BROADCAST).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["framework.dp_style=megatron"], "Horovod reduces gradients under 'ddp'"),
        (["plan.zero=1"], "Horovod shards nothing"),
        (["framework.cycle_time=-1.0"], "framework.cycle_time"),
    ],
)
def test_what_cannot_be(changes: list[str], message: str) -> None:
    wanted: list[Any] = ["framework.cycle_time=5.0", *changes]
    with pytest.raises(InputError, match=message):
        read(FILE, "test", wanted)
