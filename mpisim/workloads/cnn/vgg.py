"""VGG (arXiv:1409.1556), after ``torchvision/models/vgg.py``."""

from __future__ import annotations

from ...experiment.models import Cnn
from ..eager_modules import FP32
from ..operators import Layer, Operator
from .modules import Image, Modules

__all__ = ["vgg"]

CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Convolutions of each group, by depth."""

CHANNELS = (64, 128, 256, 512, 512)
POOLED = 7
"""Side of the image that the classifier sees."""
HIDDEN = 4096


def vgg(m: Modules, model: Cnn) -> list[Layer]:
    """Return the layers: groups of convolutions that end with a pool, and the classifier."""
    image = Image(3, model.image)
    given = FP32 * m.batch * image.size
    layers = [Layer("images", (m.images(image),), "embedding", given, 0)]
    for group, count in enumerate(CONVOLUTIONS[model.depth]):
        operators: list[Operator] = []
        for i in range(1, count + 1):
            first = not group and i == 1
            convolution, image = m.convolution(
                f"conv{i}", image, CHANNELS[group], 3, padding=1, bias=True, first=first, kept=i > 1
            )
            operators.append(convolution)
            if model.batch_norm:
                operators.append(m.batch_norm(f"bn{i}", image))
            operators.append(m.relu(f"relu{i}", image))
        pool, image = m.max_pool("maxpool", image, 2, 2)
        operators.append(pool)
        name = f"group{group + 1}"
        layers.append(Layer(name, tuple(operators), "block", m.bytes(image), given))
        given = m.bytes(image)

    operators = [m.average_pool("avgpool", image, POOLED, adaptive=True)]
    inputs = image.channels * POOLED**2
    for i in (1, 2):
        operators += [
            m.linear(f"fc{i}", m.batch, inputs, HIDDEN),
            m.activation(f"relu{i}", m.batch * HIDDEN),
            m.dropout(f"dropout{i}", m.batch * HIDDEN),
        ]
        inputs = HIDDEN
    operators += [
        m.linear("fc3", m.batch, inputs, model.classes),
        m.cross_entropy(m.batch, model.classes),
    ]
    layers.append(Layer("classifier", tuple(operators), "head", 0, m.bytes(image)))
    return layers
