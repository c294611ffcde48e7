"""Networks for images in the shapes of one rank, as torchvision and NVIDIA build them.

Parameters are listed as torchvision registers them. To add a family: a function from
`ImageOperators` and a model to layers, its entry in `CNN_FAMILIES` below, and its name in
`mpisim.experiment.models.Cnn`.

ResNet is in :mod:`.resnet`, SSD in :mod:`.ssd`, Stable Diffusion's U-Net in :mod:`.unet`.

VGG (arXiv:1409.1556), after ``torchvision/models/vgg.py``.

DenseNet (arXiv:1608.06993), after ``torchvision/models/densenet.py`` (not memory-efficient). Every
dense layer concatenates the outputs of all layers before it in its block. Backward the
concatenation hands on slices, which are added to what each output has got from later layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...experiment.models import Cnn
from ...experiment.plan import Plan
from ..eager_modules import FP32, elementwise
from ..grid import Grid
from ..operators import Layer, LayerStack, Operator
from .image_operators import Image, ImageOperators
from .resnet import resnet
from .ssd import ssd
from .unet import unet

__all__ = ["cnn_network"]

VGG_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Convolutions of each group, by depth."""
VGG_CHANNELS = (64, 128, 256, 512, 512)
"""Channels of each group."""
VGG_POOLED_SIDE = 7
"""Side of the image that the classifier sees."""
VGG_HIDDEN = 4096
"""Features of the classifier's hidden layers."""

DENSENET_LAYERS = {
    121: (6, 12, 24, 16),
    161: (6, 12, 36, 24),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}
"""Dense layers of each block, by depth."""
DENSE_BOTTLENECK = 4
"""Channels of the 1 × 1 convolution, over those a dense layer gives out."""


def cnn_network(model: Cnn, plan: Plan, grid: Grid) -> LayerStack:
    """Model, plan and grid → the layers of a CNN as PyTorch runs torchvision's.

    Data and pipeline parallelism leave its shapes alone; for tensor parallelism see
    :mod:`mpisim.workloads.eager_modules`.

    Parameters
    ----------
    model : Cnn
    plan : Plan
    grid : Grid

    Returns
    -------
    LayerStack
        Its FLOPs are those of convolutions and linear layers, forward and backward; the first
        convolution needs no gradient of its input.

    Raises
    ------
    InputError
        If tp does not divide the outputs of a layer, or the plan asks for what CNNs do not have.
    """
    layers = tuple(CNN_FAMILIES[model.family](ImageOperators(plan, grid), model))
    flops = sum(step.kernel.flops for layer in layers for step in layer.kernels())
    return LayerStack(layers, grid.tp * flops, plan.micro_batch)


# --- VGG ----------------------------------------------------------------------------------------


def _vgg(m: ImageOperators, model: Cnn) -> list[Layer]:
    """Groups of convolutions that end with a pool, and the classifier."""
    image = Image(3, model.image)
    input_bytes = FP32 * m.batch * image.size
    layers = [Layer("images", (m.images(image),), "embedding", input_bytes, 0)]
    for group, count in enumerate(VGG_CONVOLUTIONS[model.depth]):
        operators: list[Operator] = []
        for i in range(1, count + 1):
            first = not group and i == 1
            convolution, image = m.convolution(
                f"conv{i}",
                image,
                VGG_CHANNELS[group],
                3,
                padding=1,
                bias=True,
                first=first,
                input_kept=i > 1,
            )
            operators.append(convolution)
            if model.batch_norm:
                operators.append(m.batch_norm(f"bn{i}", image))
            operators.append(m.relu(f"relu{i}", image))
        pool, image = m.max_pool("maxpool", image, 2, 2)
        operators.append(pool)
        name = f"group{group + 1}"
        layers.append(Layer(name, tuple(operators), "block", m.bytes(image), input_bytes))
        input_bytes = m.bytes(image)

    operators = [m.average_pool("avgpool", image, VGG_POOLED_SIDE, adaptive=True)]
    inputs = image.channels * VGG_POOLED_SIDE**2
    for i in (1, 2):
        operators += [
            m.linear(f"fc{i}", m.batch, inputs, VGG_HIDDEN),
            m.activation(f"relu{i}", m.batch * VGG_HIDDEN),
            m.dropout(f"dropout{i}", m.batch * VGG_HIDDEN),
        ]
        inputs = VGG_HIDDEN
    operators += [
        m.linear("fc3", m.batch, inputs, model.classes),
        m.cross_entropy(m.batch, model.classes),
    ]
    layers.append(Layer("classifier", tuple(operators), "head", 0, m.bytes(image)))
    return layers


# --- DenseNet -----------------------------------------------------------------------------------


def _densenet(m: ImageOperators, model: Cnn) -> list[Layer]:
    """Stem, dense layers and transitions, head."""
    growth = 48 if model.depth == 161 else 32
    image = Image(3, model.image)
    operators = [m.images(image)]
    convolution, image = m.convolution(
        "conv0", image, 2 * growth, 7, stride=2, padding=3, first=True
    )
    operators += [convolution, m.batch_norm("norm0", image), m.relu("relu0", image)]
    pool, image = m.max_pool("pool0", image, 3, 2, 1)
    operators.append(pool)
    layers = [Layer("stem", tuple(operators), "embedding", m.bytes(image), 0)]

    blocks = DENSENET_LAYERS[model.depth]
    for block, count in enumerate(blocks, start=1):
        features = [image]
        for number in range(1, count + 1):
            operators, new = _dense_layer(m, features, growth)
            input_bytes = sum(map(m.bytes, features))
            features.append(new)
            layers.append(
                Layer(
                    f"denseblock{block}.{number}",
                    tuple(operators),
                    "block",
                    input_bytes + m.bytes(new),
                    input_bytes,
                )
            )
        image = Image(sum(each.channels for each in features), image.side)
        # The slice that is the last layer's gradient is copied for its convolution.
        joined = m.concatenation(features, (elementwise("slice copy", 2 * m.bytes(features[-1])),))
        if block == len(blocks):
            break
        operators = [joined, m.batch_norm("norm", image), m.relu("relu", image)]
        input_bytes = m.bytes(image)
        convolution, narrow = m.convolution("conv", image, image.channels // 2, 1, input_kept=True)
        image = Image(narrow.channels, narrow.side // 2)
        operators += [convolution, m.average_pool("pool", narrow, image.side)]
        layers.append(
            Layer(f"transition{block}", tuple(operators), "block", m.bytes(image), input_bytes)
        )

    operators = [
        joined,
        m.batch_norm("norm5", image),
        m.relu("relu5", image),
        m.average_pool("avgpool", image, 1, input_kept=True),
        m.linear("classifier", m.batch, image.channels, model.classes),
        m.cross_entropy(m.batch, model.classes),
    ]
    layers.append(Layer("head", tuple(operators), "head", 0, m.bytes(image)))
    return layers


def _dense_layer(
    m: ImageOperators, features: list[Image], growth: int
) -> tuple[list[Operator], Image]:
    """Images before it → one more: a 1 × 1 and a 3 × 3 convolution of all of them."""
    image = Image(sum(each.channels for each in features), features[0].side)
    sums = tuple(elementwise("add gradients", 3 * m.bytes(each)) for each in features)
    operators = [
        m.concatenation(features, sums),
        m.batch_norm("norm1", image),
        m.relu("relu1", image),
    ]
    convolution, image = m.convolution(
        "conv1", image, DENSE_BOTTLENECK * growth, 1, input_kept=True
    )
    operators += [convolution, m.batch_norm("norm2", image), m.relu("relu2", image)]
    convolution, image = m.convolution("conv2", image, growth, 3, padding=1, input_kept=True)
    return [*operators, convolution], image


CNN_FAMILIES: Mapping[str, Callable[[ImageOperators, Cnn], list[Layer]]] = {
    "resnet": resnet,
    "ssd": ssd,
    "unet": unet,
    "vgg": _vgg,
    "densenet": _densenet,
}
"""By `Cnn.family`."""
