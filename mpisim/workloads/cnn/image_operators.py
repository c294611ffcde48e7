"""Operators on images: convolution, batch normalisation, pooling, sums and concatenations.

Sizes count every operand once. Of the forward pass is kept what autograd keeps: a convolution its
input, batch normalisation its input and statistics, an activation in place its output (which is the
next convolution's input, counted once), max-pooling the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mpisim.kernels.operations import Convolution, Norm

from ...base.frozen import frozen
from ...experiment.plan import Plan
from ..data_parallel.frameworks import frameworks
from ..eager_modules import FP32, INDEX, EagerModules, copy, elementwise, fill
from ..grid import Grid
from ..operators import Compute, Operator, Parameter, Task

__all__ = ["Image", "ImageOperators"]


@frozen
class Image:
    """Channels and side of a square image."""

    channels: int
    side: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.channels * self.side**2


class ImageOperators(EagerModules):
    """Factory of operators on a batch of images, in the shapes of one rank.

    Parameters
    ----------
    plan : Plan
    grid : Grid

    Attributes
    ----------
    batch : int
        Images of a micro-batch.
    norm_fusion, fused : str, bool
        As in the plan.
    convolution_format : Precision
        Number format of convolutions.
    transposes_layout : bool
        Whether convolutions transpose images, whose channels are first, for matrix units and back
        (cuDNN's nchwToNhwcKernel and nhwcToNchwKernel): whatever each of the three reads and
        writes, but for weights and the batch itself. It takes the time of reading and writing: 0.86
        of an H100's bandwidth (github:sarchlab/triosim, sample_trace). The call that computes the
        convolution launches these kernels, too.
    """

    def __init__(self, plan: Plan, grid: Grid) -> None:
        super().__init__(plan, grid)
        self.batch = plan.micro_batch
        self.norm_fusion = plan.framework.norm_fusion
        self.fused = plan.framework.fused
        self.convolution_format = plan.precision.convolutions or self.dtype
        self.transposes_layout = (
            plan.framework.image_layout == "channels-first" and self.convolution_format != "fp32"
        )
        self._further_launch = frameworks().library.further_launch.value

    def bytes(self, image: Image) -> int:
        """Bytes of a batch of images."""
        return self.element * self.batch * image.size

    def images(self, image: Image) -> Operator:
        """Copy of the batch to the GPU, in fp32; as in PyTorch's examples on the compute stream."""
        return Operator("images", (copy("copy images", FP32 * self.batch * image.size),))

    def convolution(
        self,
        name: str,
        image: Image,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
        first: bool = False,
        input_kept: bool = False,
    ) -> tuple[Operator, Image]:
        """Image → image: a convolution (``torch.nn.Conv2d``).

        Parameters
        ----------
        name : str
        image : Image
            Input.
        outputs : int
            Channels out.
        kernel, stride, padding : int
            In pixels.
        bias : bool
            Whether it has a bias: a kernel of its own forward, a sum backward.
        first : bool
            Whether its input is the batch itself: no gradient, and in fp32.
        input_kept : bool
            Whether another operator keeps the input.

        Returns
        -------
        Operator
        Image
            Output.
        """
        share = self.share(name, outputs)
        out = Image(outputs, (image.side + 2 * padding - kernel) // stride + 1)
        size = self.batch * out.size
        local = self.element * self.batch * share * out.side**2

        def layout_kernels(what: str, *sizes: int, weight: bool = False) -> list[Task]:
            # Three channels are too few for matrix units.
            if first or not self.transposes_layout:
                return []
            kernels = [elementwise(f"{what} layout", 2 * each, weight=weight) for each in sizes]
            return [replace(each, launch_share=self._further_launch) for each in kernels]

        def run(what: str, direction: Literal["forward", "input", "weight"]) -> Compute:
            described = Convolution(
                self.batch,
                image.channels,
                share,
                out.side,
                out.side,
                kernel,
                stride,
                direction=direction,
                dtype=self.convolution_format,
            )
            return Compute(what, described, weight=direction == "weight")

        parameters: tuple[Parameter, ...] = (
            Parameter(f"{name} weight", share * image.channels * kernel**2, rows=share),
        )
        if bias:
            parameters += (Parameter(f"{name} bias", share),)
        forward: list[Task] = []
        if first and self.mixed:
            traffic = (FP32 + self.element) * self.batch * image.size
            forward.append(elementwise(f"{name} input cast", traffic))
        forward += self.narrowed(parameters)
        input_bytes = self.bytes(image)
        forward += layout_kernels(name, input_bytes)
        forward.append(run(name, "forward"))
        forward += layout_kernels(name, local)
        if bias:
            forward.append(elementwise(f"{name} bias", 2 * local))
        forward += self.gather(name, size)

        backward: list[Task] = list(self.scatter(name, size))
        if not first:
            backward += layout_kernels(f"{name} input gradient", local)
            backward.append(run(f"{name} input gradient", "input"))
            backward += layout_kernels(f"{name} input gradient", input_bytes)
        backward += layout_kernels(f"{name} weight gradient", input_bytes, local, weight=True)
        backward.append(run(f"{name} weight gradient", "weight"))
        if bias:
            traffic = local + self.element * share
            backward.append(elementwise(f"{name} bias gradient", traffic, weight=True))
        backward += self.gradients(parameters)
        saved = self.kept_input(self.batch * image.size, input_kept) + self.kept_weights(parameters)
        return Operator(name, tuple(forward), tuple(backward), parameters, saved), out

    def batch_norm(self, name: str, image: Image) -> Operator:
        """Image → normalised image; counts its batches, too. Its weights stay in fp32.

        Parameters
        ----------
        name : str
            Prefix of the names of kernels and parameters.
        image : Image
            Input and output, of one sample of the micro-batch.

        Returns
        -------
        Operator
            It keeps its input and, in fp32, a mean and a variance for each channel.
        """
        parameters = tuple(
            Parameter(f"{name} {what}", image.channels, replicated=True, partial=True)
            for what in ("weight", "bias")
        )
        rows = self.batch * image.side**2

        def norm(*, backward: bool = False) -> Norm:
            return Norm(rows, image.channels, "batch", backward, self.stored)

        return Operator(
            name,
            (elementwise(f"{name} counter", 2 * INDEX), Compute(name, norm())),
            (
                Compute(f"{name} backward", norm(backward=True)),
                *self.gradients(parameters, narrow=False),
            ),
            parameters,
            saved=self.bytes(image) + 2 * FP32 * image.channels,
            statistics=image.channels,
        )

    def relu(self, name: str, image: Image) -> Operator:
        """ReLU, in place.

        Parameters
        ----------
        name : str
        image : Image
            Input and output, of one sample of the micro-batch.

        Returns
        -------
        Operator
            It keeps its output.
        """
        return self.activation(name, self.batch * image.size)

    def max_pool(
        self, name: str, image: Image, kernel: int, stride: int, padding: int = 0
    ) -> tuple[Operator, Image]:
        """Image → maxima of windows; its input is a ReLU's output, which that keeps.

        Parameters
        ----------
        name : str
        image : Image
            Input, of one sample of the micro-batch.
        kernel, stride : int
            Side of a window, and distance between windows, in pixels.
        padding : int
            Pixels added on each side; 0 by default.

        Returns
        -------
        Operator
            It keeps the indices of the maxima, an int64 for each element of the output.
        Image
            Output.
        """
        out = Image(image.channels, (image.side + 2 * padding - kernel) // stride + 1)
        indices = INDEX * self.batch * out.size
        traffic = self.bytes(image) + self.bytes(out) + indices
        return Operator(
            name,
            (elementwise(name, traffic),),
            (
                fill(f"{name} gradient", self.bytes(image)),
                elementwise(f"{name} backward", traffic),
            ),
            saved=indices,
        ), out

    def average_pool(
        self,
        name: str,
        image: Image,
        side: int,
        *,
        input_kept: bool = False,
        adaptive: bool = False,
    ) -> Operator:
        """Image → means of windows, as many as make an image of a side.

        Parameters
        ----------
        name : str
        image : Image
        side : int
            Of the output, in pixels.
        input_kept : bool
            Whether another operator keeps the input.
        adaptive : bool
            Whether the kernel is that for windows of any size, which adds to zeros backward.
        """
        traffic = self.bytes(image) + self.bytes(Image(image.channels, side))
        backward = [elementwise(f"{name} backward", traffic)]
        if adaptive:
            backward.insert(0, fill(f"{name} gradient", self.bytes(image)))
        return Operator(
            name,
            (elementwise(name, traffic),),
            tuple(backward),
            saved=0 if input_kept else self.bytes(image),
        )

    def add_gradients(self, image: Image) -> Operator:
        """Image that is used twice: backward its two gradients are added."""
        return Operator("branches", (), (elementwise("add gradients", 3 * self.bytes(image)),))

    def add(self, image: Image) -> Operator:
        """Two images → their sum, in place."""
        return Operator("addition", (elementwise("addition", 3 * self.bytes(image)),))

    def concatenation(self, images: Sequence[Image], backward: tuple[Compute, ...]) -> Operator:
        """Images → one with all their channels; `backward` has the kernels of its gradient.

        Parameters
        ----------
        images : sequence of Image
            Inputs, with sides of equal length.
        backward : tuple of Compute
            Kernels; may be empty.

        Returns
        -------
        Operator
            Saves nothing for the backward pass.
        """
        traffic = 2 * sum(map(self.bytes, images))
        return Operator("concatenation", (elementwise("concatenation", traffic),), backward)
