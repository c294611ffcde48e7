"""Local search: placement of tables → one of lower cost, by moves, swaps and other kinds.

From a start, again and again the best of these changes is made until none lowers the cost: a table
of a rank that is the last in something (lookups, updates, bytes sent, memory) goes elsewhere, or is
divided or copied instead; one that is divided or copied becomes whole again; where that does not
help, a table of such a rank is swapped with one of another. The end is a placement that no single
change improves. From there some tables are put anywhere, and the search goes on (iterated local
search): the best end counts. What is drawn is always the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...workloads.dlrm import TablePlacement
from ...workloads.dlrm.placement import MIN_COLUMNS
from .cost import PlacementCost

__all__ = ["improved", "options"]

Floats = NDArray[np.float64]

MAX_CHANGES = 2000
"""After so many changes a search ends in any case."""

KICKS, KICKED = 12, 3
"""How often, and how many tables are put anywhere at an end of the search."""

MAX_COMPARED = 150_000
"""Placements after whose comparison no table is put anywhere any more: some seconds."""

MAX_SWAPPED, MAX_PARTNERS = 16, 256
"""Tables of a rank, the largest in what it is last in, whose swaps are tried; and with how many."""

TINY = 1e-30

LEAST_GAIN = 1e-6
"""Share of the cost that a change must lower: below is noise of floating point."""

PAIRS_UP_TO = 8
"""Ranks up to which columns are divided between any two of them; beyond, among all."""


def options(
    cost: PlacementCost, number: int, *, kinds: Sequence[str], host: bool
) -> list[TablePlacement]:
    """Table → the placements that it can have.

    Parameters
    ----------
    cost : PlacementCost
    number : int
        Of the table.
    kinds : sequence of str
        Kinds of sharding that are allowed.
    host : bool
        Whether it may be in host memory, with a cache.
    """
    width, ranks = cost.tables[number].width, cost.ranks
    found = []
    if "table_wise" in kinds:
        found += [TablePlacement("table_wise", (rank,)) for rank in range(ranks)]
    if "column_wise" in kinds:
        found += [
            TablePlacement("column_wise", slices)
            for slices in _slices(ranks)
            if width % len(slices) == 0 and width // len(slices) >= MIN_COLUMNS
        ]
    if "row_wise" in kinds and ranks > 1 and cost.tables[number].entries >= ranks:
        found.append(TablePlacement("row_wise"))
    if host:
        kept = [each for each in found if each.sharding in ("table_wise", "row_wise")]
        found += [TablePlacement(each.sharding, each.ranks, "fused_uvm_caching") for each in kept]
    if "data_parallel" in kinds and ranks > 1:
        found.append(TablePlacement("data_parallel"))
    return found


def _slices(ranks: int) -> Iterator[tuple[int, ...]]:
    if ranks > 2:
        yield tuple(range(ranks))
    if ranks <= PAIRS_UP_TO:
        yield from ((one, other) for one in range(ranks) for other in range(one + 1, ranks))


def improved(
    cost: PlacementCost,
    start: Sequence[TablePlacement],
    choices: Sequence[Sequence[TablePlacement]],
) -> tuple[list[TablePlacement], int]:
    """Placement → one that no single change improves, and how many placements were compared.

    Parameters
    ----------
    cost : PlacementCost
    start : sequence of TablePlacement
        Of each table.
    choices : sequence of sequence of TablePlacement
        Of each table where it can be.

    Returns
    -------
    placed : list of TablePlacement
    compared : int
    """
    generator = np.random.default_rng(0)
    choice = _Choices(
        choices,
        [np.array([cost.load(t, each) for each in of]) for t, of in enumerate(choices)],
        [np.array([cost.summed(t, each) for each in of]) for t, of in enumerate(choices)],
    )
    best, compared = _local_optimum(cost, start, choice)
    for _ in range(KICKS):
        if compared > MAX_COMPARED:
            break
        kicked = list(best)
        for t in generator.integers(len(choices), size=KICKED).tolist():
            kicked[t] = choices[t][int(generator.integers(len(choices[t])))]
        found, more = _local_optimum(cost, kicked, choice)
        compared += more
        if cost.of(found) < cost.of(best) * (1 - LEAST_GAIN):
            best = found
    return best, compared


class _Choices(NamedTuple):
    """Where each table can be, and what it adds there to ranks and to what they sum up."""

    places: Sequence[Sequence[TablePlacement]]
    loads: Sequence[Floats]
    summed: Sequence[Floats]


class _Change(NamedTuple):
    """The cheapest change of a kind: its cost, the new places, how many were compared."""

    cost: float
    places: Sequence[tuple[int, TablePlacement]]
    compared: int


def _local_optimum(
    cost: PlacementCost, start: Sequence[TablePlacement], choice: _Choices
) -> tuple[list[TablePlacement], int]:
    """Placement → a local optimum of moves and, where no move lowers the cost, of swaps."""
    placed, compared = list(start), 0
    for _ in range(MAX_CHANGES):
        now, sums = cost.loads(placed)
        limit = float(cost.total(now[None], sums[None])[0]) * (1 - LEAST_GAIN)
        last = sorted(set(now.argmax(axis=1).tolist()))
        for best in (_best_move, _best_swap):
            found = best(cost, placed, choice, now, sums, last)
            compared += found.compared
            if found.cost < limit:
                break
        else:
            break
        for t, each in found.places:
            placed[t] = each
    return placed, compared


def _best_move(
    cost: PlacementCost,
    placed: Sequence[TablePlacement],
    choice: _Choices,
    now: Floats,
    sums: Floats,
    last: Sequence[int],
) -> _Change:
    """Placement → the best move of a table on ranks that are last in something, or on all."""
    best = _Change(math.inf, (), 0)
    for t, each in enumerate(placed):
        if each.ranks and not set(last) & set(each.ranks):
            continue
        rest, others = now - cost.load(t, each), sums - np.array(cost.summed(t, each))
        totals = cost.total(rest + choice.loads[t], others + choice.summed[t])
        pick = int(totals.argmin())
        compared = best.compared + len(totals)
        if totals[pick] < best.cost:
            best = _Change(float(totals[pick]), [(t, choice.places[t][pick])], compared)
        else:
            best = best._replace(compared=compared)
    return best


def _best_swap(
    cost: PlacementCost,
    placed: Sequence[TablePlacement],
    choice: _Choices,
    now: Floats,
    sums: Floats,
    last: Sequence[int],
) -> _Change:
    """Placement → the best swap of a whole table of ranks that are last in something."""
    best = _Change(math.inf, (), 0)
    whole = [t for t, each in enumerate(placed) if each.sharding == "table_wise"]
    if not whole:
        return best
    rank = {t: placed[t].ranks[0] for t in whole}
    own = {t: cost.load(t, placed[t])[:, rank[t]] for t in whole}
    most = now.max(axis=1) + TINY
    for crowded in last:
        here = [t for t in whole if rank[t] == crowded]
        here.sort(key=lambda t: -float((own[t] / most).max()))
        for one in here[:MAX_SWAPPED]:
            others = [
                u for u in whole if rank[u] != crowded and placed[u].kernel == placed[one].kernel
            ]
            others = others[:: -(-len(others) // MAX_PARTNERS) or 1]
            if not others:
                continue
            gained = np.array([own[u] for u in others]) - own[one]
            loads = np.repeat(now[None], len(others), axis=0)
            loads[:, :, crowded] += gained
            loads[np.arange(len(others)), :, [rank[u] for u in others]] -= gained
            totals = cost.total(loads, np.broadcast_to(sums, (len(others), len(sums))))
            pick = int(totals.argmin())
            compared = best.compared + len(totals)
            if totals[pick] < best.cost:
                other = others[pick]
                places = [(one, placed[other]), (other, placed[one])]
                best = _Change(float(totals[pick]), places, compared)
            else:
                best = best._replace(compared=compared)
    return best
