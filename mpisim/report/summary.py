"""The short report: how long, does it fit, where the step goes, what costs most, what would help.

`summarise` puts the sections together; `mpisim.report.text` has the tables behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from ..base.quantity import GIB
from ..base.text import (
    WIDTH,
    apportioned,
    counted,
    duration,
    error_bar,
    one_line,
    percent,
    quantity,
    shortened,
    unit_for,
)
from ..engine.critical_path import PieceKind
from ..program import Operation
from ..results import PartKind, Results
from ..results.step_parts import IDLE
from .drawing import PLAIN, Drawing
from .kernel_names import short_names
from .part_labels import CommunicatorKinds, part_label, part_labels
from .text import recorded_facts, sampled_facts

__all__ = ["BAR_WIDTH", "REPORT_LINES", "summarise"]

BAR_WIDTH = 92
"""Characters of the bar."""

MIN_SHOWN, MAX_SHOWN = 2, 8
"""Parts with lines of their own, as there is room for them; the others are one."""

REPORT_LINES = 30
"""Lines of the report."""

LEAST_SHOWN = 1e-3
"""Share of the step from which on a part has a line of its own."""

MAX_COSTS, MAX_KERNELS = 3, 2
"""Things that are named as what costs most, and how many of them may be kernels."""

LEAST_COST = 0.005
"""Share of the step from which on something is among what costs most."""

MAX_REMEDIES = 3
LEAST_EFFECT = 0.002
"""Relative change of the step by a tenth of a quantity, from which on it is named."""

REMEDY_CHANGE = 0.1
"""Relative change of a quantity of which the effect is told."""

NOT_WORK = (PieceKind.HOST, PieceKind.LAUNCH, PieceKind.GAP)
"""Pieces of the critical path in which the device waits for the CPU."""

UNNAMED = "framework not named"
"""How the source of an error begins that a key would take away."""

NAME_IT = "[framework] name narrows it"
WARNINGS = ("is outside of what is known", "is more than the GPU's links carry")
"""Of a version and of a bandwidth: parts of assumptions that a reader is to see."""


def summarise(results: Results, drawing: Drawing = PLAIN) -> str:
    """Report a result in about 25 lines.

    Parameters
    ----------
    results : Results
    drawing : Drawing
        What can be shown where it is printed.

    Returns
    -------
    str
        At most 30 lines of at most 100 characters, colours aside.

    Examples
    --------
    >>> with mpisim.open_results("run.h5") as results:              # doctest: +SKIP
    ...     print(summarise(results))
    """
    kinds = CommunicatorKinds.of(results)
    shares = _shares(results, kinds)
    above = [_head(results, drawing)]
    below = [
        _titled("What costs most", _costs(results, kinds, shares), drawing),
        _titled("What would help most", _remedies(results), drawing),
        [*_warnings(results, drawing), *_more(results)],
    ]
    taken = sum(len(section) + 1 for section in (*above, *below) if section) - 1
    room = REPORT_LINES - taken - 4  # a title, the bar, the others, an empty line
    if room < MIN_SHOWN and "power" in results.attributes:  # the cost makes room for warnings
        above = [_head(results, drawing, cost=False)]
        room += 1
    bar = _bar(results, shares, drawing, min(max(room, MIN_SHOWN), MAX_SHOWN))
    sections = [section for section in (*above, bar, *below) if section]
    return "\n".join(line for section in sections for line in [*section, ""]).rstrip()


def _titled(title: str, lines: list[str], drawing: Drawing) -> list[str]:
    cut = [f"  {shortened(line, WIDTH - 2, tail=16)}" for line in lines]
    return [drawing.bold(title), *cut] if lines else []


# --- how long, and does it fit --------------------------------------------------------------------


def _head(results: Results, drawing: Drawing, *, cost: bool = True) -> list[str]:
    attributes = results.attributes
    step, error = duration(results.step_time_ps), attributes.get("uncertainty")
    if isinstance(error, float) and error > 0:  # a replay has none
        step += f"  {error_bar(error)}{_interval(results.step_time_ps, error)}"
    facts = [("step time", step), *recorded_facts(results)]
    facts += [
        (key, one_line(str(value)))
        for key in ("title", "throughput")
        if (value := {**results.program, **attributes}.get(key))
    ]
    facts += sampled_facts(dict(attributes))
    facts.append(("memory", _memory(attributes)) if "memory_peak" in attributes else ("", ""))
    facts.append(("cost", _cost(attributes)) if cost and "power" in attributes else ("", ""))
    processes = counted(results.n_processes, "process", "processes")
    equal = results.n_classes < results.n_ranks
    classes = f" ({results.n_classes:,} simulated, the others are equal)" if equal else ""
    facts += [("ranks", f"{results.n_ranks:,} on {processes}{classes}"), ("digest", results.digest)]
    width = max(len(label) for label, text in facts if text)
    lines: list[str] = []
    for label, text in facts:
        if text:
            shown = _fact(f"{label:<{width}}  ", text)
            bad = label == "memory" and text.startswith("does not")
            lines += map(drawing.warning, shown) if bad else shown
    return [drawing.bold(lines[0]), *lines[1:]]


def _fact(label: str, text: str) -> list[str]:
    """Return a line of what is known; two where figures need them."""
    room = WIDTH - len(label)
    if label.strip() in ("throughput", "memory", "cost"):
        first, *rest = wrap(text, room, max_lines=2, placeholder=" …")
        return [label + first, *(" " * len(label) + line for line in rest)]
    return [label + shortened(text, room, tail=16)]


def _interval(step: int, error: float) -> str:
    """The step divided and multiplied by one standard deviation, which is of its logarithm."""
    unit = unit_for(step)
    low, high = (unit.of(round(step * math.exp(sign * error))) for sign in (-1, 1))
    return f"  ({low} to {high} {unit.name})" if step else ""


def _memory(attributes: Mapping[str, Any]) -> str:
    """Whether the plan fits, in one line."""
    peak, capacity = attributes["memory_peak"], attributes["memory_capacity"]
    verdict = "fits" if peak <= capacity else "does not fit"
    left = f"{abs(capacity - peak) / GIB:,.1f} GiB {'free' if peak <= capacity else 'missing'}"
    more = "" if peak <= capacity else "; see --details"
    if abs(capacity - peak) <= 2 * attributes.get("memory_error", 0):  # as `Verdict.certain`
        more = f", too close to call{more}"
    return (
        f"{verdict}: the fullest GPU needs {peak / GIB:,.1f} of {capacity / GIB:,.1f} GiB, "
        f"{left}{more}"
    )


def _cost(attributes: Mapping[str, Any]) -> str:
    """Power, energy and dollars, in one line."""
    samples = next(
        (each for each in ("tokens", "images", "samples") if each in attributes), "samples"
    )
    text = f"{quantity(attributes['power'], 'W')} with the building"
    dollars = ""
    if "usd_hour" in attributes:
        text += f", ${attributes['usd_hour']:,.2f} an hour"
        dollars = f" and ${attributes['usd_per_million']:,.3g}"
    else:
        text += ", price unknown"  # --details says what tells it
    return f"{text}; {attributes['energy_per_million']:,.3g} kWh{dollars} for a million {samples}"


# --- where the step goes --------------------------------------------------------------------------


class Share(NamedTuple):
    """A part of the step in words, over all ranks."""

    label: str
    kind: PartKind
    total: int  # ps over all ranks
    of: str  # the name of the part


def _shares(results: Results, kinds: CommunicatorKinds) -> list[Share]:
    """Parts of the step in words, in their order; without parts the columns of the breakdown."""
    parts = results.parts
    if parts is None:
        columns = (
            ("compute", PartKind.COMPUTE, "compute"),
            ("exposed communication", PartKind.WIRE, "exposed_wire"),
            ("waiting for other GPUs", PartKind.WAITING, "exposed_waiting"),
            (IDLE, PartKind.IDLE, "idle"),
        )
        return [
            Share(label, kind, sum(results.ranks[column].tolist()), "")
            for label, kind, column in columns
        ]
    totals = parts.totals(results.classes["count"])
    found: dict[str, Share] = {}
    columns_of = (parts.names, parts.kinds.tolist(), part_labels(parts, kinds), totals)
    for name, kind, label, total in zip(*columns_of, strict=True):
        before = found[label].total if label in found else 0
        found[label] = Share(label, PartKind(kind), before + total, name)
    return list(found.values())


def _bar(results: Results, shares: list[Share], drawing: Drawing, most: int) -> list[str]:
    """The step as a bar, with lines for the largest parts."""
    whole = sum(share.total for share in shares)
    if not whole:
        return []
    by_size = sorted(shares, key=lambda share: -share.total)
    large = {s.label for s in by_size[:most] if s.total >= LEAST_SHOWN * whole}
    shown = [share for share in shares if share.label in large]
    rest = [share for share in shares if share.label not in large]
    if rest:
        total = sum(share.total for share in rest)
        more = f"{len(rest)} more part" + ("s" if len(rest) > 1 else "")
        shown.append(Share(more, PartKind.COMPUTE, total, ""))
    unit = unit_for(results.shown_ps)
    times = [share.total for share in shown]
    steps = apportioned(times, unit.step * results.n_ranks)
    blank = next((i for i, share in enumerate(shown) if share.kind == PartKind.IDLE), None)
    label, width = max(len(s.label) for s in shown), max(len(unit.show(step)) for step in steps)
    rows = [
        f"{drawing.fill(i, blank=i == blank)} {share.label:<{label}}  "
        f"{unit.show(step):>{width}} {unit.name}  {percent(share.total, whole):>5} %"
        for i, (share, step) in enumerate(zip(shown, steps, strict=True))
    ]
    of = results.recorded
    what = "the step" if of is None or of.shown_step < 0 else f"step {of.shown_step}"
    gpus = f"the mean of {results.n_ranks:,} GPUs" if results.n_ranks > 1 else "its GPU"
    return [
        drawing.bold(f"Where {what} goes, {duration(results.shown_ps)} in {gpus}"),
        f"  {drawing.bar(times, BAR_WIDTH, blank)}",
        *(f"  {row}" for row in rows),
    ]


# --- what costs most ------------------------------------------------------------------------------


def _costs(results: Results, kinds: CommunicatorKinds, shares: list[Share]) -> list[str]:
    """The largest costs in words: kernels on the critical path, exposed communication, waiting."""
    whole = max(sum(share.total for share in shares), 1)
    costs: list[tuple[float, str | Share]] = [*_on_path(results)]
    exposed = (PartKind.WIRE, PartKind.WAITING)
    costs += [(share.total / whole, share) for share in shares if share.kind in exposed]
    costs.sort(key=lambda cost: -cost[0])
    return [
        what if isinstance(what, str) else _exposed(results, kinds, what, part)
        for part, what in costs[:MAX_COSTS]
        if part >= LEAST_COST
    ]


def _on_path(results: Results) -> list[tuple[float, str]]:
    """Shares of the critical path: of kernels by name, and of the CPU."""
    path = results.critical_path
    if path is None or not len(path.kind) or not results.shown_ps:
        return []
    length = (path.end - path.begin).astype(np.float64) / results.shown_ps
    found = []
    work = (path.kind == PieceKind.COMPUTE) | (path.kind == PieceKind.COPY)
    names, number, pieces = np.unique(path.name[work], return_inverse=True, return_counts=True)
    total = np.bincount(number, length[work], len(names))
    for at in np.argsort(-total, kind="stable")[:MAX_KERNELS].tolist():
        n = int(pieces[at])
        many = f"{n:,} pieces" if n > 1 else "1 piece"
        said = f": {100 * total[at]:.1f} % of the critical path, {many}"
        # The name is cut, not what is said of it: those of C++ templates fill lines.
        [name] = short_names([path.names[int(names[at])]], WIDTH - 2 - len(said))
        found.append((float(total[at]), name + said))
    host = sum(float(length[path.kind == kind].sum()) for kind in NOT_WORK)
    text = f"the CPU: {100 * host:.1f} % of the critical path is launching kernels and work between"
    return [*found, (host, text)]


def _exposed(results: Results, kinds: CommunicatorKinds, share: Share, part: float) -> str:
    """Say how much is exposed, where, and what limits it."""
    if share.kind == PartKind.WAITING:
        parts = results.parts
        if parts is None:
            return f"{share.label}: {100 * part:.1f} %"
        same = [label == share.label for label in part_labels(parts, kinds)]
        waits = parts.times[:, np.array(same)].sum(axis=1) > results.shown_ps // 100
        n = int(results.classes["count"][waits].sum())
        return (
            f"{share.label}: {100 * part:.1f} % of the mean GPU; {n:,} of {results.n_ranks:,} GPUs "
            "wait more than 1 % of the step"
        )
    text = f"{share.label}: {100 * part:.1f} % exposed"
    columns = results.communications
    named = [part_label(name, PartKind.WIRE, pairs=name in kinds.pairs) for name in kinds.names]
    own = np.flatnonzero(np.array([each == share.label for each in named], bool)[kinds.kind])
    if not len(own):
        return text
    wire: dict[tuple[int, str], int] = {}
    of_own = (columns[each][own].tolist() for each in ("operation", "limit", "wire"))
    for operation, limit, time in zip(*of_own, strict=True):
        wire[operation, limit] = wire.get((operation, limit), 0) + time
    (operation, limit), _ = max(wire.items(), key=lambda each: each[1])
    what = Operation(operation).name.lower().replace("_", "-")
    limited = f", limited by {one_line(limit)}" if limit else ""
    return f"{text}, most of it {what}{limited}"


# --- what would help ------------------------------------------------------------------------------


def _remedies(results: Results) -> list[str]:
    """What a tenth more of a quantity would do, the most first."""
    known = results.sensitivities
    if known is None:
        return []
    lines: list[str] = []
    for number in np.argsort(-np.abs(known.elasticity), kind="stable").tolist():
        name, key, now = known.names[number], known.keys[number], known.now[number]
        elasticity = known.elasticity[number]
        factor = 1 + REMEDY_CHANGE if elasticity < 0 else 1 - REMEDY_CHANGE
        effect = -known.change(number, factor)
        if effect >= LEAST_EFFECT and len(lines) < MAX_REMEDIES:
            more = "more" if elasticity < 0 else "less"
            line = (
                f"{100 * REMEDY_CHANGE:.0f} % {more} {one_line(name)} would make the step about "
                f"{100 * effect:.1f} % shorter"
            )
            for about in (f"now {now}; {key}" if now and key else "", f"now {now}" if now else key):
                if about and len(line) + len(about) + 5 <= WIDTH:
                    line += f" ({one_line(about)})"
                    break
            lines.append(line)
    return lines


# --- the end --------------------------------------------------------------------------------------


def _warnings(results: Results, drawing: Drawing) -> list[str]:
    attributes = results.attributes
    texts: list[str] = []
    if "launch_bound" in attributes:
        line = f"Launch-bound: {one_line(str(attributes['launch_bound']))}"
        texts += map(drawing.warning, wrap(line, WIDTH, max_lines=2, placeholder=" …"))
    assumed = attributes.get("assumptions")
    for line in assumed if isinstance(assumed, list) else []:
        if any(each in line for each in WARNINGS):
            text = one_line(line)
            text = text[:1].upper() + text[1:]
            texts += map(drawing.warning, wrap(text, WIDTH, max_lines=2, placeholder=" …"))
    sources = attributes.get("uncertainty_sources")
    most = one_line(str(sources[0])) if isinstance(sources, list) and sources else ""
    if most.startswith(UNNAMED) and not texts:
        effect = most.rpartition(": ")[2]
        texts.append(shortened(f"Most of ±: {UNNAMED}, {effect} of the step; {NAME_IT}", WIDTH))
    published = attributes.get("published", [])
    for line in published[: 2 if len(texts) < 2 else 1] if isinstance(published, list) else []:
        texts.append(shortened(f"Published {one_line(line)}", WIDTH))
    return texts


def _more(results: Results) -> list[str]:
    attributes = results.attributes
    n, missing = (
        len(found) if isinstance(found := attributes.get(key), list) else 0
        for key in ("assumptions", "not_modelled")
    )
    hints = [
        f"{counted(number, word)}{rest}, "
        for number, word, rest in ((n, "assumption", ""), (missing, "thing", " not modelled"))
        if number
    ]
    uses = "keeps it for mpisim report (--html: a page), export, compare"
    uses += "." if results.recorded else ", sensitivity."
    file = "-o run.h5" if results.path is None else one_line(results.path.name)
    return [
        f"--details prints {''.join(hints)}all tables.",
        f"{shortened(file, WIDTH - len(uses) - 1)} {uses}",
    ]
