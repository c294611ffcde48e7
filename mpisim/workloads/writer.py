"""Writes the tables of pipeline stages, what is alike in several of them once.

Most stages of a pipeline hold layers of the same kinds and send the same messages. Their blocks are
those of the first such stage but for the numbers of the layers; only their order differs. The same
holds for a step with another number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..base.errors import InputError
from ..experiment import Transformer
from ..program import Names, Phase, Table
from ..schedules import Action, Pipeline
from .assembly import TableAssembler
from .blocks import Block
from .data_parallel import make_strategy
from .fragments import Fragments
from .groups import Groups
from .layout import Layout
from .messages import Exchanged, Messages, exchanged, streams
from .optimizer import write_optimizer
from .parts import Part
from .pricing import LONGEST, Pricing
from .shelf import Shelf
from .slots import Slots
from .stage import Pass, Stage

__all__ = ["Workshop", "Written"]

OF_MEGATRON = ("1f1b", "interleaved")
"""Schedules that Megatron-LM has."""

_FORWARD, _WEIGHT = Phase.FORWARD, Phase.WEIGHT
"""Looked up once: there are thousands of actions."""

Kinds = tuple[tuple[bool, bool, int, bool, bool], ...]
"""What tells the passes of a turn apart."""


@dataclass(frozen=True)
class Written:
    """A table, the names of its slots, and the FLOPs of its kernels."""

    table: Table
    slots: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class Workshop:
    """What the tables of a step have in common, also with those of a step of another length.

    Attributes
    ----------
    names : Names
        Of rows.
    pricings : tuple of Pricing
        Of kernels, on each kind of GPU.
    groups : Groups
    shelf : Shelf
    fragments : Fragments
    """

    names: Names
    pricings: tuple[Pricing, ...]
    groups: Groups
    shelf: Shelf
    fragments: Fragments
    _writers: dict[Hashable, _Writer] = field(default_factory=dict)

    def table(self, layout: Layout, laid: Pipeline, network: int, stage: int, gpu: int) -> Written:
        """Return the table of a stage.

        Parameters
        ----------
        layout : Layout
            Of the plan, with the same networks each time.
        laid : Pipeline
            One of the layout's.
        network, stage, gpu : int
            Which of the networks, stages and kinds of GPU.

        Raises
        ------
        InputError
            If its kernels together take longer than the simulation's clocks can hold.
        """
        plan, parts = layout.experiment.plan, layout.parts[network]
        chunks = layout.chunks(stage, network)
        messages = exchanged(
            laid, stage, lambda part: parts[part].layers[-1].output, plan.message_shares
        )
        first = _first(chunks)
        key: Hashable = (
            gpu,
            tuple(_described(chunk, first) for chunk in chunks),
            tuple(messages.items()),
            # What the optimizer adds up, and how buckets are cut, is another thing at the ends.
            stage if stage in (0, laid.stages - 1) else -1,
            min(laid.micro_batches, 2),
        )
        if any(action.paired for action in laid.actions[stage]):
            key = object()  # which passes are paired depends on the stage and on their number
        if key not in self._writers:
            pricing = self.pricings[gpu]
            order = _order(laid.actions[stage])
            self._writers[key] = _Writer(layout, chunks, messages, stage, order, pricing, self)
        return self._writers[key].table(laid, stage, first)


def _first(chunks: Sequence[Part]) -> int:
    """Return the lowest number of a block, from which the others are counted."""
    return min((n for chunk in chunks for n in chunk.numbers if n >= 0), default=0)


def _described(chunk: Part, first: int) -> Hashable:
    """Return all that tells what passes of a chunk write from what those of other chunks do.

    These are the operators of the layers (layers of one kind share them) and the layers' numbers.
    """
    numbers = tuple(n - first if n >= 0 else None for n in chunk.numbers)
    return tuple((id(layer.operators), layer.role) for layer in chunk.layers), numbers


class _Writer:
    """Writes the blocks of a stage, each when it is first asked for, and tables of them.

    Parameters
    ----------
    layout : Layout
    chunks : sequence of Part
        That the stage holds.
    messages : mapping
        What they send and receive.
    stage : int
    order : sequence of int
        Chunks as they first come forward.
    pricing : Pricing
    workshop : Workshop
    """

    def __init__(
        self,
        layout: Layout,
        chunks: Sequence[Part],
        messages: Exchanged,
        stage: int,
        order: Sequence[int],
        pricing: Pricing,
        workshop: Workshop,
    ) -> None:
        plan = layout.experiment.plan
        self._layout, self._stage, self._first = layout, stage, _first(chunks)
        self._sharing = make_strategy(
            plan,
            [chunk.layers for chunk in chunks],
            workshop.groups,
            stage=stage,
            transformer=isinstance(layout.experiment.model, Transformer),
            order=order,
        )
        self._slots = Slots(
            workshop.groups.sizes, {**streams(plan.overlaps_p2p), **self._sharing.streams}
        )
        self._writer = Stage(
            workshop.names,
            pricing,
            self._slots,
            plan,
            chunks,
            self._sharing,
            workshop.shelf,
            workshop.fragments,
        )
        self._messages = Messages(
            messages,
            len(chunks),
            overlap=plan.overlaps_p2p,
            builder=self._writer.builder,
            synchronous=self._sharing.style == "megatron" and plan.schedule in OF_MEGATRON,
        )
        begin = self._writer.builder()
        self._sharing.begin(begin)
        self._begin = begin.done()
        self._known: dict[Kinds, Block] = {}
        self._end: Block | None = None

    def table(self, laid: Pipeline, stage: int, first: int) -> Written:
        """Return the table of a stage whose layers are counted from `first`."""
        label = "training step" if laid.stages == 1 else f"training step, stage {stage}"
        rows = TableAssembler(label, further=first - self._first)
        rows.add(self._begin)
        before: list[Action] = []
        edges = _edges(laid.actions[stage])
        for unit in (*self._messages.units(_turns(laid.actions[stage])), []):
            actions = [action for turn in unit for action in turn]
            for block, micro_batches in self._messages.between(before, actions):
                rows.add(block, *micro_batches)
            for turn in unit:
                kinds = tuple([_kind(action, id(action) in edges) for action in turn])
                if kinds not in self._known:
                    passes = [_pass(action, id(action) in edges) for action in turn]
                    self._known[kinds] = self._writer.block(*passes)
                rows.add(self._known[kinds], *[action.micro_batch for action in turn])
            before = actions
        if self._end is None:  # after all others: what is still to be done depends on them
            end = self._writer.builder()
            end.tags(phase=Phase.OPTIMIZER, layer=-1)
            write_optimizer(end, self._layout, self._stage, self._sharing)
            self._end = end.done()
        rows.add(self._end)
        if rows.duration > LONGEST:
            raise InputError(
                f"the kernels of one step take {rows.duration / 1e12:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        return Written(rows.table(), self._slots.names, rows.flops)


def _turns(actions: Sequence[Action]) -> list[list[Action]]:
    """Group paired actions."""
    found: list[list[Action]] = []
    for action in actions:
        if not action.paired:
            found.append([])
        found[-1].append(action)
    return found


def _order(actions: Sequence[Action]) -> tuple[int, ...]:
    """Return the chunks of a stage as they first come forward."""
    return tuple(dict.fromkeys(each.chunk for each in actions if each.phase is _FORWARD))


def _edges(actions: Sequence[Action]) -> set[int]:
    """Return the ids of each chunk's first forward, and of its last gradients of weights."""
    first: dict[int, Action] = {}
    last: dict[int, Action] = {}
    for action in actions:
        if action.phase is _FORWARD:
            first.setdefault(action.chunk, action)
        elif not action.split:
            last[action.chunk] = action
    return {id(action) for action in (*first.values(), *last.values())}


def _kind(action: Action, edge: bool) -> tuple[bool, bool, int, bool, bool]:
    """Return what tells passes apart; phases are left out, whose hashes are slow."""
    forward, weight = action.phase is _FORWARD, action.phase is _WEIGHT
    return forward, weight, action.chunk, action.split, edge


def _pass(action: Action, edge: bool) -> Pass:
    part = "weight" if action.phase is Phase.WEIGHT else "input" if action.split else "all"
    return Pass(action.phase, action.chunk, part, edge)
