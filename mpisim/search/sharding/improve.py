"""Local search: placement of tables → one of lower cost, by moves, swaps and other kinds.

From a start, again and again the best of these changes is made until none lowers the cost: a table
of a rank that is the last in something (lookups, updates, bytes sent, memory) goes elsewhere, or is
divided or copied instead; or it is swapped with a table of another rank. A table that is divided or
copied may become whole again. The end is a placement that no single change improves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...workloads.dlrm import Placement
from ...workloads.dlrm.placement import MIN_COLUMNS
from .cost import PlacementCost

__all__ = ["improved", "options"]

MAX_CHANGES = 2000
"""After so many changes a search ends in any case."""

KICKS, KICKED = 12, 3
"""How often, and how many tables are put anywhere at an end of the search."""

MAX_COMPARED = 150_000
"""Placements after whose comparison no table is put anywhere any more: some seconds."""

MAX_SWAPPED = 64
"""Tables of a rank, the largest in what it is last in, whose swaps are tried."""

LEAST_GAIN = 1e-6
"""Share of the cost that a change must lower: below is noise of floating point."""

PAIRS_UP_TO = 8
"""Ranks up to which columns are divided between any two of them; beyond, among all."""


def options(
    cost: PlacementCost, number: int, *, kinds: Sequence[str], host: bool
) -> list[Placement]:
    """Return where a table can be.

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
        found += [Placement("table_wise", (rank,)) for rank in range(ranks)]
    if "column_wise" in kinds:
        found += [
            Placement("column_wise", slices)
            for slices in _slices(ranks)
            if width % len(slices) == 0 and width // len(slices) >= MIN_COLUMNS
        ]
    if "row_wise" in kinds and ranks > 1 and cost.tables[number].entries >= ranks:
        found.append(Placement("row_wise"))
    if host:
        kept = [each for each in found if each.sharding in ("table_wise", "row_wise")]
        found += [Placement(each.sharding, each.ranks, "fused_uvm_caching") for each in kept]
    if "data_parallel" in kinds and ranks > 1:
        found.append(Placement("data_parallel"))
    return found


def _slices(ranks: int) -> Iterator[tuple[int, ...]]:
    if ranks > 2:
        yield tuple(range(ranks))
    if ranks <= PAIRS_UP_TO:
        yield from ((one, other) for one in range(ranks) for other in range(one + 1, ranks))


def improved(
    cost: PlacementCost, start: Sequence[Placement], choices: Sequence[Sequence[Placement]]
) -> tuple[list[Placement], int]:
    """Placement → one that no single change improves, and how many placements were compared.

    Parameters
    ----------
    cost : PlacementCost
    start : sequence of Placement
        Of each table.
    choices : sequence of sequence of Placement
        Of each table where it can be.

    Returns
    -------
    placed : list of Placement
    compared : int
    """
    generator = np.random.default_rng(0)
    loads = [np.array([cost.load(t, each) for each in of]) for t, of in enumerate(choices)]
    best, compared = _descended(cost, start, choices, loads)
    for _ in range(KICKS):
        if compared > MAX_COMPARED:
            break
        kicked = list(best)
        for t in generator.integers(len(choices), size=KICKED).tolist():
            kicked[t] = choices[t][int(generator.integers(len(choices[t])))]
        found, more = _descended(cost, kicked, choices, loads)
        compared += more
        if cost.of(found) < cost.of(best) * (1 - LEAST_GAIN):
            best = found
    return best, compared


def _descended(
    cost: PlacementCost,
    start: Sequence[Placement],
    choices: Sequence[Sequence[Placement]],
    loads: Sequence[np.ndarray],
) -> tuple[list[Placement], int]:
    """Make the best change until none lowers the cost; as `improved`.

    Parameters
    ----------
    cost, start, choices
        As of `improved`.
    loads : sequence of ndarray
        Of each table what it adds to ranks in each place.
    """
    placed, compared = list(start), 0
    summed = [np.array([cost.summed(t, each) for each in of]) for t, of in enumerate(choices)]
    for _ in range(MAX_CHANGES):
        now, sums = cost.loads(placed)
        best = float(cost.total(now[None], sums[None])[0])
        limit, change = best * (1 - LEAST_GAIN), None
        last = set(now.argmax(axis=1).tolist())
        for t, each in enumerate(placed):
            own = cost.load(t, each)
            if each.ranks and not last & set(each.ranks):
                continue
            rest, other = now - own, sums - np.array(cost.summed(t, each))
            totals = cost.total(rest + loads[t], other + summed[t])
            compared += len(totals)
            pick = int(totals.argmin())
            if totals[pick] < limit:
                limit, change = float(totals[pick]), [(t, choices[t][pick])]
        for one, other_ones in _swaps(cost, placed, last, now):
            shift = np.array([_exchanged(cost, placed, one, other) for other in other_ones])
            totals = cost.total(now + shift, np.broadcast_to(sums, (len(shift), 2)))
            compared += len(totals)
            pick = int(totals.argmin())
            if totals[pick] < limit:
                other = other_ones[pick]
                limit = float(totals[pick])
                change = [(one, placed[other]), (other, placed[one])]
        if change is None:
            break
        for t, each in change:
            placed[t] = each
    return placed, compared


def _swaps(
    cost: PlacementCost, placed: Sequence[Placement], last: set[int], now: np.ndarray
) -> Iterator[tuple[int, list[int]]]:
    """Yield whole tables of ranks that are last in something, each with whole tables elsewhere."""
    whole = [t for t, each in enumerate(placed) if each.sharding == "table_wise"]
    for rank in sorted(last):
        here = [t for t in whole if placed[t].ranks == (rank,)]
        share = now.max(axis=1)[:, None] + 1e-30
        here.sort(key=lambda t: -float((cost.load(t, placed[t]) / share).max()))
        elsewhere = [t for t in whole if placed[t].ranks != (rank,)]
        for t in here[:MAX_SWAPPED]:
            partners = [u for u in elsewhere if placed[u].kernel == placed[t].kernel]
            if partners:
                yield t, partners


def _exchanged(
    cost: PlacementCost, placed: Sequence[Placement], one: int, other: int
) -> np.ndarray:
    """Return by how much the loads of ranks change where two tables change places."""
    mine, theirs = placed[one], placed[other]
    return (
        cost.load(one, theirs)
        + cost.load(other, mine)
        - cost.load(one, mine)
        - cost.load(other, theirs)
    )
