"""ResNet (arXiv:1512.03385) and Wide ResNet, after ``torchvision/models/resnet.py``.

Strides are in the 3 × 3 convolution of a bottleneck ("v1.5"). Batch normalisation can be fused with
what is around it (``framework.norm_fusion``):

"activation"
    ReLU, and the sum of two branches before it, belong to the kernel of the normalisation
    (``CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION`` of cudnnBatchNormalizationForwardTrainingEx; MXNet's
    fuse_bn_relu and fuse_bn_add_relu). Backward it also writes the gradient of the other branch.
"convolution"
    A convolution adds up the statistics of what it writes, and the next one normalises what it
    reads and applies ReLU (cuDNN's CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS; MXNet's
    NormConvolution). Forward a kernel is left where two branches meet, and before a pool; backward
    the normalisation. Masks of ReLU, a bit an element, are neglected.
"""

from __future__ import annotations

from dataclasses import replace

from ...experiment.models import Cnn
from ..eager_modules import elementwise
from ..operators import Layer, Operator
from .image_operators import Image, ImageOperators

__all__ = ["norm_relu", "residual_groups", "resnet"]

RESNET_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks of each group, by depth."""
RESNET_PLANES = (64, 128, 256, 512)
"""Channels of the 3 × 3 convolutions of each group."""
BOTTLENECK_EXPANSION = 4
"""Channels that a bottleneck gives out, over its planes."""


def resnet(m: ImageOperators, model: Cnn) -> list[Layer]:
    """Stem, residual blocks, head.

    Parameters
    ----------
    m : ImageOperators
        Makes the operators, in the shapes of one rank.
    model : Cnn
        Of the ResNet family; its `depth` is a key of `RESNET_BLOCKS`.

    Returns
    -------
    list of Layer
        In the order of execution, one for each residual block.
    """
    layers, image = residual_groups(m, model)
    pooled = m.average_pool("avgpool", image, 1, input_kept=True)
    fc = m.linear("fc", m.batch, image.channels, model.classes)
    loss = m.cross_entropy(m.batch, model.classes)
    layers.append(Layer("head", (pooled, fc, loss), "head", 0, m.bytes(image)))
    return layers


def residual_groups(
    m: ImageOperators, model: Cnn, strides: tuple[int, ...] = (1, 2, 2, 2)
) -> tuple[list[Layer], Image]:
    """Images → features: the stem and groups of residual blocks.

    Parameters
    ----------
    m : ImageOperators
    model : Cnn
    strides : tuple of int
        Of the first block of each group; as many groups as there are strides.

    Returns
    -------
    layers : list of Layer
        The stem and a layer for each block.
    image : Image
        Features of one sample.
    """
    image = Image(3, model.image)
    operators = [m.images(image)]
    convolution, image = m.convolution("conv1", image, 64, 7, stride=2, padding=3, first=True)
    operators += [convolution, *norm_relu(m, "bn1", "relu", image, pooled=True)]
    pool, image = m.max_pool("maxpool", image, 3, 2, 1)
    operators.append(pool)
    layers = [Layer("stem", tuple(operators), "embedding", m.bytes(image), 0)]

    kept = False  # nothing keeps the pool's output
    for group, first_stride in enumerate(strides):
        planes = RESNET_PLANES[group]
        for number in range(RESNET_BLOCKS[model.depth][group]):
            stride = 1 if number else first_stride
            input_bytes = m.bytes(image)
            operators, image = _residual_block(m, model, image, planes, stride, kept)
            name = f"layer{group + 1}.{number}"
            layers.append(Layer(name, tuple(operators), "block", m.bytes(image), input_bytes))
            kept = True
    return layers, image


def _residual_block(
    m: ImageOperators, model: Cnn, image: Image, planes: int, stride: int, kept: bool
) -> tuple[list[Operator], Image]:
    """Image → image: two convolutions 3 × 3, or a bottleneck of three, and the residual."""
    if model.depth < 50:
        shapes = [(planes, 3, stride), (planes, 3, 1)]
    else:
        width = planes * model.width // 64
        shapes = [(width, 1, 1), (width, 3, stride), (BOTTLENECK_EXPANSION * planes, 1, 1)]
    operators = [m.add_gradients(image)]
    input_bytes, through = image, image
    for i, (channels, kernel, step) in enumerate(shapes, start=1):
        convolution, through = m.convolution(
            f"conv{i}",
            through,
            channels,
            kernel,
            stride=step,
            padding=kernel // 2,
            input_kept=kept or i > 1,
        )
        operators.append(convolution)
        if i < len(shapes):
            operators += norm_relu(m, f"bn{i}", f"relu{i}", through)
    other: list[Operator] = []
    if input_bytes != through:
        # The same input as that of conv1, which counts it.
        convolution, _ = m.convolution(
            "downsample", input_bytes, through.channels, 1, stride=stride, input_kept=True
        )
        other = [convolution, m.batch_norm("downsample bn", through)]
    last = len(shapes)
    return [*operators, *_norm_add_relu(m, f"bn{last}", f"relu{last}", through, other)], through


def norm_relu(
    m: ImageOperators, name: str, relu: str, image: Image, *, pooled: bool = False
) -> list[Operator]:
    """Result of a convolution → normalisation and ReLU, fused as the plan says.

    Parameters
    ----------
    m : ImageOperators
    name, relu : str
        Names of normalisation and ReLU.
    image : Image
    pooled : bool
        Whether a pool follows, not a convolution that could normalise what it reads.
    """
    norm = m.batch_norm(name, image)
    if m.norm_fusion == "none":
        return [norm, m.relu(relu, image)]
    if m.norm_fusion == "activation":
        return [replace(norm, forward=norm.forward[1:])]
    forward = (elementwise(name, 2 * m.bytes(image)),) if pooled else ()
    return [replace(norm, forward=forward)]


def _norm_add_relu(
    m: ImageOperators, name: str, relu: str, image: Image, other: list[Operator]
) -> list[Operator]:
    """Result of a convolution and another branch → normalisation, their sum, ReLU.

    Parameters
    ----------
    m : ImageOperators
    name, relu : str
        Names of normalisation and ReLU.
    image : Image
    other : list of Operator
        The other branch: nothing, or a convolution and its normalisation.
    """
    norm = m.batch_norm(name, image)
    if m.norm_fusion == "none":
        return [norm, *other, m.add(image), m.relu(relu, image)]
    size = m.bytes(image)
    backward = (*norm.backward, elementwise("residual gradient", size))
    if m.norm_fusion == "activation":
        forward = (*norm.forward[1:], elementwise("residual", size))
        return [*other, replace(norm, forward=forward, backward=backward)]
    if other:
        *convolution, last = other
        other = [*convolution, replace(last, forward=())]
    forward = (elementwise("addition", 3 * size),)
    return [*other, replace(norm, forward=forward, backward=backward)]
