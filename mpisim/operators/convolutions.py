"""Convolutions of PyTorch, forward and backward → those of the kernel models.

Matrix units take images whose channels are last. cuDNN turns others (nchwToNhwcKernel and
nhwcToNchwKernel): whatever the convolution reads and writes, but images of few channels. On GPUs
without the format there is nothing to turn (:mod:`.pricing`). In tf32 the units load four numbers
of 32 bits at once, 16 bytes: images whose channels are no multiple of four are convolved in fp32 as
they lie.
"""

from __future__ import annotations

import math

from ..kernels.operations import Convolution, Elementwise, Gemm, Kernel, Precision
from .call import OperatorCall, TensorSpec
from .streams import stream
from .tensors import element_bytes, format_of, number, numbers, result, tensor, touched

__all__ = ["backward", "cudnn", "forward"]

Kernels = tuple[Kernel, ...]

_DIRECTIONS = ("input", "weight")


def forward(call: OperatorCall) -> Kernels | None:
    """``convolution(x, weight, bias, stride, padding, dilation, transposed, …, groups)``."""
    x, weight, bias = tensor(call, 0), tensor(call, 1), tensor(call, 2)
    if x is None or weight is None:
        return None
    transposed = bool(number(call, 6, 0))
    out = result(call) or _result_of(
        x, weight, numbers(call, 3), numbers(call, 4), numbers(call, 5), transposed
    )
    if out is None:
        return None
    direction = "input" if transposed else "forward"
    own = _convolution(x, weight, out, number(call, 8, 0), direction, transposed)
    layouts = (*_layout_kernels(x, out), *own, *_layout_kernels(out, x, like=x))
    # A bias is broadcast over the pixels.
    added = () if bias is None else stream(2 * touched(out), indexed=out.elements)
    return (*layouts, *added)


def cudnn(call: OperatorCall) -> Kernels | None:
    """``cudnn_convolution(x, weight, padding, stride, dilation, groups, …)``."""
    x, weight = tensor(call, 0), tensor(call, 1)
    if x is None or weight is None:
        return None
    found = _result_of(x, weight, numbers(call, 3), numbers(call, 2), numbers(call, 4), False)
    out = result(call) or found
    if out is None:
        return None
    own = _convolution(x, weight, out, number(call, 5, 0), "forward")
    return (*_layout_kernels(x, out), *own, *_layout_kernels(out, x, like=x))


def backward(call: OperatorCall) -> Kernels | None:
    """``convolution_backward(gradient, x, weight, bias sizes, …, groups, output mask)``.

    The gradient of the input is left out for the first layer: where the mask was not recorded, for
    images of three channels or fewer.
    """
    gradient, x, weight = (tensor(call, i) for i in range(3))
    if gradient is None or x is None or weight is None:
        return None
    mask = numbers(call, 10) or (int(len(x.shape) < 2 or x.shape[1] > 3), 1, 0)
    groups, transposed = number(call, 9, 0), bool(number(call, 7, 0))
    found: Kernels = ()
    for wanted, direction in zip(mask, _DIRECTIONS):
        if wanted:
            way = "forward" if transposed and direction == "input" else direction
            found += (*_layout_kernels(x, gradient), *_layout_kernels(gradient, x, like=x))
            found += _convolution(x, weight, gradient, groups, way, transposed)
    if len(mask) > 2 and mask[2]:
        found += stream(touched(gradient))
    return found


def _result_of(
    x: TensorSpec, weight: TensorSpec, stride: tuple[int, ...] | None,
    padding: tuple[int, ...] | None, dilation: tuple[int, ...] | None, transposed: bool,
) -> TensorSpec | None:  # fmt: skip
    """Return the result where strides were recorded, and the convolution is not transposed."""
    sides = len(weight.shape) - 2
    if not stride or 0 in stride or transposed or sides < 1 or len(x.shape) != sides + 2:
        return None
    steps, room, dilations = (
        (each * sides if len(each) == 1 else each)
        for each in (stride, padding or (0,), dilation or (1,))
    )
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], steps, room, dilations)
    )
    return TensorSpec(x.dtype, (x.shape[0], weight.shape[0], *sizes))


_MAX_CHANNELS_AS_THEY_LIE = 4
"""Channels up to which an image is not rearranged, as those of first layers, which have three."""


def _layout_kernels(
    image: TensorSpec, other: TensorSpec, like: TensorSpec | None = None
) -> Kernels:
    """Image → the kernel that moves its channels to the end or back; none if they are there.

    `other` is what a convolution makes of it, or makes it of; `like` the one whose strides tell.
    """
    steps = (like or image).strides
    channels_last = steps is not None and len(steps) > 2 and steps[1] == 1
    few = len(image.shape) < 3 or image.shape[1] <= _MAX_CHANNELS_AS_THEY_LIE
    if channels_last or few or _format(image, other) == "fp32" or not image.elements:
        return ()
    return (Elementwise(bytes=2 * touched(image), variant="layout"),)


_TF32_CHANNELS = 4
"""Channels that a multiple of is loaded at once in tf32."""


def _format(x: TensorSpec, other: TensorSpec) -> Precision:
    """Return the format: cuDNN may take tf32 for fp32 (``torch.backends.cudnn.allow_tf32``)."""
    if x.dtype != "float32":
        return format_of(x)
    whole = all(len(t.shape) < 2 or t.shape[1] % _TF32_CHANNELS == 0 for t in (x, other))
    return "tf32" if whole else "fp32"


def _convolution(
    x: TensorSpec, weight: TensorSpec, out: TensorSpec, groups: int, direction: str,
    transposed: bool = False,
) -> Kernels:  # fmt: skip
    """Return the kernel; the product that it is if the filter is not square and 2-d.

    A transposed convolution is the gradient of the input of one from its result to its input.
    """
    if not (x.elements and weight.elements and out.elements) or len(weight.shape) < 3:
        return ()
    image, result_ = (out, x) if transposed else (x, out)
    if groups < 1:
        groups = max(1, image.shape[1] // weight.shape[1])
    kind = _format(x, out)
    filters = weight.shape[2:]
    if len(filters) == 2 and filters[0] == filters[1]:
        height, width = result_.shape[2:]
        return (
            Convolution(
                batch=x.shape[0],
                inputs=image.shape[1],
                outputs=result_.shape[1],
                height=height,
                width=width,
                kernel=filters[0],
                stride=max(1, round(image.shape[2] / height)),
                groups=groups,
                direction=direction,  # type: ignore[arg-type]
                dtype=kind,
            ),
        )
    if weight.shape[1] == 1:  # of each channel by itself: a few products for each number read
        return (Elementwise(sum(element_bytes(t.dtype) * t.elements for t in (x, weight, out))),)
    columns, each = result_.shape[1] // groups, math.prod(filters) * weight.shape[1]
    written: Precision = "fp32" if kind == "tf32" else kind
    rows = result_.elements // result_.shape[1]
    return (Gemm(rows, columns, each, groups, dtype=kind, output=written),)
