"""Offload to the host: whose memory it takes, what fits, and what is advised where it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from offloaded import FSDP, GPT_13B, gpt_13b, states
from plans import ALONE, plan_of
from sharing import layer

from mpisim import simulate
from mpisim.base.quantity import Quantity
from mpisim.experiment import Plan, read
from mpisim.kernels import find_gpu
from mpisim.memory import Verdict, assess
from mpisim.memory.host import host_memory
from mpisim.memory.remedies import advice
from mpisim.memory.states import model_states, parameter_counts
from mpisim.workloads import lay_out
from mpisim.workloads.host import host_of


@pytest.mark.parametrize("n", [1, 4, 16])
def test_states_as_deepspeed_documents_them(n: int) -> None:
    # docs/code-docs/source/memory.rst: ZeRO-2 2 * params on a GPU, ZeRO-3 without what it gathers
    # 2 * params / total_gpus; 16 * params on the host of one node, without its factor of 1.5.
    assert states(2, n) == (2, 16)
    assert states(3, n) == (2 / n, 16)


@pytest.mark.parametrize("n", [1, 4])
def test_parameters_on_the_host_as_deepspeed_documents_them(n: int) -> None:
    # The same page: nothing but what is gathered on a GPU, 18 * params on the host of one node.
    plan = plan_of(
        global_batch=64,
        dp_style="deepspeed",
        zero=3,
        offload_optimizer=1.0,
        offload_parameters=True,
    )
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": n, "dp": n}
    assert sum(vars(model_states(counts, plan, sizes)).values()) == 0
    found = host_memory(counts, plan, sizes, accumulates=False)
    assert n * (found.total - found.buffers) / 6400 == 18


def test_the_documented_example_of_t5_3b() -> None:
    # The same page: 2,851 million parameters on 8 GPUs, 5.31 GB a GPU, of the host 63.72 GB with
    # 1.5 times what is needed (offload_param=none, zero_init=1).
    on_gpu, _ = states(2, 8)
    _, on_host = states(3, 8)
    assert round(on_gpu * 2851e6 / 2**30, 2) == 5.31
    assert round(1.5 * on_host * 2851e6 / 2**30, 2) == 63.72


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_megatron_leaves_gradients_on_the_gpu(share: float) -> None:
    plan = plan_of(global_batch=64, dp_style="megatron", zero=1, offload_optimizer=share)
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": 4, "dp": 4}
    on_gpu = model_states(counts, plan, sizes)
    assert (on_gpu.parameters, on_gpu.gradients) == (2 * 6400, 4 * 6400)
    assert on_gpu.optimizer == 12 * 1600 * (1 - share)
    on_host = host_memory(counts, plan, sizes, accumulates=True)
    assert (on_host.gradients, on_host.optimizer) == (4 * 1600 * share, 12 * 1600 * share)
    assert on_host.buffers == 0


def test_deepspeed_keeps_buffers_on_the_host() -> None:
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": 4, "dp": 4}

    def buffers(zero: int, accumulates: bool) -> int:
        plan = plan_of(global_batch=64, dp_style="deepspeed", zero=zero, offload_optimizer=1.0)
        return host_memory(counts, plan, sizes, accumulates=accumulates).buffers // 1600

    assert [buffers(zero, accumulates=False) for zero in (1, 2, 3)] == [2, 2, 2]
    assert [buffers(zero, accumulates=True) for zero in (1, 2, 3)] == [2, 4, 2]


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_what_deepspeed_leaves_on_the_gpu_of_a_share(share: float) -> None:
    # initialize_optimizer_states of stage3.py: each sub-group's gradient, in fp32, lies where its
    # states do (subgroup_to_device); grad_partitions_flat_buffer, of all, on the host.
    plan = plan_of(global_batch=64, dp_style="deepspeed", zero=3, offload_optimizer=share)
    counts, sizes = parameter_counts([layer("a", 6400)]), ALONE | {"shard": 4, "dp": 4}
    on_gpu = model_states(counts, plan, sizes)
    kept = 1600 * (1 - share)
    assert (on_gpu.gradients, on_gpu.optimizer) == (4 * kept, 12 * kept)
    on_host = host_memory(counts, plan, sizes, accumulates=False)
    assert (on_host.gradients, on_host.buffers) == (4 * 1600 * share, 2 * 1600)
    assert any("sub-groups" in line for line in host_of(gpt_13b(1.0), 1).lines(plan))


def test_13_billion_parameters_train_on_one_v100() -> None:
    # ZeRO-Offload (arXiv:2101.06840): 13B on a V100 of 32 GB, where PyTorch alone trains 1.4B.
    gpu = find_gpu("v100-sxm3-32gb")
    with_it, without = (assess(lay_out(gpt_13b(share), 1), gpu, node=1) for share in (1.0, 0.0))
    assert with_it.fits
    assert not without.fits
    assert without.certain
    assert 12.5e9 < with_it.stages[0].parameters / 2 < 13.5e9


@pytest.mark.parametrize(
    ("cluster", "tokens", "seconds"),
    [
        ("dgx-b200", 8192, 2.68),
        ("dgx-b200", 32768, 4.62),
        ("dgx-h200", 32768, 7.48),
        ("dgx-b200", 131072, 23.71),
    ],
)
def test_llama_with_stage_3_as_measured(cluster: str, tokens: int, seconds: float) -> None:
    # github:stas00/ml-engineering, insights/when-to-upgrade-gpus: DeepSpeed 0.19, FlashAttention 3
    # and 4, everything recomputed; step times from the TFLOP/s that it prints.
    text = f"""
[model]
preset = "llama3-8b"
seq_len = {tokens}
[plan]
zero = 3
global_batch = 8
recompute = "full"
offload.optimizer = 1
[framework]
name = "deepspeed"
version = "0.19"
attention = "newest"
[cluster]
preset = "{cluster}"
nodes = 1
[run]
allow_oom = true
"""
    found = simulate(read(text, "a.toml"))
    assert found is not None
    assert found.step_time == pytest.approx(seconds, rel=0.25)


def test_a_host_that_has_too_little() -> None:
    experiment = gpt_13b(1.0, gpus=8, cluster="dgx-v100")
    found = assess(lay_out(experiment, 8), find_gpu("v100-sxm3-32gb"), node=8)
    assert found.host_fits
    assert found.host_peak == pytest.approx(18 * found.stages[0].parameters / 2, rel=1e-6)
    assert "of 476.8 GiB" in found.text()
    text = GPT_13B.format(share=1.0, batch=8, micro=1, gpus=8, cluster="dgx-v100")
    larger = read(text.replace("layers = 40", "layers = 120"), "mine.toml")
    found = assess(lay_out(larger, 8), find_gpu("h200"), node=8)
    assert found.headroom > 0
    assert not found.fits
    assert found.certain
    assert "too little" in found.sentence()
    assert found.as_dict()["host"]["fits"] is False


def told_of(host: float, plan: dict[str, Any], **capacity: int) -> list[str]:
    """Advice where the host of eight GPUs has so many GiB."""
    experiment = gpt_13b(1.0, gpus=8, cluster="dgx-v100")
    experiment = replace(experiment, plan=plan_of(global_batch=64, recompute="full", **plan))

    def evaluate(changed: Plan, times: int) -> Verdict:
        layout = lay_out(replace(experiment, plan=changed), 8 * times)
        found = assess(layout, find_gpu("h200"), node=8)
        assert found.host is not None
        memory = Quantity(host * 1.0737, "GB", 0, "here")
        return replace(found, host=replace(found.host, memory=memory), **capacity)

    return advice(experiment.plan, evaluate(experiment.plan, 1), evaluate)


MEGATRON = {"dp_style": "megatron", "zero": 1, "offload_optimizer": 1.0, "precision": "fp16"}


def test_a_small_host_is_given_less() -> None:
    """Megatron-LM has shares of 16 bytes of 13 billion parameters: 191 GiB."""
    head, first, *others = told_of(150, MEGATRON)
    assert head == "Any of these makes it fit:"
    assert first.split("  ")[1] == "offload.optimizer = 0.75"
    assert any("2 times the nodes" in each for each in others)
    assert any("offload.optimizer = 0.25" in each for each in told_of(50, MEGATRON))
    (found,) = (each for each in told_of(150, FSDP) if "offload.optimizer = 0" in each)
    assert "offload.parameters = false" in found


def test_what_nothing_fits_into_is_said() -> None:
    """No GPU of 1 GiB holds a weight, nor a host of 1 GiB what would be left there."""
    (line,) = told_of(1, {**MEGATRON, "optimizer": "adam"}, capacity=1 << 30)
    assert re.search(
        r"nor do 3 together; as it is, it takes GPUs of \d+ GiB and hosts of 19\d", line
    )


def test_nothing_is_said_without_offload() -> None:
    found = assess(lay_out(gpt_13b(0.0), 1), find_gpu("h200"), node=1)
    assert "host" not in found.as_dict()
    assert "offload" not in found.text()
