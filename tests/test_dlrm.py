"""Recommendation models: placement of tables, steps as facebookresearch/dlrm issues them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plans import plan_of
from toys import Times

from mpisim.base.errors import InputError
from mpisim.experiment import ClusterChoice, Experiment
from mpisim.experiment.model_presets import find_model
from mpisim.experiment.models import Dlrm
from mpisim.kernels.operations import (
    Copy,
    Elementwise,
    Embedding,
    EmbeddingTables,
    Gemm,
    OptimizerStep,
)
from mpisim.program import Names, Operation, check_matching
from mpisim.workloads import lay_out, training_step
from mpisim.workloads.assembly import TableAssembler
from mpisim.workloads.block_cache import Slots
from mpisim.workloads.blocks import BlockBuilder
from mpisim.workloads.dlrm import SHARDERS, dlrm_networks
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Communicate, Compute, LayerStack, Task, total
from mpisim.workloads.pricing import Pricing

TINY = Dlrm(
    "dlrm",
    table_entries=(100, 10, 1000),
    embedding=4,
    bottom_mlp=(5, 4),
    top_mlp=(6, 1),
    pooling=(2, 1, 3),
    dense_features=3,
)
KEYS = {"precision": "fp32", "optimizer": "sgd", "micro_batch": 2}


def networks(
    model: Dlrm = TINY, gpus: int = 2, **keys: Any
) -> tuple[list[LayerStack], NDArray[np.int64]]:
    keys = KEYS | keys
    plan = plan_of(**{"global_batch": gpus * keys["micro_batch"]} | keys)
    return dlrm_networks(model, plan, Grid.of(plan, gpus))


def described(step: Task) -> tuple[str, Any]:
    if isinstance(step, Communicate):
        return step.name, (step.operation, step.group, step.bytes)
    return step.name, step.kernel


def forward(network: LayerStack) -> list[Task]:
    return [s for layer in network.layers for o in layer.operators for s in o.forward]


def backward(network: LayerStack) -> list[Task]:
    return [
        step
        for layer in reversed(network.layers)
        for operator in reversed(layer.operators)
        for step in operator.backward
    ]


def gemm(m: int, n: int, k: int, batch: int = 1) -> Gemm:
    return Gemm(m, n, k, batch, "fp32", "fp32")


# --- steps ----------------------------------------------------------------------------------------


def test_a_step_on_two_ranks_by_hand() -> None:
    # 4 samples in all. By size: table 2 (4,000 elements) on rank 0, tables 0 and 1 on rank 1.
    found, of = networks(sharder="size-greedy")
    assert of.tolist() == [0, 1]
    first, second = found
    exchange = (Operation.ALL_TO_ALL, "dp", 4 * 4 * 2 * 4)  # fp32, samples, tables of rank 1, width
    dense = [
        ("bottom 1", gemm(2, 5, 3)),
        ("bottom 1 relu", Elementwise(2 * 4 * 10)),
        ("bottom 2", gemm(2, 4, 5)),
        ("bottom 2 relu", Elementwise(2 * 4 * 8)),
        # Four vectors of 4 for each of 2 samples; 6 pairs of them.
        ("features concatenation", Elementwise(2 * 4 * 2 * 4 * 4)),
        ("interaction", gemm(4, 4, 4, 2)),
        ("pairs", Elementwise(2 * 4 * 2 * 6 + 2 * 8 * 6)),
        ("interaction concatenation", Elementwise(2 * 4 * 2 * 10)),
        ("top 1", gemm(2, 6, 10)),
        ("top 1 relu", Elementwise(2 * 4 * 12)),
        ("top 2", gemm(2, 1, 6)),
        ("top 2 sigmoid", Elementwise(2 * 4 * 2)),
        ("copy labels", Copy(8, "host")),
        ("binary cross-entropy", Elementwise(3 * 8)),
        ("mean", Elementwise(8 + 4)),
    ]
    inputs = [
        ("copy dense features", Copy(4 * 4 * 3, "host")),
        ("copy offsets", Copy(8 * 4 * 3, "host")),
        ("copy indices", Copy(8 * 4 * (2 + 1 + 3), "host")),
    ]
    # Rows drawn evenly: 1000 (1 - exp(-12/1000)) = 11.93 distinct ones; of 100 and of 10 7.69 and
    # 3.30. Caches of a megabyte and more hold them: each is missed once.
    distinct = [round(16 * 1000 * -np.expm1(-0.012)), round(16 * (7.68837 + 3.2968))]
    assert distinct == [191, 176]
    lookups = [
        EmbeddingTables(12, 12 * 16, distinct[0], 4 * 16, (distinct[0],) * 8),
        EmbeddingTables(12, 12 * 16, distinct[1], 8 * 16, (distinct[1],) * 8),
    ]
    updates = [replace(each, backward=True) for each in lookups]
    for network, lookup, update in zip(found, lookups, updates, strict=True):
        assert [described(step) for step in forward(network)] == [
            *inputs,
            ("tables", lookup),
            ("rows all-to-all", exchange),
            *dense,
        ]
        assert [described(step) for step in backward(network)] == [
            ("loss gradient", Copy(4, "fill")),
            ("binary cross-entropy backward", Elementwise(3 * 8)),
            ("mean backward", Elementwise(2 * 8)),
            ("top 2 sigmoid backward", Elementwise(3 * 4 * 2)),
            ("top 2 input gradient", gemm(2, 6, 1)),
            ("top 2 weight gradient", gemm(1, 6, 2)),
            ("top 2 bias gradient", Elementwise(4 * 3)),
            ("top 1 relu backward", Elementwise(3 * 4 * 12)),
            ("top 1 input gradient", gemm(2, 10, 6)),
            ("top 1 weight gradient", gemm(6, 10, 2)),
            ("top 1 bias gradient", Elementwise(4 * 3 * 6, summed=2, sums=6)),
            ("products gradient", Copy(4 * 2 * 4 * 4, "fill")),
            ("pairs backward", Elementwise(3 * 4 * 2 * 6 + 2 * 8 * 6)),
            ("features gradient", gemm(4, 4, 4, 2)),
            ("transposed features gradient", gemm(4, 4, 4, 2)),
            ("features gradient sum", Elementwise(3 * 4 * 2 * 4 * 4)),
            ("dense gradient sum", Elementwise(3 * 4 * 2 * 4)),
            # To rank 0 the gradients of one table's rows, to rank 1 those of two.
            ("rows gradient copy", Elementwise(2 * 4 * 2 * 1 * 4)),
            ("rows gradient copy", Elementwise(2 * 4 * 2 * 2 * 4)),
            ("rows gradient concatenation", Elementwise(2 * 4 * 2 * 3 * 4)),
            ("rows gradient all-to-all", exchange),
            ("bottom 2 relu backward", Elementwise(3 * 4 * 8)),
            ("bottom 2 input gradient", gemm(2, 5, 4)),
            ("bottom 2 weight gradient", gemm(4, 5, 2)),
            ("bottom 2 bias gradient", Elementwise(4 * 3 * 4, summed=2, sums=4)),
            ("bottom 1 relu backward", Elementwise(3 * 4 * 10)),
            ("bottom 1 weight gradient", gemm(5, 3, 2)),
            ("bottom 1 bias gradient", Elementwise(4 * 3 * 5, summed=2, sums=5)),
            ("tables update", update),
        ]
    assert [p.size for layer in first.layers for p in layer.parameters if p.local] == [4000]
    assert [p.size for layer in second.layers for p in layer.parameters if p.local] == [400, 40]
    matrices = [p.size for layer in second.layers for p in layer.parameters if not p.local]
    assert matrices == [15, 5, 20, 4, 60, 6, 6, 1]
    # Products forward and twice backward, but for the gradient of the dense features.
    products = 2 * (3 * 5 + 5 * 4 + 4 * 4 * 4 + 10 * 6 + 6 * 1)
    assert first.flops == second.flops == 2 * (3 * products - 2 * 3 * 5)
    assert first.tokens == 2


def test_the_bottom_layers_run_beside_both_exchanges() -> None:
    network = networks(sharder="size-greedy")[0][0]
    operators = [operator for layer in network.layers for operator in layer.operators]
    for passes, exchange, waiting in (
        ([each.forward for each in operators], "rows all-to-all", "features concatenation"),
        (
            [each.backward for each in reversed(operators)],
            "rows gradient all-to-all",
            "tables update",
        ),
    ):
        names = Names()
        block = BlockBuilder(names, Pricing(Times()), Slots({"dp": 2}))
        for steps in passes:
            block.write(steps)
        assembler = TableAssembler("test")
        assembler.add(block.done(), 0)
        table = assembler.table()
        listed = [tuple(names)[name] for name in table.name]
        row = listed.index(exchange)
        waits = [table.wait_row[a:b].tolist() for a, b in pairwise(table.wait_index.tolist())]
        assert [i for i, each in enumerate(waits) if row in each] == [listed.index(waiting)]
        assert all(name.startswith("bottom") for name in listed[row + 1 : listed.index(waiting)])
        assert waits[row] == [row - 1]


def test_tables_one_by_one() -> None:
    # Rank 1 of the same two with nn.EmbeddingBag, which leaves the update to the optimizer.
    network = networks(sharder="size-greedy", fused=False, optimizer="adagrad")[0][1]
    lookups = [
        Embedding(4 * 2, 4, 100, 2, dtype="fp32"),
        Embedding(4 * 1, 4, 10, 1, dtype="fp32"),
    ]
    assert [described(step) for step in forward(network)][3:7] == [
        ("table 0", lookups[0]),
        ("table 1", lookups[1]),
        ("rows concatenation", Elementwise(2 * 4 * 4 * 2 * 4)),
        ("rows all-to-all", (Operation.ALL_TO_ALL, "dp", 4 * 4 * 2 * 4)),
    ]
    # Indices and output gradients read, one gradient row a lookup written; 20 bytes an element.
    assert [described(step) for step in backward(network)][-6:] == [
        ("table 0 gradient copy", Elementwise(2 * 4 * 4 * 4)),
        ("table 1 gradient copy", Elementwise(2 * 4 * 4 * 4)),
        ("table 1 gradient", Elementwise(8 * 4 + 4 * 4 * (4 + 4))),
        ("table 0 gradient", Elementwise(8 * 8 + 4 * 4 * (4 + 8))),
        ("table 0 update", OptimizerStep(8 * 4, 20)),
        ("table 1 update", OptimizerStep(4 * 4, 20)),
    ]
    awaiting = [s.name for s in backward(network) if isinstance(s, Compute) and s.after]
    assert awaiting == ["table 0 gradient copy"]


def test_one_kernel_touches_what_single_ones_do() -> None:
    together = networks(sharder="size-greedy")[0][1]
    single = networks(sharder="size-greedy", fused=False)[0][1]

    def touched(network: LayerStack) -> int:
        kernels = [s.kernel for s in forward(network) if isinstance(s, Compute)]
        kinds = Embedding | EmbeddingTables
        return sum(kernel.traffic for kernel in kernels if isinstance(kernel, kinds))

    assert touched(together) == touched(single)
    assert together.flops == single.flops


def test_one_rank_exchanges_nothing() -> None:
    (network,), of = networks(gpus=1)
    assert of.tolist() == [0]
    assert all(isinstance(step, Compute) for step in (*forward(network), *backward(network)))
    names = [step.name for step in forward(network)]
    assert names.index("bottom 2 relu") < names.index("tables")
    assert not [step for step in (*forward(network), *backward(network)) if step.after]


@pytest.mark.parametrize("inputs", ["own", "ahead"])
def test_a_rank_reads_its_own_samples_and_hands_indices_on(inputs: str) -> None:
    placement = ("table_wise 0", "data_parallel", "row_wise")
    every = forward(networks(placement=placement)[0][0])
    steps = forward(networks(placement=placement, inputs=inputs)[0][0])
    # 2 samples of its own: offsets and indices of tables 0 and 2, which have 2 and 3 lookups.
    (handed,) = (step for step in steps if step.name == "indices all-to-all")
    assert described(handed)[1] == (Operation.ALL_TO_ALL, "dp", 8 * 2 * (3 + 4))
    assert isinstance(handed, Communicate)
    copies = [described(step) for step in steps if step.name.startswith("copy ")]
    labels = ("copy labels", Copy(8, "host"))
    if inputs == "own":
        assert not handed.token
        assert copies == [
            ("copy dense features", Copy(4 * 2 * 3, "host")),
            ("copy offsets", Copy(8 * 2 * 3, "host")),
            ("copy indices", Copy(8 * 2 * (2 + 1 + 3), "host")),
            labels,
        ]
    else:
        assert copies == [labels]
        assert not any(handed.token in (step.after or ()) for step in steps)
    kept = [step for step in every if not step.name.startswith("copy ")]
    rest = [step for step in steps if not step.name.startswith("copy ") and step != handed]
    assert rest == kept
    (alone,), _ = networks(gpus=1, inputs=inputs)
    assert all(isinstance(step, Compute) for step in forward(alone))


def test_features_side_by_side() -> None:
    model = Dlrm(
        "dlrm", table_entries=(8, 8), embedding=4, bottom_mlp=(4,), top_mlp=(1,), interaction="cat"
    )
    network = networks(model)[0][0]
    steps = dict(described(step) for step in forward(network))
    assert steps["features concatenation"] == Elementwise(2 * 4 * 2 * 3 * 4)
    assert steps["top 1"] == gemm(2, 1, 12)
    assert "interaction" not in steps


def test_ranks_with_the_same_tables_share_a_network() -> None:
    model = Dlrm("dlrm", table_entries=(8, 9) * 4, embedding=4, bottom_mlp=(4,), top_mlp=(1,))
    found, of = networks(model, gpus=4, sharder="naive")
    assert of.tolist() == [0, 1, 0, 1]
    assert len(found) == 2
    # More ranks than tables: the last have none, but take part.
    found, of = networks(TINY, gpus=5, sharder="naive")
    assert of.tolist() == [0, 1, 2, 3, 3]
    assert not [p for layer in found[3].layers for p in layer.parameters if p.local]
    sizes = {s.bytes for n in found for s in forward(n) if isinstance(s, Communicate)}
    assert sizes == {4 * 10 * 1 * 4}


@given(
    entries=st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    gpus=st.integers(1, 6),
    sharder=st.sampled_from(sorted(SHARDERS)),
    fused=st.booleans(),
)
def test_what_holds_for_every_placement(
    entries: list[int], gpus: int, sharder: str, fused: bool
) -> None:
    model = Dlrm(
        "dlrm",
        table_entries=tuple(entries),
        embedding=4,
        bottom_mlp=(4,),
        top_mlp=(1,),
        pooling=(3,),
    )
    found, of = networks(model, gpus, sharder=sharder, fused=fused)
    ranks = [found[i] for i in of]
    parameters = [p for n in ranks for layer in n.layers for p in layer.parameters]
    assert total(p for p in parameters if p.local) == 4 * sum(entries)
    # Ranks agree on every communication, and do all lookups together.
    sequences = {
        tuple(described(s) for s in (*forward(n), *backward(n)) if isinstance(s, Communicate))
        for n in ranks
    }
    assert len(sequences) == 1
    kernels = [s.kernel for n in ranks for s in forward(n) if isinstance(s, Compute)]
    lookups = sum(k.lookups for k in kernels if isinstance(k, Embedding | EmbeddingTables))
    assert lookups == 2 * gpus * 3 * len(entries)
    assert {n.flops for n in ranks} == {ranks[0].flops}


def test_a_whole_step_matches() -> None:
    plan = plan_of(global_batch=4, sharder="size-greedy", **KEYS)  # type: ignore[arg-type]
    experiment = Experiment(model=TINY, plan=plan, cluster=ClusterChoice("dgx-h100"))
    done = training_step(lay_out(experiment, 2), Times())
    check_matching(done.program)
    assert done.tokens == 4
    communications = []
    for rank in range(2):
        table = done.program.table_of(rank)
        communications.append(
            [
                (done.program.names[table.name[row]], int(table.bytes[row]))
                for row in range(len(table))
                if table.bytes[row] >= 0
            ]
        )
    exchange = 4 * 4 * 2 * 4
    assert communications[0] == communications[1]
    assert [size for name, size in communications[0] if "all-to-all" in name] == 2 * [exchange]
    # The matrices' gradients are reduced, the tables' are not.
    reduced = [size for name, size in communications[0] if "all-to-all" not in name]
    assert sum(reduced) == 4 * (15 + 5 + 20 + 4 + 60 + 6 + 6 + 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tp": 2}, "plan.tp is 2; a DLRM shares its tables and samples over dp"),
        ({"pp": 2}, "plan.pp is 2; a DLRM shares its tables and samples over dp"),
        ({"precision": "fp8"}, "plan.precision is 'fp8', which only transformers have"),
        ({"optimizer": "adam"}, "plan.optimizer is 'adam'; rows of tables are updated by sgd"),
        ({"recompute": "full"}, "plan.recompute is 'full'; a DLRM keeps everything"),
        ({"zero": 1}, "plan.zero is 1; the matrices of a DLRM"),
        ({"global_batch": 8}, "plan.global_batch is 8; a DLRM does it in one micro-batch"),
    ],
)
def test_what_a_dlrm_does_not_have(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        networks(**keys)
    assert message in str(error.value)


def test_volumes_of_a_recorded_job(shared: Path) -> None:
    # TorchRec's DLRM on 8 V100, 16 samples a rank: 24 tables of width 16 placed table by table (two
    # small ones are on all ranks and not part of this), matrices 13-256-128-16 and
    # 367-512-512-256-1, as recorded in its execution trace.
    with gzip.open(shared / "traces/dlrm_v100_8rank/et_rank0.json.gz") as file:
        nodes = json.load(file)["nodes"]
    nodes.sort(key=lambda node: node["id"])
    recorded = [
        int(np.prod(node["input_shapes"][0]))
        for node in nodes
        if node["name"] == "record_param_comms" and node["input_shapes"][0] not in ([], [[112]])
    ]
    model = Dlrm(
        "dlrm",
        table_entries=(1000,) * 26,
        embedding=16,
        bottom_mlp=(256, 128, 16),
        top_mlp=(512, 512, 256, 1),
        dense_features=13,
    )
    (network, *_), _ = networks(model, gpus=8, micro_batch=16, sharder="naive-chunk")
    matrices = [p for layer in network.layers for p in layer.parameters if not p.local]
    buckets, limit = [0], 2**20
    for parameter in reversed(matrices):
        if 4 * buckets[-1] >= limit:
            buckets.append(0)
            limit = 25 * 2**20
        buckets[-1] += parameter.size
    assert [size for size in recorded if size in buckets] == buckets == [394_241, 226_960]

    model = Dlrm("dlrm", table_entries=(1000,) * 24, embedding=16, bottom_mlp=(16,), top_mlp=(1,))
    (network, *_), _ = networks(model, gpus=8, micro_batch=16, sharder="naive-chunk")
    exchanged = [
        s.bytes // 4 for s in (*forward(network), *backward(network)) if isinstance(s, Communicate)
    ]
    assert [size for size in recorded if size in exchanged] == exchanged == [6144, 6144]


DCN = replace(TINY, interaction="cross", cross_layers=2, cross_rank=8)


def test_cross_layers_by_hand() -> None:
    """Two matrices a layer through 8 features of 16; torchrec/modules/crossnet.py."""
    (network, *_), _ = networks(DCN, gpus=1)
    top = next(layer for layer in network.layers if layer.name == "top")
    cross = [each for each in top.operators if each.name.startswith("cross")]
    assert [each.name for each in cross[:3]] == ["cross 1 down", "cross 1 up", "cross 1"]
    products = [s.kernel for each in cross for s in each.forward if isinstance(s.kernel, Gemm)]
    assert [(k.m, k.n, k.k) for k in products] == 2 * [(2, 8, 16), (2, 16, 8)]
    assert total(p for each in cross for p in each.parameters) == 2 * (2 * 16 * 8 + 8 + 16)
    # What comes in, what came in first, the result of the matrices, and the sum: fp32, 2 samples.
    assert [s.kernel for s in cross[2].forward] == [Elementwise(4 * 4 * 2 * 16)]


def test_dcnv2_of_mlperf() -> None:
    """26 tables of 204 million rows, 214 lookups; 3,456 features cross three times."""
    table = dict(find_model("dlrm-dcnv2"))
    found = Dlrm(**{key: tuple(v) if isinstance(v, list) else v for key, v in table.items()})
    assert sum(found.table_entries) == 204_184_588
    assert sum(map(found.lookups, range(26))) == 214
    (network, *_), _ = networks(found, gpus=1, optimizer="adagrad")
    dense = [p for layer in network.layers for p in layer.parameters if not p.local]
    bottom = 13 * 512 + 512 * 256 + 256 * 128 + 512 + 256 + 128
    crossed = 3 * (2 * 3456 * 512 + 3456 + 512)
    top = 3456 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256 + 2 * 1024 + 512 + 256 + 1
    assert total(dense) == bottom + crossed + top


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_in_16_bits_rows_travel_in_16_bits(precision: str) -> None:
    (half, *_), _ = networks(precision=precision)
    (whole, *_), _ = networks()

    def exchanged(network: LayerStack) -> list[int]:
        tasks = (*forward(network), *backward(network))
        return [
            t.bytes
            for t in tasks
            if isinstance(t, Communicate) and t.operation is Operation.ALL_TO_ALL
        ]

    assert [2 * size for size in exchanged(half)] == exchanged(whole)
    kernels = [s.kernel for s in forward(half) if isinstance(s, Compute)]
    products = [k for k in kernels if isinstance(k, Gemm)]
    assert {(k.dtype, k.output) for k in products} == {(precision, precision)}
    tables = [k for k in kernels if isinstance(k, EmbeddingTables)]
    others = [s.kernel for s in forward(whole) if isinstance(s, Compute)]
    expected = [k for k in others if isinstance(k, EmbeddingTables)]
    for one, other in zip(tables, expected, strict=True):  # rows are kept in fp32
        assert (one.lookups, one.row_bytes) == (other.lookups, other.row_bytes)
        assert 2 * one.output_bytes == other.output_bytes
