"""Chosen placements as text, as figures for JSON, and as tables of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...base.quantity import GIB
from ...base.text import aligned, duration, percentage
from ...workloads.dlrm import RULES, TablePlacement
from .choose import FILE, SEARCH, Chosen, SimulatedPlacement
from .cost import LOADS

__all__ = ["chosen_figures", "chosen_lines", "placement_tables"]


def chosen_lines(found: Chosen) -> list[str]:
    """Result of ``mpisim shard`` → its report as lines.

    Parameters
    ----------
    found : Chosen

    Returns
    -------
    list of str
    """
    best = found.best
    rows: list[tuple[str, ...]] = [("sharder", "rule or cost", "step", "over best", *LOADS, "GiB")]
    for each in found.found:
        over = each.step_ps / best.step_ps - 1
        if not each.fits:
            mark = "no room"
        elif each is best:
            mark = "best"
        else:
            mark = f"{'≈ ' if found.as_fast(each) else ''}{percentage(over, 1, signed=True)}"
        first = each.name.split(", ")[0]
        rows.append(
            (
                each.name if len(each.name) <= 40 else f"{first} and others",
                _rule(first),
                duration(each.step_ps),
                mark,
                *(f"{each.balance[load]:.2f}" for load in LOADS),
                f"{each.peak / GIB:.1f}",
            )
        )
    simulated = len(found.found)
    kinds = ", ".join(f"{number} {kind}" for kind, number in _kinds(best).items())
    return [
        f"Placements of {len(found.tables)} tables on {found.ranks} ranks: {found.compared:,} "
        f"compared, {simulated} simulated, {found.seconds:.1f} s",
        "",
        *aligned(rows, left=(0, 1)),
        "",
        "lookup, update, sent, memory: the most loaded rank over the mean of all (1.00: even)",
        "GiB: of the fullest GPU",
        "≈: not to be told from the best by the error of the difference",
        f"The best is {best.name}: {kinds}; "
        f"its step {duration(best.step_ps)} ± {percentage(best.error)}"
        if best.fits
        else "No placement fits into memory; the first is the fastest",
    ]


def _rule(name: str) -> str:
    """Return the rule of a sharder as the paper prints it."""
    return RULES.get(
        name, {SEARCH: "moves, swaps, kinds", FILE: "plan.tables.placement"}.get(name, "")
    )


def _kinds(found: SimulatedPlacement) -> dict[str, int]:
    """Return how many tables there are of each kind."""
    words = (
        each.sharding if each.kernel == "fused" else f"{each.sharding} {each.kernel}"
        for each in found.placed
    )
    return dict(Counter(words).most_common())


def chosen_figures(found: Chosen) -> dict[str, Any]:
    """Result of ``mpisim shard`` → its figures, ready for JSON.

    Parameters
    ----------
    found : Chosen

    Returns
    -------
    dict
        ``ranks``, ``compared``, ``seconds``; ``placements``, the best first, of each ``sharder``,
        ``step_time`` (s), ``uncertainty`` (relative), ``as_fast`` (as the best, by the error of the
        difference), ``cost`` (s), ``balance`` by `LOADS`, ``peak`` (bytes), ``fits``, ``digest``,
        ``placement`` (texts of ``plan.tables.placement``).
    """
    return {
        "ranks": found.ranks,
        "compared": found.compared,
        "seconds": found.seconds,
        "placements": [
            {
                "sharder": each.name,
                "step_time": each.step_time,
                "uncertainty": each.error,
                "as_fast": found.as_fast(each),
                "cost": each.cost,
                "balance": dict(each.balance),
                "peak": each.peak,
                "fits": each.fits,
                "digest": each.digest,
                "placement": _texts(each.placed),
            }
            for each in found.found
        ],
    }


def _texts(placed: tuple[TablePlacement, ...]) -> list[str]:
    return [str(each) for each in placed]


def placement_tables(given: Mapping[str, Any], found: SimulatedPlacement) -> dict[str, Any]:
    """Tables of an experiment → the same with a placement in place of a sharder.

    The placement stands in ``[plan.tables]``.

    Parameters
    ----------
    given : mapping
        Tables of a file, paths absolute.
    found : SimulatedPlacement
    """
    return {**given, "plan": {**given["plan"], "tables": {"placement": _texts(found.placed)}}}
