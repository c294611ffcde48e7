"""Recorded rank of a pipeline → its passes in a step, the rows of each, messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..program import Table
from .parallel_order import Pass, PipelineOrder

__all__ = ["RecordedPass", "RecordedStage", "Signs"]

MIN_PARAMETER_BYTES = 4096
"""Bytes from which on a collective inside a stage is of parameters, not of a norm or a flag."""

Signs = NDArray[np.int64]
"""Of each row, which sort it is of."""


class RecordedPass(NamedTuple):
    """Rows of a pass: before its layers, those of each in the order of running, and behind them.

    What the last stage does between its forward and its backward is behind the forward, where one
    follows the other at once; else the head's backward is before the backward.
    """

    before: list[int]
    layers: list[list[int]]
    behind: list[int]


@dataclass(eq=False)
class RecordedStage:
    """Passes, rows and messages of one rank of a pipeline in a step.

    Attributes
    ----------
    table : Table
    slots : int, shape (n_slots,)
    token : dict of int to str
        Row of a message → which it is.
    units : dict of (tuple, bool or None) to list of list of int
        Messages that are exchanged at once, and whether the pass before them is a forward (None:
        there is none) → rows of each time, the CPU's waits for them included.
    order : PipelineOrder
        The first that the messages of all ranks are of.
    layers : int
        Of each chunk.
    prologue, epilogue : list of int
        Rows before the first pass and behind the last, but for those of `gathers` and `reduces`.
    gathers, reduces : list of list of int
        Communications over replicas beside the first forward of each chunk, and beside its last
        backward.
    ahead : int
        Of `gathers`, how many are launched before the first pass.
    helpers : dict of int to list of int
        Row of a communication over replicas → the kernels that make its buffer.
    bulk, bulk_gathers : set of int
        All large communications over replicas, and those that gather.
    ends : set of int
        Communications of the first and the last stage of a pipeline.
    """

    table: Table
    slots: NDArray[np.int32]
    names: list[str]
    """Of each slot, the axes that it spans."""
    peer: dict[int, int]
    """Row of a message → the other stage."""
    bulk: set[int]
    bulk_gathers: set[int]
    ends: set[int]
    stage: int
    order: PipelineOrder = field(init=False)
    keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """Stream → what it is for."""
    token: dict[int, str] = field(default_factory=dict)
    units: dict[tuple[tuple[str, ...], bool | None], list[list[int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    early: set[int] = field(default_factory=set)
    """Messages that wait for nothing of the pass before them: receives posted beside it."""
    layers: int = 0
    prologue: list[int] = field(default_factory=list)
    epilogue: list[int] = field(default_factory=list)
    gathers: list[list[int]] = field(default_factory=list)
    reduces: list[list[int]] = field(default_factory=list)
    ahead: int = 1
    helpers: dict[int, list[int]] = field(default_factory=dict)
    passes: dict[Pass, RecordedPass] = field(default_factory=dict)
    patterns: tuple[Signs, Signs] | None = None
    """Signatures of a layer's rows, forward and backward."""

    @cached_property
    def reduced(self) -> int:
        """Bytes of gradients that are reduced over replicas."""
        return int(self.table.bytes[sorted(self.bulk - self.bulk_gathers)].sum())

    @cached_property
    def reduced_of_experts(self) -> int:
        """Of `reduced`, bytes of gradients of experts."""
        rows = [row for row in self.bulk - self.bulk_gathers if self.is_of_experts(row)]
        return int(self.table.bytes[rows].sum())

    @property
    def gathers_early(self) -> bool:
        """Whether it begins to gather parameters before its first message has come."""
        first = next((row for rows in self.gathers for row in rows), None)
        return first is not None and first < min(self.token)

    @cached_property
    def receives_early(self) -> bool:
        """Whether a receive behind a pass of the other direction was posted before that pass."""
        crossing = ((("receive backward",), True), (("receive forward",), False))
        times = (rows for key in crossing for rows in self.units.get(key, ()))
        return any(rows[0] in self.early for rows in times)

    @property
    def tied(self) -> int:
        """Bytes of the embedding's gradients that first and last stage add up; 0 if they do not."""
        return int(max((self.table.bytes[row] for row in self.ends), default=0))

    @property
    def is_last(self) -> bool:
        """Whether the stage has head and loss."""
        return self.stage == self.order.stages - 1

    # --- single rows ------------------------------------------------------------------------------

    def stream_key(self, row: int) -> tuple[Any, ...]:
        """What the stream of a row is for; () for the CPU's."""
        return self.keys.get(int(self.table.stream[row]), ())

    def waits(self, row: int) -> list[int]:
        """Rows that a row waits for."""
        index = self.table.wait_index
        return self.table.wait_row[index[row] : index[row + 1]].tolist()

    def is_inside(self, row: int) -> bool:
        """Whether a communication adds up what ranks of one layer have: gradients of norms."""
        axes = self.names[self.table.slot[row]].split("-")
        return set(axes) <= {"tp", "cp"} and int(self.table.bytes[row]) >= MIN_PARAMETER_BYTES

    def is_of_experts(self, row: int) -> bool:
        """Whether a communication over replicas is of experts: over those of one share of them."""
        several = any("ep" in name.split("-") for name in self.names)
        return several and "ep" not in self.names[self.table.slot[row]].split("-")

    def ordinal(self, slot: int) -> int:
        """Number of a slot among those that span the same axes."""
        return self.names[:slot].count(self.names[slot])
