"""PyTorch's FSDP2, ``fully_shard`` (torch/distributed/fsdp/_fully_shard; arXiv:2304.11277).

Each parameter is spread over the ranks. A unit, `wrap_layers` blocks, is gathered in one collective
before its forward and, where it was freed after it, again before its backward; then its gradients
are reduced to shards. What is in no block (embedding, head) is the root's, and experts are spread
over the ranks that hold them. The root stays gathered from its forward to its backward. With
`end_units` there are units of what is before the blocks and after them, of which the latter, the
head's, stays gathered; with `loss_chunks` it is gathered again for the parts of the loss, and once
more for the backward of the norm that is in it. Each part has a backward pass of its own: the first
part's gradient is cast to the format in which they are reduced, those of the others are added
(``to_accumulated_grad_if_needed``), and the last pass ends when the sum is reduced
(``finalize_backward``).

What is gathered lies rank by rank, and is copied to where the parameters are; gradients are copied
the other way, in the format in which they are reduced: two copies of a unit on the stream of the
kernels (``foreach_all_gather_copy_out``, ``foreach_reduce_scatter_copy_in``). Megatron-FSDP keeps a
unit in one buffer, which is gathered and reduced as it is (``framework.flat_shards``): nothing is
copied.

What ``fully_shard`` does with shards besides (``framework.fully_shard``) runs on streams of their
own, and is launched by the same CPU. Before a gather the unit's shards are cast to the format in
which they are gathered, where it is another (``_get_param_all_gather_inputs``), and copied to this
rank's place in the buffer (``all_gather_copy_in``), on a stream that no collective is on. After a
reduction, on the stream of the last of its collectives, the shard is cast to the format of the
parameters, and from the second micro-batch on added to that of those before, a kernel for each
parameter (``foreach_reduce``). Here the last one's is not added, but the first one's is, which is
as many: a pass of a micro-batch in between is written once for all. On one rank the buffer is
copied, not reduced. Parameters are split along their first dimension, which is padded to a multiple
of the ranks (``FSDPParam._init_sharded_param``). Left out are the kernels that divide what is
reduced in fp16, and the few on single numbers by which a norm is made of those of all parameters.

Memory sets the pace of gathering (``wait_for_unshard``): forward, a unit waits until the last but
one has been copied; backward, until the last one has. Backward the next unit is gathered before the
kernels of the current one are launched, so before its gradients are reduced
(``_backward_prefetch``); forward the CPU comes to it early enough (more units ahead are
``set_modules_to_forward_prefetch``). Kernels wait for the gradients of the unit before last, whose
buffer is needed again (``post_backward``). Collectives of a group run one after another.

With ``offload.parameters`` (``CPUOffloadPolicy``) shards lie on the host: they are copied from
there on the stream on which they are cast and copied in, and reduced gradients go there on the
stream of their reduction. The CPU waits for these at the end of a backward, or where it adds them
to those of other micro-batches at once (``foreach_reduce``).

Frozen parameters, those beside adapters, are gathered like others, and have no gradients to reduce
(``FSDPParamGroup.post_backward`` takes what has a gradient).

zero = 2 keeps units gathered until their backward (``reshard_after_forward=False``), `zero_group`
reduces shards over replicas besides (hybrid sharding). Every micro-batch reduces, and waits for it
at the end of its backward.

Inside a pipeline a unit is gathered and reduced once a step, not once a micro-batch:
:mod:`.fsdp_pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from mpisim.kernels.operations import BYTES, Elementwise

from ...base.frozen import frozen
from ...experiment.plan import Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..operators import Communicate, Compute
from .buckets import ChunkParameter, padded
from .strategy import PassPoint, Strategy, collective

__all__ = ["ADD_ON_CPU", "Fsdp", "GatherState", "ReduceState", "Unit"]

ADD_ON_CPU = "add gradients on CPU"
"""Name of rows of what the CPU does."""

COPY_IN = "all-gather copy-in"
"""Stream on which shards are brought to where they are gathered (``all_gather_copy_in_stream``)."""


@frozen
class Unit:
    """Layers that are gathered and reduced together.

    Attributes
    ----------
    first, last : int
        Layers of the chunk.
    dense, experts : int
        Elements of the parameters, padding included; 0 where there are none.
    trained : tuple of int
        The same of those that are not frozen: dense ones, and of experts.
    head : bool
        Whether it is what comes after the blocks.
    tensors : tuple of int
        Parameters that are not frozen: dense ones, and of experts.
    """

    first: int
    last: int
    dense: int
    experts: int
    trained: tuple[int, int] = (0, 0)
    head: bool = False
    tensors: tuple[int, int] = (0, 0)

    @property
    def kinds(self) -> list[tuple[bool, int]]:
        """Kinds of parameters that it has: whether of experts, and their elements."""
        return [(kind, size) for kind, size in ((False, self.dense), (True, self.experts)) if size]

    @property
    def reduced(self) -> list[tuple[bool, int]]:
        """As `kinds`, of parameters that have gradients."""
        return [(bool(kind), size) for kind, size in enumerate(self.trained) if size]


@dataclass
class GatherState:
    """All-gathers of a pass so far.

    Attributes
    ----------
    gathered : dict of Unit to list of int
        Rows of the all-gathers of each unit.
    copied : list of int
        Rows of the copies out of gathered buffers, in order.
    """

    gathered: dict[Unit, list[int]] = field(default_factory=dict)
    copied: list[int] = field(default_factory=list)


@dataclass
class ReduceState:
    """Reductions of a pass so far.

    Attributes
    ----------
    latest : list of int
        Rows of the latest unit's reduce-scatters.
    all : list of int
        Rows of all reductions.
    """

    latest: list[int] = field(default_factory=list)
    all: list[int] = field(default_factory=list)


class Fsdp(Strategy):
    """Parameters, gradients and the optimizer's states sharded.

    Attributes
    ----------
    roots : tuple of Unit
        Of each chunk: what is in no block.
    units : tuple of tuple of Unit
        Of each chunk, in order of execution.
    """

    style: ClassVar[Style] = "fsdp"

    def _prepare(self) -> None:
        roots, units = [], []
        for layers in self.chunks:
            parameters = self.registered(layers, frozen=True)
            blocks = [i for i, layer in enumerate(layers) if layer.role == "block"]
            size = self.plan.framework.wrap_layers
            wraps = [blocks[i : i + size] for i in range(0, len(blocks), size)]
            rest = [i for i in range(len(layers)) if i not in blocks]
            inner = [self._unit(wrap, parameters) for wrap in wraps]
            if self.plan.framework.end_units:
                start = [i for i in rest if i < min(blocks, default=len(layers))]
                end = rest[len(start) :]
                first = [self._unit(start, parameters)] if start else []
                last = [replace(self._unit(end, parameters), head=True)] if end else []
                inner, rest = [*first, *inner, *last], []
            units.append(tuple(inner))
            roots.append(self._unit(rest, parameters) if rest else Unit(0, 0, 0, 0))
        self.roots, self.units = tuple(roots), tuple(units)
        self._forward = [GatherState() for _ in self.chunks]
        self._backward = [GatherState() for _ in self.chunks]
        self._reducing = [ReduceState() for _ in self.chunks]

    def _unit(self, layers: Sequence[int], parameters: Sequence[ChunkParameter]) -> Unit:
        sizes, trained, tensors = [0, 0], [0, 0], [0, 0]
        for each in parameters:
            if each.layer in layers:
                rows = each.parameter.rows if self.plan.framework.fully_shard else 0
                rows = rows or each.size
                size = padded(rows, self.shard_ranks(each.expert)) * (each.size // rows)
                sizes[each.expert] += size
                if not each.parameter.frozen:
                    trained[each.expert] += size
                    tensors[each.expert] += 1
        return Unit(
            layers[0],
            layers[-1],
            sizes[0],
            sizes[1],
            trained=(trained[0], trained[1]),
            tensors=(tensors[0], tensors[1]),
        )

    @property
    def _reshards(self) -> bool:
        """Whether a unit is freed after its forward."""
        return self.plan.zero == 3 and self.plan.framework.reshard_after_forward

    @property
    def _chunks_of_loss(self) -> int:
        """Parts in which the loss is computed by a head that is freed in between."""
        return self.plan.framework.loss_chunks if self._reshards and self.plan.pp == 1 else 1

    @property
    def _computed_gradient_size(self) -> int:
        """Bytes of a gradient before it is copied to where it is reduced."""
        return self.weight_size

    @property
    def _prefetched(self) -> int:
        """Units that are gathered ahead of the one at work."""
        return self.plan.framework.prefetch if self.plan.overlap.dp else 0

    # --- gathering ------------------------------------------------------------------------------

    def before_forward(self, at: PassPoint) -> None:
        """In every forward, gather the units that begin at this layer, and ahead of them.

        The root, which all layers share, is gathered before layer 0.
        """
        block, chunk = at.block, at.chunk
        if at.layer == 0:
            self._forward[chunk] = state = GatherState()
            root = self.roots[chunk]
            # Shards may still be at work: the first gather waits for all that was launched before.
            self._gather(block, state, root, None)
            self._copy_out(block, state, root)
        state, units = self._forward[chunk], self.units[chunk]
        for i, unit in enumerate(units):
            if unit.first == at.layer:
                waits = state.copied[-2:-1] if state.gathered else None
                self._gather(block, state, unit, waits)
                self._copy_out(block, state, unit)
                for ahead in units[i + 1 : i + self._prefetched]:
                    self._gather(block, state, ahead, state.copied[-2:-1])
                if unit.head and self._chunks_of_loss > 1:
                    again = GatherState()
                    self._gather(block, again, unit, None)
                    self._copy_out(block, again, unit)

    def before_backward(self, at: PassPoint) -> None:
        """In every backward, gather again the unit that ends at this layer, and ahead of it."""
        block, chunk = at.block, at.chunk
        if at.layer == len(self.chunks[chunk]) - 1:
            self._backward[chunk] = GatherState()
        if not self._reshards:
            return
        state, units = self._backward[chunk], self.units[chunk][::-1]
        for i, unit in enumerate(units):
            if unit.last == at.layer:
                if not unit.head or self._chunks_of_loss > 1:
                    self._gather(block, state, unit, state.copied[-1:])
                    self._copy_out(block, state, unit)
                for ahead in units[i + 1 : i + 1 + self._prefetched]:
                    self._gather(block, state, ahead, state.copied[-1:])

    def _gather(
        self, block: BlockBuilder, state: GatherState, unit: Unit, waits: Sequence[int] | None
    ) -> None:
        """Gather a unit, unless that was done ahead, after rows or after all kernels before."""
        if unit in state.gathered or not unit.kinds:
            return
        if not self._prefetched:
            waits = None
        state.gathered[unit] = []
        for expert, size in unit.kinds:
            step = collective(
                Operation.ALL_GATHER, self.shard_group(expert), self.weight_size * size, "parameter"
            )
            copied = self._copy_in(block, expert, size, waits)
            if not self.plan.overlap.dp:
                block.communicate(step)
                continue
            row = block.launch(step, waits=copied)
            if row is not None:
                state.gathered[unit].append(row)
            elif self.plan.offload.parameters:
                state.gathered[unit] += copied or []

    def _copy_in(
        self, block: BlockBuilder, expert: bool, size: int, waits: Sequence[int] | None
    ) -> Sequence[int] | None:
        """Copy shards into the all-gather's buffer; return the rows that it waits for."""
        ranks = self.shard_ranks(expert)
        source, target, shard = self.optimizer_gradient_size, self.weight_size, size // ranks
        tasks = []
        if self.plan.offload.parameters:
            tasks.append(self.host_copy("parameters from host", source * shard))
        if ranks > 1 and self.plan.framework.fully_shard:
            if source != target:
                tasks.append(Compute("cast shards", Elementwise((source + target) * shard)))
            tasks.append(Compute("copy shards in", Elementwise(2 * target * shard)))
        for task in tasks:
            if self.plan.overlap.dp:
                waits = [block.compute_beside(task, COPY_IN, waits=waits)]
            else:
                block.compute(task)
        return waits

    def _copy_out(self, block: BlockBuilder, state: GatherState, unit: Unit) -> None:
        """Copy gathered shards to the parameters."""
        if unit.kinds:
            block.await_next(state.gathered[unit])
            for expert, size in () if self.plan.framework.flat_shards else unit.kinds:
                alone = self.shard_ranks(expert) == 1
                source = self.optimizer_gradient_size if alone else self.weight_size
                traffic = (source + self.weight_size) * size
                block.compute(Compute("copy parameters out", Elementwise(traffic)))
            state.copied.append(block.last)

    # --- reducing -------------------------------------------------------------------------------

    def after_backward(self, at: PassPoint) -> None:
        """In every backward, reduce the unit that begins at this layer; after layer 0 wait."""
        chunk = at.chunk
        state = self._reducing[chunk]
        units = [unit for unit in (*self.units[chunk], self.roots[chunk]) if unit.reduced]
        for unit in units:
            if unit.first == at.layer:
                self._reduce(at.block, state, unit, adds=not at.edge)
        if at.layer == 0:
            at.block.await_next(state.all)
            if self.plan.offload.parameters and state.all:
                at.block.host_wait(state.all, "wait for gradients")
            self._reducing[chunk] = ReduceState()

    def _reduce(
        self, block: BlockBuilder, state: ReduceState, unit: Unit, *, adds: bool = False
    ) -> None:
        """Reduce a unit's gradients; `adds`: to the shards of other micro-batches."""
        in_parts = unit.head and self._chunks_of_loss > 1
        if in_parts and self.gradient_size != self.weight_size:
            cast = (self.weight_size + self.gradient_size) * unit.trained[False]
            block.compute(Compute("gradient cast", Elementwise(cast)))
        for _ in range(self._chunks_of_loss - 1 if in_parts else 0):
            traffic = (self.weight_size + 2 * self.gradient_size) * unit.trained[False]
            block.compute(Compute("gradient accumulation", Elementwise(traffic)))
        block.await_next(state.latest)
        state.latest = []
        computed = self.gradient_size if in_parts else self._computed_gradient_size
        for expert, size in unit.reduced:
            if not self.plan.framework.flat_shards:
                traffic = (computed + self.gradient_size) * size
                block.compute(Compute("copy gradients in", Elementwise(traffic)))
            group, whole = self.shard_group(expert), self.gradient_size * size
            scatter = collective(Operation.REDUCE_SCATTER, group, whole, "gradient")
            steps: list[Communicate] = [scatter]
            if self.plan.zero_group is not None:
                share, group = whole // self.shard_ranks(expert), self.replica_group(expert)
                steps.append(collective(Operation.ALL_REDUCE, group, share, "gradient shard"))
            waits: list[int] | None = None
            for step in steps:
                if not self.plan.overlap.dp:
                    block.communicate(step)
                    continue
                row = block.launch(step, waits=waits)
                if row is None:
                    continue
                if step is scatter:
                    state.latest.append(row)
                waits = [row]
                state.all.append(row)
            for task in self._of_shards(unit, expert, size, adds=adds):
                if self.plan.overlap.dp:
                    waits = [block.compute_beside(task, steps[-1].group, waits=waits)]
                    state.all.append(waits[0])
                else:
                    waits = [block.compute(task)]
            if adds and self.plan.offload.parameters:
                self._add_on_host(block, size // self.shard_ranks(expert), waits or [])
        if in_parts:  # the backward pass of the last part ends, which waits for its reductions
            block.await_next(state.all)

    def _add_on_host(self, block: BlockBuilder, shard: int, waits: Sequence[int]) -> None:
        """Let the CPU wait for gradients and add them to those of other micro-batches."""
        if self.host is not None:
            size = 3 * self.optimizer_gradient_size * shard
            done = block.host_work(ADD_ON_CPU, self.host.duration(size), waits=waits)
            block.host_wait([done], "wait for gradients added on CPU")

    def _of_shards(self, unit: Unit, expert: bool, size: int, *, adds: bool) -> list[Compute]:
        """Return casts and additions of reduced gradient shards, and their copies to the host."""
        reduced, main = self.gradient_size, self.optimizer_gradient_size
        ranks = self.shard_ranks(expert)
        shard, found = size // ranks, []
        offloads = self.plan.offload.parameters
        to_host = [self.host_copy("gradients to host", main * shard)] if offloads else []
        if not self.plan.framework.fully_shard:
            return to_host
        if ranks == 1:
            found.append(Compute("copy gradients", Elementwise(2 * reduced * size)))
        if reduced != main:
            found.append(Compute("cast gradient shards", Elementwise((reduced + main) * shard)))
        if adds and not offloads:
            kernel, launches = Elementwise(3 * main * shard), unit.tensors[expert]
            found.append(Compute("add gradient shards", kernel, launches=launches))
        return found + to_host

    @property
    def optimizer_gradient_size(self) -> int:
        """Bytes of a gradient as the optimizer reads it: that of the shard of its parameter."""
        return BYTES[self.plan.precision.main_parameters]
