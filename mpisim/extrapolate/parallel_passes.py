"""A recorded stage of a pipeline → its passes, and the layers that repeat in them.

Messages to and from neighbours cut the rows of a rank into passes, whose order is known if they are
those of 1F1B, GPipe or the interleaved schedule. In a pass of a stage the same rows follow each
other once a layer; what is besides lies at one end: the embedding before the first layer, head and
loss behind the last. The first stage's forward ends with a layer, and its backward begins with one,
so that the repetition is anchored there; in the passes of other stages the same rows are looked
for. Of several chunks all but the first and the last part of the model are layers alone.

Reductions of gradients in the last backward, gathers of parameters in the first forward, and the
kernels that these need, are no part of the repetition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..program import Flag, Kind, Operation, Program, Table
from .parallel_axes import bulk_rows
from .parallel_order import Pass, PipelineOrder, Unit, orders_of
from .parallel_recorded import RecordedPass, RecordedStage, Signs
from .parallel_structure import MIN_EMBEDDING_BYTES, ParallelStructure

__all__ = ["recorded_stages"]

BY_ROUTER = (Operation.ALL_TO_ALL,)
"""Collectives whose bytes a router of experts sets."""
LEAST_LAYERS = 3
"""Layers of a pass from which on as many equal kernels behind them are taken for theirs, not for
those of an embedding."""


def recorded_stages(program: Program, structure: ParallelStructure) -> dict[int, RecordedStage]:
    """Find passes and layers in what the ranks of a pipeline's job did. Local.

    Parameters
    ----------
    program : Program
    structure : ParallelStructure

    Returns
    -------
    dict of int to RecordedStage
        By simulated rank.

    Raises
    ------
    InputError
        If they cannot be told apart; the message names the rank.
    """
    pp = structure.axis("pp")
    assert pp is not None
    places = structure.place.tolist()
    ranks = sorted(range(program.n_ranks), key=lambda rank: places[rank][pp])
    readers = {rank: _Reader(program, structure, rank) for rank in ranks}
    fused = any(len(batch) > 1 for each in readers.values() for batch in each.batches)
    common = readers[ranks[0]].orders(fused)
    for rank in ranks[1:]:
        own = readers[rank].orders(fused)
        common = [order for order in common if order in own]
        if not common:
            raise InputError(
                f"{readers[rank].said}: its messages follow each other in another order than those "
                f"of rank {structure.ranks[ranks[0]]}"
            )
    signatures: dict[tuple[Any, ...], int] = {}
    first: dict[tuple[int, ...], RecordedStage] = {}
    found = {}
    for rank in ranks:
        column = tuple(at for i, at in enumerate(places[rank]) if i != pp)
        found[rank] = readers[rank].read(common[0], signatures, first.get(column))
        first.setdefault(column, found[rank])
    return found


class _Reader:
    def __init__(self, program: Program, structure: ParallelStructure, rank: int) -> None:
        self.said = f"--pp or --schedule: rank {structure.ranks[rank]}"
        table, slots = program.table_of(rank), program.slots_of(rank)
        pp, dp = structure.axis("pp"), structure.axis("dp")
        assert pp is not None
        self.stages = structure.axes[pp].size
        self.embedding = 0
        names = [
            "-".join(a.name for a, s in zip(structure.axes, structure.spans[c], strict=True) if s)
            for c in slots.tolist()
        ]
        own = int(structure.place[rank, pp])
        peer: dict[int, int] = {}
        for row in np.flatnonzero((table.kind == Kind.SEND) | (table.kind == Kind.RECV)).tolist():
            group = program.communicators.group(int(slots[table.slot[row]]))
            peer[row] = next(int(structure.place[i, pp]) for i in group if i != rank)
            if (peer[row] - own) % self.stages not in (1, self.stages - 1):
                raise InputError(f"{self.said} sends to a stage that is not beside it, or receives")
        if len(np.unique(table.step[list(peer)])) != 1:
            raise InputError(f"{self.said}: the recording holds several steps; one can be changed")
        spans = structure.spans[slots]
        over = ~spans[:, pp] & (dp is not None and spans[:, dp])
        rows = np.flatnonzero((table.kind == Kind.COLLECTIVE) & over[table.slot])
        bulk = set(bulk_rows(table, rows).tolist())
        of_pp = np.array([name == "pp" for name in names])
        ends = (
            (table.kind == Kind.COLLECTIVE)
            & of_pp[table.slot]
            & (table.bytes >= MIN_EMBEDDING_BYTES)
        )
        self.found = RecordedStage(
            *(table, slots, names, peer, bulk),
            {row for row in bulk if table.operation[row] == Operation.ALL_GATHER},
            set(np.flatnonzero(ends).tolist()),
            own,
        )
        self.batches = self._batches()

    def read(
        self,
        order: PipelineOrder,
        signatures: dict[tuple[Any, ...], int],
        first: RecordedStage | None,
    ) -> RecordedStage:
        """Find the passes of an order; their layers as of the `first` stage of the pipeline."""
        self.found.order = order
        units = order.of(self.found.stage)
        self._name_messages(units)
        self._sign(signatures)
        segments = self._segments(units)
        self._drop_helpers(segments)
        self._find_patterns(segments, first)
        for number, (passes, rows) in enumerate(segments):
            self._take(passes, rows, number == 0, number == len(segments) - 1)
        self._check_backward()
        self._beside()
        return self.found

    def _sign(self, signatures: dict[tuple[Any, ...], int]) -> None:
        """Number the sorts of rows; those that were not met before are added."""
        found, table = self.found, self.found.table
        self.signature = np.array(
            [
                signatures.setdefault(
                    (
                        int(table.kind[row]),
                        found.stream_key(row),
                        int(table.operation[row]),
                        found.names[table.slot[row]] if table.slot[row] >= 0 else "",
                        # What is sent to experts differs from layer to layer.
                        0 if table.operation[row] in BY_ROUTER else int(table.bytes[row]),
                        int(table.name[row]),
                    ),
                    len(signatures),
                )
                for row in range(len(table))
            ]
        )

    # --- messages ---------------------------------------------------------------------------------

    def _batches(self) -> list[list[int]]:
        """Rows of messages that are exchanged at once, in order."""
        table = self.found.table
        found: list[list[int]] = []
        for row in sorted(self.found.peer):
            if found and found[-1][-1] == row - 1 and table.flags[row] & Flag.JOINED:
                found[-1].append(row)
            else:
                found.append([row])
        return found

    def _ends_of(self, row: int) -> tuple[bool, int]:
        """Whether a message is sent, and the other stage."""
        return bool(self.found.table.kind[row] == Kind.SEND), self.found.peer[row]

    def orders(self, fused: bool) -> list[PipelineOrder]:
        """Orders that the messages of the rank are of, exchanged in batches or not."""
        stage = self.found.stage
        recorded = [sorted(map(self._ends_of, batch)) for batch in self.batches]
        found = []
        for order in orders_of(self.stages, stage, len(self.found.peer), fused):
            expected = [
                sorted((each.token.startswith("send"), each.peer) for each in unit)
                for unit in order.of(stage)
                if not isinstance(unit, Pass)
            ]
            if expected == recorded:
                found.append(order)
        if not found:
            raise InputError(
                f"{self.said}: its {len(self.found.peer)} messages do not follow each other as "
                "1F1B, GPipe or the interleaved schedule sends them; layers of other schedules are "
                "not dealt anew"
            )
        return found

    def _name_messages(self, units: list[Unit]) -> None:
        """Tell which message each row is, and what streams are for."""
        found = self.found
        expected = [unit for unit in units if not isinstance(unit, Pass)]
        for batch, unit in zip(self.batches, expected, strict=True):
            left = list(unit)
            for row in batch:
                sends, peer = self._ends_of(row)
                for each in left:
                    if (each.token.startswith("send"), each.peer) == (sends, peer):
                        found.token[row] = each.token
                        left.remove(each)
                        break
        found.keys = _streams(found.table, found.names, found.token)

    def _segments(self, units: list[Unit]) -> list[tuple[list[Pass], list[int]]]:
        """Passes that follow each other without a message between, and their rows."""
        found, table = self.found, self.found.table
        segments: list[tuple[list[Pass], list[int]]] = []
        passes: list[Pass] = []
        begin = since = 0
        forward: bool | None = None
        following = iter(self.batches)
        for each in units:
            if isinstance(each, Pass):
                passes.append(each)
                forward = each.forward
                continue
            batch = next(following)
            rows, after = list(batch), batch[-1] + 1
            while after < len(table) and table.kind[after] == Kind.HOST_WAIT:
                if not set(found.waits(after)) & set(rows):
                    break
                rows.append(after)
                after += 1
            tokens = tuple(sorted(found.token[row] for row in batch))
            found.units[tokens, forward].append(rows)
            since = begin if passes else since
            if all(wait < since for wait in found.waits(batch[0])):
                found.early.update(batch)
            segments.append((passes, list(range(begin, rows[0]))))
            passes, begin = [], rows[-1] + 1
        segments.append((passes, list(range(begin, len(table)))))
        return segments

    # --- passes and layers ------------------------------------------------------------------------

    def _drop_helpers(self, segments: list[tuple[list[Pass], list[int]]]) -> None:
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
        self, segments: list[tuple[list[Pass], list[int]]], first: RecordedStage | None
    ) -> None:
        """Find what the rows of one layer are, in passes of the first stage."""
        found = self.found
        if first is not None:
            found.patterns, found.layers = first.patterns, 0
            return
        inner = segments[1:-1]
        chunks = found.order.chunks

        def rows_of(forward: bool, chunk: int) -> list[int] | None:
            for passes, rows in inner:
                own = passes[:1] if not forward else passes
                if [(each.forward, each.chunk) for each in own] == [(forward, chunk)]:
                    return rows
            return None

        with_embedding, there = rows_of(True, 0), rows_of(True, chunks - 1)
        back = rows_of(False, chunks - 1)
        if with_embedding is None or there is None or back is None:
            raise InputError(
                f"{self.said}: {found.order.micro_batches} micro-batches show no pass without what "
                "a step begins or ends with; record more micro-batches"
            )
        signs = self.signature[there], self.signature[back]
        counts = _repeated(signs[0]), _repeated(signs[1][::-1])
        layers = math.gcd(counts[0][1], counts[1][1])
        lengths = [period * count for period, count in counts]
        if chunks > 1 and lengths != [len(there), len(back)]:
            lengths, layers = [len(there), len(back)], 1  # unlike layers: a chunk stays whole
        elif chunks == 1 and (layers < 2 or lengths[0] < len(there) / 2):
            raise InputError(
                f"{self.said}: its passes show no two equal layers: no rows that repeat, but for "
                "an embedding"
            )
        found.layers = layers
        found.patterns = signs[0][-lengths[0] // layers :], signs[1][: lengths[1] // layers]
        self.embedding = len(with_embedding) - lengths[0]

    def _take(self, passes: list[Pass], rows: list[int], begins: bool, ends: bool) -> None:
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
            pattern = found.patterns[0 if each.forward else 1]
            begin, count = _search(signs, pattern, at)
            found.layers = found.layers or count
            if not count or count != found.layers:
                raise InputError(
                    f"{self.said}: {count} layers are found in a pass of micro-batch "
                    f"{each.micro_batch + 1}, {found.layers} in others, by the rows of a layer of "
                    "the first stage"
                )
            size = len(pattern)
            end = begin + count * size
            layers = [rows[begin + k * size : begin + (k + 1) * size] for k in range(count)]
            before = rows[at:begin]
            if i and not passes[i - 1].forward:  # whose embedding lies before this one's
                cut = len(before) - self.embedding
                found.passes[passes[i - 1]].behind.extend(before[:cut])
                before = before[cut:]
            elif i:
                # With GPipe the head's backward lies apart in all other micro-batches.
                cut = len(before)
                if found.order.schedule == "gpipe":
                    cut = len(found.passes[Pass(True, 0, 0)].behind)
                found.passes[passes[i - 1]].behind.extend(before[:cut])
                before = before[cut:]
            elif begins and not found.stage:
                before = before[len(before) - self.embedding :]
                found.prologue.extend(range([*before, *layers[0]][0]))
            found.passes[each] = RecordedPass(before, layers, [])
            at = end
        last = passes[-1]
        behind = found.passes[last].behind
        if not ends:
            behind.extend(rows[at:])
            return
        others = [p for each, p in found.passes.items() if each[:2] == last[:2] and each != last]
        known = len(others[0].behind) if others else 0
        behind.extend(rows[at : at + known])
        found.epilogue.extend(range(rows[at + known - 1] + 1, len(found.table)))

    def _check_backward(self) -> None:
        """Refuse backward passes of which a part lies behind all layers, a kernel for each."""
        found = self.found
        if found.layers < LEAST_LAYERS:
            return
        for each, own in found.passes.items():
            rows = [] if each.forward else own.behind
            kernels = [row for row in rows if found.table.kind[row] == Kind.KERNEL]
            _, counts = np.unique(self.signature[kernels], return_counts=True)
            if (counts >= found.layers).any():
                raise InputError(
                    f"{self.said}: behind the layers of a backward pass kernels run as often as "
                    "there are layers: of gradients of weights, as zero-bubble schedules have "
                    "them; layers of such schedules are not dealt anew"
                )

    # --- communications over replicas -------------------------------------------------------------

    def _beside(self) -> None:
        """Tell what is reduced or gathered beside the first and the last pass of each chunk."""
        found, order = self.found, self.found.order
        chunks, final = range(order.chunks), order.micro_batches - 1
        forward = [found.passes[Pass(True, c, 0)] for c in chunks]
        backward = [found.passes[Pass(False, c, final)] for c in chunks]
        gathers = sorted(row for row in found.bulk_gathers if row < forward[-1].layers[-1][-1])
        found.gathers = self._gathers_of(gathers, forward)
        start = min([forward[0].layers[0][0], *forward[0].before])
        found.ahead = max(1, sum(row < start for row in gathers))
        reduces = sorted(found.bulk - found.bulk_gathers)
        begins = [each.layers[0][0] for each in backward]
        if found.is_last:  # it may reduce the head's gradients before those of its layers
            begins[-1] = found.passes[Pass(True, order.chunks - 1, final)].layers[0][0]
        early = [row for row in reduces if row < begins[-1]]
        until = backward[0].layers[-1][-1]
        late = [row for row in found.bulk_gathers - set(gathers) if row < until]
        if early or late:
            raise InputError(
                f"{self.said}: {len(early) + len(late)} reductions of gradients or gathers of "
                "parameters lie between its passes, as FSDP has them; layers are not dealt anew"
            )
        found.reduces = [[] for _ in chunks]
        if not set(reduces) <= set(found.epilogue):
            ends = [len(found.table), *begins]
            found.reduces = [[r for r in reduces if begins[c] <= r < ends[c]] for c in chunks]
        beside = {row for rows in (*found.gathers, *found.reduces) for row in rows}
        for row in tuple(beside):
            beside |= set(found.helpers.get(row, ()))
        found.prologue = [row for row in found.prologue if row not in beside]
        found.epilogue = [row for row in found.epilogue if row not in beside]

    def _gathers_of(self, gathers: list[int], forward: list[RecordedPass]) -> list[list[int]]:
        """Gathers of parameters → those of each chunk: which its first forward is first to need."""
        found: list[list[int]] = [[] for _ in forward]
        left = list(gathers)
        for own, each in zip(found, forward, strict=True):
            rows = [*each.before, *(row for layer in each.layers for row in layer), *each.behind]
            needed = {wait for row in rows for wait in self.found.waits(row)} & set(left)
            while needed and left and left[0] <= max(needed):
                own.append(left.pop(0))
        found[-1].extend(left)
        return found


def _streams(table: Table, names: list[str], token: dict[int, str]) -> dict[int, tuple[Any, ...]]:
    """Stream → what it is for: kernels, messages (of one sort, or all), or collectives."""
    found: dict[int, tuple[Any, ...]] = {}
    for stream in np.unique(table.stream[table.stream >= 0]).tolist():
        rows = np.flatnonzero((table.stream == stream) & table.is_communication).tolist()
        if not rows:
            word = "kernels"
        elif rows[0] in token:
            tokens = {token.get(row, "") for row in rows}
            word = f"messages: {tokens.pop() if len(tokens) == 1 else 'all'}"
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
