"""Steps that wait for launches say so, and what CUDA graphs would gain; TF32 in convolutions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.text import percentage
from mpisim.experiment import Experiment, load, read
from mpisim.kernels import Roofline, find_gpu
from mpisim.kernels.operations import Convolution, Elementwise, Gemm
from mpisim.prediction.launches import launch_bound_statement, launch_share
from mpisim.prediction.prepared import prepare
from mpisim.results import Results
from mpisim.simulate import simulate
from mpisim.workloads.data_parallel.frameworks import frameworks
from mpisim.workloads.operators import Compute
from mpisim.workloads.pricing import NO_LAUNCH, Pricing

pytestmark = pytest.mark.two_processes

COMM = MPI.COMM_SELF
CUDA_GRAPHS = "framework.cuda_graphs=true"


def experiment(name: str, *changes: str) -> Experiment:
    return load(name, list(changes))[1]


def result(name: str, *changes: str) -> Results:
    found = simulate(experiment(name, *changes), COMM)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "share", "left"),
    [("lin-dlrm-ddp-4-a100", "100 %", 0.5), ("lin-dlrm-mlperf-4-a100", "99 %", 0.55)],
)
def test_what_graphs_gain_is_what_they_give(name: str, share: str, left: float) -> None:
    """The time that is told is that of the experiment with the key set."""
    bound = result(name)
    captured = result(name, CUDA_GRAPHS)
    said = bound.attributes
    assert said["cuda_graphs_step_time"] == captured.step_time_ps / 1e12
    assert captured.step_time_ps < bound.step_time_ps * left
    assert said["launch_share"] > 0.9
    assert f"{share} of the critical path" in said["launch_bound"]
    less = 1 - captured.step_time_ps / bound.step_time_ps
    assert f"{percentage(less)} less" in said["launch_bound"]
    # Waiting for launches is no compute.
    of_kernels = bound.ranks["compute"].mean() / captured.ranks["compute"].mean()
    assert of_kernels == pytest.approx(1, rel=0.05)


SMALL = """
[model]
family = "gpt"
layers = 4
hidden = 256
heads = 4
seq_len = 128
vocab = 1024
[cluster]
preset = "dgx-h100"
nodes = 1
[plan]
global_batch = 8
recompute = "none"
offload = {{ activations = {} }}
"""


@pytest.mark.parametrize("offloaded", [0, 1])
def test_nothing_is_said_of_graphs_that_a_plan_cannot_have(offloaded: int) -> None:
    """Copies to the host are in no graph; the step is simulated all the same."""
    found = simulate(read(SMALL.format(offloaded), "mine.toml"), COMM)
    assert found is not None
    assert ("launch_bound" in found.attributes) == (not offloaded)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama3-8b-8-h100", ()),  # kernels take longer than their launches
        ("lin-dlrm-mlperf-4-a100", (CUDA_GRAPHS,)),
        ("lin-dlrm-mlperf-4-a100", ("framework.launch_blocking=true",)),  # asked for
    ],
)
def test_others_say_nothing(name: str, changes: tuple[str, ...]) -> None:
    assert not {"launch_bound", "launch_share"} & result(name, *changes).attributes.keys()


@pytest.mark.mpi
def test_processes_agree(comm: MPI.Intracomm) -> None:
    case = prepare(experiment("lin-dlrm-mlperf-4-a100"))
    from mpisim.prediction.execution import execute

    run, _ = execute(case, comm, critical_path=True)
    said = launch_bound_statement(case, run, comm)
    assert len(set(comm.allgather(said["launch_bound"]))) == 1
    if comm.rank == 0:
        assert said["launch_share"] == launch_share(run)


def formats(experiment: Experiment) -> dict[str, set[Any]]:
    """Number formats of convolutions and of other products."""
    found: dict[str, set[Any]] = {"convolutions": set(), "others": set()}
    for pricing in prepare(experiment).workload.pricings:
        for kernel in pricing.kernels.values():
            if isinstance(kernel, Convolution):
                found["convolutions"].add(kernel.dtype)
            elif isinstance(kernel, Gemm):
                found["others"].add(kernel.dtype)
    return found


GEFORCE = "kernels.gpu=rtx-3090"
FIRST = "framework.image_layout=channels-first"


@pytest.mark.parametrize(
    ("changes", "convolutions", "others"),
    [
        ((), "tf32", "fp32"),  # torch.backends.cudnn.allow_tf32, but not cuda.matmul's
        (("plan.precision.convolutions=fp32",), "fp32", "fp32"),
        (("plan.precision=tf32",), "tf32", "tf32"),
        (("plan.precision=fp16",), "fp16", "fp16"),
        (("cluster.preset=dgx-v100",), "fp32", "fp32"),  # Volta has no TF32
        # GeForce: cores are as fast as matrix units, and take images as they are.
        ((GEFORCE, FIRST), "fp32", "fp32"),
        ((GEFORCE, FIRST, "plan.precision=tf32"), "fp32", "tf32"),
        ((GEFORCE,), "tf32", "fp32"),
        ((FIRST,), "tf32", "fp32"),
    ],
)
def test_convolutions_of_fp32_have_tf32(
    changes: tuple[str, ...], convolutions: str, others: str
) -> None:
    changes += ("cluster.gpus=4", "run.allow_oom=true")
    found = formats(experiment("triosim-p2-vgg16-ddp", *changes))
    assert found == {"convolutions": {convolutions}, "others": {others}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("triosim-p2-vgg16-ddp", "plan.precision=bf16", "convolutions is given"),
        ("llama3-8b-8-h100", "plan.precision=fp32", "only CNNs have convolutions"),
        ("triosim-p2-vgg16-ddp", "kernels.gpu=v100-sxm2-16gb", "has no tf32"),
    ],
)
def test_formats_that_cannot_be(name: str, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(experiment(name, "plan.precision.convolutions=tf32", change, "run.allow_oom=true"))


def test_samples_have_their_names() -> None:
    said = result("triosim-p2-vgg16-ddp").attributes
    assert "tokens" not in said
    assert said["images"] == 512
    assert result("lin-dlrm-ddp-4-a100").attributes["samples"] == 4096
    assert "tokens" in result("llama3-8b-8-h100").attributes


def test_rates_have_no_exponent_and_images_no_tokens() -> None:
    many = result("lin-dlrm-ddp-4-a100").attributes["throughput"]
    assert re.match(r"[\d,]+ samples/s", many)
    seen = result("llama3-8b-8-h100", "model.preset=vit-b-16", "model.seq_len=197").attributes
    assert re.match(r"[\d.,]+ images/s", seen["throughput"])
    assert "tokens" not in seen
    assert seen["images"] == 8


@pytest.mark.parametrize(
    ("launches", "measured"),
    [
        (3, (276.5, 311.3)),  # Linear in bf16: a product forward, two backward
        (5, (416.9, 440.9)),  # in MXFP8, with a cast before either
        (6, (349.0, 397.7)),  # LayerNormLinear in bf16: norm, and two kernels of it backward
        (7, (490.5, 518.7)),  # in MXFP8, the norm casts
    ],
)
def test_modules_on_a_grace_take_what_was_measured(
    launches: int, measured: tuple[float, float]
) -> None:
    """Transformer Engine's modules on a GB200, forward and backward (its pull request 3523)."""
    gpu = find_gpu("gb200")
    one = (gpu.host_gap.si + gpu.launch_call.si) * 1e6
    error = gpu.host_gap.error * gpu.host_gap.si * 1e6
    assert launches * (one - error) < measured[0]
    assert measured[1] < launches * (one + error)


def test_a_compiled_loop_takes_the_framework_once() -> None:
    """Eight products in Transformer Engine's loop: 0.267 ms, and its module once around them."""
    gpu = find_gpu("gb200")
    pricing = Pricing(Roofline(gpu))
    assert gpu.loop_gap is not None
    first = gpu.host_gap.si + gpu.launch_call.si
    each = gpu.loop_gap.si + gpu.launch_call.si
    assert 8 * each == pytest.approx(267e-6, rel=0.02)
    loop = pricing.launching_of(8, compiled_loop=True)
    assert (loop["host"] + loop["launch_cost"]) / 1e12 == pytest.approx(first + 7 * each)
    python = pricing.launching_of(8)
    assert (python["host"] + python["launch_cost"]) / 1e12 == pytest.approx(8 * first)
    captured = Pricing(Roofline(gpu), cuda_graphs=True).launching_of(8, compiled_loop=True)
    assert captured["host"] + captured["launch_cost"] == 0


def test_copies_of_the_reducer_take_what_was_recorded() -> None:
    """On a V100's host 12 to 16 us each: medians of resnet50_ddp_v100_rank0of8, and calls in it."""
    share = frameworks().ddp.copy_launch.value
    copy = Compute("copy gradient into bucket", Elementwise(10), launch_share=share)
    for gpu in (find_gpu("v100-sxm2-32gb"), find_gpu("a100-sxm")):
        for pricing, call in (
            (Pricing(Roofline(gpu)), gpu.launch_call.si),
            (Pricing(Roofline(gpu), cuda_graphs=True), 0),
        ):
            found, python = pricing.launching_for(copy), pricing.launching
            time = found["host"] + found["launch_cost"]
            assert time == round(share * (python["host"] + python["launch_cost"]))
            assert found["launch_cost"] / 1e12 == pytest.approx(call)
            assert found["launch"] == python["launch"]
    volta = Pricing(Roofline(find_gpu("v100-sxm2-32gb"))).launching_for(copy)
    assert 12e6 <= volta["host"] + volta["launch_cost"] <= 16e6


def test_small_kernels_of_one_function_cost_a_call_each() -> None:
    gpu = find_gpu("gb200")
    kernel = Compute("cast", Elementwise(10))
    for pricing, call in (
        (Pricing(Roofline(gpu)), gpu.launch_call.si),
        (Pricing(Roofline(gpu), cuda_graphs=True), 0),
    ):
        alone, beside = (pricing.launching_for(replace(kernel, calls=n)) for n in (0, 3))
        assert beside["host"] == alone["host"]
        assert beside["launch"] == alone["launch"]
        assert (beside["launch_cost"] - alone["launch_cost"]) / 1e12 == pytest.approx(3 * call)
        # In a graph of some modules they are launched with the kernel before.
        assert pricing.launching_for(replace(kernel, launches=0, calls=3)) == NO_LAUNCH


def test_a_loop_without_a_time_of_its_own_takes_that_of_launches() -> None:
    pricing = Pricing(Roofline(find_gpu("h100-sxm")))
    assert pricing.launching_of(4, compiled_loop=True) == pricing.launching_of(4)
