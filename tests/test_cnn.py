"""Convolutional networks: sizes as published, steps as PyTorch issues them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from cnns import network
from plans import plan_of
from toys import Times

from mpisim.base.errors import InputError
from mpisim.experiment import ClusterChoice, Experiment
from mpisim.experiment.models import Cnn
from mpisim.kernels.operations import (
    Attention,
    Convolution,
    Copy,
    Elementwise,
    Gemm,
    Norm,
    Softmax,
)
from mpisim.program import Kind, Operation, check_matching
from mpisim.workloads import lay_out, training_step
from mpisim.workloads.operators import Communicate, Compute, Layer, LayerStack, Task, total


def kernels(steps: Iterable[Task]) -> list[tuple[str, Any]]:
    return [
        (step.name, step.kernel if isinstance(step, Compute) else (step.operation, step.bytes))
        for step in steps
    ]


def forward(layer: Layer) -> list[tuple[str, Any]]:
    return kernels(step for operator in layer.operators for step in operator.forward)


def backward(layer: Layer) -> list[tuple[str, Any]]:
    return kernels(step for operator in reversed(layer.operators) for step in operator.backward)


# Parameters and 10⁹ multiply-adds of one image as torchvision publishes them for its weights
# (docs.pytorch.org/vision/stable/models.html; num_params and _ops of torchvision/models/*.py).
PUBLISHED = [
    ("resnet", 18, {}, 11_689_512, 1.81),
    ("resnet", 34, {}, 21_797_672, 3.66),
    ("resnet", 50, {}, 25_557_032, 4.09),
    ("resnet", 101, {}, 44_549_160, 7.80),
    ("resnet", 152, {}, 60_192_808, 11.51),
    ("resnet", 50, {"width": 128}, 68_883_240, 11.40),
    ("resnet", 101, {"width": 128}, 126_886_696, 22.75),
    ("vgg", 11, {}, 132_863_336, 7.61),
    ("vgg", 13, {}, 133_047_848, 11.31),
    ("vgg", 16, {}, 138_357_544, 15.47),
    ("vgg", 19, {}, 143_667_240, 19.63),
    ("vgg", 11, {"batch_norm": True}, 132_868_840, 7.61),
    ("vgg", 13, {"batch_norm": True}, 133_053_736, 11.31),
    ("vgg", 16, {"batch_norm": True}, 138_365_992, 15.47),
    ("vgg", 19, {"batch_norm": True}, 143_678_248, 19.63),
    ("densenet", 121, {}, 7_978_856, 2.83),
    ("densenet", 161, {}, 28_681_000, 7.73),
    ("densenet", 169, {}, 14_149_480, 3.36),
    ("densenet", 201, {}, 20_013_928, 4.29),
]

# As Stability-AI's code prints it, and its multiply-adds with those of attention.
UNET = 865_910_724


def test_the_unet_of_stable_diffusion() -> None:
    found = network("unet", 2, image=64, micro_batch=2, optimizer="adam")
    assert total(each for layer in found.layers for each in layer.parameters) == UNET
    named = {op.name: op for layer in found.layers for op in layer.operators}
    # The lowest level has no attention, the middle has; each level's tokens are its pixels.
    attends = [name for name in named if name.endswith("self-attention")]
    assert len(attends) == 3 * 2 + 1 + 3 * 3
    own = dict(kernels(named["down 1.0 self-attention"].forward))["down 1.0 self-attention"]
    assert own == Attention(2, 10, 10, 1024, 1024, 64, 64, False, False, "fp32")
    text = dict(kernels(named["up 2.1 text attention"].forward))["up 2.1 text attention"]
    assert text == Attention(2, 20, 20, 256, 77, 64, 64, False, False, "fp32")
    # Nothing reaches the frozen text encoder.
    assert [name for name, _ in kernels(named["down 0.0 text k"].backward)] == [
        "down 0.0 text k weight gradient"
    ]
    # On the way up each block takes what the way down left, last first.
    joined = {
        name: dict(kernels(named[f"up {name} conv1"].forward))[f"up {name} conv1"].inputs
        for name in ("3.0", "3.2", "2.0", "2.2", "1.2", "0.0", "0.2")
    }
    assert joined == {
        "3.0": 2560,
        "3.2": 2560,
        "2.0": 2560,
        "2.2": 1920,
        "1.2": 960,
        "0.0": 960,
        "0.2": 640,
    }


def test_group_norms_and_silu_are_one_kernel_or_two() -> None:
    apart, fused = (network("unet", 2, image=64, fused=each) for each in (False, True))
    silus = [
        [op.name for layer in found.layers for op in layer.operators if op.name.endswith("silu")]
        for found in (apart, fused)
    ]
    # Two norms of each of 22 residual blocks and the last one; those of time steps stay.
    assert len(silus[0]) - len(silus[1]) == 2 * (4 * 2 + 2 + 4 * 3) + 1
    assert all("time" in name for name in silus[1])


# Of a ResNet-50, what SSD300 leaves out: the last group and the classifier.
RESNET_50_REST = 14_964_736 + 2_049_000


def test_ssd_is_a_resnet_with_blocks_and_predictions() -> None:
    """As src/model.py of NVIDIA's DeepLearningExamples builds it, layer by layer."""
    parameters = PUBLISHED[2][3] - RESNET_50_REST
    channels, side, places = 1024, 38, 0
    blocks = [(256, 512, 19), (256, 512, 10), (128, 256, 5), (128, 256, 3), (128, 256, 1), None]
    # Multiply-adds of the backbone: thirds of the groups of ResNet-50 at another size by hand.
    macs = 150**2 * 64 * 3 * 49
    before = 64
    for planes, count, out, first_side in ((64, 3, 75, 75), (128, 4, 38, 75), (256, 6, 38, 38)):
        for number in range(count):
            macs += (
                (before if not number else 4 * planes)
                * planes
                * (first_side if not number else out) ** 2
            )
            macs += (9 * planes * planes + 4 * planes * planes) * out**2
            macs += before * 4 * planes * out**2 if not number else 0
        before = 4 * planes
    for block, boxes in zip(blocks, (4, 6, 6, 6, 4, 4), strict=True):
        places += boxes * side**2
        predictions = 9 * channels * boxes * (4 + 81)
        parameters += predictions + boxes * (4 + 81)
        macs += predictions * side**2
        if block is None:
            break
        narrow, out, next_side = block
        parameters += channels * narrow + 9 * narrow * out + 2 * (narrow + out)
        macs += channels * narrow * side**2 + 9 * narrow * out * next_side**2
        channels, side = out, next_side
    assert places == 8732
    found = network("ssd", 50, image=300, classes=81, micro_batch=2)
    assert total(each for layer in found.layers for each in layer.parameters) == parameters
    first = 150**2 * 64 * 3 * 49
    assert found.flops == 2 * 2 * (3 * macs - first)
    losses = [op for op in found.layers[-1].operators if op.name == "loss"]
    assert len(losses) == 1
    softmax = dict(kernels(losses[0].forward))["log-softmax"]
    assert softmax == Softmax(2 * 8732, 81, dtype="fp32")


@pytest.mark.parametrize(("family", "depth", "keys", "parameters", "giga_macs"), PUBLISHED)
def test_parameters_and_flops_are_those_published(
    family: str, depth: int, keys: dict[str, Any], parameters: int, giga_macs: float
) -> None:
    found = network(family, depth, micro_batch=2, **keys)
    assert total(p for layer in found.layers for p in layer.parameters) == parameters
    ahead = sum(
        step.kernel.flops
        for layer in found.layers
        for operator in layer.operators
        for step in operator.forward
        if isinstance(step, Compute)
    )
    assert ahead / 2 / 2e9 == pytest.approx(giga_macs, abs=0.005)
    # Backward the same twice, but for the images, which need no gradient.
    first = (
        next(
            step.kernel.flops
            for step in found.layers[0].kernels()
            if step.name in ("conv0", "conv1")
        )
        if family != "vgg"
        else 2 * 2 * 224**2 * 64 * 27
    )
    assert found.flops == 3 * ahead - first
    assert found.tokens == 2


def test_a_stem_by_hand() -> None:
    stem = network("resnet", 18, image=64, micro_batch=2).layers[0]
    assert (stem.role, stem.output) == ("embedding", 4 * 2 * 64 * 16**2)
    whole, pooled = 4 * 2 * 64 * 32**2, 4 * 2 * 64 * 16**2
    pool = Elementwise(whole + pooled + 8 * 2 * 64 * 16**2)
    conv = Convolution(2, 3, 64, 32, 32, 7, 2)
    assert forward(stem) == [
        ("copy images", Copy(4 * 2 * 3 * 64**2, "host")),
        ("conv1", conv),
        ("bn1 counter", Elementwise(16)),
        ("bn1", Norm(2 * 32**2, 64, "batch", dtype="fp32")),
        ("relu", Elementwise(2 * whole)),
        ("maxpool", pool),
    ]
    assert backward(stem) == [
        ("maxpool gradient", Copy(whole, "fill")),
        ("maxpool backward", pool),
        ("relu backward", Elementwise(3 * whole)),
        ("bn1 backward", Norm(2 * 32**2, 64, "batch", True, "fp32")),
        ("conv1 weight gradient", Convolution(2, 3, 64, 32, 32, 7, 2, 1, "weight")),
    ]
    # Kept: the images, bn1's input and statistics, ReLU's output, the indices of the maxima.
    images, indices = 4 * 2 * 3 * 64**2, 8 * 2 * 64 * 16**2
    assert stem.saved == images + whole + 2 * 4 * 64 + whole + indices


def test_a_residual_block_by_hand() -> None:
    # Of ResNet-18 the first block with a stride: 64 × 16² in, 128 × 8² out.
    block = network("resnet", 18, image=64, micro_batch=2).layers[3]
    assert (block.name, block.role) == ("layer2.0", "block")
    given, out = 4 * 2 * 64 * 16**2, 4 * 2 * 128 * 8**2
    assert (block.checkpoint, block.output) == (given, out)
    norm = Norm(2 * 8**2, 128, "batch", dtype="fp32")
    counter = Elementwise(16)
    assert forward(block) == [
        ("conv1", Convolution(2, 64, 128, 8, 8, 3, 2)),
        ("bn1 counter", counter),
        ("bn1", norm),
        ("relu1", Elementwise(2 * out)),
        ("conv2", Convolution(2, 128, 128, 8, 8, 3)),
        ("bn2 counter", counter),
        ("bn2", norm),
        ("downsample", Convolution(2, 64, 128, 8, 8, 1, 2)),
        ("downsample bn counter", counter),
        ("downsample bn", norm),
        ("addition", Elementwise(3 * out)),
        ("relu2", Elementwise(2 * out)),
    ]
    norm = Norm(2 * 8**2, 128, "batch", True, "fp32")
    assert backward(block) == [
        ("relu2 backward", Elementwise(3 * out)),
        ("downsample bn backward", norm),
        ("downsample input gradient", Convolution(2, 64, 128, 8, 8, 1, 2, 1, "input")),
        ("downsample weight gradient", Convolution(2, 64, 128, 8, 8, 1, 2, 1, "weight")),
        ("bn2 backward", norm),
        ("conv2 input gradient", Convolution(2, 128, 128, 8, 8, 3, 1, 1, "input")),
        ("conv2 weight gradient", Convolution(2, 128, 128, 8, 8, 3, 1, 1, "weight")),
        ("relu1 backward", Elementwise(3 * out)),
        ("bn1 backward", norm),
        ("conv1 input gradient", Convolution(2, 64, 128, 8, 8, 3, 2, 1, "input")),
        ("conv1 weight gradient", Convolution(2, 64, 128, 8, 8, 3, 2, 1, "weight")),
        ("add gradients", Elementwise(3 * given)),
    ]
    # Kept: three inputs of norms with statistics, two outputs of ReLUs. The input of conv1 and of
    # the downsampling is the output of the ReLU before, which counts it.
    assert block.saved == 3 * (out + 2 * 4 * 128) + 2 * out
    assert sum(operator.statistics for operator in block.operators) == 3 * 128


def test_a_head_by_hand() -> None:
    head = network("resnet", 18, image=64, micro_batch=2, classes=10).layers[-1]
    pool = Elementwise(4 * 2 * 512 * (4 + 1))
    assert forward(head) == [
        ("avgpool", pool),
        ("fc", Gemm(2, 10, 512, dtype="fp32", output="fp32")),
        ("copy labels", Copy(16, "host")),
        ("log-softmax", Softmax(2, 10, dtype="fp32")),
        ("negative log-likelihood", Elementwise(24)),
    ]
    assert backward(head) == [
        ("loss gradient", Copy(4, "fill")),
        ("scores gradient", Copy(80, "fill")),
        ("negative log-likelihood backward", Elementwise(24)),
        ("log-softmax backward", Softmax(2, 10, True, "fp32")),
        ("fc input gradient", Gemm(2, 512, 10, dtype="fp32", output="fp32")),
        ("fc weight gradient", Gemm(10, 512, 2, dtype="fp32", output="fp32")),
        ("fc bias gradient", Elementwise(4 * 3 * 10, summed=2, sums=10)),
        ("avgpool backward", pool),
    ]
    assert head.saved == 4 * 2 * 512 + (4 * 2 * 10 + 8 * 2)


def test_the_slots_of_weights() -> None:
    # What only makes gradients of weights can be put off: everything else cannot.
    for family, depth in (("resnet", 18), ("vgg", 11), ("densenet", 121)):
        for layer in network(family, depth, precision="fp16", global_batch=2).layers:
            for operator in layer.operators:
                for step in operator.backward:
                    makes = ("weight gradient", "bias gradient", "cast backward", "accumulation")
                    assert step.weight == (step.name.endswith(makes) and operator.name != "loss")


def test_mixed_precision_copies_weights() -> None:
    first, second = network("vgg", 11, image=32, precision="fp16", micro_batch=2).layers[1:3]
    size, out = 2 * 3 * 32**2, 2 * 64 * 32**2
    assert forward(first) == [
        ("conv1 input cast", Elementwise(6 * size)),
        ("conv1 weight cast", Elementwise(6 * 64 * 27)),
        ("conv1 bias cast", Elementwise(6 * 64)),
        ("conv1", Convolution(2, 3, 64, 32, 32, 3, dtype="fp16")),
        ("conv1 bias", Elementwise(2 * 2 * out)),
        ("relu1", Elementwise(2 * 2 * out)),
        ("maxpool", Elementwise(2 * out * 5 // 4 + 8 * out // 4)),
    ]
    assert backward(first)[-4:] == [
        ("conv1 weight gradient", Convolution(2, 3, 64, 32, 32, 3, 1, 1, "weight", "fp16")),
        ("conv1 bias gradient", Elementwise(2 * out + 2 * 64)),
        ("conv1 weight cast backward", Elementwise(6 * 64 * 27)),
        ("conv1 bias cast backward", Elementwise(6 * 64)),
    ]
    # Kept: images and weights in fp16, ReLU's output, the indices.
    assert first.saved == 2 * size + 2 * 64 * 27 + 2 * out + 8 * out // 4
    # The images travel in fp32 even so, and batch normalisation keeps its weights in fp32.
    assert first.checkpoint == 4 * size
    assert second.checkpoint == first.output == 2 * out // 4
    names = [name for name, _ in forward(network("resnet", 18, precision="fp16").layers[1])]
    assert "conv1 weight cast" in names
    assert "bn1 weight cast" not in names


def test_tf32_and_fp32_differ_in_their_products_alone() -> None:
    for family, depth in (("resnet", 50), ("vgg", 11), ("densenet", 121)):
        exact, fast = (network(family, depth, precision=each) for each in ("fp32", "tf32"))
        assert [layer.saved for layer in exact.layers] == [layer.saved for layer in fast.layers]
        for a, b in zip(_kernels(exact), _kernels(fast), strict=True):
            if isinstance(a, Convolution | Gemm):
                assert (a.dtype, b.dtype) == ("fp32", "tf32")
                assert (a.flops, a.traffic) == (b.flops, b.traffic)
            else:
                assert a == b


def _kernels(found: LayerStack) -> list[Any]:
    return [step.kernel for layer in found.layers for step in layer.kernels()]


def test_several_micro_batches_add_their_gradients() -> None:
    steps = backward(network("resnet", 18, global_batch=4).layers[1])
    assert ("conv2 weight accumulation", Elementwise(12 * 64 * 64 * 9)) in steps
    assert ("bn2 bias accumulation", Elementwise(12 * 64)) in steps
    # With the same batch on two ranks there is one micro-batch.
    steps = backward(network("resnet", 18, gpus=2, global_batch=2).layers[1])
    assert not [name for name, _ in steps if name.endswith("accumulation")]


def test_tensor_parallelism_shares_outputs() -> None:
    block = network("resnet", 18, gpus=2, image=64, micro_batch=2, tp=2).layers[3]
    out = 4 * 2 * 128 * 8**2
    assert forward(block)[:4] == [
        ("conv1", Convolution(2, 64, 64, 8, 8, 3, 2)),
        ("conv1 all-gather", (Operation.ALL_GATHER, out)),
        ("conv1 concatenation", Elementwise(2 * out)),
        ("bn1 counter", Elementwise(16)),
    ]
    assert backward(block)[-5:-1] == [
        ("conv1 concatenation backward", Elementwise(2 * out)),
        ("conv1 reduce-scatter", (Operation.REDUCE_SCATTER, out)),
        ("conv1 input gradient", Convolution(2, 64, 64, 8, 8, 3, 2, 1, "input")),
        ("conv1 weight gradient", Convolution(2, 64, 64, 8, 8, 3, 2, 1, "weight")),
    ]
    sizes = {p.name: (p.size, p.replicated) for p in block.parameters}
    assert sizes["conv1 weight"] == (64 * 64 * 9, False)
    assert sizes["bn1 weight"] == (128, True)


@pytest.mark.parametrize(("family", "depth"), [("resnet", 50), ("vgg", 16), ("densenet", 121)])
def test_tensor_parallel_volumes(family: str, depth: int) -> None:
    one = network(family, depth, micro_batch=2)
    four = network(family, depth, gpus=4, tp=4, micro_batch=2)
    outputs = 0  # of convolutions and linear layers, all of them gathered
    for layer in one.layers:
        for operator in layer.operators:
            for step in operator.forward:
                kernel = step.kernel if isinstance(step, Compute) else None
                if isinstance(kernel, Convolution):
                    outputs += kernel.batch * kernel.outputs * kernel.height * kernel.width
                elif isinstance(kernel, Gemm):
                    outputs += kernel.m * kernel.n
    volumes: Counter[Operation] = Counter()
    for step in _communications(four):
        assert step.group == "tp"
        volumes[step.operation] += step.bytes
    expected = 4 * outputs
    assert volumes == {Operation.ALL_GATHER: expected, Operation.REDUCE_SCATTER: expected}
    assert not list(_communications(one))
    assert four.flops == one.flops
    shared = [p for layer in four.layers for p in layer.parameters if not p.replicated]
    whole = [p for layer in one.layers for p in layer.parameters if not p.replicated]
    assert 4 * total(shared) == total(whole)


def _communications(found: LayerStack) -> Iterator[Communicate]:
    for layer in found.layers:
        for operator in layer.operators:
            for step in (*operator.forward, *operator.backward):
                if isinstance(step, Communicate):
                    yield step


def test_layers_to_spread_over_a_pipeline() -> None:
    for family, depth, blocks in (
        ("resnet", 50, 3 + 4 + 6 + 3),
        ("vgg", 16, 5),
        ("densenet", 121, 6 + 12 + 24 + 16 + 3),
    ):
        found = network(family, depth)
        roles = [layer.role for layer in found.layers]
        assert roles == ["embedding"] + blocks * ["block"] + ["head"]
        for before, after in zip(found.layers, found.layers[1:], strict=False):
            assert before.output == after.checkpoint


def test_dense_layers_add_their_gradients() -> None:
    found = network("densenet", 121, image=64, micro_batch=2)
    # The third dense layer: the pool's 64 channels and two layers of 32, on 16 × 16.
    layer = found.layers[3]
    each = 4 * 2 * 16**2
    assert (layer.name, layer.checkpoint, layer.output) == ("denseblock1.3", 128 * each, 160 * each)
    assert forward(layer)[0] == ("concatenation", Elementwise(2 * 128 * each))
    assert backward(layer)[-3:] == [
        ("add gradients", Elementwise(3 * channels * each)) for channels in (64, 32, 32)
    ]
    # Kept: norm1's input (the concatenation) and ReLU's output, the same of the bottleneck.
    assert layer.saved == 2 * 128 * each + 2 * 128 * each + 2 * 4 * (128 + 128)
    # Every concatenation hands on as many gradients as it has inputs; only the block's last is the
    # first to come: 1 + … + n for a block of n.
    sums = Counter(step.name for layer in found.layers for step in layer.kernels())
    assert sums["add gradients"] == sum(n * (n + 1) // 2 for n in (6, 12, 24, 16))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"precision": "fp8"}, "plan.precision is 'fp8', which only transformers have"),
        ({"cp": 2}, "plan.cp is 2; only transformers have sequences"),
        ({"offload_activations": 2}, "plan.offload.activations is 2; only transformers"),
        ({"recompute": "selective"}, "plan.recompute is 'selective', which is about attention"),
        ({"tp": 3}, "plan.tp is 3, which does not divide the 64 outputs of 'conv1'"),
        ({"tp": 2, "classes": 999}, "plan.tp is 2, which does not divide the 999 outputs of 'fc'"),
        ({"tp": 2, "overlap_tp": True}, "plan.overlap.tp is true; only transformers overlap"),
    ],
)
def test_what_a_cnn_does_not_have(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        network("resnet", 50, gpus=6, **keys)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("resnet", {"depth": 51}, "depth is 51; a resnet has 18, 34, 50, 101, 152"),
        ("resnet", {"depth": 18, "width": 128}, "width is 128; only a resnet of depth 50 or more"),
        ("vgg", {"depth": 16, "width": 128}, "width is 128; only a resnet of depth 50 or more"),
        ("densenet", {"depth": 121, "batch_norm": True}, "batch_norm is true, which is for"),
    ],
)
def test_models_that_do_not_exist(family: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Cnn(family, **keys)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_step_on_two_ranks_and_a_pipeline() -> None:
    plan = plan_of(global_batch=8, micro_batch=2, pp=2, precision="fp16", optimizer="momentum")
    model = Cnn("resnet", 18, image=64)
    experiment = Experiment(model=model, plan=plan, cluster=ClusterChoice("dgx-h100"))
    done = training_step(lay_out(experiment, 4), Times())
    check_matching(done.program)
    assert done.tokens == 8
    assert done.flops == 4 * network("resnet", 18, image=64, micro_batch=2).flops
    for rank, channels, norms, parameters in (
        # The stem and two groups of blocks on the first stage: 64, and 4 × 64, and 5 × 128.
        (0, 64 + 4 * 64 + 5 * 128, 10, 683_072),
        (3, 5 * 256 + 5 * 512, 10, 11_689_512 - 683_072),
    ):
        table = done.program.table_of(rank)
        found = [
            (Operation(int(table.operation[row])), int(table.bytes[row]))
            for row in range(len(table))
            if table.kind[row] == Kind.COLLECTIVE
        ]
        # Statistics once a step, then gradients; those of autocast are in fp32.
        assert found[:2] == [
            (Operation.BROADCAST, 2 * 4 * channels),
            (Operation.BROADCAST, 8 * norms),
        ]
        assert {operation for operation, _ in found[2:]} == {Operation.ALL_REDUCE}
        assert sum(size for _, size in found[2:]) == 4 * parameters
        names = [done.program.names[name] for name in table.name]
        assert names.count("copy statistics") == 2 * norms
        sent = {int(s) for k, s in zip(table.kind, table.bytes, strict=True) if k == Kind.SEND}
        assert sent == {2 * 2 * 128 * 8**2}  # activations in fp16 between layer2.1 and layer3.0


def test_running_statistics_may_stay_where_they_are() -> None:
    model = Cnn("resnet", 18, image=64)
    plan = plan_of(global_batch=8, micro_batch=2, precision="fp16", broadcast_buffers=False)
    experiment = Experiment(model=model, plan=plan, cluster=ClusterChoice("dgx-h100"))
    table = training_step(lay_out(experiment, 4), Times()).program.table_of(0)
    operations = set(table.operation[table.kind == Kind.COLLECTIVE].tolist())
    assert operations == {Operation.ALL_REDUCE}
