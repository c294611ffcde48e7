"""DeepSpeed's ZeRO stage 3 (deepspeed/runtime/zero/stage3.py): parameters sharded, too.

Each parameter is spread over the ranks by itself, padded to a multiple of them, and gathered for
the modules (here: operators) that use it, forward and backward, as :mod:`.gathering` plays it
through. Gradients are collected in buckets as in stage 2 but reduced to shards by one
reduce-scatter a bucket, in every micro-batch. Small parameters are kept whole, and gathered once
after the optimizer.

With `zero_group` it is MiCS (deepspeed/runtime/zero/mics.py, arXiv:2205.00119): everything is
spread over so many ranks, and in the last micro-batch shards of gradients are reduced over the
replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...experiment.plan import Plan
from ...program import Operation
from ..blocks import BlockBuilder
from ..grid import Groups
from ..operators import Layer
from .buckets import Bucket, padded
from .deepspeed import DeepSpeed
from .frameworks import frameworks
from .gathering import Fetch, Limits, fetches
from .held import Held, of_kind
from .strategy import collective

__all__ = ["Zero3"]

Module = tuple[str, int, int]
"""An operator at work: "forward" or "backward", layer, operator. A layer that is computed again
("again", layer, 0) counts as one module, of all its parameters."""


class Zero3(DeepSpeed):
    """Parameters, gradients and the optimizer's states sharded.

    Attributes
    ----------
    fetches : tuple of dict of Module to Fetch
        Of each chunk, what is gathered when a module starts.
    """

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Sequence[Layer]],
        groups: Groups,
        *,
        stage: int = 0,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(plan, chunks, groups, stage=stage, order=order)
        defaults = frameworks().deepspeed
        ahead = plan.dp_overlap and plan.prefetch > 0
        self.limits = Limits(
            ahead=int(defaults.prefetch.si) if ahead else 0,
            live=int(defaults.live.si),
            reuse=int(defaults.reuse.si),
            persistent=int(defaults.persistent.si),
        )
        self._tied = {
            (chunk, each.size): each
            for chunk, parameters in enumerate(self.held)
            for each in parameters
            if each.parameter.tied
        }
        self.fetches = tuple(self._fetches(chunk) for chunk in range(len(chunks)))
        self._latest: list[int] = []

    def _fetches(self, chunk: int) -> dict[Module, Fetch]:
        """Play a micro-batch through."""
        layers = self.chunks[chunk]
        uses: dict[Module, list[Held]] = {}
        for i, layer in enumerate(layers):
            for j in range(len(layer.operators)):
                uses["forward", i, j] = self._used(chunk, i, j)
        for i in reversed(range(len(layers))):
            operators = range(len(layers[i].operators))
            if self._again(chunk, i):
                uses["again", i, 0] = [each for j in operators for each in self._used(chunk, i, j)]
            for j in reversed(operators):
                uses["backward", i, j] = self._used(chunk, i, j)
        uses = {module: used for module, used in uses.items() if used}
        return dict(zip(uses, fetches(list(uses.values()), self.limits), strict=True))

    def _used(self, chunk: int, layer: int, operator: int) -> list[Held]:
        """Return the parameters an operator uses, a matrix it shares with another one included."""
        found = self.at[chunk, layer, operator][::-1]
        for parameter in self.chunks[chunk][layer].operators[operator].parameters:
            tied = self._tied.get((chunk, parameter.size)) if parameter.tied else None
            if tied is not None and tied not in found:
                found.append(tied)
        return found

    def _again(self, chunk: int, layer: int) -> bool:
        """Whether a layer is computed again in the backward."""
        layers, plan = self.chunks[chunk], self.plan
        if plan.recompute != "full" or layers[layer].role != "block":
            return False
        before = sum(each.role == "block" for each in layers[:layer])
        return plan.recompute_layers is None or before < plan.recompute_layers

    # --- gathering ------------------------------------------------------------------------------

    def before_operator(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, first: bool
    ) -> None:
        """Gather an operator's parameters, and others ahead."""
        self._fetch(block, chunk, ("forward", layer, operator))

    def after_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """The backward waits for what the forward has gathered for it."""
        if layer == len(self.chunks[chunk]) - 1:
            block.await_next(self._latest)
            self._latest = []

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Gather what computing a layer again takes."""
        self._fetch(block, chunk, ("again", layer, 0))

    def before_gradients(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, last: bool
    ) -> None:
        """Gather an operator's parameters, and others ahead."""
        self._fetch(block, chunk, ("backward", layer, operator))

    def _fetch(self, block: BlockBuilder, chunk: int, module: Module) -> None:
        fetch = self.fetches[chunk].get(module)
        if fetch is None:
            return
        self._gather(block, fetch.now)
        block.await_next(self._latest)
        self._latest = []
        self._gather(block, fetch.ahead)

    def _gather(self, block: BlockBuilder, parameters: Sequence[Held]) -> None:
        """Gather parameters in one collective for dense ones and one for experts."""
        for expert in (False, True):
            size = self.weight * self._spread(of_kind(parameters, expert), expert)
            if not size:
                continue
            step = collective(Operation.ALL_GATHER, self.shard(expert), size, "parameter")
            if self.plan.dp_overlap:
                row = block.launch(step, waits=())
                self._latest += [] if row is None else [row]
            else:
                block.communicate(step)

    def _spread(self, parameters: Sequence[Held], expert: bool) -> int:
        """Return the elements of parameters that are padded to a multiple of the ranks each."""
        ranks = self.sharers(expert)
        return sum(padded(each.size, ranks) for each in parameters)

    # --- reducing -------------------------------------------------------------------------------

    def _reduce(self, block: BlockBuilder, bucket: Bucket, last: bool) -> None:
        expert, ranks = bucket.expert, self.sharers(bucket.expert)
        size = self.gradient * self._spread(bucket.parameters, expert)
        group = self.shard(expert)
        row = self.run(block, collective(Operation.REDUCE_SCATTER, group, size, "gradient"))
        if self.plan.zero_group is not None and last:
            step = collective(
                Operation.ALL_REDUCE, self.replica(expert), size // ranks, "gradient shard"
            )
            self.run(block, step, waits=None if row is None else [row])

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Gather the parameters that are kept whole."""
        for expert in (False, True):
            kept = [
                each
                for chunk in self.held
                for each in of_kind(chunk, expert)
                if each.size <= self.limits.persistent
            ]
            size = self.weight * self._spread(kept, expert)
            if size:
                step = collective(Operation.ALL_GATHER, self.shard(expert), size, "parameter")
                block.communicate(step)

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """Ranks that share gradients, then those of a copy of the model."""
        return (self.shard(False), "model")
