"""Generated steps on one GPU, written as traces and extrapolated, beside the generated programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench import extrapolate_closed_loop as loop

from mpisim.base.errors import InputError
from mpisim.extrapolate import Target, TracedStep, extrapolate
from mpisim.extrapolate.roles import batch_of
from mpisim.extrapolate.step import (
    TracedKernel,
    TracedOperator,
    TracedParameter,
    TracedTask,
    TracedWait,
)
from mpisim.kernels.operations import Attention, Gemm
from mpisim.operators import TensorSpec
from mpisim.workloads.data_parallel.buckets import chunk_parameters


@pytest.fixture(scope="module", params=["resnet-50", "vgg-13", "gpt2", "bert", "llama", "mixtral"])
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, TracedStep]:
    folder = tmp_path_factory.mktemp("traces")
    return request.param, loop.traced(loop.MODELS[request.param], folder / "trace")


def test_what_is_exported_is_read_again(traced: tuple[str, TracedStep]) -> None:
    name, step = traced
    model = loop.MODELS[name]
    assert step.batch == model.batch
    prepared = loop.generated(model, {"micro_batch": model.batch}, model.batch, 1)
    layers = prepared.workload.layout.chunks(0)[0].layers
    ours = [each.size for each in chunk_parameters(layers)]
    assert sorted(each.elements for each in step.parameters) == sorted(ours)
    assert loop.stated(extrapolate(step, Target("dgx-a100", {})))[0] == pytest.approx(
        step.measured / 1e12, rel=1e-4
    )


def test_plans_are_those_that_are_generated(traced: tuple[str, TracedStep]) -> None:
    name, step = traced
    for keys in loop.plans_of(name):
        found = loop.compare(loop.MODELS[name], step, keys)
        assert found.equal, keys  # bytes of every kind of communication, on every rank
        assert abs(found.error) < 0.025, (keys, found)


MORE = {
    "qwen": 0.02,
    "deepseek": 0.022,
    "deepseek-v3": 0.015,
    "nemotron-h": 0.01,
    "t5": 0.002,
    "gemma": 0.01,
    "qwen-dense": 0.002,
    "densenet": 0.001,
}
"""Model → by how much a step may differ. Most with experts and dp alone: DDP has one group of ranks
where those that are generated have one more for experts."""


@pytest.mark.parametrize("name", MORE)
def test_latents_scans_and_norms_of_heads(name: str, tmp_path: Path) -> None:
    model = loop.MODELS[name]
    step = loop.traced(model, tmp_path / "trace")
    for keys in loop.plans_of(name):
        found = loop.compare(model, step, keys)
        assert found.equal, keys
        assert abs(found.error) < MORE[name], (keys, found)
    for grown in ((2, 1), (1, 2)):
        _check_grown(model, step, *grown, rel=0.003)


def _check_grown(
    model: loop.Model, step: TracedStep, samples: int, length: int, *, rel: float
) -> None:
    """Compare a step of as many times the samples and tokens with the generated one."""
    if length > 1 and step.sequence is None:
        return
    sequence = None if step.sequence is None else length * step.sequence
    batch = samples * model.batch
    found, _ = loop.stated(extrapolate(step, Target("dgx-a100", {}, batch, sequence=sequence)))
    longer = model if sequence is None else model.longer(sequence)
    prepared = loop.generated(longer, {"micro_batch": batch}, batch, 1)
    ours = loop.engine.simulate(prepared.program, network=prepared.network).step_time / 1e12
    assert found == pytest.approx(ours, rel=rel)


def test_delta_rules_exchange_heads_for_tokens(tmp_path: Path) -> None:
    model = loop.Model('preset = "qwen3-next-80b-a3b"\nlayers = 4\nseq_len = 2048', 1)
    step = loop.traced(model, tmp_path / "trace")
    for keys in ({"cp": 2}, {"cp": 2, "dp": 2}):
        found = loop.compare(model, step, keys)
        assert found.equal, keys
        assert abs(found.error) < 0.001, (keys, found)


def test_as_many_tokens_as_features(tmp_path: Path) -> None:
    """Both gradients of BERT-large's first matrix of a feed-forward are 4096 x 1024 x 4096."""
    step = loop.traced(loop.MODELS["bert-large"], tmp_path / "trace")
    for keys in ({"tp": 2}, {"tp": 4, "dp": 2}):
        found = loop.compare(loop.MODELS["bert-large"], step, keys)
        assert found.equal, keys
        assert abs(found.error) < 0.002, (keys, found)


def test_the_cpu_waits_for_counts_alone(tmp_path: Path) -> None:
    """As traced: not for kernels launched between the copy of the counts and the wait."""
    step = loop.traced(loop.MODELS["qwen"], tmp_path / "trace")
    tasks = [task for each in step.operators for task in each.forward]
    waits = [each.kept for each in tasks if isinstance(each, TracedWait)]
    kernels = [each for each in tasks if isinstance(each, TracedKernel) and each.kept]
    assert waits == [each.kept for each in kernels]
    assert {each.name for each in kernels} == {"read token counts"}
    assert len(waits) == 4  # layers
    found = loop.stated(extrapolate(step, Target("dgx-a100", {})))[0]
    assert found == pytest.approx(step.measured / 1e12, rel=1e-5)


@pytest.mark.parametrize(("name", "most"), [("nemotron-h", 1e-4), ("llama", 1e-3), ("qwen", 3e-3)])
def test_optimizers_of_sharded_masters(name: str, most: float, tmp_path: Path) -> None:
    """FSDP reads gradients in fp32, and writes no 16-bit copies of the weights."""
    model = loop.MODELS[name]
    step = loop.traced(model, tmp_path / "trace")
    assert any(each.name == "convert weights" for each in step.optimizer)
    found = loop.compare(model, step, {"dp": 8, "zero": 3})
    assert found.equal
    assert abs(found.error) < most


def test_several_predictions_share_tables_and_scores(tmp_path: Path) -> None:
    """Of DeepSeek-V3's second prediction all but one matrix is divided."""
    model = loop.MODELS["deepseek-v3"]
    step = loop.traced(model, tmp_path / "trace")
    for keys in ({"tp": 4, "sp": True}, {"tp": 2, "dp": 4, "ep": 4, "sp": True}):
        assert abs(loop.compare(model, step, keys).error) < 0.02, keys


def test_a_cast_weight_is_no_input(tmp_path: Path) -> None:
    """The first product of a U-Net is of four times of diffusion and a weight of 320 rows."""
    model = loop.MODELS["stable-diffusion"]
    step = loop.traced(model, tmp_path / "trace")
    assert step.batch == 4
    _check_grown(model, step, 2, 1, rel=0.02)
    for keys in ({"dp": 8}, {"dp": 8, "zero": 3}):
        found = loop.compare(model, step, keys)
        assert found.equal, keys
        assert abs(found.error) < 0.001, (keys, found)


def test_a_vision_transformer_is_divided_between_its_ends(tmp_path: Path) -> None:
    """Patches, their positions and the head are of every rank, as in Megatron-LM."""
    model = loop.MODELS["vit"]
    step = loop.traced(model, tmp_path / "trace")
    for keys in ({"dp": 8}, {"tp": 4}, {"tp": 2, "pp": 2, "dp": 2}):
        found = loop.compare(model, step, keys)
        assert found.equal, keys
        assert abs(found.error) < 0.01, (keys, found)


def test_adapters_beside_weights_that_are_not_trained(tmp_path: Path) -> None:
    """Samples are those of the lookup; FSDP gathers what has no gradient, but norms do not show."""
    model = loop.MODELS["lora"]
    step = loop.traced(model, tmp_path / "trace")
    assert (step.batch, step.sequence) == (2, 1024)
    for keys in loop.plans_of("lora"):
        found = loop.compare(model, step, keys)
        assert found.equal is (keys.get("zero", 0) < 2), keys
        assert abs(found.error) < 0.001, (keys, found)
    grown = extrapolate(step, Target("dgx-a100", {"dp": 8, "zero": 3})).program
    ours = loop.generated(model, {"dp": 8, "zero": 3, "micro_batch": 2}, 16, 8).program
    sizes = [loop.volumes(each, 0) for each in (grown, ours)]
    assert sizes[0]["REDUCE_SCATTER"] == sizes[1]["REDUCE_SCATTER"]
    assert sizes[0]["ALL_GATHER"] == pytest.approx(sizes[1]["ALL_GATHER"], rel=1e-4)
    with pytest.raises(InputError, match=r"tp is 2, but .* has adapters"):
        extrapolate(step, Target("dgx-a100", {"tp": 2}))


def test_gradients_under_autocast_are_those_of_fp32(tmp_path: Path) -> None:
    """Products in fp16, weights and gradients in fp32: as many bytes as parameters × 4."""
    model = loop.Model('preset = "resnet-50"', 32, "fp16")
    step = loop.traced(model, tmp_path / "trace")
    assert {each.dtype for each in step.parameters} == {"float32"}
    for keys in ({"dp": 8}, {"dp": 8, "zero": 1}):
        found = loop.compare(model, step, keys)
        assert found.equal
        assert abs(found.error) < 0.01
    grown = extrapolate(step, Target("dgx-a100", {"dp": 8})).program
    parameters = sum(each.elements for each in step.parameters)
    assert loop.volumes(grown, 0)["ALL_REDUCE"] == 4 * parameters


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("mixtral", {"tp": 2, "sp": False}, "sp is false with experts and tp = 2"),
        ("mixtral", {"ep": 3}, "ep is 3, which does not divide the 8 experts"),
        ("mixtral", {"dp": 3, "etp": 3}, "etp is 3, which does not divide the 28672 features"),
        ("gpt2", {"etp": 2, "dp": 2}, "etp is 2, but .* shows no experts"),
        ("gpt2", {"cp": 3}, "no multiple of 2 × cp = 6"),
        ("resnet-50", {"cp": 2}, "how many tokens a sample"),
    ],
)
def test_experts_and_contexts_that_do_not_fit(
    name: str, keys: dict[str, object], said: str, tmp_path: Path
) -> None:
    step = loop.traced(loop.MODELS[name], tmp_path / "trace")
    with pytest.raises(InputError, match=said):
        extrapolate(step, Target("dgx-a100", keys))


def test_a_context_needs_fused_attention(tmp_path: Path) -> None:
    step = loop.traced(loop.MODELS["gpt2"], tmp_path / "trace")
    length = step.sequence
    assert length is not None
    eager = Gemm(length, length, 64, batch=96)

    def in_products(task: TracedTask) -> TracedTask:
        found = isinstance(task, TracedKernel) and any(
            isinstance(each, Attention) for each in task.kernels
        )
        return replace(task, kernels=(eager,)) if found else task

    changed = replace(
        step,
        operators=tuple(
            replace(each, forward=tuple(map(in_products, each.forward))) for each in step.operators
        ),
    )
    with pytest.raises(InputError, match="made of batched products"):
        extrapolate(changed, Target("dgx-a100", {"cp": 2}))


def test_experts_are_spread_over_as_few_ranks_as_hold_them(tmp_path: Path) -> None:
    step = loop.traced(loop.MODELS["mixtral"], tmp_path / "trace")
    for keys, world in (
        ({"ep": 8}, 8),
        ({"ep": 8, "tp": 2}, 16),  # experts are split as all else is
        ({"ep": 8, "tp": 2, "etp": 1}, 8),
        ({"ep": 8, "tp": 2, "cp": 4, "etp": 1}, 8),
    ):
        assert extrapolate(step, Target("dgx-a100", keys)).program.n_ranks == world


def test_twice_the_batch_and_another_gpu(traced: tuple[str, TracedStep]) -> None:
    name, step = traced
    model = loop.MODELS[name]
    larger, error = loop.stated(extrapolate(step, Target("dgx-a100", {}, 2 * model.batch)))
    prepared = loop.generated(model, {"micro_batch": 2 * model.batch}, 2 * model.batch, 1)
    ours = loop.engine.simulate(prepared.program, network=prepared.network).step_time / 1e12
    assert larger == pytest.approx(ours, rel=0.05)
    assert error > 0
    if step.sequence is not None:
        target = Target("dgx-a100", {}, sequence=2 * step.sequence)
        longer, _ = loop.stated(extrapolate(step, target))
        twice = model.longer(2 * step.sequence)
        prepared = loop.generated(twice, {"micro_batch": model.batch}, model.batch, 1)
        ours = loop.engine.simulate(prepared.program, network=prepared.network).step_time / 1e12
        assert longer == pytest.approx(ours, rel=0.02)
    newer, error = loop.stated(extrapolate(step, Target("dgx-h100", {})))
    prepared = loop.generated(model, {"micro_batch": model.batch}, model.batch, 1, "dgx-h100")
    ours = loop.engine.simulate(prepared.program, network=prepared.network).step_time / 1e12
    assert abs(newer - ours) < error * newer


def test_lookups_in_parts_of_a_vocabulary_are_no_samples() -> None:
    """Of 8 x 384 tokens of Transformer-XL 2892 are in the first cluster of words."""

    def operator(name: str, read: tuple[int, ...], weight: tuple[int, ...]) -> TracedOperator:
        parameter, given = TracedParameter(weight, "float32"), TensorSpec("float32", read)
        return TracedOperator(name, "", (), (), (parameter,), (given,))

    lookup = operator("aten::embedding", (2892,), (19997, 1024))
    matrix = operator("aten::mm", (3072, 1024), (3072, 1024))
    packed = operator("aten::embedding", (3072,), (32000, 1024))
    assert batch_of([lookup, matrix]) == (None, None)
    assert batch_of([lookup, matrix], 8) == (8, None)
    assert batch_of([packed, matrix]) == (3072, None)
