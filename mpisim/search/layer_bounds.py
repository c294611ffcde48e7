"""Operators of a layer → the least time of its kernels and communications on a GPU, in ps.

Durations are those that the simulation uses: of one kernel alone, on the fastest of the GPUs, and
of one communication alone on the network. The time of an operator is its longest chain of tasks
(`LayerPrices.chain`); times of operators add up. Each kernel, communication and layer is looked up
once and kept by its value, for all plans of a search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.lru_cache import LruCache
from ..experiment import Plan
from ..kernels import KernelModel
from ..kernels.operations import BYTES, Elementwise, Kernel
from ..program import Operation
from ..topo import Network
from ..workloads.data_parallel.buckets import chunk_parameters, of_kind, padded
from ..workloads.grid import Grid
from ..workloads.operators import (
    BackwardPart,
    Communicate,
    Compute,
    Layer,
    LayerStack,
    Operator,
    Task,
)
from ..workloads.recomputation import recomputed_operators

__all__ = ["Classes", "LayerBounds", "LayerPrices", "ShardedTimes"]

AXES = ("tp", "cp", "etp", "ep", "etp-ep")
"""Axes whose communications belong to operators."""

MOST_CLASSES, MOST_TIMES = 512, 2**16
"""Kept on each cluster: classes of communicators; times of kernels, communications and layers."""

MAX_RANKS = 1024
"""Of a group that shares gradients, to be looked at: its price takes the square of that."""

PARTS: tuple[BackwardPart, BackwardPart] = ("input", "weight")
"""Of the backward, where it is split."""

Classes = Mapping[str, tuple[Hashable, ...]]
"""Classes of the communicators along each axis, see `mpisim.topo.Network.group_classes`."""


class LayerBounds(NamedTuple):
    """Least times of one micro-batch on a layer, kernels and communications, in ps."""

    forward: int
    backward: int
    inputs: int
    """Of the backward: without gradients of weights."""
    again: int
    """Where the whole layer is recomputed."""
    selected: int
    """Where it is not, but some of its operators are."""
    after_forward: int
    """Communications behind the last kernel of the forward."""
    after_backward: int


class _Chain(NamedTuple):
    """The tasks of an operator, from its beginning, in ps."""

    end: int
    """When the next operator can begin."""
    kernels: int
    """When its last kernel has ended; 0: it has none."""


def _behind(chains: Iterable[_Chain]) -> int:
    """Operators in sequence, the last first → time behind the last kernel, in ps."""
    found = 0
    for each in chains:
        found += each.end - each.kernels
        if each.kernels:
            break
    return found


class ShardedTimes(NamedTuple):
    """Time that sharded parameters add to a micro-batch on a layer, in ps."""

    forward: int
    backward: int
    gathered: int
    reduced: int


NOTHING = ShardedTimes(0, 0, 0, 0)


class LayerPrices:
    """Durations of layers on one cluster, each kernel and each communication looked up once."""

    def __init__(self, models: Sequence[KernelModel], network: Network) -> None:
        self._models, self._network = models, network
        self._known: LruCache[int] = LruCache(MOST_TIMES)
        self._communications: LruCache[int] = LruCache(MOST_TIMES)
        self._classes: LruCache[Classes] = LruCache(MOST_CLASSES)
        self._layers: LruCache[LayerBounds] = LruCache(MOST_TIMES)
        self._sharded: LruCache[ShardedTimes] = LruCache(MOST_TIMES)
        self._data: LruCache[Classes] = LruCache(MOST_CLASSES)
        self._stages: LruCache[Classes] = LruCache(MOST_CLASSES)

    def classes_of(self, grid: Grid) -> Classes:
        """Return the classes of communicators of a grid, along the axes of operators.

        Those of neighbours in a ring have ``":pairs"`` behind the name of the axis.
        """
        return self._classes.get(grid, lambda: self._classes_along_axes(grid))

    def _classes_along_axes(self, grid: Grid) -> Classes:
        made = {}
        for axis in AXES:
            members = grid.groups(axis)
            if members.shape[1] > 1:
                pairs = np.stack([members, np.roll(members, -1, axis=1)], axis=2)
                made[axis] = self._classes_of(members)
                made[f"{axis}:pairs"] = self._classes_of(pairs.reshape(-1, 2))
        return made

    def _classes_of(self, members: NDArray[np.int64]) -> tuple[Hashable, ...]:
        n, size = members.shape
        index = np.arange(n + 1, dtype=np.int64) * size
        flat = members.reshape(-1).astype(np.int32)
        return tuple(self._network.group_classes(index, flat)[1])

    def layers(self, plan: Plan, network: LayerStack, classes: Classes) -> list[LayerBounds]:
        """Return the times of each layer of a network."""
        # By the tuple of operators itself first: layers of one kind have one, slow to hash.
        known: dict[int, LayerBounds] = {}
        for layer in network.layers:
            if id(layer.operators) not in known:
                known[id(layer.operators)] = self._layer(plan, layer, classes)
        return [known[id(layer.operators)] for layer in network.layers]

    def _layer(self, plan: Plan, layer: Layer, classes: Classes) -> LayerBounds:
        """Return the times of a layer."""
        operators = layer.operators
        again = recomputed_operators(plan, operators)
        selective = plan.recompute.granularity == "selective"
        key = (operators, len(again), selective, tuple(classes.items()))
        return self._layers.get(
            key, lambda: self._times(operators, again, classes, selective=selective)
        )

    def _times(
        self,
        operators: Sequence[Operator],
        again: Sequence[Operator],
        classes: Classes,
        *,
        selective: bool,
    ) -> LayerBounds:
        """Return the times of a layer of these operators."""
        ahead = [self.chain(each.forward, classes) for each in operators]
        forward = [each.end for each in ahead]
        back = [self.chain(each.backward, classes) for each in operators]
        split = [
            [self.chain(each.backward_part(part), classes) for each in operators] for part in PARTS
        ]
        inputs, weights = ([each.end for each in chains] for chains in split)
        return LayerBounds(
            forward=sum(forward),
            # In one pass or in two, whichever is sooner.
            backward=sum(
                min(each.end, one + other)
                for each, one, other in zip(back, inputs, weights, strict=True)
            ),
            inputs=sum(inputs),
            again=sum(self.chain(each.forward, classes).end for each in again),
            selected=sum(
                time for time, each in zip(forward, operators, strict=True) if each.selective
            )
            if selective
            else 0,
            after_forward=_behind(reversed(ahead)),
            after_backward=max(map(_behind, (back, *split))),
        )

    def chain(self, tasks: Sequence[Task], classes: Classes) -> _Chain:
        """Operator → time of its tasks until the next operator can begin.

        As `mpisim.workloads.task_writer.TaskWriter` writes tasks: kernels one after another, each
        after the latest communication without a token and after those whose tokens it names;
        communications of a group likewise, each after the kernel before it or after its tokens.
        Tokens that outlive the operator are not waited for here.
        """
        kernels = pending = 0
        tokens: dict[str, int] = {}
        streams: dict[str, int] = {}
        for task in tasks:
            if isinstance(task, Compute):
                arrived = (tokens[each] for each in task.after if each in tokens)
                kernels = max(kernels, pending, *arrived, 0) + self._kernel(task.kernel)
            elif isinstance(task, Communicate):
                time = self._communication(task, classes)
                if task.after is None:
                    start = max(kernels, pending)
                else:
                    start = max((tokens[each] for each in task.after if each in tokens), default=0)
                    if not any(each in tokens for each in task.after):
                        continue  # it may begin before the operator does
                end = max(start, streams.get(task.group, 0)) + time
                streams[task.group] = end
                if not task.token:
                    pending = end
                elif not task.carried:
                    tokens[task.token] = end
        return _Chain(max(kernels, pending, *tokens.values(), 0), kernels)

    def sharded(self, plan: Plan, network: LayerStack, grid: Grid) -> list[ShardedTimes]:
        """Network → time that FSDP adds to every micro-batch, for each layer.

        Of blocks that are a unit each; nothing is said of others, nor of routed experts. As
        `mpisim.workloads.data_parallel.fsdp` writes it.
        """
        ranks = grid.dp * grid.cp
        key = (
            plan.pp == 1,
            plan.zero,
            plan.framework.reshard_after_forward,
            plan.framework.flat_shards,
            ranks,
        )
        precision = plan.precision
        formats = plan.weight_format, precision.gradients, precision.main_parameters
        known: dict[int, ShardedTimes] = {}  # by the tuple of operators itself
        found = []
        for layer in network.layers:
            if (
                plan.framework.wrap_layers > 1
                or plan.zero_group is not None
                or layer.role != "block"
            ):
                found.append(NOTHING)
                continue
            at = id(layer.operators)
            if at not in known:
                of_layer = (layer.operators, key, formats, grid)
                known[at] = self._sharded.get(of_layer, partial(self._unit, plan, layer, grid))
            found.append(known[at])
        return found

    def _unit(self, plan: Plan, layer: Layer, grid: Grid) -> ShardedTimes:
        """Unit of one layer → time that FSDP adds to every micro-batch."""
        parameters = of_kind(chunk_parameters([layer]), expert=False)
        ranks = grid.dp * grid.cp
        size = sum(padded(each.size, ranks) for each in parameters)
        weight = BYTES[plan.weight_format]
        gradient = BYTES[plan.precision.gradients or plan.weight_format]
        if plan.pp > 1:  # gathered and reduced once a step
            return ShardedTimes(0, self._kernel(Elementwise((weight + 2 * gradient) * size)), 0, 0)
        again = plan.zero == 3 and plan.framework.reshard_after_forward
        out = into = 0
        if not plan.framework.flat_shards:
            source = weight if ranks > 1 else BYTES[plan.precision.main_parameters]
            out = self._kernel(Elementwise((source + weight) * size))
            into = self._kernel(Elementwise((weight + gradient) * size))
        gather, reduce = Operation.ALL_GATHER, Operation.REDUCE_SCATTER
        classes = self.data_classes(grid) if 1 < ranks <= MAX_RANKS else {}
        gathered = self._communication(Communicate("", gather, "dp", weight * size), classes)
        reduced = self._communication(Communicate("", reduce, "dp", gradient * size), classes)
        return ShardedTimes(out, again * out + into, (1 + again) * gathered, reduced)

    def data_classes(self, grid: Grid) -> Classes:
        """Return the class of a communicator that shares gradients: any one bounds the step."""
        return self._data.get(grid, lambda: {"dp": self._classes_of(grid.groups("dp-cp")[:1])})

    def message(self, plan: Plan, grid: Grid, size: int) -> int:
        """Return the least that a message of so many bytes takes between two stages."""
        split = plan.message_shares
        size = size // split if size % split == 0 else size
        task = Communicate("", Operation.SEND_RECV, "pp", size)
        return self._communication(task, self._stages.get(grid, lambda: self._pairs(grid)))

    def _pairs(self, grid: Grid) -> Classes:
        """Return the classes of neighbouring stages, either way."""
        members = grid.groups("pp")
        pairs = [np.stack([members, np.roll(members, by, axis=1)], axis=2) for by in (-1, 1)]
        return {"pp:pairs": self._classes_of(np.concatenate(pairs).reshape(-1, 2))}

    def _kernel(self, kernel: Kernel) -> int:
        return self._known.get(
            kernel, lambda: min(model.estimate(kernel).duration for model in self._models)
        )

    def _communication(self, task: Communicate, classes: Classes) -> int:
        """Communication → its time alone; 0 where its price is not known."""
        ring = task.operation is Operation.SEND_RECV
        group = classes.get(f"{task.group}:pairs" if ring else task.group)
        if group is None:
            return 0
        return self._communications.get(
            (task.operation, task.bytes, group),
            lambda: min(
                self._network.price(task.operation, task.bytes, each).duration for each in group
            ),
        )
