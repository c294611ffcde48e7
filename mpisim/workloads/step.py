"""One training step of an experiment as a program.

    experiment ─► grid of ranks ─► network in one rank's shapes ─► parts of the pipeline
               ─► blocks (forward, backward, …) ─► one table a stage ─► program

Ranks at the same stage do the same things and share a table; where ranks differ by network (tables
of a recommendation model), number of micro-batches or GPU, there is one table for each that
differs. Communications are unpriced: the engine asks a cost model for their durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..experiment import Transformer
from ..kernels import KernelModel
from ..program import Names, Phase, Program, Table
from .assembly import TableAssembler
from .blocks import Block, Slots
from .data_parallel import strategy
from .groups import Groups, program_of
from .layout import Layout
from .messages import Messages, streams
from .optimizer import write_optimizer
from .pricing import LONGEST, Pricing
from .schedules import Action, Pipeline
from .shelf import Shelf
from .stage import Pass, Stage

__all__ = ["Workload", "training_step"]

OF_MEGATRON = ("1f1b", "interleaved")
"""Schedules that Megatron-LM has."""


@dataclass(frozen=True)
class Workload:
    """A program and what its durations rest on.

    Attributes
    ----------
    layout : Layout
    program : Program
    pricings : tuple of Pricing
        Of kernels and launches, on each kind of GPU.
    flops : int
        Model FLOPs of the step over all GPUs, see `Network.flops`.
    executed_flops : int
        Those of the kernels the GPUs run, recomputation included.
    tokens : int
        Tokens (images, samples) of the step.
    """

    layout: Layout
    program: Program
    pricings: tuple[Pricing, ...]
    flops: int
    executed_flops: int
    tokens: int

    def pricing_of(self, rank: int) -> Pricing:
        """Return the pricing of a rank's kernels."""
        kinds = self.layout.gpu_of
        return self.pricings[0 if kinds is None else int(kinds[rank])]


def training_step(layout: Layout, *kernels: KernelModel) -> Workload:
    """Return the program of one training step.

    Parameters
    ----------
    layout : Layout
    *kernels : KernelModel
        Each prices the kernels of one kind of GPU.

    Raises
    ------
    InputError
        If a rank's kernels together take longer than the simulation's clocks can hold.
    """
    experiment, grid, plan = layout.experiment, layout.grid, layout.experiment.plan
    names = Names()
    launching = {"cuda_graphs": plan.cuda_graphs, "launch_blocking": plan.launch_blocking}
    pricings = tuple(Pricing(each, **launching) for each in kernels)
    groups = Groups(grid, plan.zero_group)
    shelf = Shelf()
    pipeline = np.zeros(grid.world, int) if layout.pipeline_of is None else layout.pipeline_of
    gpu = np.zeros(grid.world, int) if layout.gpu_of is None else layout.gpu_of
    shape = (len(layout.networks), grid.pp, len(layout.pipelines), len(pricings))
    kinds = np.ravel_multi_index((layout.network, grid.stage, pipeline, gpu), shape)
    found, table = np.unique(kinds, return_inverse=True)
    tables: list[Table] = []
    slots: list[tuple[str, ...]] = []
    executed = 0
    for i, kind in enumerate(found.tolist()):
        network, stage, which, on = map(int, np.unravel_index(kind, shape))
        written = _Table(
            layout, layout.pipelines[which], network, stage, names, pricings[on], groups, shelf
        )
        tables.append(written.table)
        slots.append(written.slots)
        executed += written.flops * int(np.count_nonzero(table == i))
    program = program_of(
        tuple(names), tables, slots, table, groups,
        {"source": "workload generator", "title": experiment.title},
    )  # fmt: skip
    times = layout.micro_batches
    return Workload(
        layout=layout,
        program=program,
        pricings=pricings,
        flops=layout.networks[0].flops * times,
        executed_flops=executed,
        tokens=layout.networks[0].tokens * times,
    )


class _Table:
    """Writes the table of one stage."""

    def __init__(
        self, layout: Layout, laid: Pipeline, network: int, stage: int, names: Names,
        pricing: Pricing, groups: Groups, shelf: Shelf,
    ) -> None:  # fmt: skip
        plan = layout.experiment.plan
        parts = layout.parts[network]
        chunks = layout.chunks(stage, network)
        layers = [chunk.layers for chunk in chunks]
        sharing = strategy(
            plan, layers, groups, stage=stage,
            transformer=isinstance(layout.experiment.model, Transformer),
        )  # fmt: skip
        slots = Slots(groups.sizes, {**streams(plan.overlaps_p2p), **sharing.streams})
        writer = Stage(names, pricing, slots, plan, chunks, sharing, shelf)
        messages = Messages(
            laid, stage, lambda part: parts[part].layers[-1].output,
            overlap=plan.overlaps_p2p, split=plan.message_shares, builder=writer.builder,
            synchronous=sharing.style == "megatron" and plan.schedule in OF_MEGATRON,
        )  # fmt: skip

        label = "training step" if laid.stages == 1 else f"training step, stage {stage}"
        rows = TableAssembler(label)
        begin = writer.builder()
        sharing.begin(begin)
        rows.add(begin.done())
        before: list[Action] = []
        known: dict[tuple[tuple[bool, bool, int, bool, bool], ...], Block] = {}
        turns = _turns(laid.actions[stage])
        edges = _edges(laid.actions[stage])
        for unit in (*messages.units(turns), []):
            actions = [action for turn in unit for action in turn]
            for block, micro_batches in messages.between(before, actions):
                rows.add(block, *micro_batches)
            for turn in unit:
                kinds = tuple([_kind(action, id(action) in edges) for action in turn])
                if kinds not in known:
                    passes = [_pass(action, id(action) in edges) for action in turn]
                    known[kinds] = writer.block(*passes)
                rows.add(known[kinds], *[action.micro_batch for action in turn])
            before = actions
        end = writer.builder()
        end.tags(phase=Phase.OPTIMIZER, layer=-1)
        write_optimizer(end, layout, stage, sharing)
        rows.add(end.done())
        if rows.duration > LONGEST:
            raise InputError(
                f"the kernels of one step take {rows.duration / 1e12:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        self.table, self.slots, self.flops = rows.table(), slots.names, rows.flops


def _turns(actions: Sequence[Action]) -> list[list[Action]]:
    """Group paired actions."""
    found: list[list[Action]] = []
    for action in actions:
        if not action.paired:
            found.append([])
        found[-1].append(action)
    return found


def _edges(actions: Sequence[Action]) -> set[int]:
    """Return the ids of each chunk's first forward, and of its last gradients of weights."""
    first: dict[int, Action] = {}
    last: dict[int, Action] = {}
    for action in actions:
        if action.phase is Phase.FORWARD:
            first.setdefault(action.chunk, action)
        elif not action.split:
            last[action.chunk] = action
    return {id(action) for action in (*first.values(), *last.values())}


def _kind(action: Action, edge: bool) -> tuple[bool, bool, int, bool, bool]:
    """Return what tells passes apart; phases are left out, whose hashes are slow."""
    forward, weight = action.phase is Phase.FORWARD, action.phase is Phase.WEIGHT
    return forward, weight, action.chunk, action.split, edge


def _pass(action: Action, edge: bool) -> Pass:
    part = "weight" if action.phase is Phase.WEIGHT else "input" if action.split else "all"
    return Pass(action.phase, action.chunk, part, edge)
