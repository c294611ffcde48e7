"""The hooks of data parallelism in a training step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import ClassVar, NamedTuple

from mpisim.kernels.operations import BYTES, Copy, Elementwise, Gemm, GroupedGemm

from ...experiment.plan import Plan, Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..grid import Groups
from ..host import Host
from ..operators import Communicate, Compute, Layer
from .buckets import ChunkParameter, chunk_parameters, experts_apart

__all__ = ["PassPoint", "Strategy", "collective"]


class PassPoint(NamedTuple):
    """A point of a forward or backward pass, at which a hook may write rows.

    Attributes
    ----------
    block : BlockBuilder
        Open block of the pass; what a hook writes stands before or after the layer's or the
        operator's rows, as the hook's name says.
    chunk : int
        Of the stage, from 0.
    layer : int
        Of the chunk, from 0. In a backward layers come in descending order.
    edge : bool
        Whether the pass is the chunk's first forward, or its last backward, of the step.
    operator : int
        Of the layer, from 0; -1 at the hooks of a whole layer. In a backward operators come in
        descending order.
    """

    block: BlockBuilder
    chunk: int
    layer: int
    edge: bool
    operator: int = -1

    @property
    def operator_key(self) -> tuple[int, int, int]:
        """Chunk, layer and operator, as the keys of `Strategy.of_operator`."""
        return self.chunk, self.layer, self.operator


class Strategy:
    """Hooks of a data-parallel strategy, called during passes; this base class does nothing.

    A stage calls the hooks while it writes its blocks, at each point of a pass. A chunk's
    first forward and its last backward of the step are written by themselves; another pass is
    written once and used for all micro-batches in between, so that its hooks' rows may depend on
    nothing but the point.

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
    host : Host, optional
        Of the GPUs, for what is offloaded to it.

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
        host: Host | None = None,
    ) -> None:
        self.host = host
        self.order = tuple(range(len(chunks)) if order is None else order)
        self.plan, self.chunks, self.groups, self.stage = plan, chunks, groups, stage
        self.parameters = tuple(self.registered(layers) for layers in chunks)
        self._counts = {False: 0, True: 0}
        for parameter in (each.parameter for chunk in self.parameters for each in chunk):
            self._counts[parameter.expert] += parameter.size
        self._prepare()

    @cached_property
    def of_operator(self) -> Mapping[tuple[int, int, int], list[ChunkParameter]]:
        """The parameters of each operator; see the class."""
        found: defaultdict[tuple[int, int, int], list[ChunkParameter]] = defaultdict(list)
        for chunk, parameters in enumerate(self.parameters):
            for each in reversed(parameters):
                found[chunk, each.layer, each.operator].append(each)
        return found

    def registered(
        self, layers: Sequence[Layer], *, frozen: bool = False
    ) -> tuple[ChunkParameter, ...]:
        """Layers of a chunk → their parameters as `chunk_parameters`; experts' where told apart.

        Parameters
        ----------
        layers : sequence of Layer
        frozen : bool
            Whether frozen ones count, too.
        """
        found = chunk_parameters(layers, frozen=frozen)
        if experts_apart(self.plan, self.groups.sizes):
            return found
        return tuple(map(_as_dense, found))

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

    def operators_written(self, chunk: int, layer: int, *, forward: bool) -> Sequence[int]:
        """Return the operators of a layer's pass at which their hooks may write anything.

        Parameters
        ----------
        chunk : int
            Of the stage, from 0.
        layer : int
            Of the chunk, from 0.
        forward : bool
            Whether it is a forward; otherwise a backward, or a part of one.

        Returns
        -------
        sequence of int
            Places in the layer, ascending.
        """
        return range(len(self.chunks[chunk][layer].operators))

    def writes_in_layer(self, chunk: int, layer: int, *, forward: bool) -> bool:
        """Return whether any hook may write anything in a layer's pass, before or after it, too.

        Parameters
        ----------
        chunk, layer, forward
            As for `operators_written`.
        """
        return True

    # --- hooks ----------------------------------------------------------------------------------

    def begin(self, block: BlockBuilder) -> None:
        """Before everything else of the step."""

    def before_forward(self, at: PassPoint) -> None:
        """Before a layer's forward."""

    def before_operator(self, at: PassPoint) -> None:
        """Before an operator's forward; not where it is computed again."""

    def after_forward(self, at: PassPoint) -> None:
        """After a layer's forward."""

    def before_backward(self, at: PassPoint) -> None:
        """Before a layer is computed again, if it is, and its backward."""

    def before_gradients(self, at: PassPoint) -> None:
        """Before an operator's backward."""

    def after_gradients(self, at: PassPoint) -> None:
        """After the gradients of an operator's weights are there."""

    def after_backward(self, at: PassPoint) -> None:
        """After a layer's backward (of its weights, where that is put off)."""

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

    def host_copy(self, name: str, size: int) -> Compute:
        """Bytes → their copy to or from the host, over a link that GPUs may share.

        Parameters
        ----------
        name : str
            Of the copy's row.
        size : int
        """
        return Compute(name, Copy(size, "host", 1 if self.host is None else self.host.sharers))

    def shard_group(self, expert: bool) -> str:
        """Return the sharding group, of dense parameters or of experts."""
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
        self,
        block: BlockBuilder,
        name: str,
        parameters: Iterable[ChunkParameter],
        size: int,
        *,
        launch_share: float = 1.0,
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
        launch_share : float
            CPU time of a launch over that of one from Python.
        """
        for elements, equal in groupby(each.size for each in parameters):
            copy = Compute(name, Elementwise(2 * size * elements), launch_share=launch_share)
            block.compute_again(copy, len(list(equal)))


def _as_dense(parameter: ChunkParameter) -> ChunkParameter:
    """Parameter → the same as one of a dense layer."""
    if not parameter.expert:
        return parameter
    return parameter._replace(parameter=replace(parameter.parameter, expert=False))


def collective(operation: Operation, group: str, size: int, what: str) -> Communicate:
    """A data-parallel collective task, named after its content (gradients, parameters).

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
