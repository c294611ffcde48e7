"""What ``fully_shard`` launches for shards, beside gathers and reductions: worked by hand."""

from __future__ import annotations

import dataclasses

import pytest
from sharing import layer, stepped, told
from toys import Times, instant, layout

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.experiment import Plan, with_keys
from mpisim.program import Program
from mpisim.workloads import training_step
from mpisim.workloads.operators import LayerStack, Parameter

NET = (layer("a", 40), layer("b", 40))
GATHER, SCATTER = "parameter all-gather", "gradient reduce-scatter"
CAST, IN, OUT = "cast shards", "copy shards in", "copy parameters out"
GRADIENTS_IN, CAST_BACK, ADD = "copy gradients in", "cast gradient shards", "add gradient shards"
GATHERED = [CAST, IN, f"{GATHER} [dp 80] < {IN}"]
FSDP = {"dp_style": "fsdp", "zero": 3, "fully_shard": True}


def rows_of(program: Program, name: str) -> list[int]:
    table = program.table_of(0)
    return [row for row, each in enumerate(table.name) if program.names[each] == name]


def test_shards_are_cast_and_copied_before_gathers_and_cast_after_reductions() -> None:
    assert told(stepped(NET, 2, **FSDP).program)[:-4] == [
        *GATHERED,
        f"{OUT} < {GATHER}",
        "a forward",
        *GATHERED,
        f"{OUT} < {GATHER}",
        "b forward",
        *GATHERED,
        f"{OUT} < {GATHER}",
        *GATHERED,
        "b backward",
        GRADIENTS_IN,
        f"{SCATTER} [dp 80] < {GRADIENTS_IN}",
        f"{CAST_BACK} < {SCATTER}",
        f"{OUT} < {GATHER}",
        "a backward",
        f"{GRADIENTS_IN} < {SCATTER}",
        f"{SCATTER} [dp 80] < {GRADIENTS_IN}",
        f"{CAST_BACK} < {SCATTER}",
    ]


def test_a_rank_moves_its_shard_alone() -> None:
    # 40 elements on 4 ranks; from fp32 to bf16 and back; copied in bf16. One ps a byte.
    program = stepped(NET, 4, **FSDP).program
    duration = program.table_of(0).duration
    for name, size in ((CAST, 4 + 2), (IN, 2 + 2), (CAST_BACK, 2 + 4)):
        assert {int(duration[row]) for row in rows_of(program, name)} == {10 * size}


def test_shards_are_copied_on_a_stream_of_their_own() -> None:
    # FSDPCommContext.lazy_init: all_gather_copy_in_stream; what follows a reduction is on its own.
    program = stepped(NET, 2, **FSDP).program
    stream = program.table_of(0).stream
    by_name = {
        name: {int(stream[row]) for row in rows_of(program, name)}
        for name in (CAST, IN, GATHER, SCATTER, CAST_BACK, OUT)
    }
    assert by_name[CAST] == by_name[IN]
    assert by_name[CAST_BACK] == by_name[SCATTER]
    assert len(by_name[CAST] | by_name[GATHER] | by_name[OUT]) == 3


def test_formats_that_are_equal_need_no_cast() -> None:
    names = {"precision_gradients": "fp32", "precision_main_parameters": "bf16"}
    rows = told(stepped(NET, 2, **FSDP, precision_gradients="fp32").program)
    assert not any(row.startswith(CAST_BACK) for row in rows)
    rows = told(stepped(NET, 2, **FSDP, **names).program)
    assert CAST not in rows
    assert rows.count(IN) == 4
    assert sum(row.startswith(CAST_BACK) for row in rows) == 2


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_each_further_micro_batch_adds_to_the_shards(micro_batches: int) -> None:
    # Shards of 20, 4 and 4 elements: a launch of 2 us each; fp32 is read twice and written.
    net = LayerStack((layer("a", 40, 8, 8),), 6, 1)
    gpu = dataclasses.replace(instant(), launch_call=Quantity(2, "us", 0, "none"))
    laid = layout(net, 2, **FSDP, global_batch=2 * micro_batches)
    program = training_step(laid, Times(gpu)).program
    table, added = program.table_of(0), rows_of(program, ADD)
    assert len(added) == micro_batches - 1
    assert all(table.duration[row] == 3 * 4 * 28 for row in added)
    assert all(table.launch_cost[row] == 3 * 2_000_000 for row in added)


def test_replicas_cast_what_they_have_reduced() -> None:
    rows = told(stepped(NET, 4, **FSDP, zero_group=2).program)
    assert f"{CAST_BACK} < gradient shard all-reduce" in rows


def test_one_rank_copies_what_others_reduce() -> None:
    rows = told(stepped(NET, 1, **FSDP).program)
    assert rows.count("copy gradients") == rows.count(CAST_BACK) == 2
    assert CAST not in rows
    assert IN not in rows


def test_in_a_pipeline_shards_are_cast_once_a_step() -> None:
    for way in ("overlapped", "pytorch"):
        plan = {**FSDP, "zero": 2, "pp": 2, "global_batch": 8, "fsdp_pipeline": way}
        rows = told(stepped(NET, 4, **plan).program)
        assert rows.count(CAST) == rows.count(IN) == 1
        assert sum(row.startswith(CAST_BACK) for row in rows) == 1
        assert ADD not in rows


def test_the_first_dimension_is_padded_to_the_ranks() -> None:
    # 6 rows of 10 on 4 ranks are 8 rows; one row, as of a class token, is kept 4 times.
    matrix, token = Parameter("matrix", 60, rows=6), Parameter("token", 10, rows=1)
    net = (layer("a", matrix, token),)
    sizes = {True: 80 + 40, False: 60 + 12}
    for padded, size in sizes.items():
        rows = told(stepped(net, 4, **{**FSDP, "fully_shard": padded}).program)
        assert any(row.startswith(f"{GATHER} [dp {2 * size}]") for row in rows)


def test_one_buffer_and_parameters_apart_exclude_each_other() -> None:
    plan = with_keys(Plan(4), {"zero": 3, "framework.dp_style": "fsdp"})
    keys = {"framework.flat_shards": True, "framework.fully_shard": True}
    with pytest.raises(InputError, match=r"framework\.fully_shard and framework\.flat_shards"):
        with_keys(plan, keys)
