"""ResNet (arXiv:1512.03385) and Wide ResNet, after ``torchvision/models/resnet.py``.

Strides are in the 3 × 3 convolution of a bottleneck ("v1.5").
"""

from __future__ import annotations

from ...experiment.models import Cnn
from ..operators import Layer, Operator
from .fused_norms import joined, normalised
from .modules import Image, Modules

__all__ = ["resnet"]

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks of each group, by depth."""

PLANES = (64, 128, 256, 512)
EXPANSION = 4
"""Channels that a bottleneck gives out, over its planes."""


def resnet(m: Modules, model: Cnn) -> list[Layer]:
    """Return the layers: stem, residual blocks, head."""
    image = Image(3, model.image)
    operators = [m.images(image)]
    convolution, image = m.convolution("conv1", image, 64, 7, stride=2, padding=3, first=True)
    operators += [convolution, *normalised(m, "bn1", "relu", image, pooled=True)]
    pool, image = m.max_pool("maxpool", image, 3, 2, 1)
    operators.append(pool)
    layers = [Layer("stem", tuple(operators), "embedding", m.bytes(image), 0)]

    kept = False  # nothing keeps the pool's output
    for group, (planes, blocks) in enumerate(zip(PLANES, BLOCKS[model.depth], strict=True)):
        for number in range(blocks):
            stride = 2 if group and not number else 1
            given = m.bytes(image)
            operators, image = _block(m, model, image, planes, stride, kept)
            name = f"layer{group + 1}.{number}"
            layers.append(Layer(name, tuple(operators), "block", m.bytes(image), given))
            kept = True

    pooled = m.average_pool("avgpool", image, 1, kept=True)
    fc = m.linear("fc", m.batch, image.channels, model.classes)
    loss = m.cross_entropy(m.batch, model.classes)
    layers.append(Layer("head", (pooled, fc, loss), "head", 0, m.bytes(image)))
    return layers


def _block(
    m: Modules, model: Cnn, image: Image, planes: int, stride: int, kept: bool
) -> tuple[list[Operator], Image]:
    """A residual block: two convolutions 3 × 3, or a bottleneck of three."""
    if model.depth < 50:
        shapes = [(planes, 3, stride), (planes, 3, 1)]
    else:
        width = planes * model.width // 64
        shapes = [(width, 1, 1), (width, 3, stride), (EXPANSION * planes, 1, 1)]
    operators = [m.add_gradients(image)]
    given, through = image, image
    for i, (channels, kernel, step) in enumerate(shapes, start=1):
        convolution, through = m.convolution(
            f"conv{i}",
            through,
            channels,
            kernel,
            stride=step,
            padding=kernel // 2,
            kept=kept or i > 1,
        )
        operators.append(convolution)
        if i < len(shapes):
            operators += normalised(m, f"bn{i}", f"relu{i}", through)
    other: list[Operator] = []
    if given != through:
        # The same input as that of conv1, which counts it.
        convolution, _ = m.convolution(
            "downsample", given, through.channels, 1, stride=stride, kept=True
        )
        other = [convolution, m.batch_norm("downsample bn", through)]
    last = len(shapes)
    return [*operators, *joined(m, f"bn{last}", f"relu{last}", through, other)], through
