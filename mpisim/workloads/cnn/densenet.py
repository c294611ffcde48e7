"""DenseNet (arXiv:1608.06993), after ``torchvision/models/densenet.py`` (not memory-efficient).

Every dense layer concatenates the outputs of all layers before it in its block. Backward the
concatenation hands on slices, which are added to what each output has got from later layers.
"""

from __future__ import annotations

from ...experiment.models import Cnn
from ..eager_modules import stream
from ..operators import Layer, Operator
from .modules import Image, Modules

__all__ = ["densenet"]

LAYERS = {
    121: (6, 12, 24, 16),
    161: (6, 12, 36, 24),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}
"""Dense layers of each block, by depth."""

BOTTLENECK = 4
"""Channels of the 1 × 1 convolution, over those a dense layer gives out."""


def densenet(m: Modules, model: Cnn) -> list[Layer]:
    """Return the layers: stem, dense layers and transitions, head."""
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

    blocks = LAYERS[model.depth]
    for block, count in enumerate(blocks, start=1):
        features = [image]
        for number in range(1, count + 1):
            operators, new = _dense(m, features, growth)
            given = sum(map(m.bytes, features))
            features.append(new)
            layers.append(
                Layer(
                    f"denseblock{block}.{number}",
                    tuple(operators),
                    "block",
                    given + m.bytes(new),
                    given,
                )
            )
        image = Image(sum(each.channels for each in features), image.side)
        # The slice that is the last layer's gradient is copied for its convolution.
        joined = m.concatenation(features, (stream("slice copy", 2 * m.bytes(features[-1])),))
        if block == len(blocks):
            break
        operators = [joined, m.batch_norm("norm", image), m.relu("relu", image)]
        given = m.bytes(image)
        convolution, narrow = m.convolution("conv", image, image.channels // 2, 1, kept=True)
        image = Image(narrow.channels, narrow.side // 2)
        operators += [convolution, m.average_pool("pool", narrow, image.side)]
        layers.append(Layer(f"transition{block}", tuple(operators), "block", m.bytes(image), given))

    operators = [
        joined,
        m.batch_norm("norm5", image),
        m.relu("relu5", image),
        m.average_pool("avgpool", image, 1, kept=True),
        m.linear("classifier", m.batch, image.channels, model.classes),
        m.cross_entropy(m.batch, model.classes),
    ]
    layers.append(Layer("head", tuple(operators), "head", 0, m.bytes(image)))
    return layers


def _dense(m: Modules, features: list[Image], growth: int) -> tuple[list[Operator], Image]:
    """A dense layer: 1 × 1 and 3 × 3 convolution of all that came before it."""
    image = Image(sum(each.channels for each in features), features[0].side)
    sums = tuple(stream("add gradients", 3 * m.bytes(each)) for each in features)
    operators = [
        m.concatenation(features, sums),
        m.batch_norm("norm1", image),
        m.relu("relu1", image),
    ]
    convolution, image = m.convolution("conv1", image, BOTTLENECK * growth, 1, kept=True)
    operators += [convolution, m.batch_norm("norm2", image), m.relu("relu2", image)]
    convolution, image = m.convolution("conv2", image, growth, 3, padding=1, kept=True)
    return [*operators, convolution], image
