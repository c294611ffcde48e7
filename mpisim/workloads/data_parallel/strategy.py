"""The hooks of data parallelism in a training step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from mpisim.kernels.operations import BYTES, Elementwise, Gemm, GroupedGemm

from ...experiment.plan import Plan, Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..grid import Groups
from ..operators import Communicate, Compute, Layer
from .buckets import ChunkParameter, chunk_parameters

__all__ = ["Strategy", "collective"]


class Strategy:
    """What a framework does for data parallelism besides the passes; this base class does nothing.

    A stage calls the hooks while it writes its blocks. `first` and `last` say whether a block is
    the chunk's first forward or its last backward of the step; others are written once and used for
    all micro-batches in between, so that a hook's rows may depend on nothing else. `layer` counts
    the layers of the chunk, `operator` the operators of the layer.

    Parameters
    ----------
    plan : Plan
    chunks : sequence of sequence of Layer
        The model chunks this stage holds.
    groups : Groups
    stage : int
        Of the pipeline.
    order : sequence of int, optional
        Chunks as they first come forward; as they are numbered if not given.

    Attributes
    ----------
    style : str
        The framework, as in `Plan.dp_style`.
    first_and_last_only : bool
        Whether the hooks of a pass write nothing, except in the first forward and the last backward
        of a chunk.
    writes_in_first, writes_in_last : bool
        Where that is so: whether they write anything in the first forward, in the last backward.
    parameters : tuple of tuple of ChunkParameter
        The parameters of each chunk, in the order of registration.
    of_operator : mapping of (int, int, int) to list of ChunkParameter
        The parameters of an operator (chunk, layer, operator), in the order in which its backward
        completes their gradients: the reverse.
    """

    style: ClassVar[Style]
    first_and_last_only: ClassVar[bool] = False

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Sequence[Layer]],
        groups: Groups,
        *,
        stage: int = 0,
        order: Sequence[int] | None = None,
    ) -> None:
        self.order = tuple(range(len(chunks)) if order is None else order)
        self.plan, self.chunks, self.groups, self.stage = plan, chunks, groups, stage
        self.parameters = tuple(chunk_parameters(layers) for layers in chunks)
        self.of_operator: defaultdict[tuple[int, int, int], list[ChunkParameter]] = defaultdict(
            list
        )
        for chunk, parameters in enumerate(self.parameters):
            for each in reversed(parameters):
                self.of_operator[chunk, each.layer, each.operator].append(each)
        self._counts = {False: 0, True: 0}
        for parameters in self.parameters:
            for each in parameters:
                self._counts[each.expert] += each.size
        self._prepare()

    def _prepare(self) -> None:
        """Cut buckets and units, before any block is written; called once, by the constructor."""

    @property
    def streams(self) -> Mapping[str, str]:
        """Slots that share a stream, or have one of another name, for `Slots`."""
        return {}

    @property
    def writes_in_first(self) -> bool:
        """Whether hooks write anything in the first forward of a chunk."""
        return True

    @property
    def writes_in_last(self) -> bool:
        """Whether hooks write anything in the last backward of a chunk."""
        return True

    # --- hooks ----------------------------------------------------------------------------------

    def begin(self, block: BlockBuilder) -> None:
        """Before everything else of the step."""

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Before a layer's forward.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the forward; the hook's rows come before the layer's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        first : bool
            Whether this is the chunk's first forward of the step.
        """

    def before_operator(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, first: bool
    ) -> None:
        """Before an operator's forward; not where it is computed again.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the forward; the hook's rows come before the operator's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        operator : int
            Of the layer, from 0.
        first : bool
            Whether this is the chunk's first forward of the step.
        """

    def after_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """After a layer's forward.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the forward; the hook's rows come after the layer's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        first : bool
            Whether this is the chunk's first forward of the step.
        """

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Before a layer is computed again, if it is, and its backward.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the backward; the hook's rows come before the layer's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0. Layers come in descending order.
        last : bool
            Whether this is the chunk's last backward of the step.
        """

    def before_gradients(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, last: bool
    ) -> None:
        """Before an operator's backward.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the backward; the hook's rows come before the operator's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        operator : int
            Of the layer, from 0. Operators come in descending order.
        last : bool
            Whether this is the chunk's last backward of the step.
        """

    def after_gradients(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, last: bool
    ) -> None:
        """After the gradients of an operator's weights are there.

        Parameters
        ----------
        block : BlockBuilder
            Open block of the backward; the hook's rows come after the operator's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        operator : int
            Of the layer, from 0. Operators come in descending order.
        last : bool
            Whether this is the chunk's last backward of the step.
        """

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """After a layer's backward (of its weights, where that is put off).

        Parameters
        ----------
        block : BlockBuilder
            Open block of the backward; the hook's rows come after the layer's.
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0. Layers come in descending order.
        last : bool
            Whether this is the chunk's last backward of the step.
        """

    def before_optimizer(self, block: BlockBuilder) -> None:
        """After all blocks: whatever is still to be reduced, and waiting for it."""

    def after_optimizer(self, block: BlockBuilder) -> None:
        """After the optimizer's step."""

    # --- what the optimizer works on --------------------------------------------------------------

    @property
    def updated_parameters(self) -> int:
        """Parameters this rank's optimizer updates: its share, or all that the stage holds."""
        return sum(
            -(-self.parameter_count(expert) // (self.shard_ranks(expert) if self.plan.zero else 1))
            for expert in (False, True)
        )

    @property
    def weight_size(self) -> int:
        """Bytes of a weight as it is kept for the passes."""
        return BYTES[self.plan.parameter_format]

    @property
    def gathers_fp8(self) -> bool:
        """Whether weights of products in fp8 are gathered in fp8.

        Megatron-LM's ``--fp8-param-gather`` (megatron/training/arguments.py: "perform the param
        all-gather in fp8"); MXFP8 is gathered in the 16 bits of the buffer of gradients, and cast
        then (``reuse_grad_buf_for_mxfp8_param_ag``, param_and_grad_buffer.py).
        """
        precision = self.plan.precision
        return (
            self.style == "megatron"
            and bool(self.plan.zero)
            and precision.products == "fp8"
            and precision.fp8_params
            and precision.fp8_scaling != "blocks"
        )

    def quantises(self, chunk: int, layer: int) -> bool:
        """Return whether a block multiplies in the format of the plan, not in 16 bits alone.

        Parameters
        ----------
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        """
        of, products = self.chunks[chunk][layer], self.plan.precision.products
        formats = {
            task.kernel.dtype
            for operator in of.operators
            for task in operator.forward
            if isinstance(task, Compute) and isinstance(task.kernel, Gemm | GroupedGemm)
        }
        return of.role == "block" and (products in formats or not formats)

    @property
    def gradient_size(self) -> int:
        """Bytes of a gradient as it is reduced; fp32 in Megatron, that of the weights otherwise."""
        default = "fp32" if self.style == "megatron" else self.plan.parameter_format
        return BYTES[self.plan.precision.gradients or default]

    @property
    def optimizer_gradient_size(self) -> int:
        """Bytes of a gradient as the optimizer reads it."""
        return self.gradient_size

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """Groups over which squares of gradients are added up for their norm, one after another."""
        shared = (self.shard_group(False),) if self.plan.zero else ()
        return (*shared, "model")

    # --- helpers of subclasses --------------------------------------------------------------------

    def shard_group(self, expert: bool) -> str:
        """Return the group that shares what is sharded, of dense parameters or of experts."""
        group = "dp" if self.plan.zero_group is None else "shard"
        return f"e{group}" if expert else group

    def replica_group(self, expert: bool) -> str:
        """Group of ranks that hold the same shard."""
        return "ereplica" if expert else "replica"

    def data_group(self, expert: bool) -> str:
        """Group of ranks that hold the same parameters."""
        return "edp" if expert else "dp"

    def shard_ranks(self, expert: bool) -> int:
        """Number of ranks that parameters of a kind are sharded over."""
        return self.groups.sizes[self.shard_group(expert)]

    def parameter_count(self, expert: bool) -> int:
        """Elements of dense or of expert parameters that this stage holds."""
        return self._counts[expert]

    def unreplicated(self, expert: bool) -> bool:
        """Whether no other rank holds the same parameters: there is nothing to reduce."""
        return self.groups.sizes[self.data_group(expert)] == 1

    def write_copies(
        self, block: BlockBuilder, name: str, parameters: Iterable[ChunkParameter], size: int
    ) -> None:
        """Write a kernel for each parameter that copies `size` bytes of each element.

        Parameters
        ----------
        block : BlockBuilder
            Open block; the kernels are written at its end.
        name : str
            Of each kernel.
        parameters : iterable of ChunkParameter
        size : int
            Bytes of an element; a kernel reads and writes as many.
        """
        for each in parameters:
            block.compute(Compute(name, Elementwise(2 * size * each.size)))


def collective(operation: Operation, group: str, size: int, what: str) -> Communicate:
    """A collective of data parallelism, named after what is communicated.

    Parameters
    ----------
    operation : Operation
    group : str
        A group of the grid, such as ``"dp"`` or ``"eshard"``.
    size : int
        Bytes, as `Communicate` counts them.
    what : str
        "gradient", "parameter", …
    """
    name = f"{what} {operation.name.lower().replace('_', '-')}"
    return Communicate(name, operation, group, size)
