"""Operators of a pass → `RowBlock`, whose rows are copied for every micro-batch.

    operators ─► BlockBuilder ─► tasks ─► TaskWriter (:mod:`.task_writer`) ─► RowBlock ─► table

If no communication with a token is under way, what an operator writes depends on the state of the
pass through ``LAST`` and ``PENDING`` alone; so it is written once into an empty block
(`OperatorRows`) and copied, with the rows of the pass in place of the ports.

Operators that follow each other are copied together: a layer has a dozen of them, and a stage
dozens of equal layers. So they are only *deferred* (`BlockBuilder.write_operator`) until anything
else is written or asked of the block, and the rows of all are kept under the whole sequence. Every
method that writes or reads rows calls `_write_deferred` first.

Layers that follow each other and are equal are written twice and then repeated
(`BlockBuilder.repeat_layer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from ..program import Mark, Names
from .block_cache import BlockCache, Slots
from .block_rows import OperatorRows
from .operators import Operator, OperatorPart
from .pass_state import PassState
from .pricing import Pricing
from .task_writer import TaskWriter

__all__ = ["BlockBuilder", "BlockMark"]


class BlockMark(NamedTuple):
    """A position in a block that is being written.

    Attributes
    ----------
    rows : Mark
    state : PassState
    flops, duration : int
        Of the kernels before it.
    """

    rows: Mark
    state: PassState
    flops: int
    duration: int


class BlockBuilder(TaskWriter):
    """Write operators into a block; what several write alike is written once and copied.

    Parameters
    ----------
    names : Names
        Of the rows.
    pricing : Pricing
    slots : Slots
        Of the table.
    cache : BlockCache, optional
        Of operators' rows. Not for blocks in which passes alternate, also inside an operator.
    """

    def __init__(
        self, names: Names, pricing: Pricing, slots: Slots, cache: BlockCache | None = None
    ) -> None:
        super().__init__(names, pricing, slots)
        self._cache = cache
        self._deferred: list[tuple[Operator, OperatorPart]] = []

    # --- operators --------------------------------------------------------------------------------

    def write_operator(self, operator: Operator, part: OperatorPart) -> Iterable[None]:
        """Write a part of an operator, or copy its rows; yield as `write_in_turn` does.

        What is copied is there once anything else is written or asked for.

        Parameters
        ----------
        operator : Operator
        part : {"forward", "all", "input", "weight"}
            The forward, or a part of the backward.
        """
        idle = self._deferred or self._pass.idle
        if self._cache is not None and idle and not operator.carries:
            self._deferred.append((operator, part))
            return ()
        return self.write_in_turn(operator.tasks(part))

    def write_operators(self, operators: Sequence[Operator], part: OperatorPart) -> Iterable[None]:
        """Write the same part of operators one after another, as `write_operator` does each.

        Parameters
        ----------
        operators : sequence of Operator
            In the order in which they are written.
        part : {"forward", "all", "input", "weight"}
            The forward, or a part of the backward.
        """
        idle = self._deferred or self._pass.idle
        if self._cache is not None and idle and not any(each.carries for each in operators):
            self._deferred.extend((each, part) for each in operators)
            return ()
        return chain.from_iterable(self.write_operator(each, part) for each in operators)

    def _write_deferred(self) -> None:
        """Copy the rows of the operators that were deferred."""
        if not self._deferred or self._cache is None:
            return
        some, self._deferred = tuple(self._deferred), []
        self.append(self._rows_of(some, self._cache))
        self.pricing.note(task for operator, part in some for task in operator.tasks(part))

    def _rows_of(
        self, some: tuple[tuple[Operator, OperatorPart], ...], cache: BlockCache
    ) -> OperatorRows:
        """Return the rows of parts of operators in sequence."""
        return cache.get(
            (self.pricing, some), self.slots, lambda: self._rows_of_operators(some, cache)
        )

    def _rows_of_operators(
        self, some: tuple[tuple[Operator, OperatorPart], ...], cache: BlockCache
    ) -> OperatorRows:
        """Write parts of operators into an empty block; of several, copy what each writes."""
        alone = TaskWriter(self._rows.names, self.pricing, self.slots)
        if len(some) == 1:
            operator, part = some[0]
            alone.write(operator.tasks(part))
        else:
            for each in some:
                alone.append(self._rows_of((each,), cache))
        return alone.operator_rows()

    # --- layers -----------------------------------------------------------------------------------

    def mark(self) -> BlockMark:
        """Return the current position, before a layer that `repeat_layer` may copy."""
        self._write_deferred()
        state = self._pass.moved(0)
        return BlockMark(self._rows.mark(), state, self.flops, self.duration)

    def repeat_layer(self, before: BlockMark, layers: Sequence[int]) -> bool:
        """Copy the rows of the latest layer, for further ones of the same operators.

        Rows depend on operators and state alone. So where a layer leaves the state that it began
        with, apart from row numbers, the next equal layer writes the same rows again.

        Parameters
        ----------
        before : BlockMark
            Where the layer began.
        layers : sequence of int
            Numbers of the further ones, one or more, counted from the first layer of the block.

        Returns
        -------
        bool
            False where the state differs, or passes may alternate: then nothing is copied.
        """
        self._write_deferred()
        n = len(self._rows) - before.rows.rows
        if self._cache is None or not before.state.moved(n).writes_as(self._pass):
            return False
        times = len(layers)
        self._rows.repeat_layer(before.rows, layers)
        self._passes[0] = self._pass = self._pass.moved(times * n)
        self._pass.tags["layer"] = layers[-1]
        self.flops += times * (self.flops - before.flops)
        self.duration += times * (self.duration - before.duration)
        return True
