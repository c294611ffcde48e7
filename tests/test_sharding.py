"""Where tables are: the paper's rules, balance, capacity, and what each kind of sharding costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from dlrms import experiment_of, model_of
from hypothesis import given
from hypothesis import strategies as st
from plans import changed, plan_of

from mpisim import simulate
from mpisim.base.errors import InputError
from mpisim.experiment import ClusterChoice, Experiment
from mpisim.experiment.models import Dlrm
from mpisim.kernels.operations import Copy, EmbeddingTables, Gemm
from mpisim.prediction.prepared import prepare
from mpisim.program import Operation, check_matching
from mpisim.workloads.dlrm import (
    COSTS,
    EmbeddingTable,
    assign_tables,
    dlrm_networks,
)
from mpisim.workloads.dlrm.sharding import sharded
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Communicate, Compute, LayerStack

PAPER = {
    "size-greedy": "E",
    "lookup-greedy": "L * D",
    "norm-lookup-greedy": "L / E",
    "size-lookup-greedy": "L * D * log10(E)",
}
"""Costs as the paper prints them, of a table with E rows, width D and L lookups."""

TABLES = st.lists(
    st.builds(
        EmbeddingTable,
        st.integers(2, 10**7),
        st.sampled_from((4, 8, 16, 32, 64, 128, 256)),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=40,
)


def greedy(costs: list[float], sizes: list[int], ranks: int) -> list[int]:
    """The dearest first, each to the least loaded rank, ties as DreamShard breaks them."""
    bins: list[list[int]] = [[] for _ in range(ranks)]
    of = {}
    for cost, size, index in sorted(zip(costs, sizes, range(len(costs)), strict=True))[::-1]:
        loads = [
            (sum(costs[i] for i in each), sum(sizes[i] for i in each), r)
            for r, each in enumerate(bins)
        ]
        rank = min(loads)[2]
        bins[rank].append(index)
        of[index] = rank
        assert (cost, size) == (costs[index], sizes[index])
    return [of[i] for i in range(len(costs))]


@given(tables=TABLES, ranks=st.integers(1, 9))
def test_the_six_sharders_of_the_paper(tables: list[EmbeddingTable], ranks: int) -> None:
    assert sharded("naive", tables, ranks) == [i % ranks for i in range(len(tables))]
    drawn = sharded("random", tables, ranks)
    assert len(drawn) == len(tables)
    assert set(drawn) <= set(range(ranks))
    for name, printed in PAPER.items():
        costs = [
            eval(printed, {"E": x.entries, "D": x.width, "L": x.pooling, "log10": math.log10})
            for x in tables
        ]
        expected = greedy(costs, [x.entries * x.width for x in tables], ranks)
        found = sharded(name, tables, ranks)
        # Sums in another order may tie or not in the last digit: then loads decide.
        if found != expected:
            loads = [
                sorted(
                    sum(c for c, r in zip(costs, of, strict=True) if r == rank)
                    for rank in range(ranks)
                )
                for of in (found, expected)
            ]
            assert loads[0] == pytest.approx(loads[1], rel=1e-9)


def test_size_in_paper_and_code() -> None:
    # The paper's cost is x.E: the long narrow table first. The code's is x.E * x.D.
    tables = [EmbeddingTable(1000, 4, 1), EmbeddingTable(100, 128, 1), EmbeddingTable(800, 4, 1)]
    assert assign_tables("size-greedy", tables, 2) == ((0,), (1, 2))
    assert assign_tables("bytes-greedy", tables, 2) == ((1,), (0, 2))


@given(tables=TABLES, ranks=st.integers(1, 9), name=st.sampled_from(sorted(COSTS)))
def test_no_rank_has_more_than_another_by_more_than_its_dearest_table(
    tables: list[EmbeddingTable], ranks: int, name: str
) -> None:
    placed = assign_tables(name, tables, ranks)
    sums = [math.fsum(COSTS[name](tables[i]) for i in numbers) for numbers in placed]
    for numbers, own in zip(placed, sums, strict=True):
        least = min((COSTS[name](tables[i]) for i in numbers), default=0)
        assert own - least <= min(sums) * (1 + 1e-9) + 1e-9


@given(
    tables=TABLES,
    ranks=st.integers(1, 6),
    name=st.sampled_from(sorted(COSTS)),
    spare=st.floats(1.0, 3.0),
)
def test_greedy_sharders_heed_the_room(
    tables: list[EmbeddingTable], ranks: int, name: str, spare: float
) -> None:
    room = spare * max(each.size for each in tables)
    try:
        placed = assign_tables(name, tables, ranks, room)
    except InputError:
        assert sum(each.size for each in tables) > (room - max(t.size for t in tables)) * ranks
        return
    assert max(sum(tables[i].size for i in numbers) for numbers in placed) <= room


# --- kinds of sharding, by hand -------------------------------------------------------------------

MODEL = Dlrm(
    "dlrm",
    table_entries=(1000, 200, 64),
    embedding=(8, 16, 16),
    pooling=(3, 2, 1),
    bottom_mlp=(16,),
    top_mlp=(1,),
)


def networks(placement: Sequence[str], model: Dlrm = MODEL, **keys: Any) -> list[LayerStack]:
    keys = {"precision": "fp32", "optimizer": "sgd", "micro_batch": 4} | keys
    plan = plan_of(global_batch=2 * keys["micro_batch"], placement=tuple(placement), **keys)
    found, of = dlrm_networks(model, plan, Grid.of(plan, 2))
    return [found[i] for i in of]


def communications(network: LayerStack) -> list[tuple[str, Operation, int]]:
    tasks = [
        *(t for layer in network.layers for o in layer.operators for t in o.forward),
        *(
            t
            for layer in reversed(network.layers)
            for o in reversed(layer.operators)
            for t in o.backward
        ),
    ]
    return [(t.name, t.operation, t.bytes) for t in tasks if isinstance(t, Communicate)]


def kernels(network: LayerStack, kind: type) -> dict[str, Any]:
    return {
        task.name: task.kernel
        for layer in network.layers
        for operator in layer.operators
        for task in (*operator.forward, *operator.backward)
        if isinstance(task, Compute) and isinstance(task.kernel, kind)
    }


def local(network: LayerStack) -> list[int]:
    return [p.size for layer in network.layers for p in layer.parameters if p.local]


def test_widths_travel() -> None:
    # 8 samples of all ranks; rank 0 sends rows of 8, rank 1 of 16 + 16: the widest counts.
    first, second = networks(["table_wise 0", "table_wise 1", "table_wise 1"])
    exchange = (Operation.ALL_TO_ALL, 4 * 8 * 32)
    assert [each[1:] for each in communications(first)] == [exchange] * 2
    assert communications(first) == communications(second)
    assert local(first) == [1000 * 8]
    assert local(second) == [200 * 16, 64 * 16]
    lookup = kernels(second, EmbeddingTables)["tables"]
    assert (lookup.lookups, lookup.row_bytes) == (8 * 3, 8 * 3 * 64)
    assert lookup.output_bytes == 8 * 2 * 64
    # The narrow table's pooled rows of 4 samples are widened from 8 to 16.
    widening = kernels(first, Gemm)["widening from 8"]
    assert (widening.m, widening.n, widening.k, widening.batch) == (4, 16, 8, 1)
    parameters = [p for layer in first.layers for p in layer.parameters]
    assert [p.size for p in parameters if p.name.startswith("widening")] == [8 * 16]


def test_widths_side_by_side() -> None:
    model = replace(MODEL, interaction="cat")
    (network, _) = networks(["table_wise 0"], model=model)
    top = kernels(network, Gemm)["top 1"]
    assert top.k == 8 + 16 + 16 + 16  # all rows and the dense vector, none widened
    assert not [name for name in kernels(network, Gemm) if name.startswith("widening")]


def test_columns_are_tables_of_their_own() -> None:
    first, second = networks(["column_wise 0 1", "table_wise 0", "table_wise 1"])
    assert local(first) == [1000 * 4, 200 * 16]
    assert local(second) == [1000 * 4, 64 * 16]
    assert {size for _, _, size in communications(first)} == {4 * 8 * (4 + 16)}
    lookup = kernels(second, EmbeddingTables)["tables"]
    # Each slice is looked up for every sample: 3 lookups of rows of 16 bytes, and 1 of 64.
    assert (lookup.lookups, lookup.row_bytes) == (8 * 4, 8 * (3 * 16 + 64))


def test_rows_are_summed_up() -> None:
    first, second = networks(["row_wise", "table_wise 0", "table_wise 1"])
    assert local(first) == [200 * 16, 500 * 8]
    assert communications(first) == [
        ("rows all-to-all", Operation.ALL_TO_ALL, 4 * 8 * 16),
        ("sums reduce-scatter", Operation.REDUCE_SCATTER, 4 * 8 * 8),
        ("rows gradient all-to-all", Operation.ALL_TO_ALL, 4 * 8 * 16),
        ("sums gradient all-gather", Operation.ALL_GATHER, 4 * 8 * 8),
    ]
    assert communications(first) == communications(second)
    lookup = kernels(second, EmbeddingTables)["row-wise tables"]
    # Half of the lookups meet the half of the rows here, and add to the rows of all 8 samples.
    assert (lookup.lookups, lookup.output_bytes) == (8 * 3 // 2, 8 * 32)


def test_copies_are_reduced_as_weights_are() -> None:
    first, _ = networks(["data_parallel", "table_wise 0", "table_wise 1"])
    assert local(first) == [200 * 16]
    shared = [p.size for layer in first.layers for p in layer.parameters if not p.local]
    assert 1000 * 8 in shared
    assert [name for name, _, _ in communications(first)] == [
        "rows all-to-all",
        "rows gradient all-to-all",
    ]
    found = kernels(first, EmbeddingTables)
    assert found["replicated tables"].lookups == 4 * 3  # of its own samples alone
    assert kernels(first, Copy)["replicated tables gradient"] == Copy(4 * 8000, "fill")


def test_nothing_is_exchanged_where_all_is_divided_by_rows() -> None:
    first, _ = networks(["row_wise"])
    names = [name for name, _, _ in communications(first)]
    assert names == ["sums reduce-scatter", "sums gradient all-gather"]


def test_what_waits_for_what() -> None:
    first, _ = networks(["row_wise", "table_wise 0", "table_wise 1"])
    waits = {
        task.name: task.after
        for layer in first.layers
        for operator in layer.operators
        for task in (*operator.forward, *operator.backward)
        if isinstance(task, Compute) and task.after
    }
    sent = {
        task.name: task.token
        for layer in first.layers
        for operator in layer.operators
        for task in (*operator.forward, *operator.backward)
        if isinstance(task, Communicate)
    }
    # Narrow rows are widened first: that waits for all rows. Updates wait for their gradients.
    assert waits == {
        "widening from 8": (sent["rows all-to-all"], sent["sums reduce-scatter"]),
        "tables update": (sent["rows gradient all-to-all"],),
        "row-wise tables update": (sent["sums gradient all-gather"],),
    }


def test_a_mixed_step_matches() -> None:
    model = replace(model_of(5, 5), skew=(0.5,))
    experiment = experiment_of(model, 4, 256)
    texts = (
        "row_wise",
        "column_wise 0 3",
        "table_wise 2",
        "data_parallel",
        "table_wise 1 fused_uvm",
    )
    experiment = replace(experiment, plan=changed(experiment.plan, placement=texts))
    prepared = prepare(experiment)
    check_matching(prepared.program)
    folded, whole = (simulate(prepared, fold=fold) for fold in (True, False))
    assert folded is not None
    assert whole is not None
    assert folded.digest == whole.digest
    reduced = [4 * p.size for p in prepared.workload.layout.networks[0].layers[1].parameters]
    assert 4 * model.table_entries[3] * model.widths[3] in reduced


def test_tables_in_host_memory() -> None:
    first, _ = networks(["table_wise 0 fused_uvm", "table_wise 1", "table_wise 1"])
    assert local(first) == []
    copies = kernels(first, Copy)
    assert copies["tables in host memory rows"] == Copy(4 * 8 * 8 * 3, "host")
    # Updates read and write each distinct row: of 24 even draws of 1000 rows 23.71.
    changed = 2 * 32 * 1000 * -math.expm1(-24 / 1000)
    assert copies["tables in host memory rows changed"] == Copy(round(changed), "host")

    first, _ = networks(["table_wise 0 fused_uvm_caching", "table_wise 1", "table_wise 1"])
    assert local(first) == [200 * 8]  # a fifth of the rows
    # Rows drawn evenly are in a cache of a fifth of them with a chance of one in five.
    fetched = 32 * 0.8 * 1000 * -math.expm1(-24 / 1000)
    copied = kernels(first, Copy)["tables in host memory, cached rows fetched"]
    assert copied.bytes == pytest.approx(fetched, rel=0.01)


def test_what_is_in_host_memory_takes_none_of_the_gpus() -> None:
    model = replace(MODEL, table_entries=(10**8, 200, 64))
    plan = plan_of(global_batch=8, micro_batch=4, precision="fp32", optimizer="sgd")
    found = {}
    for kernel, held in (("fused", 1.0), ("fused_uvm_caching", 0.2), ("fused_uvm", 0.0)):
        placed = changed(plan, placement=(f"table_wise 0 {kernel}", "table_wise 1", "table_wise 1"))
        experiment = Experiment(
            model=model, plan=placed, cluster=ClusterChoice("gv100-4gpu", gpus=2)
        )
        peak = prepare(experiment).memory.worst.parameters
        found[kernel] = peak
        assert peak == pytest.approx(held * 3.2e9, abs=1e5)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (
            ["table_wise 2"] * 3,
            "plan.tables.placement[0] is 'table_wise 2'; ranks are numbers from 0 to 1",
        ),
        (["table_wise 0 1"] * 3, "a whole table is on one rank"),
        (["row_wise 0"] * 3, "row_wise is on all ranks, and names none"),
        (["tablewise"] * 3, "did you mean 'table_wise'?"),
        (["table_wise 0 uvm"] * 3, "it ends with fused, fused_uvm, fused_uvm_caching"),
        (["column_wise 0 1 0"] * 3, "the table's 8 columns must divide into slices of 4 or more"),
        (["column_wise"] * 3, "it names the rank of each slice"),
        (["data_parallel fused_uvm"] * 3, "copies on all ranks are 'fused'"),
        (
            ["row_wise"] * 2,
            "plan.tables.placement has 2 entries; one, or one for each of the 3 tables",
        ),
        ([""], "it begins with table_wise, column_wise, row_wise, data_parallel"),
    ],
)
def test_placements_that_there_are_not(placement: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        networks(placement)
    assert message in str(error.value)


def test_single_tables_are_whole() -> None:
    with pytest.raises(InputError, match=r"tables one by one .* are whole"):
        networks(["row_wise"], fused=False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"embedding": (8, 16)}, "embedding has 2 entries; one number, or one for each of the 3"),
        ({"embedding": (8, 8, 32)}, "it must end with the widest embedding = 32"),
        ({"skew": (1.0, 1.0)}, "skew has 2 entries"),
        ({"reuse": ((1.0,),)}, "reuse has 1 entries; there are 3 tables"),
        ({"reuse": ((1.0,),) * 3}, "reuse of table 0 has 1 shares that add up to 1; it needs 17"),
    ],
)
def test_tables_that_there_are_not(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(MODEL, **keys)
    assert message in str(error.value)


# --- the best placement ---------------------------------------------------------------------------
