"""The table of one pipeline stage: blocks of passes, in the order of the schedule.

    model chunks, schedule, strategy ─► blocks (one for each kind of pass) ─► table

A schedule has thousands of actions but few kinds of them: forward, backward or gradients of weights
of a model chunk, or two of these that overlap; the first and the last of a step differ from the
others, since data parallelism gathers before the one and reduces after the other. Each kind is
written once as a `RowBlock`. The table is the blocks in the order of the actions, with messages to
other stages between them, what data parallelism does before the step, and the optimizer behind it.

Why one writer serves several tables
------------------------------------
Stages with equal layers and messages write the same blocks but for the numbers of their layers,
which a table adds at the end (`TableAssembler.first_layer`); only the order of the actions differs.
The same holds for steps with other numbers of micro-batches. Two things are particular to a stage:
the ends of a pipeline (tied embeddings, norms, how buckets are cut), and which actions overlap.
`StageWriter.key` therefore names all of this.

Beyond that, single blocks are shared between writers through the `BlockCache`, if the strategy of
data parallelism writes nothing in them (`StageWriter._is_written_into`): they then depend on
operators alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment.traced import weights_as_products
from ..program import Names, Phase, Table
from ..schedules import SCHEDULES, Action, Pipeline
from .assembly import AssembledBlocks, TableAssembler, spread
from .block_cache import BlockCache, Slots
from .block_rows import RowBlock
from .blocks import BlockBuilder
from .data_parallel import PassPoint, make_strategy
from .grid import Groups
from .host import host_of
from .input_pipeline import loads_images, write_input, write_wait
from .layout import Layout, ModelChunk
from .messages import PipelineMessages, messages_of_stage, streams
from .offloaded_activations import ActivationOffload, LayerCopies
from .offloaded_checkpoints import CheckpointOffload
from .operators import BackwardPart, Layer, Operator
from .optimizer import reduce_mirrored, write_optimizer
from .pricing import MAX_DURATION, Pricing
from .recomputation import recomputed_layers, recomputed_operators

__all__ = ["Pass", "StageTable", "StageWriter"]

_FORWARD = Phase.FORWARD
"""Members of an enumeration are slow to look up, and there are thousands of actions."""

_DONE = object()
"""Sentinel: the pass is written to its end."""


class Pass(NamedTuple):
    """One pass of a schedule: forward, backward, or gradients of weights of a model chunk.

    Attributes
    ----------
    phase : Phase
        FORWARD, BACKWARD or WEIGHT.
    chunk : int
    part : {"all", "input", "weight"}
        Of the backward.
    edge : bool
        Whether it is the chunk's first forward, or its last completion of gradients.
    """

    phase: Phase
    chunk: int
    part: BackwardPart
    edge: bool


@frozen
class StageTable:
    """The table of a stage.

    Attributes
    ----------
    table : Table
    slots : tuple of str
        Names of its communicator slots.
    flops : int
        Of its kernels.
    """

    table: Table
    slots: tuple[str, ...]
    flops: int


class StageWriter:
    """Write the blocks of a stage, each when it is first needed, and tables of them.

    Parameters
    ----------
    layout : Layout
    stage, network : int
    pipeline : Pipeline
        One of the layout's.
    names : Names
        Of the program's rows.
    pricing : Pricing
        Of the stage's kind of GPU.
    groups : Groups
    cache : BlockCache
        Of the step.
    """

    def __init__(
        self,
        layout: Layout,
        stage: int,
        network: int,
        pipeline: Pipeline,
        *,
        names: Names,
        pricing: Pricing,
        groups: Groups,
        cache: BlockCache,
    ) -> None:
        plan = layout.experiment.plan
        self._layout, self._stage, self._plan = layout, stage, plan
        self._network = network
        self._pricing, self._cache = pricing, cache
        self._chunks = layout.chunks(stage, network)
        self._first_block = _first_block(self._chunks)
        self._recomputes = [recomputed_layers(plan, chunk.numbers) for chunk in self._chunks]
        host = host_of(layout.experiment, layout.grid.world)
        kind = CheckpointOffload if plan.offloads_checkpoints else ActivationOffload
        self._offload: LayerCopies | None = (  # where there is no pipeline, so of the only chunk
            kind(self._chunks[0].layers, plan.offload, host.sharers)
            if plan.offload.activations
            else None
        )
        self._strategy = make_strategy(
            plan,
            [chunk.layers for chunk in self._chunks],
            groups,
            stage=stage,
            transformer=weights_as_products(layout.experiment.model),
            order=_forward_order(pipeline.actions[stage]),
            host=host,
        )
        shared = {**streams(plan.overlaps_p2p), **self._strategy.streams}
        if plan.overlap.mirror:  # behind the sums of the same gradients over data-parallel ranks
            shared["mirror"] = "dp"
        self._slots = Slots(groups.sizes, shared)
        # No method of this object: in a cycle its blocks would be kept until garbage is looked for.
        self._builder = partial(BlockBuilder, names, pricing, self._slots)
        self._messages = PipelineMessages(
            messages_of_stage(layout, pipeline, stage, network),
            len(self._chunks),
            overlap=plan.overlaps_p2p,
            builder=self._builder,
            synchronous=self._strategy.style == "megatron"
            and SCHEDULES[plan.pipeline.schedule].megatron,
        )
        begin = self._builder()
        self._strategy.begin(begin)
        self._begin = begin.done()
        self._loads = stage == 0 and loads_images(layout.experiment)
        self._blocks: dict[Hashable, RowBlock] = {}
        self._assembled = AssembledBlocks()
        self._end: RowBlock | None = None

    @staticmethod
    def key(layout: Layout, stage: int, network: int, pipeline: Pipeline) -> Hashable | None:
        """Return the key of a stage, all inputs of its blocks; None if blocks cannot be shared.

        Two stages of one kind of GPU with equal keys can share a writer.

        Parameters
        ----------
        layout : Layout
        stage, network : int
            Of the pipeline, from 0, and index into the layout's networks.
        pipeline : Pipeline
            One of the layout's.

        Returns
        -------
        hashable or None
            Compares by value.
        """
        if pipeline.columns[stage].paired.any():
            return None  # which passes overlap depends on the stage and on their number
        chunks = layout.chunks(stage, network)
        first = _first_block(chunks)
        return (
            tuple(
                (_runs(chunk.layers, "operators", "role"), _relative(chunk, first))
                for chunk in chunks
            ),
            tuple(messages_of_stage(layout, pipeline, stage, network).items()),
            stage if stage in (0, pipeline.stages - 1) else -1,
            min(pipeline.micro_batches, 2),  # with one, its forward is the first, its backward last
        )

    def table(self, layout: Layout, stage: int, network: int, pipeline: Pipeline) -> StageTable:
        """Return the table of the writer's stage, or of another one with the same key.

        Parameters
        ----------
        layout : Layout
        stage, network : int
            Of the pipeline, from 0, and index into the layout's networks.
        pipeline : Pipeline
            One of the layout's.

        Returns
        -------
        StageTable
            Of one training step; its rows have durations in ps, its FLOP are those of one rank.

        Raises
        ------
        InputError
            If its kernels together take longer than the simulation's clocks can hold.
        """
        label = "training step" if pipeline.stages == 1 else f"training step, stage {stage}"
        first = _first_block(layout.chunks(stage, network))
        rows = TableAssembler(label, first_layer=first - self._first_block, known=self._assembled)
        rows.add(self._begin)
        if self._loads:
            rows.add(self._input(pipeline.micro_batches))
        self._add_actions(rows, pipeline, stage)
        if self._end is None:  # after all others: what is still to be reduced depends on them
            end = self._builder()
            end.tags(phase=Phase.OPTIMIZER, layer=-1)
            write_optimizer(end, self._layout, self._stage, self._strategy, self._network)
            if self._loads:
                write_wait(end)
            self._end = end.done()
        rows.add(self._end)
        if rows.duration > MAX_DURATION:
            raise InputError(
                f"the kernels of one step take {rows.duration / 1e12:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        return StageTable(rows.table(), self._slots.names, rows.flops)

    def _input(self, micro_batches: int) -> RowBlock:
        """Return the block of rows that prepare the batch of the next step."""
        block = self._builder()
        write_input(block, self._layout, micro_batches * self._plan.micro_batch)
        return block.done()

    def _add_actions(self, rows: TableAssembler, pipeline: Pipeline, stage: int) -> None:
        """Append all passes of a step, with the messages between them.

        What comes between two units, and the passes of the second, depends on the kinds of both; so
        it is worked out once for every two kinds that follow each other, in the order in which they
        first do, and copied.
        """
        actions = pipeline.actions[stage]
        units = pipeline.units(stage, joins_turns=self._messages.joins_turns)
        blocks: list[RowBlock] = []
        numbers: dict[int, int] = {}  # of each block, which equals itself only
        used: list[int] = []  # by every kind of step, of all kinds end to end
        sources: list[tuple[int, ...]] = []  # actions that passes are of, from the step's first
        counts: list[int] = []
        for before, after in units.steps:
            found: list[tuple[RowBlock, tuple[int, ...]]] = []
            own = [actions[i] for turn in after for i in turn]
            found += self._messages.between([actions[i] for i in before], own)
            at = len(before)
            for turn in after:
                passes = [_pass(actions[i], bool(units.edge[i])) for i in turn]
                kinds = tuple(passes)
                if kinds not in self._blocks:
                    self._blocks[kinds] = self._block(passes)
                found.append((self._blocks[kinds], tuple(range(at, at + len(turn)))))
                at += len(turn)
            for block, of_actions in found:
                number = numbers.setdefault(id(block), len(blocks))
                if number == len(blocks):
                    blocks.append(block)
                used.append(number)
                sources.append(of_actions)
            counts.append(len(found))
        if not sources:
            return
        most = max(map(len, sources))
        padded = [each + each[:1] * (most - len(each)) for each in sources]
        step, item = spread(counts, units.step)
        source = np.array(padded, np.int64)[item] + units.first[step][:, None]
        micro_batches = pipeline.columns[stage].micro_batch[source]
        rows.extend(blocks, np.array(used, np.int64)[item], micro_batches)

    # --- blocks of passes -------------------------------------------------------------------------

    def _block(self, passes: Sequence[Pass]) -> RowBlock:
        """Return the block of one pass, or of two that overlap: where one waits, the other runs.

        The latter is how DeepSeek-V3 hides the communication of a forward behind the kernels of a
        backward and the reverse (arXiv:2412.19437, section 3.2.1).
        """
        chunks = [self._chunks[each.chunk] for each in passes]
        first = _first_block(chunks)
        if any(map(self._is_written_into, passes)):
            return self._write(passes, first)
        described = tuple(
            (
                each.phase,
                each.part,
                _runs(chunk.layers, "operators"),
                _relative(chunk, first),
                tuple(recomputed_layers(self._plan, chunk.numbers)),
            )
            for each, chunk in zip(passes, chunks, strict=True)
        )
        block = self._cache.get(
            (self._pricing, described), self._slots, lambda: self._write(passes, first)
        )
        return replace(block, first_layer=first)

    def _is_written_into(self, what: Pass) -> bool:
        """Whether data parallelism, offload of activations or eager sums may write into a pass."""
        strategy = self._strategy
        if self._offload is not None or self._mirrors(what):
            return True
        if not strategy.first_and_last_only:
            return True
        forward = what.phase is Phase.FORWARD
        return what.edge and (strategy.writes_in_first if forward else strategy.writes_in_last)

    def _write(self, passes: Sequence[Pass], first: int) -> RowBlock:
        """Write passes that alternate, with layers counted from the block `first` of the model."""
        builder = self._builder(self._cache if len(passes) == 1 else None)
        running = {
            number: self._write_pass(builder, each, first) for number, each in enumerate(passes)
        }
        while running:
            for number, writing in list(running.items()):
                builder.select_pass(number)
                if next(writing, _DONE) is _DONE:
                    del running[number]
        return builder.done(first)

    def _write_pass(self, builder: BlockBuilder, what: Pass, first: int) -> Iterator[None]:
        """Write a pass; yield where its next kernel has to wait for a communication."""
        builder.tags(phase=what.phase)
        numbers = _relative(self._chunks[what.chunk], first)
        write = self._forward if what.phase is Phase.FORWARD else self._backward
        for alike in self._alike(what):
            for i, layer in enumerate(alike):
                before = builder.mark() if i == 1 and len(alike) > 2 else None
                builder.tags(layer=numbers[layer])
                yield from write(builder, what, layer)
                if before and builder.repeat_layer(before, [numbers[each] for each in alike[2:]]):
                    break

    def _alike(self, what: Pass) -> Iterator[list[int]]:
        """Yield runs of layers that write the same rows, in the order of a pass."""
        layers, recomputes = self._chunks[what.chunk].layers, self._recomputes[what.chunk]
        forward, into = what.phase is Phase.FORWARD, self._is_written_into(what)

        def kind(layer: int) -> Hashable:
            writes = into and self._strategy.writes_in_layer(what.chunk, layer, forward=forward)
            writes = writes or (self._offload is not None and self._offload.writes(layer))
            writes = writes or (layer == 0 and self._mirrors(what))
            return layers[layer].operators, recomputes[layer], layer if writes else -1

        order = range(len(layers)) if forward else reversed(range(len(layers)))
        for _, alike in groupby(order, kind):
            yield list(alike)

    def _forward(self, builder: BlockBuilder, what: Pass, layer: int) -> Iterator[None]:
        """Write the forward of a layer of a pass's chunk."""
        operators, strategy = self._chunks[what.chunk].layers[layer].operators, self._strategy
        at = PassPoint(builder, what.chunk, layer, what.edge)
        if self._offload is not None:
            self._offload.before_forward(builder, layer)
        strategy.before_forward(at)
        begin = 0
        for j in self._written_operators(what, layer):
            yield from builder.write_operators(operators[begin:j], "forward")
            strategy.before_operator(at._replace(operator=j))
            begin = j
        yield from builder.write_operators(operators[begin:], "forward")
        strategy.after_forward(at)
        if self._offload is not None:
            self._offload.after_forward(builder, layer)

    def _backward(self, builder: BlockBuilder, what: Pass, layer: int) -> Iterator[None]:
        """Write the backward of a layer of a pass's chunk, or the part of it that the pass is."""
        inputs, weights = what.part != "weight", what.part != "input"
        operators, strategy = self._chunks[what.chunk].layers[layer].operators, self._strategy
        at = PassPoint(builder, what.chunk, layer, what.edge)
        recomputes = self._recomputes[what.chunk][layer]
        if inputs:
            if self._offload is not None:
                self._offload.before_backward(builder, layer)
            strategy.before_backward(at)
            if recomputes:
                yield from self._recompute(builder, recomputed_operators(self._plan, operators))
        selective = inputs and not recomputes and self._recomputes_selectively
        end = len(operators)
        for j in reversed(self._written_operators(what, layer)):
            yield from self._gradients(builder, operators[j + 1 : end], what.part, selective)
            at_operator = at._replace(operator=j)
            if inputs:
                strategy.before_gradients(at_operator)
            yield from self._gradients(builder, operators[j : j + 1], what.part, selective)
            if weights:
                strategy.after_gradients(at_operator)
            end = j
        yield from self._gradients(builder, operators[:end], what.part, selective)
        if weights:
            strategy.after_backward(at)
        if layer == 0 and self._mirrors(what):
            reduce_mirrored(builder, strategy, what.chunk)

    def _mirrors(self, what: Pass) -> bool:
        """Whether a pass makes the last gradients of a chunk that are added up at once."""
        last = what.edge and what.phase is not Phase.FORWARD and what.part != "input"
        return last and self._plan.overlap.mirror

    @property
    def _recomputes_selectively(self) -> bool:
        return self._plan.recompute.granularity == "selective"

    def _written_operators(self, what: Pass, layer: int) -> Sequence[int]:
        """Return the operators of a layer of a pass's chunk at which data parallelism may write."""
        if not self._is_written_into(what):
            return ()
        forward = what.phase is Phase.FORWARD
        return self._strategy.operators_written(what.chunk, layer, forward=forward)

    def _gradients(
        self,
        builder: BlockBuilder,
        operators: Sequence[Operator],
        part: BackwardPart,
        selective: bool,
    ) -> Iterator[None]:
        """Write the backward of operators, the last first; compute selective ones again."""
        if not selective:
            yield from builder.write_operators(operators[::-1], part)
            return
        for operator in reversed(operators):
            if operator.selective:
                yield from self._recompute(builder, [operator])
            yield from builder.write_operator(operator, part)

    def _recompute(self, builder: BlockBuilder, operators: Sequence[Operator]) -> Iterator[None]:
        builder.tags(phase=Phase.RECOMPUTE)
        yield from builder.write_operators(operators, "forward")
        builder.tags(phase=Phase.BACKWARD)


def _first_block(chunks: Sequence[ModelChunk]) -> int:
    """Return the lowest number of a block that any of the chunks holds; 0 if none does."""
    return min((n for chunk in chunks for n in chunk.numbers if n >= 0), default=0)


def _runs(layers: Sequence[Layer], *attributes: str) -> tuple[Hashable, ...]:
    """Return what layers are, and how many of those that follow each other are equal in that.

    As a key it stands for all of them, and takes a hash of each run in place of each layer.
    """
    return tuple(
        (kind, len(list(alike))) for kind, alike in groupby(layers, attrgetter(*attributes))
    )


def _relative(chunk: ModelChunk, first: int) -> tuple[int, ...]:
    """Return the numbers of a chunk's layers, counted from a block; -1 for embedding and head."""
    return tuple(n - first if n >= 0 else -1 for n in chunk.numbers)


# --- actions --------------------------------------------------------------------------------------


def _forward_order(actions: Sequence[Action]) -> tuple[int, ...]:
    """Return the chunks of a stage in the order of their first forward."""
    return tuple(dict.fromkeys(each.chunk for each in actions if each.phase is _FORWARD))


def _pass(action: Action, edge: bool) -> Pass:
    part: BackwardPart = (
        "weight" if action.phase is Phase.WEIGHT else "input" if action.split else "all"
    )
    return Pass(action.phase, action.chunk, part, edge)
