"""PyTorch modules (linear, activation, dropout, loss) in eager mode → operators of one rank.

One operator for each module, with the kernels of eager mode forward and backward, in the order in
which autograd runs them: gradient of the input, of the weight, of the bias.

Mixed precision is ``torch.autocast``'s: weights are kept in fp32 and copied to the narrow format
once for each forward, gradients are copied back. Where gradients of several micro-batches are
accumulated, an addition is counted for each (the first would only be moved).

Tensor parallelism is the generic one of github.com/BlackSamorez/tensor_parallel
(``autoconfig.py``, ``communications.py``), which splits exactly the modules that TrioSim splits
(``tracer/dataprocess.py``, ``TARGET_OP_PREFIXES``): each rank computes a share of the outputs of
every convolution and linear layer, outputs are all-gathered and brought into one tensor; backward
their gradients are reduce-scattered. Everything else is computed by every rank, and the gradients
that reach it are each rank's part of a sum, those of replicated parameters too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mpisim.base.errors import InputError
from mpisim.kernels.operations import BYTES, Copy, Elementwise, Gemm, Precision, Softmax

from ..experiment.plan import Plan
from ..program import Operation
from .grid import Grid
from .operators import Communicate, Compute, Operator, Parameter, Task

__all__ = ["FP32", "INDEX", "EagerModules", "copy", "elementwise", "fill"]

FP32 = BYTES["fp32"]
INDEX = 8
"""Bytes of an int64: labels, indices."""
MASK = 1
"""Bytes of an element of a dropout mask."""


def elementwise(name: str, traffic: int, *, weight: bool = False) -> Compute:
    """A kernel that streams `traffic` bytes through memory.

    Parameters
    ----------
    name : str
    traffic : int
        Read and written together.
    weight : bool
        As in `Compute`: whether it computes gradients of weights; no by default.
    """
    return Compute(name, Elementwise(traffic), weight=weight)


def fill(name: str, size: int) -> Compute:
    """A kernel that sets `size` bytes.

    Parameters
    ----------
    name : str
    size : int
    """
    return Compute(name, Copy(size, path="fill"))


def copy(name: str, size: int) -> Compute:
    """A copy of `size` bytes from the host.

    Parameters
    ----------
    name : str
    size : int
    """
    return Compute(name, Copy(size, path="host"))


class EagerModules:
    """Operators of modules in eager mode, in the shapes of one rank.

    Parameters
    ----------
    plan : Plan
    grid : Grid

    Attributes
    ----------
    dtype : Precision
        Format of matrix products.
    element : int
        Bytes of an element of an activation.
    stored : str
        Format of weights.
    mixed : bool
        Whether weights are wider than activations.
    tp : int
        Ranks that split the outputs of a layer.

    Raises
    ------
    InputError
        If the plan has a key that these models do not support.
    """

    def __init__(self, plan: Plan, grid: Grid) -> None:
        if plan.precision.products in ("fp8", "nvfp4"):
            raise InputError(
                f"plan.precision is {plan.precision.products!r}, which only transformers have; "
                f"allowed "
                "here: fp32, tf32, fp16, bf16"
            )
        if plan.overlap.tp:
            raise InputError("plan.overlap.tp is true; only transformers overlap in this way")
        if plan.offload.activations:
            raise InputError(
                f"plan.offload.activations is {plan.offload.activations}; only transformers have "
                "layers whose activations are offloaded; allowed here: 0"
            )
        for key in ("cp", "ep"):
            if getattr(plan, key) > 1:
                raise InputError(
                    f"plan.{key} is {getattr(plan, key)}; only transformers have sequences and "
                    "experts to share"
                )
        if plan.recompute.granularity == "selective":
            raise InputError(
                "plan.recompute is 'selective', which is about attention; allowed here: none, full"
            )
        self.dtype: Precision = plan.precision.products
        self.element = BYTES[plan.precision.products]
        self.stored: Literal["fp32", "fp16", "bf16"] = plan.weight_format
        self.mixed = self.element < FP32
        self.tp = grid.tp
        self._accumulates = plan.global_batch > grid.dp * plan.micro_batch

    # --- modules --------------------------------------------------------------------------------

    def linear(
        self,
        name: str,
        rows: int,
        inputs: int,
        outputs: int,
        *,
        first: bool = False,
        kept: bool = False,
        bias: bool = True,
    ) -> Operator:
        """A matrix (inputs, outputs), and its bias unless there is none.

        Parameters
        ----------
        name : str
        rows, inputs, outputs : int
            Samples, and elements of each before and after.
        first : bool
            Whether the input needs no gradient.
        kept : bool
            Whether another operator keeps the input.
        bias : bool
            Whether there is one; yes by default.
        """
        share, e = self.share(name, outputs), self.element

        def product(what: str, m: int, n: int, k: int, *, weight: bool = False) -> Compute:
            return Compute(what, Gemm(m, n, k, dtype=self.dtype, output=self.dtype), weight=weight)

        parameters: tuple[Parameter, ...] = (
            Parameter(f"{name} weight", inputs * share, rows=share),
        )
        if bias:
            parameters += (Parameter(f"{name} bias", share),)
        backward: list[Task] = list(self.scatter(name, rows * outputs))
        if not first:
            backward.append(product(f"{name} input gradient", rows, inputs, share))
        backward.append(product(f"{name} weight gradient", share, inputs, rows, weight=True))
        if bias:
            sums = Elementwise.column_sums(e, rows, share)
            backward.append(Compute(f"{name} bias gradient", sums, weight=True))
        return Operator(
            name,
            (
                *self.narrowed(parameters),
                product(name, rows, share, inputs),
                *self.gather(name, rows * outputs),
            ),
            (*backward, *self.gradients(parameters)),
            parameters,
            saved=self.kept_input(rows * inputs, kept) + self.kept_weights(parameters),
        )

    def activation(self, name: str, size: int) -> Operator:
        """ReLU in place, or a sigmoid: keeps its output of `size` elements.

        Parameters
        ----------
        name : str
            Of the operator and its forward kernel.
        size : int
            Of a whole micro-batch.
        """
        e = self.element * size
        return Operator(
            name, (elementwise(name, 2 * e),), (elementwise(f"{name} backward", 3 * e),), saved=e
        )

    def dropout(self, name: str, size: int) -> Operator:
        """Dropout of `size` elements: keeps the mask.

        Parameters
        ----------
        name : str
            Of the operator and its forward kernel.
        size : int
            Of a whole micro-batch; the mask has a byte for each.
        """
        kept = MASK * size
        traffic = 2 * self.element * size + kept
        passes = (elementwise(name, traffic),), (elementwise(f"{name} backward", traffic),)
        return Operator(name, *passes, saved=kept)

    def cross_entropy(self, rows: int, classes: int) -> Operator:
        """Softmax cross-entropy in fp32, with the labels' copy: keeps logarithms and labels.

        Parameters
        ----------
        rows : int
            Samples of a micro-batch, one int64 label each.
        classes : int
            Scores of each sample.
        """
        size, picked = rows * classes, (INDEX + FP32) * rows
        cast = [elementwise("loss cast", (self.element + FP32) * size)] if self.mixed else []
        softmax = Softmax(rows, classes, dtype="fp32")
        return Operator(
            "loss",
            (
                copy("copy labels", INDEX * rows),
                *cast,
                Compute("log-softmax", softmax),
                elementwise("negative log-likelihood", picked),
            ),
            (
                fill("loss gradient", FP32),
                fill("scores gradient", FP32 * size),
                elementwise("negative log-likelihood backward", picked),
                Compute("log-softmax backward", Softmax(rows, classes, True, "fp32")),
                *(elementwise("loss cast backward", step.kernel.traffic) for step in cast),
            ),
            saved=FP32 * size + INDEX * rows,
        )

    # --- parts of modules -----------------------------------------------------------------------

    def share(self, name: str, outputs: int) -> int:
        """Return this rank's share of a layer's outputs.

        Parameters
        ----------
        name : str
            Of the layer, for the message of the error.
        outputs : int
            Elements of the layer's output for one sample, or its channels.

        Returns
        -------
        int
            In the unit of `outputs`.

        Raises
        ------
        InputError
            If tp does not divide them.
        """
        if outputs % self.tp:
            raise InputError(
                f"plan.tp is {self.tp}, which does not divide the {outputs} outputs of {name!r}"
            )
        return outputs // self.tp

    def gather(self, name: str, size: int) -> Iterator[Task]:
        """All-gather the shares of an output of `size` elements.

        Parameters
        ----------
        name : str
            Prefix of the names of the tasks.
        size : int
            All ranks' shares together, for a whole micro-batch.

        Returns
        -------
        iterator of Task
            All-gather and concatenation; none without tensor parallelism.
        """
        if self.tp > 1:
            size *= self.element
            yield Communicate(f"{name} all-gather", Operation.ALL_GATHER, "tp", size)
            yield elementwise(f"{name} concatenation", 2 * size)

    def scatter(self, name: str, size: int) -> Iterator[Task]:
        """Reduce-scatter the gradients of an output of `size` elements.

        Parameters
        ----------
        name : str
            Prefix of the names of the tasks.
        size : int
            All ranks' shares together, for a whole micro-batch.

        Returns
        -------
        iterator of Task
            Concatenation backward and reduce-scatter; none without tensor parallelism.
        """
        if self.tp > 1:
            size *= self.element
            yield elementwise(f"{name} concatenation backward", 2 * size)
            yield Communicate(f"{name} reduce-scatter", Operation.REDUCE_SCATTER, "tp", size)

    def narrowed(self, parameters: tuple[Parameter, ...]) -> Iterator[Compute]:
        """Copy weights to the format of activations."""
        if self.mixed:
            for each in parameters:
                yield elementwise(f"{each.name} cast", (FP32 + self.element) * each.size)

    def gradients(
        self, parameters: tuple[Parameter, ...], *, narrow: bool = True
    ) -> Iterator[Compute]:
        """Copy gradients of weights to fp32, and add them to those of earlier micro-batches.

        Parameters
        ----------
        parameters : tuple of Parameter
            In the shapes of this rank.
        narrow : bool
            Whether the gradients have the format of activations, so that mixed precision copies
            them; yes by default.

        Returns
        -------
        iterator of Compute
            None without mixed precision and accumulation.
        """
        for each in parameters:
            if self.mixed and narrow:
                traffic = (FP32 + self.element) * each.size
                yield elementwise(f"{each.name} cast backward", traffic, weight=True)
            if self._accumulates:
                yield elementwise(f"{each.name} accumulation", 3 * FP32 * each.size, weight=True)

    def kept_input(self, size: int, kept: bool) -> int:
        """Bytes of an input of `size` elements, unless another operator keeps it.

        Parameters
        ----------
        size : int
            Of a whole micro-batch.
        kept : bool
            Whether another operator keeps it; then 0 bytes are counted.
        """
        return 0 if kept else self.element * size

    def kept_weights(self, parameters: tuple[Parameter, ...]) -> int:
        """Bytes of copies of weights that autograd keeps: of matrices, not of biases."""
        return self.element * parameters[0].size if self.mixed else 0
