"""Experiment → a time that its step cannot beat, without simulating it.

A GPU's kernels run one after another on its compute stream. So for every stage s of a pipeline,
with f_i, b_i and g_i the kernels of one micro-batch's forward pass, backward pass and gradients of
inputs on stage i, and m micro-batches,

    step ≥ Σ_{i<s} f_i  +  m (f_s + b_s)  +  Σ_{i<s} g_i .

The middle is what its stream has to do. The first forward on stage s needs that of a micro-batch on
all stages before it, which ends no sooner than their kernels after each other; and once stage s has
worked out the last gradients of its inputs, those still pass all stages before. This holds for
every schedule. Where a stage holds several chunks, the first and the last term are those of its
first chunk; where gradients of weights may come last (zero-bubble schedules) the last term is 0,
and where a pipeline runs both ways so is the first.

Durations are those that the simulation uses: of one kernel alone, on the fastest of the GPUs.
Nothing makes a kernel faster there: what overlaps slows it, stragglers slow it. Random factors
could; with these there is no bound (0).

f, b and g also hold the communications of operators (of tensor, context and expert parallelism), as
long as each takes alone on the network: sharing links only makes them longer. What an operator
starts waits for the kernels and communications before it, and the next operator for all of it; in
between some communications run beside kernels (rings of context parallelism, chunks of products).
So the time of an operator is its longest chain of tasks (`_Price.chain`), and times of operators
add up. The exception are passes of two micro-batches that take turns, which run beside the
communications of each other: no communication counts there.

FSDP adds kernels to every micro-batch: copies of what is gathered and reduced, or gradients that
are added up; without a pipeline it gathers and reduces every layer in each, too, so that

    step ≥ m × (all-gathers of a micro-batch),   step ≥ m × (reduce-scatters of a micro-batch) .

`StepBounds.closer` goes through the passes of all stages with these times (:mod:`.pipeline_bound`),
which takes milliseconds, and is mostly 1 to 4 % more.

Kernels depend on few keys of a plan, so their sums are kept by these (`StepBounds`): a bound of
another number of stages or micro-batches costs some additions. Of what is kept the least recently
used makes room, so that a long search needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.lru_cache import LruCache
from ..experiment import Experiment, Plan, Transformer, keys_of
from ..experiment.model_counts import samples
from ..kernels import KernelModel
from ..kernels.operations import BYTES, Elementwise, Kernel
from ..prediction.hardware import Hardware, with_convolutions
from ..prediction.network import network_of
from ..prediction.prepared import kernel_models, with_step_constants
from ..program import Operation
from ..schedules import SCHEDULES, pipeline
from ..topo import Network
from ..workloads import check_layout
from ..workloads.data_parallel.buckets import chunk_parameters, of_kind, padded
from ..workloads.grid import Grid
from ..workloads.layout import ModelChunk, networks_of, split_layers
from ..workloads.operators import BackwardPart, Communicate, Compute, Layer, Operator, Task
from ..workloads.operators import Network as LayerStack
from ..workloads.recomputation import recomputed_layers, recomputed_operators
from .pipeline_bound import PassTimes, pipeline_time

__all__ = ["StepBounds"]

NOT_OF_KERNELS = (
    "global_batch",
    "replica_batch",
    "dp",
    "pp",
    "vpp",
    "pipeline.schedule",
    "pipeline.stages",
    "pipeline.account_for_embedding",
    "pipeline.account_for_loss",
    "zero",
    "zero_group",
    "order",
    "overlap.dp",
    "overlap.p2p",
    "framework.bucket",
    "framework.p2p_split",
)
"""Keys of a plan that no kernel of a layer depends on, but by what `_layers` looks at besides."""

OF_A_PLAN = attrgetter(*keys_of(Plan(1)))
OF_LAYERS = attrgetter(*(key for key in keys_of(Plan(1)) if key not in NOT_OF_KERNELS))
"""Plan → its values, all of them and those that kernels of a transformer's layers depend on."""

AXES = ("tp", "cp", "etp", "ep", "etp-ep")
"""Axes whose communications belong to operators."""


MOST_NETWORKS, MOST_PRICES, MOST_TIMES = 512, 64, 2**16
"""Kept of each kind: networks of layers (up to 100 KB each), clusters with their kernel models, and
times of kernels, communications and layers on each of these."""

MAX_RANKS = 1024
"""Of a group that shares gradients, to be looked at: its price takes the square of that."""

MOST_PASSES = 40_000
"""Of all stages in a step, to be gone through: it takes a microsecond or two for each."""

PARTS: tuple[BackwardPart, BackwardPart] = ("input", "weight")
"""Of the backward, where it is split."""


class _LayerTimes(NamedTuple):
    """Kernels and communications of one micro-batch on a layer, in ps."""

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


class _Sharded(NamedTuple):
    """What sharded parameters add to a micro-batch on a layer, in ps."""

    forward: int
    backward: int
    gathered: int
    reduced: int


NOTHING = _Sharded(0, 0, 0, 0)


class _ChunkTimes(NamedTuple):
    """Kernels and communications of one micro-batch on a chunk of the model, in ps."""

    forward: int
    whole: int
    """Forward and backward, with recomputation."""
    inputs: int
    weights: int
    after_forward: int
    """Communications behind the last kernel."""
    after_backward: int


class StepBounds:
    """Lower bounds of steps, with the sums of kernels that they have in common."""

    def __init__(self) -> None:
        self._networks: LruCache[list[tuple[LayerStack, list[_LayerTimes]]]] = _kept(MOST_NETWORKS)
        self._prices: LruCache[_Price] = _kept(MOST_PRICES)
        self._places: dict[tuple[int, ...], tuple[Hashable, tuple[Any, ...]]] = {}

    def of(self, experiment: Experiment, hardware: Hardware) -> int:
        """Experiment → ps below which its step cannot be; 0 where nothing can be said.

        Parameters
        ----------
        experiment : Experiment
        hardware : Hardware
            Of the experiment.

        Raises
        ------
        InputError
            If model, plan and cluster do not go together.
        """
        return self._least(experiment, hardware, closer=False)

    def closer(self, experiment: Experiment, hardware: Hardware) -> int:
        """Experiment → ps below which its step cannot be, by all stages of its pipeline.

        At least as much as `of`, whose parameters and errors it has.
        """
        return self._least(experiment, hardware, closer=True)

    def _least(self, experiment: Experiment, hardware: Hardware, *, closer: bool) -> int:
        if experiment.variation.random or experiment.plan.replica_batch:
            return 0
        plan = experiment.plan
        grid = Grid.of(plan, hardware.gpus)
        batch, *_ = check_layout(experiment, grid)
        experiment = with_convolutions(experiment, hardware.named)
        least = 0
        for network, layers in self._layers(experiment, hardware, grid):
            chunks = split_layers(network, plan, plan.pp * plan.vpp)
            if isinstance(experiment.model, Transformer) and plan.style(transformer=True) == "fsdp":
                sharded = self._price(experiment, hardware).sharded(plan, network, grid)
                layers = [_added(*each) for each in zip(layers, sharded, strict=True)]
                if plan.pp == 1:  # each micro-batch gathers and reduces, on one stream or on two
                    gathered = sum(each.gathered for each in sharded)
                    reduced = sum(each.reduced for each in sharded)
                    least = max(least, batch * gathered, batch * reduced)
            times = _times_of_chunks(plan, network, layers, chunks)
            least = max(least, _stage_bound(plan, batch, times))
            if closer and _is_gone_through(plan, batch):
                size = min(chunk.layers[-1].output for chunk in chunks[:-1])
                message = self._price(experiment, hardware).message(plan, grid, size)
                least = max(least, _pipeline_bound(plan, batch, times, message))
        return int(least / max([1.0, *experiment.variation.speeds.values()]))

    def tokens(self, experiment: Experiment, hardware: Hardware) -> int:
        """Experiment → tokens (images, samples) of a step."""
        plan, model = experiment.plan, experiment.model
        micro_batches = plan.global_batch // plan.micro_batch
        if isinstance(model, Transformer):
            return samples(model, plan.micro_batch) * micro_batches
        experiment = with_convolutions(experiment, hardware.named)
        grid = Grid.of(plan, hardware.gpus)
        (network, _), *_ = self._layers(experiment, hardware, grid)
        return int(network.tokens * micro_batches)

    def _layers(
        self, experiment: Experiment, hardware: Hardware, grid: Grid
    ) -> list[tuple[LayerStack, list[_LayerTimes]]]:
        """Return the networks of an experiment with the times of each layer."""
        transformer = isinstance(experiment.model, Transformer)
        plan = experiment.plan
        shape = (OF_LAYERS if transformer else OF_A_PLAN)(plan)
        price = self._price(experiment, hardware)
        # Passes of two micro-batches that take turns hide the communications of each other.
        alone = not (plan.overlap.ep or SCHEDULES[plan.pipeline.schedule].mirrored)
        classes = price.classes_of(grid) if alone else {}
        # Whether gradients are added up; on how many nodes experts lie, where dispatchers heed it.
        accumulates = plan.global_batch > grid.dp * plan.micro_batch
        style = plan.style(transformer=transformer)  # follows from `zero` where a plan has none
        place = grid if plan.ep > 1 and plan.framework.dispatches_by_kernels else None
        key = (shape, price, tuple(classes.values()), accumulates, style, place)
        return self._networks.get(
            key,
            lambda: [
                (network, price.layers(plan, network, classes))
                for network in networks_of(experiment, hardware.gpus)
            ],
        )

    def _price(self, experiment: Experiment, hardware: Hardware) -> _Price:
        """Return the durations on the hardware of an experiment."""
        on = (experiment.model, self._place(experiment), hardware.gpus)
        return self._prices.get(on, lambda: _new_price(experiment, hardware))

    def _place(self, experiment: Experiment) -> Hashable:
        """Return what prices depend on besides model and plan, as text."""
        parts = (
            experiment.kernels,
            experiment.network,
            experiment.calibration,
            experiment.scale,
            experiment.variation,
            experiment.cluster,
        )
        # Candidates share these objects, whose texts take long: they are known by the objects.
        same = tuple(map(id, parts))
        if same not in self._places:
            if len(self._places) >= MOST_TIMES:
                self._places.clear()
            self._places[same] = tuple(map(repr, parts)), parts  # held, so that no id is reused
        return self._places[same][0]


def _kept(most: int) -> LruCache[Any]:
    """Return a cache of so many values."""
    return LruCache(most, lambda value: 1)


def _new_price(experiment: Experiment, hardware: Hardware) -> _Price:
    models, constants = kernel_models(experiment, hardware)
    folder, nodes = Path(experiment.source).parent, experiment.cluster.nodes
    network = network_of(hardware.cluster, nodes, experiment.network, folder)
    return _Price(models, with_step_constants(network, constants))


Classes = Mapping[str, tuple[Hashable, ...]]
"""Classes of the communicators along each axis, see `mpisim.topo.Network.group_classes`."""


class _Price:
    """Durations of layers on one cluster, each kernel and each communication looked up once."""

    def __init__(self, models: Sequence[KernelModel], network: Network) -> None:
        self._models, self._network = models, network
        self._known: LruCache[int] = _kept(MOST_TIMES)
        self._communications: LruCache[int] = _kept(MOST_TIMES)
        self._classes: LruCache[Classes] = _kept(MOST_NETWORKS)
        self._layers: LruCache[_LayerTimes] = _kept(MOST_TIMES)
        self._sharded: LruCache[_Sharded] = _kept(MOST_TIMES)
        self._data: LruCache[Classes] = _kept(MOST_NETWORKS)
        self._stages: LruCache[Classes] = _kept(MOST_NETWORKS)

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

    def layers(self, plan: Plan, network: LayerStack, classes: Classes) -> list[_LayerTimes]:
        """Return the times of each layer of a network."""
        # By the tuple of operators itself first: layers of one kind have one, slow to hash.
        known: dict[int, _LayerTimes] = {}
        for layer in network.layers:
            if id(layer.operators) not in known:
                known[id(layer.operators)] = self._layer(plan, layer, classes)
        return [known[id(layer.operators)] for layer in network.layers]

    def _layer(self, plan: Plan, layer: Layer, classes: Classes) -> _LayerTimes:
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
    ) -> _LayerTimes:
        """Return the times of a layer of these operators."""
        ahead = [self.chain(each.forward, classes) for each in operators]
        forward = [each.end for each in ahead]
        back = [self.chain(each.backward, classes) for each in operators]
        split = [
            [self.chain(each.backward_part(part), classes) for each in operators] for part in PARTS
        ]
        inputs, weights = ([each.end for each in chains] for chains in split)
        return _LayerTimes(
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
        """Return how long what an operator starts takes until the next one can begin.

        As `mpisim.workloads.blocks.BlockBuilder` writes tasks: kernels one after another, each
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

    def sharded(self, plan: Plan, network: LayerStack, grid: Grid) -> list[_Sharded]:
        """Return what FSDP adds to every micro-batch, for each layer of a network.

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
        known: dict[int, _Sharded] = {}  # by the tuple of operators itself
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

    def _unit(self, plan: Plan, layer: Layer, grid: Grid) -> _Sharded:
        """Return what FSDP adds to every micro-batch for a unit of one layer."""
        parameters = of_kind(chunk_parameters([layer]), expert=False)
        ranks = grid.dp * grid.cp
        size = sum(padded(each.size, ranks) for each in parameters)
        weight = BYTES[plan.weight_format]
        gradient = BYTES[plan.precision.gradients or plan.weight_format]
        if plan.pp > 1:  # gathered and reduced once a step
            return _Sharded(0, self._kernel(Elementwise((weight + 2 * gradient) * size)), 0, 0)
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
        return _Sharded(out, again * out + into, (1 + again) * gathered, reduced)

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
        """Return how long a communication takes alone; 0 where nothing is known."""
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


def _added(times: _LayerTimes, sharded: _Sharded) -> _LayerTimes:
    """Return the times of a layer with the kernels of sharded parameters."""
    return times._replace(
        forward=times.forward + sharded.forward, backward=times.backward + sharded.backward
    )


def _times_of_chunks(
    plan: Plan, network: LayerStack, layers: Sequence[_LayerTimes], chunks: Sequence[ModelChunk]
) -> list[_ChunkTimes]:
    """Chunks of a network → the kernels of each, in the order of the layers."""
    found, at = [], 0
    for chunk in chunks:
        own = layers[at : at + len(chunk.layers)]
        at += len(chunk.layers)
        again = recomputed_layers(plan, chunk.numbers)
        forward = sum(each.forward for each in own)
        backward = sum(each.backward for each in own)
        inputs = sum(each.inputs for each in own)
        recomputed = sum(
            each.again if whole else each.selected for each, whole in zip(own, again, strict=True)
        )
        found.append(
            _ChunkTimes(
                forward,
                forward + backward + recomputed,
                inputs,
                max(0, backward - inputs),
                own[-1].after_forward,
                own[0].after_backward,
            )
        )
    assert at == len(network.layers)
    return found


def _is_gone_through(plan: Plan, micro_batches: int) -> bool:
    """Whether `pipeline_time` applies: stages, each part held once, one pass after another."""
    schedule = SCHEDULES[plan.pipeline.schedule]
    passes = 2 * plan.pp * plan.vpp * micro_batches
    return plan.pp > 1 and not schedule.mirrored and not plan.overlap.ep and passes <= MOST_PASSES


def _pipeline_bound(
    plan: Plan, micro_batches: int, parts: Sequence[_ChunkTimes], message: int
) -> int:
    """Times of the parts of a pipeline, and of a message → `pipeline_time`."""
    schedule = pipeline(plan.pipeline.schedule, plan.pp, micro_batches, plan.vpp)
    times = [
        PassTimes(
            each.forward,
            each.whole - each.forward,
            each.weights,
            each.after_forward,
            each.after_backward,
        )
        for each in parts
    ]
    return pipeline_time(schedule, times, message, overlap=plan.overlaps_p2p)


def _stage_bound(plan: Plan, micro_batches: int, parts: Sequence[_ChunkTimes]) -> int:
    """Kernels of the parts of a pipeline → the bound of the module's head, in ps."""
    schedule = SCHEDULES[plan.pipeline.schedule]
    if schedule.mirrored:  # half of the micro-batches pass either way
        pairs = zip(parts, reversed(parts), strict=True)
        return max(micro_batches // 2 * (one.whole + other.whole) for one, other in pairs)
    least = lead = tail = 0
    for stage in range(plan.pp):
        busy = sum(parts[part].whole for part in range(stage, len(parts), plan.pp))
        # The message to the stage before need not wait for the last gradients of weights.
        after = 0 if schedule.splits_backward else max(0, tail - parts[stage].weights)
        least = max(least, lead + micro_batches * busy + after)
        lead += parts[stage].forward
        tail += parts[stage].inputs
    return least
