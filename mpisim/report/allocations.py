"""What a program asked of PyTorch's allocator, and what came of it → text and figures."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from ..base.quantity import GIB
from ..base.text import WIDTH, aligned, duration, percent, shortened
from ..memory.allocations import Action, Allocations, Recorded, Usage, holders
from ..memory.configurations import AllocatorUsage

__all__ = ["figures", "text"]

SLICES = 8
"""Rows of the table over time."""

LABEL_WIDTH = 60


def text(
    recorded: Recorded,
    chosen: AllocatorUsage,
    others: Sequence[AllocatorUsage] = (),
    *,
    name: str = "",
    top: int = 10,
) -> str:
    """Recording, what its settings come to, what others would → the report.

    Parameters
    ----------
    recorded : Recorded
    chosen : AllocatorUsage
    others : sequence of AllocatorUsage
        What other settings come to.
    name : str
        What was recorded.
    top : int
        Lines of the table of modules.
    """
    allocations, usage = recorded.allocations, chosen.usage
    count = int((allocations.action == Action.ALLOCATE).sum())
    span = int(allocations.time[-1] - allocations.time[0]) if len(allocations) else 0
    lasts = f" in {duration(span)}" if span else ""
    parts = [
        f"{name}: {count:,} allocations{lasts}, GPU {recorded.device}",
        _peaks(recorded, chosen),
    ]
    if recorded.before:
        parts.append(
            f"{_gib(recorded.before)} GiB were there when the recording began; what was reserved "
            "for them is not\nknown, nor what was cached."
        )
    if len(usage.allocated):
        parts.append(_modules(allocations, usage, top))
    if span:
        parts.append(_over_time(allocations, usage))
    if others:
        parts.append(_choices([chosen, *others]))
    if chosen.room is not None:
        parts.append("\n".join(wrap(f"The program {chosen.sentence()}.", WIDTH)))
        if not chosen.easy:
            parts.append(_advice(others))
    return "\n\n".join(parts)


def _advice(others: Sequence[AllocatorUsage]) -> str:
    """Name the settings that would help."""
    enough = [each for each in others if each.easy] or [each for each in others if each.fits]
    if not enough:
        return "None of these settings makes it fit."
    names = ", ".join(each.settings or "the defaults" for each in enough)
    sure = "surely, without giving anything back" if enough[0].easy else "at that price"
    return f"Settings with which it fits {sure}: {names}"


def _peaks(recorded: Recorded, chosen: AllocatorUsage) -> str:
    usage = chosen.usage
    rows: list[tuple[str, ...]] = [
        ("GiB, at most", "recorded", "simulated"),
        ("allocated", _known(recorded.peak_allocated), _gib(usage.peak_allocated)),
        ("reserved", _known(recorded.peak_reserved), _gib(usage.peak_reserved)),
    ]
    if recorded.peak_allocated is None and recorded.peak_reserved is None:
        rows = [(what, simulated) for what, _, simulated in rows]
    settings = chosen.settings or "the defaults"
    return "\n".join(
        [
            *aligned(rows),
            f"fragmentation {100 * usage.fragmentation:.1f} %, {usage.segments:,} segments, "
            f"{usage.driver_calls:,} calls of the driver; settings: {settings}",
        ]
    )


def _modules(allocations: Allocations, usage: Usage, top: int) -> str:
    peak = int(usage.allocated.argmax())
    found = holders(allocations, peak)
    total = sum(each.bytes for each in found)
    rows = [("at the peak", "GiB", "%", "tensors")]
    rows += [
        (
            shortened(each.label or "(unknown)", LABEL_WIDTH),
            _gib(each.bytes),
            percent(each.bytes, total),
            f"{each.blocks:,}",
        )
        for each in found[:top]
    ]
    if len(found) > top:
        rest = found[top:]
        size = sum(each.bytes for each in rest)
        rows.append(
            (
                f"{len(rest):,} others",
                _gib(size),
                percent(size, total),
                f"{sum(each.blocks for each in rest):,}",
            )
        )
    return "\n".join(aligned(rows))


def _over_time(allocations: Allocations, usage: Usage) -> str:
    time = allocations.time[: len(usage.allocated)]
    time = time - time[0]
    edges = [int(time[-1]) * i // SLICES for i in range(SLICES + 1)]
    rows = [("until", "allocated, GiB at most", "reserved")]
    for i in range(SLICES):
        begin = int(np.searchsorted(time, edges[i])) if i else 0
        end = int(np.searchsorted(time, edges[i + 1], "right"))
        first = max(min(begin, end - 1) - 1, 0)  # what was there as the slice began counts
        rows.append(
            (
                duration(edges[i + 1]),
                _gib(int(usage.allocated[first:end].max())),
                _gib(int(usage.reserved[first:end].max())),
            )
        )
    return "\n".join(aligned(rows))


def _choices(outcomes: Sequence[AllocatorUsage]) -> str:
    judged = outcomes[0].room is not None
    head = ("settings", "reserved, GiB", "fragmentation", "calls of the driver")
    rows: list[tuple[str, ...]] = [(*head, "retries", "fits") if judged else head]
    for each in outcomes:
        usage = each.usage
        row: tuple[str, ...] = (
            each.settings or "the defaults",
            _gib(usage.peak_reserved),
            f"{100 * usage.fragmentation:.1f} %",
            f"{usage.driver_calls:,}",
        )
        if judged:
            word = ("yes" if each.fits else "no") + ("" if each.certain else ", close")
            row += (f"{each.retries:,}", word)
        rows.append(row)
    return "\n".join(aligned(rows))


def figures(
    recorded: Recorded, chosen: AllocatorUsage, others: Sequence[AllocatorUsage] = ()
) -> dict[str, Any]:
    """Return everything as numbers, for JSON; bytes are integers.

    Parameters
    ----------
    recorded : Recorded
    chosen : AllocatorUsage
    others : sequence of AllocatorUsage
    """
    usage = chosen.usage
    peak = int(usage.allocated.argmax()) if len(usage.allocated) else -1
    return {
        "device": recorded.device,
        "allocations": int((recorded.allocations.action == Action.ALLOCATE).sum()),
        "before": recorded.before,
        "recorded": {
            "settings": recorded.settings,
            "peak_allocated": recorded.peak_allocated,
            "peak_reserved": recorded.peak_reserved,
        },
        "simulated": chosen.as_dict(),
        "others": [each.as_dict() for each in others],
        "at_peak": [
            {"label": each.label, "bytes": each.bytes, "tensors": each.blocks}
            for each in holders(recorded.allocations, peak)
        ],
    }


def _known(size: int | None) -> str:
    return "?" if size is None else _gib(size)


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f}"
