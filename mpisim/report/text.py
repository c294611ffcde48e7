"""The report as text: where the time of a step went, section by section.

`render` puts the sections together; each is a function that returns its lines. The columns of the
tables are in `tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.text import (
    TimeUnit,
    aligned,
    apportioned,
    counted,
    duration,
    error_bar,
    one_line,
    percent,
    percentage,
    quantity,
    shortened,
    unit_for,
)
from ..engine.fold import SplitReason
from ..results import Results
from .figures import path_by
from .tables import (
    COMMUNICATION_COLUMNS,
    KERNEL_COLUMNS,
    LINK_COLUMNS,
    RANK_COLUMNS,
    SLOWEST_COLUMNS,
    WIDTH,
    communication_rows,
    equal_ranks,
    kernel_rows,
    link_rows,
    mean_row,
    names_cut,
    rank_row,
    slowest_first,
    slowest_rows,
    table_lines,
)

__all__ = ["recorded_facts", "render", "sampled_facts"]

SPLIT_REASONS = {
    SplitReason.SPEED: "their speed",
    SplitReason.START: "their start",
    SplitReason.COMMUNICATORS: "the size or cost of their communicators",
    SplitReason.PARTNERS: "the ranks they communicate with",
}
MAX_REPEATED = 24
"""Characters of a source from which on it is printed once, and referred to later."""

MAX_RANKS = 8
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
    """Step time, digest, and the statements of the prediction: attributes of the results."""
    attributes = dict(results.attributes)
    error = attributes.pop("uncertainty", None)
    # Memory has a section of its own; the others are in the texts of `launch_bound` and `overlap`.
    of_memory = ("memory", "memory_peak", "memory_error", "memory_capacity")
    # The numbers of the cost are in its texts.
    of_cost = ("energy", "power", "usd")
    for key in [each for each in attributes if each.startswith(of_cost)]:
        del attributes[key]
    for key in (*of_memory, "launch_share", "cuda_graphs_step_time", "overlap_added"):
        attributes.pop(key, None)
    sampled = sampled_facts(attributes)
    step = duration(results.step_time_ps)
    if isinstance(error, float):
        step += f"  {error_bar(error)}"
    n_rows = sum(results.ranks["rows"].tolist())
    ranks = f"{results.n_ranks:,} on {counted(results.n_processes, 'process', 'processes')}, "
    if results.n_classes < results.n_ranks:
        ranks += f"{counted(results.n_classes, 'class', 'classes')}, "
    rounds = counted(results.rounds, "round")
    facts = [
        ("step time", step),
        *recorded_facts(results),
        *sampled,
        ("digest", results.digest),
        ("ranks", f"{ranks}{rounds} of exchange, {counted(n_rows, 'row')}"),
    ]
    if results.classes["apart"].any():
        facts.append(("classes", _split_classes(results)))
    if isinstance(error, str):
        facts.append(("uncertainty", one_line(error)))
    lists: list[str] = []
    for key, value in {**results.program, **attributes}.items():
        label = shortened(one_line(key).replace("_", " "), 24)
        if isinstance(value, list):
            lists.append(f"{label}:")
            for text in _once(value):
                lists += _hanging("  - ", one_line(text))
        else:
            facts.append((label, one_line(_value(key, value))))
    width = max(len(label) for label, _ in facts)
    lines = [line for label, text in facts for line in _hanging(f"{label:<{width}}  ", text)]
    return lines + lists


def _once(texts: Sequence[str]) -> Iterator[str]:
    """Statements ``KEY = VALUE (SOURCE)`` → the same, each long source with its first key alone."""
    first: dict[str, str] = {}
    for text in texts:
        key, _, rest = text.partition(" = ")
        value, _, source = rest.partition(" (")
        if len(source) > MAX_REPEATED and first.setdefault(source, key) != key:
            text = f"{key} = {value} (as {first[source]})"
        yield text


def _value(key: str, value: Any) -> str:
    """Value of an attribute → text, with its unit where it is known."""
    if key == "utilisation" and isinstance(value, float):
        return percentage(value, 1)
    if key.endswith("_flops") and isinstance(value, float):
        return quantity(value, "FLOP")
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else str(value)


def recorded_facts(results: Results) -> list[tuple[str, str]]:
    """Results → the steps of a recording: which the step time is the mean of, and which is shown.

    Pairs of a label and a text; none but for recordings.
    """
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


def sampled_facts(attributes: dict[str, Any]) -> list[tuple[str, str]]:
    """Take the statements of runs with other seeds out of attributes: pairs of label and text."""
    found = {key: attributes.pop(key) for key in list(attributes) if key.startswith("sampled_")}
    if not found:
        return []
    steps = found.pop("sampled_steps")
    figures = [f"{key[8:]} {duration(round(value))}" for key, value in found.items()]
    return [
        (counted(len(steps), "seed"), ", ".join(figures)),
        ("", f"from {duration(min(steps))} to {duration(max(steps))}"),
    ]


def _split_classes(results: Results) -> str:
    """Why ranks of one table are in several equivalence classes."""
    counts = np.bincount(results.classes["apart"], minlength=len(SplitReason)).tolist()
    whys = [f"{counts[why]:,} by {text}" for why, text in SPLIT_REASONS.items() if counts[why]]
    return (
        f"{sum(counts[1:]):,} of {sum(counts):,} differ from the largest with the same rows: "
        + ", ".join(whys)
    )


def _memory(results: Results) -> list[str]:
    """The statement of the prediction about memory, as it stands."""
    lines = results.attributes.get("memory", [])
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _hanging(label: str, text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)) or [label]


# --- ranks ---------------------------------------------------------------------------------------


def _ranks(results: Results, unit: TimeUnit) -> list[str]:
    """The breakdown of ranks, equal ones once, or of the slowest and fastest; and the mean."""
    groups = equal_ranks(results)
    order = list(range(len(groups)))
    if len(groups) > MAX_RANKS:
        order = slowest_first(results, groups)
        order = order[: MAX_RANKS // 2] + order[-MAX_RANKS // 2 :]
    rows = [rank_row(results, groups[at], unit) for at in order]
    lines = table_lines(RANK_COLUMNS, [*rows, mean_row(results, unit)])
    if len(order) < len(groups):
        lines.insert(1 + MAX_RANKS // 2, "  ...")
    what = "all ranks" if len(order) == len(groups) else "the slowest and the fastest ranks"
    return [
        f"Where the step went, {what}, in {unit.name} "
        "(compute + exposed communication + idle = step)",
        *lines,
    ]


def _slowest(results: Results, unit: TimeUnit, top: int) -> list[str]:
    if results.n_ranks == 1 or top < 1:
        return []
    return [
        f"Slowest ranks, in {unit.name} (own time: end - exposed waiting for others)",
        *table_lines(SLOWEST_COLUMNS, slowest_rows(results, unit, top)),
    ]


# --- rows ----------------------------------------------------------------------------------------


def _kernels(results: Results, top: int) -> list[str]:
    rows = kernel_rows(results)
    if not rows:
        return ["No kernels."]
    totals = [row.total for row in rows]
    return [
        f"Kernels and copies, {duration(sum(totals))} over all ranks",
        *table_lines(KERNEL_COLUMNS, rows[:top], kernel_names=True),
        *_more(len(rows), top, totals, sum(totals)),
    ]


def _communications(results: Results, top: int) -> list[str]:
    columns = results.communications
    n = len(columns["count"])
    if not n:
        return ["No communications."]
    spent = (columns["wire"] + columns["waiting"]).tolist()
    whole = sum(spent)
    return [
        f"Communications, {duration(whole)} over all ranks "
        f"({percent(sum(columns['wire'].tolist()), whole)} % wire, the rest waiting for others)",
        *table_lines(COMMUNICATION_COLUMNS, communication_rows(results, top)),
        *_more(n, top, spent, whole),
        *_limits(results, top),
    ]


def _limits(results: Results, top: int) -> list[str]:
    """What bounds communications by themselves, and for how much of their time on the wire."""
    columns = results.communications
    whole = sum(columns["wire"].tolist())
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
    n = len(use.links["name"])
    if not n:
        return []
    rows = list(link_rows(results, top))
    sharing = [column.tolist() for column in use.sharing.values()]
    lines = []
    for i, row in enumerate(rows):
        pairs = [(a, b, time) for link, a, b, time in zip(*sharing, strict=True) if link == i]
        for a, b, time in pairs[:1]:
            names = (one_line(results.communicators.names[each]) for each in (a, b))
            more = f"; {counted(len(pairs) - 1, 'more pair')}" if len(pairs) > 1 else ""
            lines.append(f"{row.name}: {' and '.join(names)}, {duration(time)}{more}")
    return [
        f"Links that can be full: {counted(sum(use.links['count'].tolist()), 'link')} of "
        f"{counted(n, 'kind')} (used: of the step's capacity; peak: of 1 % of it)",
        *table_lines(LINK_COLUMNS, rows),
        *(["  Most shared by:", *(f"    {line}" for line in lines)] if lines else []),
        *([f"  ... {counted(n - top, 'more kind')}"] if n > top else []),
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
        f"Critical path, in {unit.name}: the chain of {counted(len(path.kind), 'piece')} that sets "
        f"{whole}"
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
    return ["", *(f"  {line}" for line in aligned(names_cut([header, *rows]), left=(3,)))]
