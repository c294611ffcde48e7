"""A recorded stage of a pipeline → its passes, and the layers that repeat in them.

Messages to and from neighbours cut the rows of a rank into passes, whose order is known if they are
those of 1F1B or GPipe. In a pass of a stage the same rows follow each other once a layer; what is
besides lies at one end: the embedding before the first layer, head and loss behind the last. The
first stage's forward ends with a layer, and its backward begins with one, so that the repetition is
anchored there; in the passes of other stages the same rows are looked for.

Reductions of gradients in the last backward, gathers of parameters in the first forward, and the
kernels that these need, are no part of the repetition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..program import Flag, Kind, Operation, Program, Table
from .parallel_order import ORDERS, RECEIVE, SEND, Unit, stage_order
from .parallel_structure import EMBEDDING, ParallelStructure, bulk_rows

__all__ = ["RecordedStage", "recorded_stage"]

LEAST_BYTES = 4096
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
    """What one rank of a pipeline did in a step.

    Attributes
    ----------
    table : Table
    slots : int, shape (n_slots,)
    token : dict of int to str
        Row of a message → which it is.
    units : dict of tuple to list of list of int
        Messages that are exchanged at once → rows of each time, the CPU's waits for them included.
    micro_batches : int
    schedule : str
        One of `ORDERS`: the first that the messages are of.
    layers : int
    prologue, epilogue : list of int
        Rows before the first pass and behind the last, but for those of `gathers` and `reduces`.
    gathers, reduces : list of int
        Communications over replicas beside the first forward, and beside the last backward.
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
    keys: dict[int, tuple[Any, ...]]
    """Stream → what it is for."""
    token: dict[int, str]
    units: dict[tuple[str, ...], list[list[int]]]
    bulk: set[int]
    bulk_gathers: set[int]
    ends: set[int]
    stage: int = 0
    stages: int = 0
    micro_batches: int = 0
    schedule: str = ""
    layers: int = 0
    prologue: list[int] = field(default_factory=list)
    epilogue: list[int] = field(default_factory=list)
    gathers: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    ahead: int = 1
    helpers: dict[int, list[int]] = field(default_factory=dict)
    passes: dict[int, RecordedPass] = field(default_factory=dict)
    """By micro-batch, as of `Unit`."""
    patterns: tuple[Signs, Signs] | None = None
    """Signatures of a layer's rows, forward and backward."""

    @property
    def fused(self) -> bool:
        """Whether messages of two directions are exchanged at once."""
        return any(len(unit) > 1 for unit in self.units)

    @cached_property
    def reduced(self) -> int:
        """Bytes of gradients that are reduced over replicas."""
        return int(self.table.bytes[sorted(self.bulk - self.bulk_gathers)].sum())

    @property
    def gathers_early(self) -> bool:
        """Whether it begins to gather parameters before its first message has come."""
        return bool(self.gathers) and self.gathers[0] < min(self.token)

    @property
    def tied(self) -> int:
        """Bytes of the embedding's gradients that first and last stage add up; 0 if they do not."""
        return int(max((self.table.bytes[row] for row in self.ends), default=0))

    @property
    def is_last(self) -> bool:
        """Whether the stage has head and loss."""
        return self.stage == self.stages - 1

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
        return set(axes) <= {"tp", "cp"} and int(self.table.bytes[row]) >= LEAST_BYTES

    def ordinal(self, slot: int) -> int:
        """Number of a slot among those that span the same axes."""
        return self.names[:slot].count(self.names[slot])


def recorded_stage(
    program: Program,
    structure: ParallelStructure,
    rank: int,
    signatures: dict[tuple[Any, ...], int],
    first: RecordedStage | None = None,
) -> RecordedStage:
    """Find passes and layers in what a rank did. Local.

    Parameters
    ----------
    program : Program
    structure : ParallelStructure
    rank : int
        Simulated.
    signatures : dict
        Numbers of the sorts of rows that were met before; those of this rank are added.
    first : RecordedStage, optional
        First stage of the same pipeline, whose layers are looked for; None for that itself.

    Raises
    ------
    InputError
        If they cannot be told apart; the message names the rank.
    """
    return _Reader(program, structure, rank, signatures).read(first)


class _Reader:
    def __init__(
        self,
        program: Program,
        structure: ParallelStructure,
        rank: int,
        signatures: dict[tuple[Any, ...], int],
    ) -> None:
        self.said = f"--pp: rank {structure.ranks[rank]}"
        table, slots = program.table_of(rank), program.slots_of(rank)
        pp, dp = structure.axis("pp"), structure.axis("dp")
        assert pp is not None
        names = [
            "-".join(a.name for a, s in zip(structure.axes, structure.spans[c], strict=True) if s)
            for c in slots.tolist()
        ]
        own = int(structure.place[rank, pp])
        token: dict[int, str] = {}
        for row in np.flatnonzero((table.kind == Kind.SEND) | (table.kind == Kind.RECV)).tolist():
            group = program.communicators.group(int(slots[table.slot[row]]))
            peer = next(int(structure.place[i, pp]) for i in group if i != rank)
            if abs(peer - own) != 1:
                raise InputError(f"{self.said} sends to a stage that is not beside it, or receives")
            forward = (peer > own) == (table.kind[row] == Kind.SEND)
            way = SEND if table.kind[row] == Kind.SEND else RECEIVE
            token[row] = way["F" if forward else "B"]
        if len(np.unique(table.step[list(token)])) != 1:
            raise InputError(f"{self.said}: the recording holds several steps; --pp takes one")
        spans = structure.spans[slots]
        over = ~spans[:, pp] & (dp is not None and spans[:, dp])
        rows = np.flatnonzero((table.kind == Kind.COLLECTIVE) & over[table.slot])
        bulk = set(bulk_rows(table, rows).tolist())
        of_pp = np.array([name == "pp" for name in names])
        ends = (table.kind == Kind.COLLECTIVE) & of_pp[table.slot] & (table.bytes >= EMBEDDING)
        self.found = RecordedStage(
            table,
            slots,
            names,
            _streams(table, names, token),
            token,
            defaultdict(list),
            bulk,
            {row for row in bulk if table.operation[row] == Operation.ALL_GATHER},
            set(np.flatnonzero(ends).tolist()),
            own,
            structure.axes[pp].size,
        )
        self.signature = np.array(
            [
                signatures.setdefault(
                    (
                        int(table.kind[row]),
                        self.found.stream_key(row),
                        int(table.operation[row]),
                        names[table.slot[row]] if table.slot[row] >= 0 else "",
                        int(table.bytes[row]),
                        int(table.name[row]),
                    ),
                    len(signatures),
                )
                for row in range(len(table))
            ]
        )

    def read(self, first: RecordedStage | None) -> RecordedStage:
        segments = self._segments()
        self._drop_helpers(segments)
        self._find_patterns(segments, first)
        for number, (passes, rows) in enumerate(segments):
            self._take(passes, rows, number == 0, number == len(segments) - 1)
        self._beside()
        return self.found

    # --- messages ---------------------------------------------------------------------------------

    def _units(self) -> list[tuple[tuple[str, ...], list[int]]]:
        """Messages that are exchanged at once, in order, with the CPU's waits behind them."""
        table, token = self.found.table, self.found.token
        found: list[tuple[list[str], list[int]]] = []
        for row in sorted(token):
            if found and found[-1][1][-1] == row - 1 and table.flags[row] & Flag.JOINED:
                found[-1][0].append(token[row])
                found[-1][1].append(row)
            else:
                found.append(([token[row]], [row]))
        for _, rows in found:
            after = rows[-1] + 1
            while after < len(table) and table.kind[after] == Kind.HOST_WAIT:
                if not set(self.found.waits(after)) & set(rows):
                    break
                rows.append(after)
                after += 1
        return [(tuple(sorted(tokens, reverse=True)), rows) for tokens, rows in found]

    def _segments(self) -> list[tuple[list[int], list[int]]]:
        """Passes that follow each other without a message between, and their rows."""
        found = self.found
        units = self._units()
        for unit, rows in units:
            found.units[unit].append(rows)
        tokens = [each for unit, _ in units for each in unit]
        found.micro_batches = tokens.count(SEND["F"] if not found.is_last else RECEIVE["F"])
        order: list[Unit] = []
        for schedule in ORDERS:
            order = stage_order(
                schedule, found.stage, found.stages, found.micro_batches, found.fused
            )
            if [each for each in order if isinstance(each, tuple)] == [unit for unit, _ in units]:
                found.schedule = schedule
                break
        else:
            raise InputError(
                f"{self.said}: its {len(tokens)} messages do not follow each other as 1F1B or "
                f"GPipe sends {found.micro_batches} micro-batches; layers of other schedules are "
                "not dealt anew"
            )
        segments: list[tuple[list[int], list[int]]] = []
        passes: list[int] = []
        begin = 0
        following = iter(units)
        for each in order:
            if isinstance(each, int):
                passes.append(each)
                continue
            rows = next(following)[1]
            segments.append((passes, list(range(begin, rows[0]))))
            passes, begin = [], rows[-1] + 1
        segments.append((passes, list(range(begin, len(found.table)))))
        return segments

    # --- passes and layers ------------------------------------------------------------------------

    def _drop_helpers(self, segments: list[tuple[list[int], list[int]]]) -> None:
        """Leave communications over replicas out of passes, and kernels that only they need."""
        found = self.found
        usual: set[int] = set()
        for passes, rows in segments:
            if passes and not found.bulk & set(rows):
                usual |= set(self.signature[rows].tolist())
        kernels = (found.table.kind == Kind.KERNEL).tolist()
        for passes, rows in segments:
            if not passes or not found.bulk & set(rows):
                continue
            waiting: list[int] = []
            kept: list[int] = []
            for row in rows:
                if row in found.bulk:
                    found.helpers[row], waiting = waiting, []
                elif usual and kernels[row] and int(self.signature[row]) not in usual:
                    waiting.append(row)
                else:
                    kept.append(row)
            rows[:] = kept

    def _find_patterns(
        self, segments: list[tuple[list[int], list[int]]], first: RecordedStage | None
    ) -> None:
        """Find what the rows of one layer are, in passes of the first stage."""
        found = self.found
        if first is not None:
            found.patterns, found.layers = first.patterns, 0
            return
        inner = segments[1:-1]
        there = next((rows for passes, rows in inner if [p > 0 for p in passes] == [True]), None)
        back = next((rows for passes, rows in inner if passes and passes[0] < 0), None)
        if there is None or back is None:
            raise InputError(
                f"{self.said}: {found.micro_batches} micro-batches show no pass without what a "
                "step begins or ends with; record more micro-batches"
            )
        signs = self.signature[there], self.signature[back]
        counts = _repeated(signs[0]), _repeated(signs[1][::-1])
        layers = math.gcd(counts[0][1], counts[1][1])
        lengths = [period * count for period, count in counts]
        if layers < 2 or lengths[0] < len(there) / 2:
            raise InputError(
                f"{self.said}: its passes show no two equal layers: no rows that repeat, but for "
                "an embedding"
            )
        found.layers = layers
        found.patterns = signs[0][-lengths[0] // layers :], signs[1][: lengths[1] // layers]
        self.embedding = len(there) - lengths[0]

    def _take(self, passes: list[int], rows: list[int], begins: bool, ends: bool) -> None:
        """Find the layers of some passes that follow each other, and what lies beside them."""
        found = self.found
        assert found.patterns is not None
        if not passes:
            if begins or ends:
                (found.epilogue if ends else found.prologue).extend(rows)
            elif found.table.is_device[rows].any():
                raise InputError(f"{self.said}: kernels run between two messages, in no pass")
            return
        signs, at = self.signature[rows], 0
        for i, each in enumerate(passes):
            pattern = found.patterns[0 if each > 0 else 1]
            begin, count = _search(signs, pattern, at)
            found.layers = found.layers or count
            if not count or count != found.layers:
                raise InputError(
                    f"{self.said}: {count} layers are found in a pass of micro-batch {abs(each)}, "
                    f"{found.layers} in others, by the rows of a layer of the first stage"
                )
            size = len(pattern)
            end = begin + count * size
            layers = [rows[begin + k * size : begin + (k + 1) * size] for k in range(count)]
            before = rows[at:begin]
            if i and passes[i - 1] < 0:  # a backward, whose embedding lies before this one's
                cut = len(before) - self.embedding
                found.passes[passes[i - 1]].behind.extend(before[:cut])
                before = before[cut:]
            elif i:
                # With GPipe the head's backward lies apart in all other micro-batches.
                cut = len(before)
                if found.schedule == "gpipe":
                    cut = len(found.passes[1].behind)
                found.passes[passes[i - 1]].behind.extend(before[:cut])
                before = before[cut:]
            elif begins and not found.stage:
                before = before[len(before) - self.embedding :]
                found.prologue.extend(range([*before, *layers[0]][0]))
            found.passes[each] = RecordedPass(before, layers, [])
            at = end
        behind = found.passes[passes[-1]].behind
        if not ends:
            behind.extend(rows[at:])
            return
        known = next((len(p.behind) for mb, p in found.passes.items() if mb < 0), 0)
        behind.extend(rows[at : at + known])
        found.epilogue.extend(range(rows[at + known - 1] + 1, len(found.table)))

    # --- communications over replicas -------------------------------------------------------------

    def _beside(self) -> None:
        """Tell what is reduced or gathered beside the first and the last pass."""
        found = self.found
        first = found.passes[1].layers[0][0]
        end = found.passes[1].layers[-1][-1]
        last = found.passes[-found.micro_batches].layers
        found.gathers = sorted(row for row in found.bulk_gathers if row < end)
        start = min([first, *found.passes[1].before])
        found.ahead = max(1, sum(row < start for row in found.gathers))
        reduces = sorted(found.bulk - found.bulk_gathers)
        # The last stage may reduce the head's gradients before those of its layers.
        begin = found.passes[found.micro_batches].layers[0][0] if found.is_last else last[0][0]
        early = [row for row in reduces if row < begin]
        late = [row for row in found.bulk_gathers if end < row < last[-1][-1]]
        if early or late:
            raise InputError(
                f"{self.said}: {len(early) + len(late)} reductions of gradients or gathers of "
                "parameters lie between its passes, as FSDP has them; layers are not dealt anew"
            )
        if not set(reduces) <= set(found.epilogue):
            found.reduces = reduces
        beside = {*found.gathers, *found.reduces}
        for row in tuple(beside):
            beside |= set(found.helpers.get(row, ()))
        found.prologue = [row for row in found.prologue if row not in beside]
        found.epilogue = [row for row in found.epilogue if row not in beside]


def _streams(table: Table, names: list[str], token: dict[int, str]) -> dict[int, tuple[Any, ...]]:
    """Stream → what it is for: kernels, messages, or collectives along some axes."""
    found: dict[int, tuple[Any, ...]] = {}
    for stream in np.unique(table.stream[table.stream >= 0]).tolist():
        rows = np.flatnonzero((table.stream == stream) & table.is_communication)
        if not len(rows):
            word = "kernels"
        elif int(rows[0]) in token:
            word = "messages"
        else:
            word = names[table.slot[rows[0]]]
        number = sum(key[0] == word for key in found.values())
        found[stream] = (word, number)
    return found


def _repeated(signs: Signs) -> tuple[int, int]:
    """Rows → length and number of equal parts at their end, as many rows as can be.

    Examples
    --------
    >>> _repeated(np.array([9, 9, 1, 2, 1, 2, 1, 2]))
    (2, 3)
    """
    best = (len(signs), 1)
    most = 0
    for period in range(1, len(signs) // 2 + 1):
        last = signs[len(signs) - period :]
        count = 1
        while (count + 1) * period <= len(signs):
            begin = len(signs) - (count + 1) * period
            if not (signs[begin : begin + period] == last).all():
                break
            count += 1
        if count > 1 and count * period > most:
            best, most = (period, count), count * period
    return best


def _search(signs: Signs, pattern: Signs, begin: int) -> tuple[int, int]:
    """Rows, and those of one layer → where the first layer is, and how many follow each other.

    Examples
    --------
    >>> _search(np.array([9, 1, 2, 1, 2, 9]), np.array([1, 2]), 0)
    (1, 2)
    """
    period, at = len(pattern), begin
    while at + period <= len(signs) and (signs[at : at + period] != pattern).any():
        at += 1
    count = 0
    while (signs[at + count * period :][:period].tolist()) == pattern.tolist():
        count += 1
    return at, count
