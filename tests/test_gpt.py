"""The training step of a GPT: its work, its bytes, and who waits for whom."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import ROUND, exact

from mpisim.errors import InputError
from mpisim.experiment import ClusterChoice, Experiment, Model, Plan
from mpisim.kernels import Gpu
from mpisim.program import Kind, Operation, Phase, Table, check_matching
from mpisim.workloads import gpt_step, model_flops
from mpisim.workloads.gpt import COMPUTE, DATA, TENSOR, local_parameters

MODEL = Model(layers=3, hidden=64, heads=8, feed_forward=256, vocabulary=1000, sequence=32)

ONLY_ARITHMETIC = dataclasses.replace(
    ROUND,
    bandwidth=exact(1e12, "TB/s"),
    gemm_fraction=exact(1, "1"),
    attention_fraction=exact(1, "1"),
    gemm_floor=exact(0, "us"),
    memory_floor=exact(0, "us"),
)
"""100 TFLOP/s, and memory that takes no time."""


def experiment(model: Model = MODEL, **plan: object) -> Experiment:
    values: dict[str, object] = {"tensor": 2, "data": 2, "micro_batch": 3, "global_batch": 12}
    return Experiment(model, Plan(**{**values, **plan}), ClusterChoice("dgx-h100"))  # type: ignore[arg-type]


def table(gpu: Gpu = ROUND, model: Model = MODEL, **plan: object) -> Table:
    only = gpt_step(experiment(model, **plan), gpu).program.tables[0]
    assert only is not None
    return only


def bytes_of(rows: Table, operation: Operation, stream: int) -> list[int]:
    chosen = (rows.operation == operation) & (rows.stream == stream)
    return rows.bytes[chosen].tolist()


plans = st.builds(
    lambda tensor, data, micro_batch, micro_batches, sequence_parallel, bucket: {
        "tensor": tensor,
        "data": data,
        "micro_batch": micro_batch,
        "global_batch": data * micro_batch * micro_batches,
        "sequence_parallel": sequence_parallel,
        "bucket": bucket,
    },
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([1, 10_000, 100_000, 10**9]),
)


def test_model_flops_of_a_published_run() -> None:
    # Narayanan et al. (arXiv:2104.04473, eq. 3) without recomputation: 72 B s l h² (1 + s/6h +
    # V/12lh). It counts attention without the causal mask: its s/6h is twice ours.
    m = Model(96, 12288, 96, 4 * 12288, 51200, 2048)
    b, s, n, h, v = 1536, m.sequence, m.layers, m.hidden, m.vocabulary
    expected = 72 * b * s * n * h * h * (1 + s / (12 * h) + v / (12 * n * h))
    assert model_flops(m, b * s) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=30)
@given(plans)
def test_matrix_products_do_six_flops_a_parameter_and_token(plan: dict[str, object]) -> None:
    e = experiment(**plan)
    rows = table(ONLY_ARITHMETIC, **plan)
    # Forward 2 FLOP a matrix parameter and token, backward 4, shared by all GPUs; attention
    # forward 2, backward 5 products of 2 s² h / 2 a sequence and layer.
    matrices = 6 * MODEL.matrix_parameters * e.tokens
    attention = 7 * MODEL.sequence * MODEL.hidden * MODEL.layers * e.tokens
    seconds = (matrices + attention) / e.plan.gpus / 100e12
    # Each row is rounded to a picosecond.
    assert rows.duration[rows.stream == COMPUTE].sum() == pytest.approx(
        seconds * 1e12, abs=len(rows)
    )


@settings(max_examples=30)
@given(plans)
def test_every_gradient_is_reduced_once(plan: dict[str, object]) -> None:
    e = experiment(**plan)
    rows = table(**plan)
    sizes = bytes_of(rows, Operation.ALL_REDUCE, DATA)
    if e.plan.data == 1:
        assert sizes == []
        return
    assert sum(sizes) == 4 * local_parameters(MODEL, e.plan.tensor)
    # No bucket but the last is below the limit.
    assert all(size >= e.plan.bucket for size in sizes[:-1])
    # Gradients are complete only in the last micro-batch.
    reduced = rows.micro_batch[rows.stream == DATA]
    assert set(reduced.tolist()) == {e.plan.micro_batches - 1}


def test_tensor_parallel_all_reduces() -> None:
    rows = table(sequence_parallel=False)
    # Two forward and two backward a layer, one after the embedding and one for the gradient of the
    # head, each of 2 bytes × 3 × 32 tokens × 64, in each of 2 micro-batches.
    sizes = bytes_of(rows, Operation.ALL_REDUCE, TENSOR)
    large = 2 * 3 * 32 * 64
    assert sizes.count(large) == 2 * (4 * 3 + 2)
    # Besides: three of 4 bytes a token for the loss, and the gradient norm.
    assert sizes.count(4 * 3 * 32) == 2 * 3
    assert sizes.count(4) == 1
    assert len(sizes) == 28 + 6 + 1


def test_sequence_parallelism_splits_them() -> None:
    rows = table(sequence_parallel=True)
    large = 2 * 3 * 32 * 64
    # Forward a layer 2 + 2. Backward 2 scatters, 2 gathers of gradients, 2 of inputs. Head: gather
    # forward; gather of the input and scatter backward. Embedding: scatter forward, gather back.
    assert bytes_of(rows, Operation.ALL_GATHER, TENSOR) == [large] * (2 * (6 * 3 + 3))
    assert bytes_of(rows, Operation.REDUCE_SCATTER, TENSOR) == [large] * (2 * (4 * 3 + 2))
    # Norms (4 h a layer) and the two biases after rows (2 h) saw a share of the sequence.
    assert 4 * (6 * 3 + 2) * 64 in bytes_of(rows, Operation.ALL_REDUCE, TENSOR)


def test_parameters_of_a_gpu() -> None:
    # Of 3 × (4 × 64² + 2 × 64 × 256) + 1000 × 64 matrix elements and 3 × (3 × 64 + 256) biases of
    # columns a half; of 3 × 6 × 64 + 2 × 64 + 32 × 64 others all.
    assert local_parameters(MODEL, 2) == (147_456 + 64_000 + 1_344) // 2 + 1_152 + 128 + 2_048
    assert local_parameters(MODEL, 1) == MODEL.parameters


@settings(max_examples=30)
@given(plans)
def test_the_program_is_sound(plan: dict[str, object]) -> None:
    workload = gpt_step(experiment(**plan), ROUND)
    check_matching(workload.program)
    e = experiment(**plan)
    assert workload.program.n_ranks == e.plan.gpus
    sizes = workload.program.communicators.sizes.tolist()
    tensor, data = e.plan.tensor, e.plan.data
    expected = [tensor] * data * (tensor > 1) + [data] * tensor * (data > 1)
    assert sorted(sizes) == sorted(expected)
    named = {workload.program.names[n] for t in workload.program.tables for n in t.name}  # type: ignore[union-attr]
    assert set(workload.shares) <= named


def test_groups_are_where_the_plan_puts_them() -> None:
    program = gpt_step(experiment(tensor=2, data=2), ROUND).program
    groups = program.communicators
    found = {groups.names[c]: groups.group(c) for c in range(len(groups))}
    assert found == {
        "tensor group 0": (0, 1),
        "tensor group 1": (2, 3),
        "data group 0": (0, 2),
        "data group 1": (1, 3),
    }


def test_gradients_are_reduced_beside_the_backward_pass_and_waited_for() -> None:
    rows = table(bucket=10_000)
    reductions = np.flatnonzero(rows.stream == DATA)
    backward = np.flatnonzero((rows.phase == Phase.BACKWARD) & (rows.stream == COMPUTE))
    assert reductions[0] < backward[-1]
    waited = {int(r) for r in rows.wait_row[rows.wait_index[backward[-1]] :]}
    assert set(reductions.tolist()) <= waited
    # No kernel of the backward pass waits for them.
    during = rows.wait_row[rows.wait_index[backward[0]] : rows.wait_index[backward[-1] + 1]]
    assert not np.isin(during, reductions).any()


def test_rows_are_tagged_and_launched() -> None:
    rows = table(micro_batch=3, global_batch=12)
    products = rows.kind == Kind.KERNEL
    layers = rows.layer[products & (rows.phase == Phase.FORWARD) & (rows.micro_batch == 1)]
    assert sorted(set(layers.tolist())) == [-1, 0, 1, 2]
    assert (np.diff(rows.layer[(rows.phase == Phase.BACKWARD) & (rows.layer >= 0)][:30]) <= 0).all()
    device = rows.is_device
    assert set(rows.host[device].tolist()) == {5_000_000}
    assert set(rows.launch[device].tolist()) == {3_000_000}
    assert set(rows.launch_cost[device].tolist()) == {2_000_000}
    assert (rows.step == 0).all()
    assert set(rows.duration[rows.is_communication].tolist()) == {-1}


def test_one_gpu_communicates_with_nobody() -> None:
    workload = gpt_step(experiment(tensor=1, data=1), ROUND)
    assert workload.program.n_ranks == 1
    assert len(workload.program.communicators) == 0
    only = workload.program.tables[0]
    assert only is not None
    assert not only.is_communication.any()


def test_a_step_longer_than_the_clocks_is_refused() -> None:
    model = Model(100, 1_000_000, 1_000, 1_000_000, 51_200, 1_000_000)
    with pytest.raises(InputError, match="is the model too large"):
        table(model=model)
