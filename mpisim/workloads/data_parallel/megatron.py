"""Megatron-LM's DistributedDataParallel and distributed optimizer (megatron/core/distributed).

Gradients lie in a buffer in fp32, cut into buckets, dense parameters and experts separately. With
overlap each bucket is reduced beside the last backward: as its gradients complete where a stage has
one model chunk, at the end of a chunk's backward with interleaved chunks
(``--align-grad-reduce``, the default; Megatron starts it a few passes later on later stages, so
that all stages reduce at a time). Only the first chunk of the first stage has several buckets: the
other stages reduce while they wait for it.

zero = 1 is the distributed optimizer: gradients are reduced to shards, each rank updates its own,
and the parameters are gathered, with overlap during the first forward of the next step: each bucket
when the one before is waited for, or with interleaved chunks one chunk ahead
(``--align-param-gather``), those of products in fp8 in that format (``--fp8-param-gather``,
`Strategy.gathers_fp8`). With `zero_group` it is shared by so many ranks only
(``--num-distributed-optimizer-instances``): a shard is then reduced over the replicas besides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import ClassVar

from mpisim.kernels.operations import BYTES, Copy, Elementwise

from ...experiment.plan import Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..operators import Communicate, Compute
from .buckets import Bucket, aligned_buckets, buckets_closed_after, of_kind
from .frameworks import frameworks
from .strategy import PassPoint, Strategy, collective

__all__ = ["Megatron"]

_POSITION = attrgetter("layer", "operator")

REDUCED_GRADIENTS = "gradients"
"""The port of reductions that run beside a backward."""

BucketKey = tuple[int, bool, int]
"""Chunk, whether it holds experts, and its number among the buckets of that kind."""


class Megatron(Strategy):
    """Gradients in a contiguous buffer; with zero = 1 the distributed optimizer.

    Attributes
    ----------
    buckets : mapping of BucketKey to Bucket
        Dense ones before those of experts, in the order in which the backward completes them.
    """

    style: ClassVar[Style] = "megatron"
    first_and_last_only: ClassVar[bool] = True

    def _prepare(self) -> None:
        self.buckets: Mapping[BucketKey, Bucket] = {
            (chunk, expert, i): bucket
            for chunk in range(len(self.chunks))
            for expert in (False, True)
            if self.parameter_count(expert)
            for i, bucket in enumerate(self._buckets_of(chunk, expert))
        }
        self._keys_of_operator: dict[tuple[int, int, int], list[BucketKey]] = {}
        for key, bucket in self.buckets.items():
            for position in dict.fromkeys(map(_POSITION, bucket.parameters)):
                self._keys_of_operator.setdefault((key[0], *position), []).append(key)
        self._gathering: dict[BucketKey, tuple[BlockBuilder, int]] = {}
        self._gathered: set[BucketKey] = set()

    def _buckets_of(self, chunk: int, expert: bool) -> list[Bucket]:
        plan, defaults = self.plan, frameworks().megatron
        parameters = of_kind(reversed(self.parameters[chunk]), expert)
        limit: int | None = None
        if plan.overlap.dp and self.stage == 0 and chunk == 0:
            ranks = self.groups.grid.dp
            limit = int(max(defaults.bucket.si, ranks * defaults.bucket_per_rank.si))
            if plan.framework.bucket is not None:
                limit = -(-plan.framework.bucket // self.gradient_size)
        if not plan.zero:
            return buckets_closed_after(parameters, [limit or self.parameter_count(expert) + 1])
        alignment = defaults.parameter_alignment.si, defaults.bucket_alignment.si
        return aligned_buckets(
            parameters,
            limit,
            self.shard_ranks(expert),
            alignment=(int(alignment[0]), int(alignment[1])),
            own_bucket=plan.pp > 1,
        )

    @property
    def streams(self) -> Mapping[str, str]:
        """Both levels of a shared optimizer's reductions run on one stream."""
        if self.plan.zero_group is None:
            return {}
        return {"replica": "shard", "ereplica": "eshard"}

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """All ranks that share an optimizer at once, or those of a copy of the model."""
        return ("instance",) if self.plan.zero else ("model",)

    @property
    def optimizer_gradient_size(self) -> int:
        """Bytes of a gradient as the optimizer reads it."""
        return BYTES["fp32"]

    @property
    def writes_in_first(self) -> bool:
        """Whether parameters are gathered during the first forward."""
        return self._gathers_in_forward

    @property
    def writes_in_last(self) -> bool:
        """Whether gradients are reduced during the last backward."""
        return self.plan.overlap.dp

    def operators_written(self, chunk: int, layer: int, *, forward: bool) -> Sequence[int]:
        """Return the first operator of each bucket; in the backward that which completes it."""
        if forward:
            found = self._gathered_before if self._gathers_in_forward else {}
        else:
            reduces = self.plan.overlap.dp and not self._interleaved
            found = self._reduced_after if reduces else {}
        return found.get((chunk, layer), ())

    def writes_in_layer(self, chunk: int, layer: int, *, forward: bool) -> bool:
        """Return whether a bucket begins or ends in a layer, or it is the first of a chunk."""
        return layer == 0 or bool(self.operators_written(chunk, layer, forward=forward))

    @cached_property
    def _is_fp8(self) -> Mapping[tuple[int, int], bool]:
        """Whether each layer of each chunk multiplies in the format of the plan."""
        return {
            (chunk, layer): self.quantises(chunk, layer)
            for chunk, layers in enumerate(self.chunks)
            for layer in range(len(layers))
        }

    @cached_property
    def _gathered_before(self) -> Mapping[tuple[int, int], Sequence[int]]:
        """The first operators of buckets in the order of the forward, by chunk and layer."""
        return _by_layer(
            (key[0], *min(map(_POSITION, of.parameters))) for key, of in self.buckets.items()
        )

    @cached_property
    def _reduced_after(self) -> Mapping[tuple[int, int], Sequence[int]]:
        """The operators that complete buckets in the backward, by chunk and layer."""
        return _by_layer((key[0], *of.complete) for key, of in self.buckets.items())

    # --- the first forward ----------------------------------------------------------------------

    def begin(self, block: BlockBuilder) -> None:
        """Clear the buffers, and gather the parameters of the first two chunks."""
        for chunk in range(len(self.chunks)):
            for expert in (False, True):
                buckets = (self.buckets[key] for key in self._keys_of_chunk(chunk, expert))
                size = self.gradient_size * sum(bucket.size for bucket in buckets)
                if size:
                    block.compute(Compute("zero gradients", Copy(size, path="fill")))
        if self._gathers_by_chunk:
            self._gather_chunk(block, 0)
            self._gather_chunk(block, 1)

    def before_forward(self, at: PassPoint) -> None:
        """As a chunk's first forward begins, gather the parameters of the chunk after the next."""
        if self._gathers_by_chunk and at.edge and at.layer == 0 and at.chunk > 0:
            self._gather_chunk(at.block, at.chunk + 1)

    def before_operator(self, at: PassPoint) -> None:
        """In the first forward, wait for the operator's parameters; gather the next bucket."""
        block = at.block
        if not (at.edge and self._gathers_in_forward):
            return
        for key in self._keys_of_operator.get(at.operator_key, ()):
            if key in self._gathered:
                continue
            self._gathered.add(key)
            self._gather(block, key)
            if key in self._gathering:
                by, row = self._gathering[key]
                block.await_next([row if by is block else block.port(_gather_port(key))])
            chunk, expert, i = key
            if i > 0 and not self._gathers_by_chunk:  # buckets are gathered in reverse
                self._gather(block, (chunk, expert, i - 1))

    def _gather_chunk(self, block: BlockBuilder, chunk: int) -> None:
        for expert in (False, True):
            for key in self._keys_of_chunk(chunk, expert):
                self._gather(block, key)

    def _gather(self, block: BlockBuilder, key: BucketKey) -> None:
        """Start gathering a bucket unless it was started before."""
        if key not in self._gathering:
            row = block.launch(self._all_gather(key))
            if row is not None:
                self._gathering[key] = (block, row)
                block.export(_gather_port(key), [row])

    def _all_gather(self, key: BucketKey) -> Communicate:
        bucket = self.buckets[key]
        size = self.weight_size * bucket.size
        if self.gathers_fp8:
            quantised = (
                each.size for each in bucket.parameters if self._is_fp8[key[0], each.layer]
            )
            size -= (self.weight_size - BYTES["fp8"]) * sum(quantised)
        return collective(Operation.ALL_GATHER, self.shard_group(key[1]), size, "parameter")

    # --- the last backward ----------------------------------------------------------------------

    def after_gradients(self, at: PassPoint) -> None:
        """In the last backward, reduce buckets whose gradients are complete."""
        if at.edge and self.plan.overlap.dp and not self._interleaved:
            for key in self._keys_of_operator.get(at.operator_key, ()):
                if self.buckets[key].complete == (at.layer, at.operator):
                    self._reduce(at.block, key)

    def after_backward(self, at: PassPoint) -> None:
        """At the end of an interleaved chunk's last backward, reduce its gradients."""
        chunk = at.chunk
        if at.edge and self.plan.overlap.dp and self._interleaved and at.layer == 0:
            for expert in (False, True):
                for key in self._keys_of_chunk(chunk, expert):
                    self._reduce(at.block, key)

    def before_optimizer(self, block: BlockBuilder) -> None:
        """Wait for reductions, or without overlap reduce now."""
        if self.plan.overlap.dp and self.buckets:
            block.await_next([block.port(REDUCED_GRADIENTS)])
        else:
            for key in self.buckets:
                self._reduce(block, key)

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Without overlap, gather the updated parameters."""
        if self.plan.zero and not self.plan.overlap.dp:
            for key in self.buckets:
                block.communicate(self._all_gather(key))

    def _reduce(self, block: BlockBuilder, key: BucketKey) -> None:
        expert, size = key[1], self.gradient_size * self.buckets[key].size
        if self.groups.sizes["dp"] > 1 and not self.plan.framework.average_in_collective:
            block.compute(Compute("scale gradients", Elementwise(2 * size)))
        if not self.plan.zero:
            steps = [collective(Operation.ALL_REDUCE, self.data_group(expert), size, "gradient")]
        else:
            steps = [
                collective(Operation.REDUCE_SCATTER, self.shard_group(expert), size, "gradient")
            ]
            if self.plan.zero_group is not None:
                share, group = size // self.shard_ranks(expert), self.replica_group(expert)
                steps.append(collective(Operation.ALL_REDUCE, group, share, "gradient shard"))
        for step in steps:
            if self.plan.overlap.dp:
                row = block.launch(step)  # the second of two follows the first on their stream
                block.export(REDUCED_GRADIENTS, [] if row is None else [row])
            else:
                block.communicate(step)

    # --- which rules hold -----------------------------------------------------------------------

    @property
    def _gathers_in_forward(self) -> bool:
        """Whether parameters are gathered during the first forward."""
        return bool(self.plan.zero) and self.plan.overlap.dp

    @property
    def _interleaved(self) -> bool:
        return self.plan.vpp > 1

    @property
    def _gathers_by_chunk(self) -> bool:
        """Whether parameters are gathered by chunk, at the same time on all stages."""
        return self._gathers_in_forward and self._interleaved

    def _keys_of_chunk(self, chunk: int, expert: bool) -> Iterator[BucketKey]:
        return (key for key in self.buckets if key[:2] == (chunk, expert))


def _by_layer(places: Iterable[tuple[int, int, int]]) -> Mapping[tuple[int, int], Sequence[int]]:
    """(Chunk, layer, operator) of some operators → those of each layer, ascending."""
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for chunk, layer, operator in sorted(set(places)):
        found[chunk, layer].append(operator)
    return dict(found)


def _gather_port(key: BucketKey) -> str:
    """Port of the all-gather of a bucket."""
    chunk, expert, i = key
    return f"{'expert ' if expert else ''}parameters {chunk} {i}"
