"""Tables of the page: what the report lists, whole and by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense
from ..base.numbered_texts import NumberedTexts
from ..base.rank_ranges import ranges_text
from ..base.text import duration
from ..program import Kind, Operation
from ..report.figures import path_by
from ..results import Results
from ..results.step_parts import kind_name
from .shown import RankGroups

__all__ = ["tables_of"]

MOST_LINES = 2_000
"""Of one table."""

OF_RANKS = (
    ("compute", "Compute", "some kernel or copy ran"),
    ("exposed_waiting", "Waiting", "a communication waited for others and nothing computed"),
    ("exposed_wire", "On the wire", "a communication moved data and nothing computed"),
    ("idle", "Idle", "nothing ran"),
    ("communication", "All communication", "some communication was under way, hidden or not"),
    ("host_busy", "CPU busy", "the CPU worked"),
    ("host_waiting", "CPU waits", "the CPU was blocked"),
    ("end", "End", "when the last row ended"),
)
"""Columns of `Results.ranks` that are shown: title, and what they are."""


def tables_of(results: Results, groups: RankGroups) -> list[dict[str, Any]]:
    """Results → the tables of the page; sums are whole, times in ps.

    Parameters
    ----------
    results : Results
    groups : RankGroups
    """
    found = [_ranks(results), _stages(results, groups), _kernels(results)]
    found += [_communications(results), _path_by_name(results)]
    return [each for each in found if each is not None]


def _table(
    id_: str, title: str, note: str, columns: Sequence[tuple[str, str, str, str, Any]]
) -> dict[str, Any]:
    """Return a table from columns (key, title, type, help, data), its longest lines alone."""
    keys = ("key", "title", "type", "help")
    lines = len(columns[0][-1])
    if lines > MOST_LINES:
        note = f"{note} The first {MOST_LINES:,} of {lines:,} lines.".strip()
    return {
        "id": id_,
        "title": title,
        "note": note,
        "columns": [dict(zip(keys, column[:4], strict=True)) for column in columns],
        "data": {column[0]: column[-1][:MOST_LINES] for column in columns},
    }


def _lines(columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different rows of some columns, in their order, and which of them each row is.

    Parameters
    ----------
    columns : sequence of int64, shape (n,)

    Returns
    -------
    same : int64, shape (k, len(columns))
    line : int64, shape (n,)
    """
    line = np.zeros(len(columns[0]), np.int64)
    for column in columns:  # numbers, not rows, are sorted: that takes a tenth of the time
        number, n = dense(column - column.min(initial=0))
        line, _ = dense(line * n + number)
    first = np.unique(line, return_index=True)[1]
    return np.stack([column[first] for column in columns], axis=1), line


def _ranks(results: Results) -> dict[str, Any]:
    """Results → table of ranks; those with equal times are one line, least waiting first."""
    # Those of one class did.
    first = results.classes["representative"]
    same, line = _lines([results.ranks[key][first] for key, _, _ in OF_RANKS])
    line = line[results.ranks["class"]]
    count = np.bincount(line, minlength=len(same))
    members = np.split(np.argsort(line, kind="stable"), np.cumsum(count)[:-1])
    own = same[:, -1] - same[:, 1]  # had it never waited for others
    lowest = np.array([int(each[0]) for each in members], np.int64)
    order = np.lexsort((lowest, -own))
    numbers = results.rank_numbers
    texts = [ranges_text([numbers[rank] for rank in members[i].tolist()]) for i in order.tolist()]
    columns: list[tuple[str, str, str, str, Any]] = [
        ("ranks", "Ranks", "text", "ranks with the same times", texts),
        ("count", "Count", "number", "how many they are", count[order]),
        ("own", "Own time", "time", "end less waiting for others", own[order]),
    ]
    columns += [
        (key, title, "time", about, same[order, i])
        for i, (key, title, about) in enumerate(OF_RANKS)
    ]
    note = "Compute, waiting, on the wire and idle add up to the step."
    return _table("ranks", "Ranks", note, columns)


def _stages(results: Results, groups: RankGroups) -> dict[str, Any] | None:
    """Return means over the ranks of each pipeline stage; None where there is one or none."""
    if groups.stages[0] < 0:
        return None
    sizes = groups.sizes
    here = groups.of_rank >= 0

    def mean(column: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(len(sizes), np.int64)
        np.add.at(total, groups.of_rank[here], column[here])
        return total // sizes

    columns: list[tuple[str, str, str, str, Any]] = [
        ("stage", "Stage", "text", "pipeline stage", list(groups.titles)),
        ("ranks", "Ranks", "number", "how many", sizes),
    ]
    columns += [
        (key, title, "time", about, mean(results.ranks[key])) for key, title, about in OF_RANKS
    ]
    return _table("stages", "Pipeline stages", "Means over the ranks of a stage.", columns)


def _kernels(results: Results) -> dict[str, Any] | None:
    table = results.kernels
    if not len(table["count"]):
        return None
    whole = max(sum(table["total"].tolist()), 1)
    return _table(
        "kernels",
        "Kernels and copies",
        f"{duration(whole)} over all ranks.",
        [
            ("name", "Name", "text", "", table["name"].tolist()),
            ("kind", "Kind", "text", "", [Kind(kind).name.lower() for kind in table["kind"]]),
            ("total", "Total", "time", "over all ranks", table["total"]),
            ("share", "Share", "percent", "of the total of all", table["total"] / whole),
            ("count", "Count", "number", "over all ranks", table["count"]),
            ("mean", "Mean", "time", "of one", table["total"] // np.maximum(table["count"], 1)),
            ("longest", "Longest", "time", "of any", table["longest"]),
        ],
    )


def _communications(results: Results) -> dict[str, Any] | None:
    """Results → table of communications; communicators of one kind, size and limit are a line."""
    table = results.communications
    if not len(table["count"]):
        return None
    families, family = _families(results.communicators.names)
    limits: dict[str, int] = {}
    limit = [limits.setdefault(text, len(limits)) for text in table["limit"].tolist()]
    each = np.where(table["bytes"] < 0, -1, table["bytes"] // np.maximum(table["count"], 1))
    columns = (family[table["communicator"]], table["operation"], table["size"], each, limit)
    same, line = _lines([np.asarray(column, np.int64) for column in columns])

    count, wire, waiting, posts, rate, factor = _line_totals(table, line, same[:, 3] >= 0)
    communicators = np.bincount(line, minlength=len(same))
    order = np.argsort(-(wire + waiting), kind="stable")
    limit_names = list(limits)
    groups = [families[i] for i in same[order, 0].tolist()]
    return _table(
        "communications",
        "Communications",
        "Communicators of one kind, size and limit are one line; times are means of one rank and "
        "operation.",
        [
            ("communicator", "Communicator", "text", "without its number", groups),
            (
                "operation",
                "Operation",
                "text",
                "",
                [Operation(i).name.lower() for i in same[order, 1].tolist()],
            ),
            ("size", "Ranks", "number", "of one communicator", same[order, 2]),
            ("communicators", "Communicators", "number", "how many", communicators[order]),
            ("count", "Count", "number", "operations of all of them", count[order]),
            ("bytes", "Size", "bytes", "of one operation; -1 is unknown", same[order, 3]),
            ("wire", "On the wire", "time", "bytes moved", (wire // posts)[order]),
            ("waiting", "Waiting", "time", "for other members", (waiting // posts)[order]),
            (
                "bus_bandwidth",
                "Bus bandwidth",
                "rate",
                "as nccl-tests has it",
                (rate * factor)[order],
            ),
            (
                "limit",
                "Limited by",
                "text",
                "alone on the network, at this size",
                [limit_names[i] for i in same[order, 4].tolist()],
            ),
            ("bandwidth", "Bytes/wire", "rate", "size over time on the wire", rate[order]),
            ("wire_total", "Wire, all", "time", "added up over members", wire[order]),
            ("waiting_total", "Waiting, all", "time", "added up over members", waiting[order]),
        ],
    )


def _line_totals(
    table: Mapping[str, NDArray[Any]], line: NDArray[np.int64], sized: NDArray[np.bool_]
) -> tuple[NDArray[Any], ...]:
    """Table of communications and the line of each of its rows → figures of every line.

    Parameters
    ----------
    table : mapping of str to array, shape (n,)
    line : int64, shape (n,)
    sized : bool, shape (n_lines,)
        Whether a line's size is known.

    Returns
    -------
    count, wire, waiting, posts : int64, shape (n_lines,)
        Operations; ps on the wire and of waiting over all members; takings part of a member.
    rate, factor : float64, shape (n_lines,)
        Bytes a second on the wire, of all together; bus bandwidth over it.
    """
    lines = len(sized)

    def total(column: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.zeros(lines, np.int64)
        np.add.at(found, line, column)
        return found

    count, wire, waiting = (total(table[name]) for name in ("count", "wire", "waiting"))
    posts = np.maximum(total(table["count"] * table["size"]), 1)
    factor = np.full(lines, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = total(np.maximum(table["bytes"], 0) * table["size"])
        rate = np.where(sized & (wire > 0), moved / (wire * 1e-12), np.nan)
        factor[line] = table["bus_bandwidth"] / table["bandwidth"]
    return count, wire, waiting, posts, rate, factor


def _families(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return what communicators are called without their numbers, and which each is, shape (n,)."""
    part = names.part if isinstance(names, NumberedTexts) else np.arange(len(names))
    _, first, number = np.unique(part, return_index=True, return_inverse=True)
    texts = [kind_name(names[i]) for i in first.tolist()]
    found = sorted(set(texts))
    place = {text: i for i, text in enumerate(found)}
    return found, np.array([place[text] for text in texts], np.int64)[number.reshape(-1)]


def _path_by_name(results: Results) -> dict[str, Any] | None:
    path = results.critical_path
    if path is None:
        return None
    lines = path_by(path, "name", results.rank_numbers)
    total = np.array([line["total_ps"] for line in lines], np.int64)
    whole = max(results.shown_ps, 1)
    return _table(
        "path_by_name",
        "Critical path by name",
        "The lines add up to the step.",
        [
            ("name", "Name", "text", "", [line["name"] for line in lines]),
            ("total", "Time", "time", "on the critical path", total),
            ("share", "Share", "percent", "of the step", total / whole),
            ("pieces", "Pieces", "number", "", np.array([line["pieces"] for line in lines])),
        ],
    )
