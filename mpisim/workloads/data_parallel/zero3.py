"""DeepSpeed's ZeRO stage 3 (deepspeed/runtime/zero/stage3.py): parameters sharded, too.

Each parameter is spread over the ranks by itself, padded to a multiple of them, and gathered for
the modules (here: operators) that use it, forward and backward. Gradients are collected in buckets
as in stage 2 but reduced to shards by one reduce-scatter a bucket, in every micro-batch. Small
parameters are kept whole, and gathered once after the optimizer.

From the second step on DeepSpeed knows in which order modules run and gathers parameters ahead of
them (``PartitionedParameterCoordinator``, deepspeed/runtime/zero/partitioned_param_coordinator.py);
a module's parameters are freed after it unless they are used again soon. `fetches` plays the
coordinator through for one micro-batch; `Zero3` writes what it gathers.

With ``offload.parameters`` shards lie on the host, from where they are copied before they are
gathered. Small parameters stay on the GPU.

Frozen parameters, those beside adapters, are spread and gathered like others, and in no bucket.

With `zero_group` it is MiCS (deepspeed/runtime/zero/mics.py, arXiv:2205.00119): everything is
spread over so many ranks, and in the last micro-batch shards of gradients are reduced over the
replicas.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate

from ...base.frozen import frozen
from ...program import Operation
from ..blocks import BlockBuilder
from .buckets import Bucket, ChunkParameter, chunk_parameters, of_kind, padded
from .deepspeed import DeepSpeed
from .frameworks import frameworks
from .strategy import PassPoint, collective

__all__ = ["Fetch", "FetchLimits", "Zero3", "fetches"]

Module = tuple[str, int, int]
"""An operator at work: "forward" or "backward", layer, operator. A layer that is recomputed
("recompute", layer, 0) counts as one module, of all its parameters."""


@frozen
class FetchLimits:
    """Limits of DeepSpeed's parameter prefetching, in elements.

    Attributes
    ----------
    ahead : int
        Elements gathered ahead whenever a module starts.
    live : int
        Elements gathered at a time, beyond which nothing is gathered ahead.
    reuse : int
        A parameter stays gathered where it is used again before modules with so many have run.
    persistent : int
        Parameters up to this size are never freed.
    """

    ahead: int
    live: int
    reuse: int
    persistent: int


@frozen
class Fetch:
    """Parameters that are gathered when a module starts.

    Attributes
    ----------
    now : tuple of ChunkParameter
        For the module itself, which waits for it.
    ahead : tuple of ChunkParameter
        For later ones.
    """

    now: tuple[ChunkParameter, ...]
    ahead: tuple[ChunkParameter, ...]


def fetches(uses: Sequence[Sequence[ChunkParameter]], limits: FetchLimits) -> list[Fetch]:
    """Parameters that modules use → parameters gathered as each module of a micro-batch starts.

    `PartitionedParameterCoordinator.fetch_sub_module` and `release_sub_module`: a module's missing
    parameters are gathered at once; then the queue of later uses is taken from until `limits.ahead`
    or `limits.live` is reached. After the module, parameters that are not used again soon are
    freed, except those that the queue counts on for a later module.

    Parameters
    ----------
    uses : sequence of sequence of ChunkParameter
        The parameters of each module, in the order in which modules run, forward and backward.
    limits : FetchLimits

    Returns
    -------
    list of Fetch
        One for each module.
    """
    queue = deque((each, step) for step, module in enumerate(uses) for each in module)
    steps: dict[ChunkParameter, list[int]] = {}
    for each, step in queue:
        steps.setdefault(each, []).append(step)
    passed = [0, *accumulate(sum(each.size for each in module) for module in uses)]
    sought = dict.fromkeys(steps, -1)
    available: set[ChunkParameter] = set()
    live = 0
    found = []
    for step, module in enumerate(uses):
        used = dict.fromkeys(module)
        now = [each for each in used if _freed(each, available, limits)]
        available.update(now)
        live += sum(each.size for each in now)

        # What this module uses leaves the queue, unless gathering ahead has taken it already.
        left = {each for each in used if sought[each] < step}
        taken: set[ChunkParameter] = set()
        while queue and len(taken) < len(left):
            taken.add(queue.popleft()[0])

        ahead: list[ChunkParameter] = []
        budget, size = min(limits.live - live, limits.ahead), 0
        while queue and size < budget:
            each, needed = queue.popleft()
            sought[each] = max(sought[each], needed)
            if _freed(each, available, limits):
                ahead.append(each)
                available.add(each)
                size += each.size
        live += size
        found.append(Fetch(tuple(now), tuple(ahead)))

        for each in used:
            if each not in available or sought[each] > step:
                continue  # kept for good, or the queue counts on it for a later module
            later = steps[each]
            following = bisect_right(later, step)
            soon = following < len(later)
            if soon:
                soon = passed[later[following]] - passed[step + 1] < limits.reuse
            if not soon:
                available.remove(each)
                live -= each.size
    return found


def _freed(each: ChunkParameter, available: set[ChunkParameter], limits: FetchLimits) -> bool:
    """Whether a parameter is not gathered: neither kept for good nor available now."""
    return each.size > limits.persistent and each not in available


class Zero3(DeepSpeed):
    """Parameters, gradients and the optimizer's states sharded.

    Attributes
    ----------
    fetches : tuple of dict of Module to Fetch
        Of each chunk, what is gathered when a module starts.
    """

    def _prepare(self) -> None:
        super()._prepare()
        defaults, plan = frameworks().deepspeed, self.plan
        ahead = plan.overlap.dp and plan.framework.prefetch > 0
        self.limits = FetchLimits(
            ahead=int(defaults.prefetch.si) if ahead else 0,
            live=int(defaults.live.si),
            reuse=int(defaults.reuse.si),
            persistent=int(defaults.persistent.si),
        )
        self._held = tuple(chunk_parameters(layers, frozen=True) for layers in self.chunks)
        self._tied = {
            (chunk, each.size): each
            for chunk, parameters in enumerate(self._held)
            for each in parameters
            if each.parameter.tied
        }
        self._held_by: defaultdict[tuple[int, int, int], list[ChunkParameter]] = defaultdict(list)
        for chunk, parameters in enumerate(self._held):
            for each in parameters:
                self._held_by[chunk, each.layer, each.operator].append(each)
        self.fetches = tuple(self._fetches(chunk) for chunk in range(len(self.chunks)))
        self._latest: list[int] = []

    def _fetches(self, chunk: int) -> dict[Module, Fetch]:
        """Parameters gathered in one micro-batch, by module."""
        layers = self.chunks[chunk]
        uses: dict[Module, list[ChunkParameter]] = {}
        for i, layer in enumerate(layers):
            for j in range(len(layer.operators)):
                uses["forward", i, j] = self._used(chunk, i, j)
        for i in reversed(range(len(layers))):
            operators = range(len(layers[i].operators))
            if self._recomputed(chunk, i):
                uses["recompute", i, 0] = [
                    each for j in operators for each in self._used(chunk, i, j)
                ]
            for j in reversed(operators):
                uses["backward", i, j] = self._used(chunk, i, j)
        uses = {module: used for module, used in uses.items() if used}
        return dict(zip(uses, fetches(list(uses.values()), self.limits), strict=True))

    def _used(self, chunk: int, layer: int, operator: int) -> list[ChunkParameter]:
        """Parameters that an operator uses, a matrix it shares with another one included."""
        found = list(self._held_by[chunk, layer, operator])
        for parameter in self.chunks[chunk][layer].operators[operator].parameters:
            tied = self._tied.get((chunk, parameter.size)) if parameter.tied else None
            if tied is not None and tied not in found:
                found.append(tied)
        return found

    def _recomputed(self, chunk: int, layer: int) -> bool:
        """Whether a layer is recomputed in the backward."""
        layers, plan = self.chunks[chunk], self.plan
        if plan.recompute.granularity != "full" or layers[layer].role != "block":
            return False
        before = sum(each.role == "block" for each in layers[:layer])
        return plan.recompute.layers is None or before < plan.recompute.layers

    # --- gathering ------------------------------------------------------------------------------

    def before_operator(self, at: PassPoint) -> None:
        """In every forward, gather an operator's parameters, and others ahead."""
        self._fetch(at.block, at.chunk, ("forward", at.layer, at.operator))

    def after_forward(self, at: PassPoint) -> None:
        """After the last layer: let the backward wait for parameters the forward prefetched."""
        if at.layer == len(self.chunks[at.chunk]) - 1:
            at.block.await_next(self._latest)
            self._latest = []

    def before_backward(self, at: PassPoint) -> None:
        """Gather the parameters for a layer's recomputation; nothing where it is not recomputed."""
        self._fetch(at.block, at.chunk, ("recompute", at.layer, 0))

    def before_gradients(self, at: PassPoint) -> None:
        """In every backward, gather an operator's parameters, and others ahead."""
        self._fetch(at.block, at.chunk, ("backward", at.layer, at.operator))

    def _fetch(self, block: BlockBuilder, chunk: int, module: Module) -> None:
        fetch = self.fetches[chunk].get(module)
        if fetch is None:
            return
        self._gather(block, fetch.now)
        block.await_next(self._latest)
        self._latest = []
        self._gather(block, fetch.ahead)

    def _gather(self, block: BlockBuilder, parameters: Sequence[ChunkParameter]) -> None:
        """Gather parameters in one collective for dense ones and one for experts."""
        for expert in (False, True):
            size = self.weight_size * self._spread(of_kind(parameters, expert), expert)
            if not size:
                continue
            step = collective(Operation.ALL_GATHER, self.shard_group(expert), size, "parameter")
            copied = self._from_host(block, size // self.shard_ranks(expert))
            if self.plan.overlap.dp:
                row = block.launch(step, waits=copied)
                self._latest += copied if row is None else [row]
            else:
                block.communicate(step)

    def _from_host(self, block: BlockBuilder, size: int) -> list[int]:
        """Copy shards that lie on the host to the GPU, and return the rows to wait for.

        The CPU waits for it, since it copies without ``non_blocking`` (``_all_gather_dtype`` in
        deepspeed/runtime/zero/partition_parameters.py).
        """
        if not self.plan.offload.parameters:
            return []
        task = self.host_copy("parameters from host", size)
        if self.plan.overlap.dp:
            row = block.compute_beside(task, task.name, waits=())
        else:
            row = block.compute(task)
        block.host_wait([row], "wait for parameters")
        return [row]

    def _spread(self, parameters: Sequence[ChunkParameter], expert: bool) -> int:
        """Elements of parameters, each padded to a multiple of the ranks."""
        ranks = self.shard_ranks(expert)
        return sum(padded(each.size, ranks) for each in parameters)

    # --- reducing -------------------------------------------------------------------------------

    def _reduce(self, block: BlockBuilder, bucket: Bucket, last: bool) -> None:
        expert, ranks = bucket.expert, self.shard_ranks(bucket.expert)
        size = self.gradient_size * self._spread(bucket.parameters, expert)
        group = self.shard_group(expert)
        row = self.run(block, collective(Operation.REDUCE_SCATTER, group, size, "gradient"))
        if self.plan.zero_group is not None and last:
            step = collective(
                Operation.ALL_REDUCE, self.replica_group(expert), size // ranks, "gradient shard"
            )
            row = self.run(block, step, waits=None if row is None else [row])
        if self.plan.offload.optimizer:
            self.offload(block, size // ranks // self.gradient_size, group, row, last)

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Gather the parameters that are kept whole."""
        for expert in (False, True):
            kept = [
                each
                for chunk in self._held
                for each in of_kind(chunk, expert)
                if each.size <= self.limits.persistent
            ]
            size = self.weight_size * self._spread(kept, expert)
            if size:
                step = collective(Operation.ALL_GATHER, self.shard_group(expert), size, "parameter")
                block.communicate(step)

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """Ranks that share gradients, then those of a copy of the model."""
        return (self.shard_group(False), "model")
