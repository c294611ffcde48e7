"""SSD (arXiv:1512.02325) on a ResNet, as github:NVIDIA/DeepLearningExamples trains it.

After ``PyTorch/Detection/SSD`` (``src/model.py``): the first three groups of a ResNet, the third
without its stride, five further blocks of two convolutions, and at each of the six feature maps two
convolutions, of offsets and of classes for each default box: 8,732 boxes of an image of 300 × 300.
The loss is computed in fp32: smooth L1 of the offsets, cross-entropy of the classes, and of boxes
without an object the three times as many that have the largest, which two sorts find.

Sorts are those of CUB by radix: a pass for each byte of the keys, which reads and writes keys and
indices. Not counted are what makes targets of an image's objects, and random flips.
"""

from __future__ import annotations

from mpisim.kernels.operations import Softmax

from ...experiment.models import Cnn
from ..eager_modules import FP32, INDEX, elementwise, fill
from ..operators import Compute, Layer, Operator, Task
from .image_operators import Image, ImageOperators
from .resnet import norm_relu, residual_groups

__all__ = ["ssd"]

BACKBONE_STRIDES = (1, 2, 1)
"""Of the groups of the ResNet that are kept."""
BLOCKS = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""Further blocks: channels of the 1 × 1 convolution, of the 3 × 3, its stride and padding."""
BOXES = (4, 6, 6, 6, 4, 4)
"""Default boxes at each place of a feature map."""
COORDINATES = 4
BOOLEAN = 1
"""Bytes of a mask's element."""


def ssd(m: ImageOperators, model: Cnn) -> list[Layer]:
    """Backbone, feature maps, predictions and loss.

    Parameters
    ----------
    m : ImageOperators
        Makes the operators, in the shapes of one rank.
    model : Cnn
        Of the SSD family; `depth` is its ResNet's.

    Returns
    -------
    list of Layer
        In the order of execution.
    """
    layers, image = residual_groups(m, model, BACKBONE_STRIDES)
    input_bytes = m.bytes(image)
    maps = [image]
    operators: list[Operator] = []
    for number, (narrow, channels, stride, padding) in enumerate(BLOCKS, start=1):
        # Backward the gradients of the next block and of both predictions are added.
        operators += 2 * [m.add_gradients(image)]
        convolution, image = m.convolution(f"conv{number}.1", image, narrow, 1, input_kept=True)
        operators += [convolution, *norm_relu(m, f"bn{number}.1", f"relu{number}.1", image)]
        convolution, image = m.convolution(
            f"conv{number}.2", image, channels, 3, stride=stride, padding=padding, input_kept=True
        )
        operators += [convolution, *norm_relu(m, f"bn{number}.2", f"relu{number}.2", image)]
        maps.append(image)
    operators.append(m.add_gradients(image))
    kept = sum(map(m.bytes, maps))
    layers.append(Layer("features", tuple(operators), "block", kept, input_bytes))
    layers.append(Layer("head", tuple(_head(m, model, maps)), "head", 0, kept))
    return layers


def _head(m: ImageOperators, model: Cnn, maps: list[Image]) -> list[Operator]:
    """Feature maps → offsets and classes of all boxes → loss."""
    found: list[Operator] = []
    boxes = 0
    for number, (image, here) in enumerate(zip(maps, BOXES, strict=True)):
        boxes += here * image.side**2
        for what, width in (("offsets", COORDINATES), ("classes", model.classes)):
            convolution, out = m.convolution(
                f"{what} {number}", image, here * width, 3, padding=1, bias=True, input_kept=True
            )
            # Boxes in rows, and all maps side by side.
            traffic = 4 * m.bytes(out)
            copies = elementwise(f"{what} {number} rows", traffic)
            back = elementwise(f"{what} {number} rows backward", traffic)
            found += [convolution, Operator(f"{what} {number} rows", (copies,), (back,))]
    found.append(_loss(m, m.batch * boxes, model.classes))
    return found


def _loss(m: ImageOperators, boxes: int, classes: int) -> Operator:
    """Offsets and classes of `boxes` boxes → loss."""
    numbers = FP32 * boxes
    offsets, scores = COORDINATES * numbers, classes * numbers
    picked = (INDEX + 2 * FP32) * boxes
    narrow = (FP32 + m.element) * boxes * (COORDINATES + classes) if m.mixed else 0
    masks = (INDEX + 2 * BOOLEAN) * boxes
    casts = [elementwise("loss cast", narrow)] if narrow else []
    forward: list[Task] = [
        *casts,
        elementwise("objects", masks),
        # Differences, quotients and logarithms of halves of the coordinates, and both side by side.
        *(elementwise(f"target {each}", offsets) for each in range(1, 7)),
        elementwise("targets", 2 * offsets),
        elementwise("smooth L1", 3 * offsets),
        elementwise("smooth L1 sum", offsets + numbers),
        elementwise("smooth L1 of objects", 4 * numbers),
        Compute("log-softmax", Softmax(boxes, classes, dtype="fp32")),
        elementwise("negative log-likelihood", picked),
        elementwise("copy losses", 2 * numbers),
        elementwise("mask losses", 2 * numbers),
        _sort("sort losses", boxes, FP32),
        _sort("sort ranks", boxes, INDEX),
        elementwise("hardest boxes", masks),
        elementwise("boxes of the loss", 5 * numbers),
        elementwise("sum of losses", 4 * numbers),
    ]
    backward: list[Task] = [
        elementwise("sum of losses backward", 4 * numbers),
        fill("scores gradient", scores),
        elementwise("negative log-likelihood backward", picked),
        Compute("log-softmax backward", Softmax(boxes, classes, True, "fp32")),
        elementwise("smooth L1 backward", 4 * offsets),
        *(elementwise("loss cast backward", narrow) for _ in casts),
    ]
    return Operator("loss", tuple(forward), tuple(backward), saved=scores + 3 * offsets)


def _sort(name: str, boxes: int, key: int) -> Compute:
    """Sort numbers of `key` bytes with their indices."""
    return elementwise(name, key * 2 * (key + INDEX) * boxes)
