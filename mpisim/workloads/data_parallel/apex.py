"""Apex's DistributedDataParallel (github:NVIDIA/apex apex/parallel/distributed.py).

A bucket is as many gradients as are at least ``message_size`` elements. They are joined by one
kernel as soon as all are there; on a stream of its own, beside the rest of the backward, the bucket
is divided ("apex-predivide"), reduced, multiplied, and copied back by kernels for all tensors
together (`allreduce_bucket`). The backward ends when all streams have. Statistics of normalisation
stay each rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import Elementwise

from ..operators import Compute
from .buckets import Bucket
from .ddp import Ddp
from .frameworks import frameworks
from .strategy import PassPoint

__all__ = ["Apex"]


class Apex(Ddp):
    """Gradients joined in buckets, reduced and copied back beside the backward."""

    def _prepare(self) -> None:
        super()._prepare()
        self._copied: list[int] = []

    def _limits(self) -> Sequence[int]:
        """Return how many elements of gradients fill a bucket, the same for all."""
        given = self.plan.framework.bucket
        return [
            int(frameworks().apex.message.value)
            if given is None
            else -(-given // self.gradient_size)
        ]

    def before_forward(self, at: PassPoint) -> None:
        """Broadcast no buffers (running statistics): Apex does it once, before the first step."""

    def before_backward(self, at: PassPoint) -> None:
        """Do nothing: parameters that the forward did not use are not looked for."""

    def after_gradients(self, at: PassPoint) -> None:
        """In the last backward of a step, start the all-reduce of each bucket that is full."""
        if not (at.edge and self.plan.overlap.dp):
            return
        for each in self.of_operator[at.operator_key]:
            bucket = self._full.get((at.chunk, each))
            if bucket is not None:
                self._reduce(at, bucket)

    def after_backward(self, at: PassPoint) -> None:
        """At the end of the last backward, wait for all buckets."""
        if not at.edge or at.layer > 0:
            return
        if not self.plan.overlap.dp:
            for bucket in self.buckets[at.chunk]:
                self._reduce(at, bucket)
        at.block.await_next(self._copied)
        self._copied = []

    def _reduce(self, at: PassPoint, bucket: Bucket) -> None:
        """Copy gradients into one buffer, all-reduce it, and copy them back from it."""
        block, stream = at.block, self.data_group(bucket.expert)
        kernel = Elementwise(2 * self.gradient_size * bucket.size)
        row = block.compute(Compute("join gradients", kernel))
        if self.plan.framework.reducer == "apex-predivide":
            row = block.compute_beside(Compute("divide bucket", kernel), stream, waits=[row])
        reduced = block.launch(self._reduction(bucket), waits=[row])
        assert reduced is not None  # the bucket's group has several members
        row = block.compute_beside(Compute("multiply bucket", kernel), stream, waits=[reduced])
        copy = Compute("copy gradients from bucket", kernel)
        self._copied.append(block.compute_beside(copy, stream, waits=[row]))
