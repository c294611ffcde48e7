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

Durations are those that the simulation uses (:mod:`.layer_bounds`). Nothing makes a kernel faster
there: what overlaps slows it, stragglers slow it. Random factors could; with these there is no
bound (0).

f, b and g also hold the communications of operators (of tensor, context and expert parallelism), as
long as each takes alone on the network: sharing links only makes them longer. What an operator
starts waits for the kernels and communications before it, and the next operator for all of it; in
between some communications run beside kernels (rings of context parallelism, chunks of products).
So the time of an operator is its longest chain of tasks, and times of operators add up. The
exception are passes of two micro-batches that take turns, which run beside the communications of
each other: no communication counts there.

FSDP adds kernels to every micro-batch: copies of what is gathered and reduced, or gradients that
are added up; without a pipeline it gathers and reduces every layer in each, too, so that

    step ≥ m × (all-gathers of a micro-batch),   step ≥ m × (reduce-scatters of a micro-batch) .

`StepBounds.closer` goes through the passes of all stages with these times (:mod:`.pipeline_bound`),
which takes milliseconds, and is mostly 1 to 4 % more.

Kernels depend on few keys of a plan, so their sums are kept by these (`StepBounds`): a bound of
another number of stages or micro-batches costs some additions. The least recently used sums make
room for new ones, so that a long search needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ..base.lru_cache import LruCache
from ..experiment import Experiment, Plan, Transformer, keys_of
from ..experiment.model_counts import samples
from ..prediction.hardware import Hardware, with_convolutions
from ..prediction.network import network_of
from ..prediction.prepared import kernel_models, with_step_constants
from ..schedules import SCHEDULES, parts_of_stage, pipeline
from ..workloads import check_layout
from ..workloads.grid import Grid
from ..workloads.layout import ModelChunk, networks_of, split_layers
from ..workloads.operators import LayerStack
from ..workloads.recomputation import recomputed_layers
from .layer_bounds import LayerBounds, LayerPrices, ShardedTimes
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
    "pipeline.run",
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

MOST_NETWORKS, MOST_PRICES, MOST_PLACES = 512, 64, 2**16
"""Kept of each kind: networks of layers (up to 100 KB each), clusters with their kernel models and
the times on each (:mod:`.layer_bounds`), and texts of what these depend on."""

MOST_PASSES = 40_000
"""Of all stages in a step, to be gone through: it takes a microsecond or two for each."""


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
        self._networks: LruCache[list[tuple[LayerStack, list[LayerBounds]]]] = LruCache(
            MOST_NETWORKS
        )
        self._prices: LruCache[LayerPrices] = LruCache(MOST_PRICES)
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
    ) -> list[tuple[LayerStack, list[LayerBounds]]]:
        """Return the networks of an experiment with the times of each layer."""
        transformer = isinstance(experiment.model, Transformer)
        plan = experiment.plan
        shape = (OF_LAYERS if transformer else OF_A_PLAN)(plan)
        price = self._price(experiment, hardware)
        # Passes of two micro-batches that take turns hide the communications of each other.
        schedule = SCHEDULES[plan.pipeline.schedule]
        alone = not (plan.overlap.ep or schedule.mirrored or schedule.pairs_passes)
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

    def _price(self, experiment: Experiment, hardware: Hardware) -> LayerPrices:
        """Return the durations on the hardware of an experiment."""
        on = (experiment.model, self._place(experiment), hardware.gpus)
        return self._prices.get(on, lambda: _new_prices(experiment, hardware))

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
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            self._places[same] = tuple(map(repr, parts)), parts  # held, so that no id is reused
        return self._places[same][0]


def _new_prices(experiment: Experiment, hardware: Hardware) -> LayerPrices:
    models, constants = kernel_models(experiment, hardware)
    folder, nodes = Path(experiment.source).parent, experiment.cluster.nodes
    network = network_of(hardware.cluster, nodes, experiment.network, folder)
    return LayerPrices(models, with_step_constants(network, constants))


def _added(times: LayerBounds, sharded: ShardedTimes) -> LayerBounds:
    """Return the times of a layer with the kernels of sharded parameters."""
    return times._replace(
        forward=times.forward + sharded.forward, backward=times.backward + sharded.backward
    )


def _times_of_chunks(
    plan: Plan, network: LayerStack, layers: Sequence[LayerBounds], chunks: Sequence[ModelChunk]
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
    """Whether `pipeline_time` applies: stages, parts in a loop, one pass after another."""
    schedule = SCHEDULES[plan.pipeline.schedule]
    passes = 2 * plan.pp * plan.vpp * micro_batches
    in_a_loop = not schedule.mirrored and not schedule.v_shaped
    return plan.pp > 1 and in_a_loop and not plan.overlap.ep and passes <= MOST_PASSES


def _pipeline_bound(
    plan: Plan, micro_batches: int, parts: Sequence[_ChunkTimes], message: int
) -> int:
    """Times of the parts of a pipeline, and of a message → `pipeline_time`."""
    schedule = pipeline(
        plan.pipeline.schedule, plan.pp, micro_batches, plan.vpp, run=plan.pipeline.run
    )
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
        own = parts_of_stage(plan.pipeline.schedule, stage, plan.pp, plan.vpp)
        busy = sum(parts[part].whole for part in own)
        # The message to the stage before need not wait for the last gradients of weights.
        after = 0 if schedule.splits_backward else max(0, tail - parts[stage].weights)
        least = max(least, lead + micro_batches * busy + after)
        lead += parts[stage].forward
        tail += parts[stage].inputs
    return least
