"""What data parallelism moves in a step, and properties of every strategy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of
from sharing import layer, stepped

from mpisim.program import Kind, Operation, Program
from mpisim.workloads import Workload
from mpisim.workloads.data_parallel import make_strategy
from mpisim.workloads.data_parallel.buckets import Bucket, chunk_parameters
from mpisim.workloads.data_parallel.ddp import Ddp
from mpisim.workloads.data_parallel.deepspeed import DeepSpeed
from mpisim.workloads.data_parallel.megatron import Megatron
from mpisim.workloads.grid import Grid, Groups
from mpisim.workloads.operators import Layer, Parameter

WEIGHT = {
    Operation.ALL_REDUCE: 2,
    Operation.REDUCE_SCATTER: 1,
    Operation.ALL_GATHER: 1,
    Operation.BROADCAST: 1,
}
"""How often a rank sends the buffer, up to (N - 1) / N: an all-reduce is a reduce-scatter and an
all-gather."""


def volume(program: Program, group: str = "") -> int:
    """Bytes of all collectives of rank 0, weighted; but numbers of 4 bytes, which are no data."""
    table = program.table_of(0)
    total = 0
    for row in np.flatnonzero(table.is_communication).tolist():
        communicator = program.slots[program.slot_index[0] + table.slot[row]]
        name = program.communicators.names[communicator].partition(" ")[0]
        if table.bytes[row] > 4 and group in ("", name):
            total += WEIGHT[Operation(table.operation[row])] * int(table.bytes[row])
    return total


# Sizes that no padding changes: multiples of 128 × 4 ranks.
LAYERS = tuple(layer(name, 1024, 512) for name in ("embedding", "a", "b", "c", "head"))
PSI = 5 * 1536


@pytest.mark.parametrize(
    ("plan", "times"),
    [
        # arXiv:1910.02054, section 7: data parallelism and stages 1 and 2 move 2 Ψ, stage 3 3 Ψ.
        ({"dp_style": "ddp"}, 2),
        ({"dp_style": "megatron"}, 2),
        ({"dp_style": "megatron", "overlap_dp": False}, 2),
        ({"dp_style": "megatron", "zero": 1}, 2),
        ({"dp_style": "megatron", "zero": 1, "overlap_dp": False}, 2),
        ({"zero": 2}, 2),
        ({"zero": 3, "wrap_layers": 2}, 3),
        ({"zero": 3, "overlap_dp": False}, 3),
        ({"zero": 3, "end_units": True}, 3),
        ({"dp_style": "deepspeed"}, 2),
        # DeepSpeed all-reduces where a reduce-scatter would do.
        ({"dp_style": "deepspeed", "zero": 1}, 3),
        ({"dp_style": "deepspeed", "zero": 2}, 3),
        # ZeroRedundancyOptimizer all-reduces as DDP does, then broadcasts.
        ({"dp_style": "ddp", "zero": 1}, 3),
    ],
)
def test_volume_of_a_step(plan: dict[str, object], times: int) -> None:
    done = stepped(LAYERS, 4, precision_gradients="bf16", **plan)
    # The root of FSDP (embedding and head) stays gathered from its forward to its backward, and so
    # does a unit of the head.
    root = (1 if "end_units" in plan else 2) * 1536 if plan.get("zero") == 3 else 0
    assert volume(done.program) == 2 * (times * PSI - root)


def test_volume_of_zero_3_as_published_where_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mpisim.workloads.data_parallel import frameworks, zero3

    known = frameworks.frameworks()
    none = replace(known.deepspeed.reuse, value=0)
    bare = replace(known.deepspeed, reuse=none, persistent=none, prefetch=none)
    monkeypatch.setattr(zero3, "frameworks", lambda: replace(known, deepspeed=bare))
    done = stepped(LAYERS, 4, dp_style="deepspeed", zero=3)
    assert volume(done.program) == 2 * 3 * PSI
    again = stepped(LAYERS, 4, dp_style="deepspeed", zero=3, recompute="full")
    # A block that is computed again is freed before its backward, too.
    assert volume(again.program) == 2 * (3 * PSI + 3 * 1536)


def test_frozen_parameters_are_gathered_and_have_no_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thirds are frozen: 2 Ψ of gathers stay, and a third of the gradients."""
    frozen = tuple(
        layer(name, Parameter("frozen weight", 1024, frozen=True), 512)
        for name in ("embedding", "a", "b", "c", "head")
    )
    done = stepped(frozen, 4, precision_gradients="bf16", zero=3)
    assert volume(done.program) == 2 * (2 * PSI - 2 * 1536 + PSI // 3)

    from mpisim.workloads.data_parallel import frameworks, zero3

    known = frameworks.frameworks()
    none = replace(known.deepspeed.reuse, value=0)
    bare = replace(known.deepspeed, reuse=none, persistent=none, prefetch=none)
    monkeypatch.setattr(zero3, "frameworks", lambda: replace(known, deepspeed=bare))
    done = stepped(frozen, 4, dp_style="deepspeed", zero=3)
    assert volume(done.program) == 2 * (2 * PSI + PSI // 3)


def test_zero_2_and_3_move_gradients_in_every_micro_batch() -> None:
    for plan, once, each in (
        ({"dp_style": "deepspeed", "zero": 1}, 3 * PSI, 0),
        ({"dp_style": "deepspeed", "zero": 2}, PSI, 2 * PSI),
        ({"dp_style": "megatron", "zero": 1}, 2 * PSI, 0),
        ({"zero": 2}, 0, 2 * PSI),
    ):
        for micro_batches in (1, 3):
            done = stepped(
                LAYERS, 4, precision_gradients="bf16", global_batch=4 * micro_batches, **plan
            )
            assert volume(done.program) == 2 * (once + micro_batches * each)


def test_volume_of_hybrid_sharding() -> None:
    # Inside a group of 4 as ZeRO-3; between two groups an all-reduce of a quarter.
    done = stepped(LAYERS, 8, zero=3, zero_group=4)
    assert volume(done.program, "shard") == 2 * (3 * PSI - 2 * 1536)
    assert volume(done.program, "replica") == 2 * 2 * PSI // 4


# --- properties ---------------------------------------------------------------------------------

sizes = st.integers(1, 3000)
parameters = st.builds(Parameter, st.just("p"), sizes, expert=st.booleans())
networks = st.lists(st.lists(parameters, min_size=1, max_size=4), min_size=1, max_size=5).map(
    lambda layers: tuple(layer(f"l{i}", *each) for i, each in enumerate(layers))
)


def buckets_of(layers: tuple[Layer, ...], **plan: object) -> list[Bucket]:
    made = plan_of(**{"global_batch": 4, "ep": 2, "dp": 4, **plan})  # type: ignore[arg-type]
    found = make_strategy(made, [layers], Groups(Grid.of(made, 4)))
    if isinstance(found, Megatron):
        return list(found.buckets.values())
    assert isinstance(found, Ddp | DeepSpeed)
    return list(found.buckets[0])


@given(
    networks,
    st.integers(2, 20_000),
    st.sampled_from(
        [("ddp", 0), ("megatron", 0), ("megatron", 1), ("deepspeed", 1), ("deepspeed", 2)]
    ),
)
def test_every_parameter_is_in_one_bucket_in_reverse_order(
    layers: tuple[Layer, ...], bucket: int, style: tuple[str, int]
) -> None:
    buckets = buckets_of(layers, dp_style=style[0], zero=style[1], bucket=bucket)
    for expert in (False, True):
        here = [each for bucket in buckets if bucket.expert is expert for each in bucket.parameters]
        expected = [each for each in chunk_parameters(layers) if each.expert is expert]
        assert here == expected[::-1]
    for each in buckets:
        least = sum(parameter.size for parameter in each.parameters)
        # Padding: up to 63 for each parameter, and up to the next multiple of 128.
        most = least + 64 * len(each.parameters) + 128 if style == ("megatron", 1) else least
        assert least <= each.size <= most
        if style[1] == 1 and style[0] == "megatron":
            assert each.size % 128 == 0


def reductions(done: Workload) -> list[tuple[int, int, list[int]]]:
    """Of each reduction of gradients, in order: row, bytes and the kernels it waits for."""
    program = done.program
    table = program.table_of(0)
    found = []
    for row in range(len(table)):
        name = program.names[table.name[row]]
        if name in ("gradient all-reduce", "gradient reduce-scatter"):
            awaited = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
            kernels = [each for each in awaited if table.kind[each] == Kind.KERNEL]
            found.append((row, int(table.bytes[row]), kernels))
    return found


@settings(max_examples=40)
@given(
    networks,
    st.integers(2, 20_000),
    st.integers(1, 2),
    st.sampled_from(
        [
            ("ddp", 0),
            ("megatron", 0),
            ("megatron", 1),
            ("deepspeed", 1),
            ("deepspeed", 2),
            ("deepspeed", 3),
            ("fsdp", 2),
            ("fsdp", 3),
        ]
    ),
)
def test_gradients_are_reduced_once_and_when_complete(
    layers: tuple[Layer, ...], bucket: int, micro_batches: int, style: tuple[str, int]
) -> None:
    done = stepped(
        layers,
        4,
        ep=2,
        dp_style=style[0],
        zero=style[1],
        bucket=bucket,
        global_batch=4 * micro_batches,
        precision_gradients="fp32",
    )
    program, table = done.program, done.program.table_of(0)
    names = [program.names[name] for name in table.name]
    found = reductions(done)
    times = micro_batches if style[1] >= 2 else 1
    total = 4 * sum(each.size for each in chunk_parameters(layers))
    moved = sum(size for _, size, _ in found)
    assert total * times <= moved
    if style[1] in (0, 2) and style[0] != "fsdp":
        assert moved == total * times  # no padding

    # Never before the operator that completes it. The last reduction comes after all of them.
    done_at = {name: i for i, name in enumerate(names) if name.endswith("backward")}
    assert max(found[-1][2]) >= max(done_at.values())
    if style in (("ddp", 0), ("megatron", 0), ("megatron", 1)):
        buckets = buckets_of(
            layers, dp_style=style[0], zero=style[1], bucket=bucket, precision_gradients="fp32"
        )
        left: defaultdict[tuple[int, bool], list[Bucket]] = defaultdict(list)
        for each in buckets:
            left[4 * each.size, each.expert].append(each)
        for row, size, kernels in found:
            slot = program.slots[program.slot_index[0] + table.slot[row]]
            expert = program.communicators.names[slot].startswith("edp")
            here = left[size, expert].pop(0)
            for parameter in here.parameters:
                operator = layers[parameter.layer].operators[parameter.operator]
                assert max(kernels) >= done_at[f"{operator.name} backward"]
        assert not any(left.values())
