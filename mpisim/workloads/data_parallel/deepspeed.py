"""DeepSpeed without ZeRO, and with its stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py).

Gradients are copied into a bucket as the backward completes them. A bucket is reduced when the next
gradient does not fit in, and the last one at the end of the backward, where the CPU waits for all:
stage 1 does so in the last micro-batch (without overlap after it), stage 2 in every one, since a
rank keeps its own share alone. A bucket is reduced by an all-reduce from which each rank takes its
share (``use_multi_rank_bucket_allreduce``, the default), so that a step moves 3 Ψ where the paper's
reduce-scatter would move 2 Ψ (arXiv:1910.02054). Updated shares are gathered after the optimizer,
in one collective for dense parameters and one for experts.

Without ZeRO buckets are reduced after the last backward, divided by the number of ranks and copied
back (``buffered_allreduce_fallback``, ``allreduce_bucket`` and ``allreduce_and_copy`` of
deepspeed/runtime/engine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mpisim.kernels.operations import BYTES, Elementwise

from ...base.errors import InputError
from ...experiment.plan import Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..operators import Communicate, Compute
from .buckets import (
    Bucket,
    ChunkParameter,
    buckets_closed_after,
    buckets_closed_before,
    of_kind,
    padded,
)
from .frameworks import frameworks
from .strategy import PassPoint, Strategy, collective

__all__ = ["DeepSpeed"]


class DeepSpeed(Strategy):
    """Gradients all-reduced in buckets; optimizer states, and with stage 2 gradients, sharded.

    Attributes
    ----------
    buckets : tuple of tuple of Bucket
        Of each chunk, dense ones before those of experts.
    """

    style: ClassVar[Style] = "deepspeed"

    def _prepare(self) -> None:
        plan = self.plan
        if plan.zero in (1, 2) and plan.zero_group is not None:
            raise InputError(
                f"plan.zero_group is {plan.zero_group}, but zero is {plan.zero}: "
                "dp_style = 'deepspeed' knows groups with zero = 3 only"
            )
        self.buckets = tuple(
            tuple(
                bucket
                for expert in (False, True)
                for bucket in self._buckets_of(of_kind(parameters, expert))
            )
            for parameters in self.parameters
        )
        self._full: dict[tuple[int, ChunkParameter], Bucket] = {}
        self._remaining: list[list[Bucket]] = []
        for chunk, buckets in enumerate(self.buckets):
            left = []
            for bucket, after in zip(buckets, (*buckets[1:], None), strict=True):
                if after is None or after.expert is not bucket.expert:
                    left.append(bucket)
                else:
                    self._full[chunk, after.parameters[0]] = bucket
            self._remaining.append(left)
        self._rows: list[int] = []

    def _buckets_of(self, parameters: Sequence[ChunkParameter]) -> list[Bucket]:
        limit = int(frameworks().deepspeed.bucket.si)
        if self.plan.framework.bucket is not None:
            limit = self.plan.framework.bucket // self.gradient_size
        if not self.plan.zero:
            return buckets_closed_after(parameters, [limit + 1])
        if self.plan.zero == 1 and not self.plan.overlap.dp:
            return buckets_closed_before(parameters, limit)
        return buckets_closed_before(parameters[::-1], limit)

    @property
    def _reduces_in_backward(self) -> bool:
        """Whether gradients are reduced during the backward, or after it."""
        return self.plan.zero >= 2 or (self.plan.zero == 1 and self.plan.overlap.dp)

    def _reduces(self, last: bool) -> bool:
        return self._reduces_in_backward and (last or self.plan.zero >= 2)

    def after_gradients(self, at: PassPoint) -> None:
        """Copy gradients into the bucket, and reduce it when one does not fit.

        In the last backward; with zero of at least 2 in every one.
        """
        if not self._reduces(at.edge):
            return
        for each in self.of_operator[at.operator_key]:
            if self.unreplicated(each.expert) and not self.plan.offload.optimizer:
                continue
            if (at.chunk, each) in self._full:
                self._reduce(at.block, self._full[at.chunk, each], at.edge)
            self.write_copies(at.block, "copy gradient into bucket", [each], self.gradient_size)

    def after_backward(self, at: PassPoint) -> None:
        """At the end of a backward that reduces, reduce the last bucket and wait for all."""
        if at.layer > 0 or not self._reduces(at.edge):
            return
        for bucket in self._remaining[at.chunk]:
            self._reduce(at.block, bucket, at.edge)
        if self._rows:
            at.block.host_wait(self._rows, "wait for gradients")
            self._rows = []

    def before_optimizer(self, block: BlockBuilder) -> None:
        """Where the backward has not, reduce all gradients."""
        if self._reduces_in_backward:
            return
        for buckets in self.buckets:
            for bucket in buckets:
                if self.unreplicated(bucket.expert) and not self.plan.offload.optimizer:
                    continue
                self.write_copies(
                    block, "copy gradient into bucket", bucket.parameters, self.gradient_size
                )
                block.communicate(self.reduction(bucket))
                self._offload_share(block, bucket, None, True)
                if not self.plan.zero:
                    size = self.gradient_size * bucket.size
                    block.compute(Compute("scale gradients", Elementwise(2 * size)))
                    self.write_copies(
                        block, "copy gradient from bucket", bucket.parameters, self.gradient_size
                    )

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Gather the updated parameters."""
        if not self.plan.zero:
            return
        for expert in (False, True):
            alignment = int(frameworks().deepspeed.alignment.si) * self.shard_ranks(expert)
            size = self.weight_size * padded(self.parameter_count(expert), alignment)
            if size:
                block.communicate(
                    collective(Operation.ALL_GATHER, self.shard_group(expert), size, "parameter")
                )

    @property
    def optimizer_gradient_size(self) -> int:
        """Bytes of a gradient as the optimizer reads it: shards are converted to fp32."""
        return BYTES["fp32"]

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """Ranks that share gradients, then those of a copy of the model."""
        return ("dp", "model") if self.plan.zero else ("model",)

    def reduction(self, bucket: Bucket) -> Communicate:
        """Return the collective that reduces a bucket."""
        size = self.gradient_size * bucket.size
        return collective(Operation.ALL_REDUCE, self.data_group(bucket.expert), size, "gradient")

    def _reduce(self, block: BlockBuilder, bucket: Bucket, last: bool) -> None:
        row = self.run(block, self.reduction(bucket))
        self._offload_share(block, bucket, row, last)

    def _offload_share(
        self, block: BlockBuilder, bucket: Bucket, row: int | None, last: bool
    ) -> None:
        """Copy this rank's share of a reduced bucket to the host, if gradients go there."""
        if self.plan.offload.optimizer:
            share = -(-bucket.size // self.shard_ranks(bucket.expert))
            self.offload(block, share, self.data_group(bucket.expert), row, last)

    @property
    def _accumulates(self) -> bool:
        """Whether gradients of several micro-batches are added up as they are reduced."""
        plan = self.plan
        return plan.zero >= 2 and plan.global_batch > plan.micro_batch * self.groups.grid.dp

    def offload(
        self, block: BlockBuilder, share: int, group: str, row: int | None, last: bool
    ) -> None:
        """Copy this rank's share of reduced gradients to the host.

        Each micro-batch adds to what is there, on the GPU, to which it comes and from which it
        goes back (``async_accumulate_grad_in_cpu_via_gpu``, ``partition_grads`` in stage3.py). Of
        the first, stages 1 and 2 would not have to fetch it; stage 3 copies it there and back even
        where there is one (``grad_buffer.to(grad_partition.device)``). After the last the offloaded
        part goes to the host in fp32, too (``async_inplace_copy_grad_to_fp32_buffer_from_gpu``).
        All that is in the stream of the reductions, where these overlap.

        Parameters
        ----------
        block : BlockBuilder
            Open block; copies are written at its end.
        share : int
            Gradients, those of the mean rank: buckets go to few ranks each.
        group : str
            Of the reduction.
        row : int, optional
            The reduction, in the block.
        last : bool
            Whether it is the last micro-batch.
        """
        size, tasks = self.gradient_size * share, []
        there, back = (self.host_copy(f"gradients {way} host", size) for way in ("to", "from"))
        if self._accumulates:
            tasks += [back, Compute("add gradients", Elementwise(3 * size)), there]
        elif self.plan.zero == 3:
            tasks += [there, back]
        if last:
            size = BYTES["fp32"] * round(self.plan.offload.optimizer * share)
            tasks.append(self.host_copy("gradients to host", size))
        for task in tasks:
            if self.plan.overlap.dp:
                row = block.compute_beside(task, group, waits=None if row is None else [row])
                self._rows.append(row)
            else:
                block.compute(task)

    def run(
        self, block: BlockBuilder, step: Communicate, waits: Sequence[int] | None = None
    ) -> int | None:
        """Write a collective, beside the backward where reductions overlap; return its row.

        Parameters
        ----------
        block : BlockBuilder
            Open block; the collective is written at its end.
        step : Communicate
            Its size is in bytes.
        waits : sequence of int, optional
            Rows of the block, or ports, that it starts after where it overlaps; by default the
            kernel before it and what the next would wait for.

        Returns
        -------
        int or None
            The row, in the block; None where the group has one member.
        """
        if not self.plan.overlap.dp:
            return block.communicate(step)
        row = block.launch(step, waits=waits)
        if row is not None:
            self._rows.append(row)
        return row
