"""The report as text: what took the time of a step, and what to change to make it shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import (
    TimeUnit,
    aligned,
    apportioned,
    duration,
    one_line,
    percent,
    quantity,
    shortened,
    unit_for,
)
from ..engine.fold import SplitReason
from ..program import Kind, Operation
from ..results import Results
from .figures import path_by
from .kernel_names import short_names

__all__ = ["render"]

WIDTH = 100
APART = {
    SplitReason.SPEED: "their speed",
    SplitReason.START: "their start",
    SplitReason.COMMUNICATORS: "the size or cost of their communicators",
    SplitReason.PARTNERS: "the ranks they meet",
}
MOST_RANKS = 8
"""Ranks in the table of ranks before only the slowest and the fastest are shown."""


def render(results: Results, top: int = 10) -> str:
    """Report a result as text.

    Parameters
    ----------
    results : Results
    top : int
        Lines of each list.

    Returns
    -------
    str
        Lines of at most 100 characters. In every table the parts shown add up to the whole shown.

    Examples
    --------
    >>> with mpisim.open_results("run.h5") as results:              # doctest: +SKIP
    ...     print(render(results))
    """
    unit = unit_for(results.shown_ps)
    sections = [_head(results), _memory(results)]
    sections += [_ranks(results, unit), _slowest(results, unit, top)]
    sections += [_kernels(results, top), _communications(results, top)]
    sections += [_links(results, top)]
    if results.critical_path is not None and len(results.critical_path.kind):
        sections.append(_critical_path(results, unit, top))
    else:
        sections.append(["The critical path was not asked for."])
    lines = [line for section in sections if section for line in [*section, ""]][:-1]
    return "\n".join(shortened(line, WIDTH, tail=16) for line in lines)


def _head(results: Results) -> list[str]:
    """Step time, digest, and what the maker of the program has to say about the result."""
    attributes = dict(results.attributes)
    error = attributes.pop("uncertainty", None)
    # Those of memory have a section of their own; the last two are in the text of `launch_bound`.
    apart = ("memory", "memory_peak", "memory_capacity", "launch_share", "cuda_graphs_step_time")
    for key in apart:
        attributes.pop(key, None)
    sampled = _sampled(attributes)
    step = duration(results.step_time_ps)
    if isinstance(error, float):
        step += f"  ± {100 * error:.2g} %"
    processes = f"{results.n_processes} process" + ("es" if results.n_processes != 1 else "")
    rounds = f"{results.rounds} round" + ("s" if results.rounds != 1 else "")
    n_rows = sum(results.ranks["rows"].tolist())
    ranks = f"{results.n_ranks:,} on {processes}, "
    if results.n_classes < results.n_ranks:
        ranks += f"{results.n_classes:,} class" + ("es, " if results.n_classes != 1 else ", ")
    facts = [
        ("step time", step),
        *_recorded(results),
        *sampled,
        ("digest", results.digest),
        ("ranks", f"{ranks}{rounds} of exchange, {n_rows:,} rows"),
    ]
    if results.classes["apart"].any():
        facts.append(("classes", _told_apart(results)))
    if isinstance(error, str):
        facts.append(("uncertainty", one_line(error)))
    lists: list[str] = []
    for key, value in {**results.program, **attributes}.items():
        label = shortened(one_line(key).replace("_", " "), 24)
        if isinstance(value, list):
            lists.append(f"{label}:")
            for text in value:
                lists += _hanging("  - ", one_line(text))
        else:
            said = f"{value:.6g}" if isinstance(value, float) else str(value)
            facts.append((label, one_line(said)))
    width = max(len(label) for label, _ in facts)
    lines = [line for label, text in facts for line in _hanging(f"{label:<{width}}  ", text)]
    return lines + lists


def _recorded(results: Results) -> list[tuple[str, str]]:
    """Say which steps of a recording the step time is of, and which one the tables show."""
    of = results.recorded
    if of is None:
        return []
    if of.shown_step < 0:
        each = "the file marks no steps: from the first device operation to the last"
    elif len(of.step) == 1:
        each = f"of step {of.shown_step}, the only one recorded whole"
    else:
        rows = zip(of.step.tolist(), of.times.tolist(), strict=True)
        each = f"mean of {len(of.step)} recorded steps: " + ", ".join(
            f"{step} {duration(time)}" for step, time in rows
        )
    facts = [("", each)]
    if len(of.step) > 1:
        what = f"step {of.shown_step}, {duration(of.shown_ps)} (--step N of replay: another)"
        facts.append(("shown below", what))
    return [*facts, ("recording", f"{duration(of.whole_ps)} in all, before and after included")]


def _sampled(attributes: dict[str, Any]) -> list[tuple[str, str]]:
    """Take out of the attributes what is said of runs with other seeds."""
    found = {key: attributes.pop(key) for key in list(attributes) if key.startswith("sampled_")}
    if not found:
        return []
    steps = found.pop("sampled_steps")
    figures = [f"{key[8:]} {duration(round(value))}" for key, value in found.items()]
    return [
        (f"{len(steps)} seeds", ", ".join(figures)),
        ("", f"from {duration(min(steps))} to {duration(max(steps))}"),
    ]


def _told_apart(results: Results) -> str:
    """Why there are more classes than tables, though ranks of a class do the same."""
    apart = np.bincount(results.classes["apart"], minlength=len(SplitReason)).tolist()
    whys = [f"{apart[why]:,} by {text}" for why, text in APART.items() if apart[why]]
    return (
        f"{sum(apart[1:]):,} of {sum(apart):,} differ from the largest with the same rows: "
        + ", ".join(whys)
    )


def _memory(results: Results) -> list[str]:
    """What the maker of the program has to say about memory, as it stands."""
    lines = results.attributes.get("memory", [])
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _hanging(label: str, text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)) or [label]


# --- ranks ---------------------------------------------------------------------------------------


def _ranks(results: Results, unit: TimeUnit) -> list[str]:
    """The breakdown of each rank, or of the slowest and fastest; and the mean."""
    columns, numbers = results.ranks, results.rank_numbers
    order = list(range(results.n_ranks))
    if len(order) > MOST_RANKS:
        order = slowest_first(results)
        order = order[: MOST_RANKS // 2] + order[-MOST_RANKS // 2 :]
    names = ("compute", "exposed_waiting", "exposed_wire", "idle")
    rows: list[tuple[str, ...]]
    rows = [
        (
            "rank",
            "compute",
            "exposed =",
            "waiting",
            "+ wire",
            "idle",
            "step",
            "comm. all",
            "CPU busy",
            "CPU waits",
        )
    ]
    for rank in order:
        values = [
            int(columns[c][rank]) for c in (*names, "communication", "host_busy", "host_waiting")
        ]
        rows.append((str(numbers[rank]), *_breakdown_cells(values, unit, unit.step)))
    totals = [_total(columns[c]) for c in (*names, "communication", "host_busy", "host_waiting")]
    rows.append(("mean", *_breakdown_cells(totals, unit, unit.step * results.n_ranks)))
    shown = aligned(rows, left=())
    if len(order) < results.n_ranks:
        shown.insert(1 + MOST_RANKS // 2, "...")
    what = "all ranks" if len(order) == results.n_ranks else "the slowest and the fastest ranks"
    return [
        f"Where the step went, {what}, in {unit.name} "
        "(compute + exposed communication + idle = step)",
        *(f"  {line}" for line in shown),
    ]


def _total(values: NDArray[np.int64]) -> int:
    """Return the sum of values, which may be too large for 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _breakdown_cells(values: Sequence[int], unit: TimeUnit, step: int) -> list[str]:
    """Show compute, waiting, wire and idle so that they add up; and three times beside them."""
    compute, waiting, wire, idle = apportioned(values[:4], step)
    whole = compute + waiting + wire + idle
    beside = [(2 * value + step) // (2 * step) for value in values[4:]]
    return [
        unit.show(steps) for steps in (compute, waiting + wire, waiting, wire, idle, whole, *beside)
    ]


def own_time(results: Results) -> NDArray[np.int64]:
    """How long each rank would have taken had nobody made it wait: a measure of slowness."""
    own: NDArray[np.int64] = results.ranks["end"] - results.ranks["exposed_waiting"]
    return own


def slowest_first(results: Results) -> list[int]:
    """Order ranks by their own time, then by their compute time."""
    order: list[int] = np.lexsort((-results.ranks["compute"], -own_time(results))).tolist()
    return order


def _slowest(results: Results, unit: TimeUnit, top: int) -> list[str]:
    own, numbers = own_time(results), results.rank_numbers
    if results.n_ranks == 1 or top < 1:
        return []
    order = slowest_first(results)[:top]
    rows = [("rank", "own time", "vs mean", "compute", "exposed waiting", "end")]
    mean = float(own.mean())
    for rank in order:
        rows.append(
            (
                str(numbers[rank]),
                unit.of(int(own[rank])),
                f"{100 * (own[rank] / mean - 1):+.1f} %" if mean else "-",
                unit.of(int(results.ranks["compute"][rank])),
                unit.of(int(results.ranks["exposed_waiting"][rank])),
                unit.of(int(results.ranks["end"][rank])),
            )
        )
    return [
        f"Slowest ranks, in {unit.name} (own time: end - exposed waiting for others)",
        *(f"  {line}" for line in aligned(rows, left=())),
    ]


# --- rows ----------------------------------------------------------------------------------------


def _kernels(results: Results, top: int) -> list[str]:
    table = {name: column.tolist() for name, column in results.kernels.items()}
    n = len(table["name"])
    if not n:
        return ["No kernels."]
    whole = sum(table["total"])
    rows = [("total", "%", "count", "mean", "longest", "name")]
    for i in range(min(n, top)):
        copy = "copy: " if table["kind"][i] == Kind.COPY else ""
        count, total = table["count"][i], table["total"][i]
        mean, longest = round(total / count), table["longest"][i]
        rows.append(
            (
                duration(total),
                percent(total, whole),
                f"{count:,}",
                duration(mean),
                duration(longest),
                copy + table["name"][i],
            )
        )
    return [
        f"Kernels and copies, {duration(whole)} over all ranks",
        *(f"  {line}" for line in aligned(_names_cut(rows), left=(5,))),
        *_more(n, top, table["total"], whole),
    ]


def _names_cut(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten the last column of a table, kernels' names, to what is left of a line."""
    columns = list(zip(*rows, strict=True))[:-1]
    width = WIDTH - 2 - sum(max(map(len, column)) + 2 for column in columns)
    names = short_names([row[-1] for row in rows], width)
    return [(*row[:-1], name) for row, name in zip(rows, names, strict=True)]


def _communications(results: Results, top: int) -> list[str]:
    columns = results.communications
    n = len(columns["count"])
    if not n:
        return ["No communications."]
    wires = columns["wire"].tolist()
    spent = (columns["wire"] + columns["waiting"]).tolist()
    whole = sum(spent)
    table = {name: column[:top].tolist() for name, column in columns.items()}
    rows: list[tuple[str, ...]]
    rows = [
        (
            "count",
            "size each",
            "wire each",
            "waiting each",
            "bytes/wire",
            "busbw",
            "ranks",
            "operation, communicator",
        )
    ]
    for i in range(min(n, top)):
        count, members = table["count"][i], max(table["count"][i] * table["size"][i], 1)
        size = table["bytes"][i]
        rows.append(
            (
                f"{count:,}",
                quantity(size / max(count, 1), "B", 1024) if size >= 0 else "unknown",
                duration(round(table["wire"][i] / members)),
                duration(round(table["waiting"][i] / members)),
                *(
                    quantity(rate, "B/s") if rate == rate else "-"
                    for rate in (table["bandwidth"][i], table["bus_bandwidth"][i])
                ),
                str(table["size"][i]),
                f"{Operation(table['operation'][i]).name.lower()}, "
                + one_line(results.communicators.names[table["communicator"][i]]),
            )
        )
    return [
        f"Communications, {duration(whole)} over all ranks "
        f"({percent(sum(wires), whole)} % wire, the rest waiting for others)",
        *(f"  {line}" for line in aligned(rows, left=(7,))),
        *_more(n, top, spent, whole),
        *_limits(results, top),
    ]


def _limits(results: Results, top: int) -> list[str]:
    """What bounds communications by themselves, and for how much of their time on the wire."""
    columns = results.communications
    whole = int(columns["wire"].sum())
    wire: dict[str, int] = {}
    for limit, time in zip(columns["limit"].tolist(), columns["wire"].tolist(), strict=True):
        if limit:
            wire[limit] = wire.get(limit, 0) + time
    if not wire or not whole:
        return []
    ordered = sorted(wire.items(), key=lambda each: (-each[1], each[0]))
    rows = [("%", "limited by, alone and at their mean sizes (share of the wire time)")]
    rows += [(percent(time, whole), one_line(limit)) for limit, time in ordered[:top]]
    return [
        *(f"  {line}" for line in aligned(rows, left=(1,))),
        *_more(len(ordered), top, [time for _, time in ordered], whole),
    ]


def _links(results: Results, top: int) -> list[str]:
    """The links that communications could fill, and who shared them, if there are any."""
    use = results.links
    table = {name: column.tolist() for name, column in use.links.items()}
    n = len(table["name"])
    if not n:
        return []
    step = results.shown_ps
    sharing = [column.tolist() for column in use.sharing.values()]
    rows = [("alike", "capacity", "bytes", "used", "peak", "busy", "shared", "link")]
    lines = []
    for i in range(min(n, top)):
        used = table["bytes"][i] / (table["capacity"][i] * max(step, 1) * 1e-12)
        rows.append(
            (
                f"{table['count'][i]:,}",
                quantity(table["capacity"][i], "B/s"),
                quantity(table["bytes"][i], "B", 1024),
                f"{100 * used:.1f} %",
                f"{100 * float(use.utilisation[i].max()):.0f} %",
                f"{percent(table['busy'][i], step)} %",
                f"{percent(table['shared'][i], step)} %",
                one_line(table["name"][i]),
            )
        )
        pairs = [(a, b, time) for link, a, b, time in zip(*sharing, strict=True) if link == i]
        for a, b, time in pairs[:1]:
            names = (one_line(results.communicators.names[each]) for each in (a, b))
            more = f"; {len(pairs) - 1:,} more pairs" if len(pairs) > 1 else ""
            lines.append(f"{table['name'][i]}: {' and '.join(names)}, {duration(time)}{more}")
    return [
        f"Links that can be full, {sum(table['count']):,} of {n:,} kinds (used: of the step's "
        "capacity; peak: of 1 % of it)",
        *(f"  {line}" for line in aligned(rows, left=(7,))),
        *(["  Most shared by:", *(f"    {line}" for line in lines)] if lines else []),
        *([f"  ... {n - top:,} more kinds"] if n > top else []),
    ]


def _more(n: int, top: int, totals: Sequence[int], whole: int) -> list[str]:
    rest = sum(totals[top:])
    return [f"  ... {n - top:,} more, {percent(rest, whole)} %"] if n > top else []


# --- the critical path ---------------------------------------------------------------------------


def _critical_path(results: Results, unit: TimeUnit, top: int) -> list[str]:
    path = results.critical_path
    assert path is not None
    of = results.recorded
    whole = "the step time" if of is None or of.shown_step < 0 else f"step {of.shown_step}"
    lines = [
        f"Critical path, in {unit.name}: the chain of {len(path.kind):,} pieces that sets {whole}"
    ]
    for what in ("kind", "name", "rank"):
        parts = path_by(path, what, results.rank_numbers)
        lines += _parts(parts, what, results.shown_ps, unit, top)
    return lines


def _parts(
    parts: Sequence[dict[str, Any]], what: str, whole: int, unit: TimeUnit, top: int
) -> list[str]:
    """Show the longest parts and the sum of the others; together they are the whole shown."""
    shown = [(str(p[what]), p["total_ps"], p["pieces"]) for p in parts[:top]]
    rest = parts[top:]
    if rest:
        total, pieces = (sum(p[key] for p in rest) for key in ("total_ps", "pieces"))
        shown.append((f"{len(rest):,} more", total, pieces))
    steps = apportioned([total for _, total, _ in shown], unit.step)
    rows = [
        (unit.show(step), percent(total, whole), f"{pieces:,}", label)
        for step, (label, total, pieces) in zip(steps, shown, strict=True)
    ]
    rows.append((unit.show(sum(steps)), "", "", "= step time"))
    header = ("time", "%", "pieces", what)
    return ["", *(f"  {line}" for line in aligned(_names_cut([header, *rows]), left=(3,)))]
