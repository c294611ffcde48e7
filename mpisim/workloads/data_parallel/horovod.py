"""Horovod: gradients are reduced in cycles (horovod/common/operations.cc, controller.cc).

A thread beside the training process wakes once in a cycle (``HOROVOD_CYCLE_TIME``), finds out which
gradients are ready on all ranks, and reduces them, as many at a time as fit into the fusion buffer
(``HOROVOD_FUSION_THRESHOLD``): several are copied into the buffer, reduced, and copied back, one by
itself is reduced where it lies (horovod/common/ops/nccl_operations.cc). Buckets are formed by time,
not by size alone. When a cycle begins is nobody's choice: gradients wait for half of one in the
mean. Which gradients are ready is a logical AND over all ranks of one bit each, since the response
cache knows their names from the first step on.

A gradient is ready when the framework says so (``framework.gradients_ready``): TensorFlow runs an
operation when its kernel is launched, and Horovod then waits on the GPU for what the kernel writes;
MXNet's engine calls Horovod when the kernel has ended.

All ranks send their own gradients; statistics of normalisation stay each rank's own.
"""

from __future__ import annotations

from mpisim.kernels.operations import Copy

from ...base.quantity import PICOSECONDS, picoseconds
from ...program import Operation
from ..blocks import BlockBuilder
from .buckets import Bucket, ChunkParameter
from .ddp import Ddp
from .frameworks import frameworks
from .strategy import PassPoint, collective

__all__ = ["Horovod"]

MILLISECONDS = PICOSECONDS / 1000

CYCLE = "horovod cycle"
"""Stream of what is waited for between two cycles."""


class Horovod(Ddp):
    """Gradients reduced once in a cycle; parameters and their updates on all ranks."""

    def _prepare(self) -> None:
        defaults, framework = frameworks().horovod, self.plan.framework
        assert framework.cycle_time is not None
        threshold = framework.bucket or int(defaults.threshold.si)
        self._limit = threshold // self.gradient_size
        self._cycle = round(framework.cycle_time * MILLISECONDS)
        self._late = self._cycle // 2 + picoseconds(defaults.negotiation.si)
        self._by_launch = framework.gradients_ready == "launched"
        self._ready: list[ChunkParameter] = []
        self._last = -1  # row that made the latest of them
        self._began = 0  # cycle in which they are there
        self._reduced: list[int] = []

    def before_forward(self, at: PassPoint) -> None:
        """Send nothing: Horovod broadcasts parameters once, before the first step."""

    def after_gradients(self, at: PassPoint) -> None:
        """In the last backward, reduce the gradients that became ready in the previous cycle."""
        if not at.edge:
            return
        block = at.block
        cycle = self._now(block) // max(self._cycle, 1) if self.plan.overlap.dp else 0
        for each in self.of_operator[at.operator_key]:
            if self.unreplicated(each.expert):
                continue
            if self._ready and (
                cycle != self._began
                or each.expert is not self._ready[0].expert
                or sum(other.size for other in self._ready) + each.size > self._limit
            ):
                self._reduce(block)
            self._ready.append(each)
            self._last, self._began = block.last, cycle

    def after_backward(self, at: PassPoint) -> None:
        """At the end of the last backward, reduce the rest and wait for all."""
        if not at.edge or at.layer > 0:
            return
        if self._ready:
            self._reduce(at.block)
        at.block.await_next(self._reduced)
        self._reduced = []

    def _now(self, block: BlockBuilder) -> int:
        """Return the time since the backward began, of the CPU or of the GPU, in ps."""
        launching = block.pricing.launching
        if self._by_launch:
            return block.n_rows * (launching["host"] + launching["launch_cost"])
        return block.duration + block.n_rows * block.pricing.gap

    def _reduce(self, block: BlockBuilder) -> None:
        """Write the reduction of the gradients that are ready."""
        bucket = Bucket(tuple(self._ready), sum(each.size for each in self._ready))
        self._ready = []
        group = self.data_group(bucket.expert)
        task = collective(Operation.ALL_REDUCE, group, self.gradient_size * bucket.size, "gradient")
        waits, latency = [self._last], block.pricing.launching["launch"]
        if self._by_launch:
            latency += self._late
        else:
            waits = [block.host_work("wait for cycle", self._late, stream=CYCLE, waits=waits)]
        copies = 0
        if len(bucket.parameters) > 1:
            copies = sum(
                block.pricing.model.estimate(Copy(self.gradient_size * each.size)).duration
                for each in bucket.parameters
            )
            into = "copy gradients into buffer"
            waits = [block.host_work(into, copies, stream=group, waits=waits)]
        row = block.launch(task, waits=waits, latency=latency)
        assert row is not None  # the group has several members
        if copies:
            row = block.host_work("copy gradients from buffer", copies, stream=group, waits=[row])
        self._reduced.append(row)
