"""A comparison of decentralized training as figures (JSON), and these as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.quantity import PICOSECONDS
from ..base.text import aligned, counted, duration, quantity, shortened
from .comparison import Comparison, Draw
from .simulation import WorkerTimeline

__all__ = ["as_json", "report_lines"]

MAX_DESCRIPTION = 48
"""Characters of the factors in a line."""


def as_json(found: Comparison) -> dict[str, Any]:
    """Comparison → all figures; times in seconds."""
    return {
        "title": found.experiment.title,
        "graph": found.graph_name,
        "workers": found.graph.workers,
        "edges": [list(edge) for edge in found.graph.edges],
        "iterations": found.iterations,
        "backup": found.protocol.backup,
        "staleness": found.protocol.staleness,
        "max_gap": found.protocol.max_gap,
        "skip": found.protocol.skip,
        "update_bytes": found.update_bytes,
        "compute": found.compute / PICOSECONDS,
        "draws": [_draw(draw) for draw in found.draws],
    }


def _draw(draw: Draw) -> dict[str, Any]:
    return {
        "factors": list(draw.factors),
        "speed_up": draw.speed_up,
        "baseline": _outcome(draw.baseline),
        "protocol": _outcome(draw.protocol),
    }


def _outcome(outcome: WorkerTimeline) -> dict[str, Any]:
    return {
        "iteration_time": outcome.iteration_time / PICOSECONDS,
        "iteration_times": (outcome.iteration_times / PICOSECONDS).tolist(),
        "largest_gap": outcome.largest_gap,
        "skipped": outcome.skipped.tolist(),
        "passes": outcome.passes,
        "digest": outcome.digest,
    }


def report_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Figures of `as_json` → lines for people."""
    degrees = Counter(receiver for _, receiver in numbers["edges"]).values()
    least, most = min(degrees), max(degrees)
    sent = str(most) if least == most else f"{least} to {most}"
    lines = [
        f"title       {numbers['title']}",
        f"workers     {numbers['workers']}, {numbers['graph']}: each receives {sent} updates of "
        f"{quantity(numbers['update_bytes'], 'B')} an iteration",
        f"iteration   {_shown(numbers['compute'])} of kernels, without averaging; "
        f"{numbers['iterations']} iterations are simulated",
        f"protocol    {_described(numbers)}; beside it: every update of an iteration",
        "",
        *_table(numbers["draws"]),
    ]
    if len(numbers["draws"]) > 1:
        gains = np.array([draw["speed_up"] for draw in numbers["draws"]])
        lines += [
            "",
            f"Speed-up over {len(gains)} draws: {gains.mean():.2f} in the mean, {gains.min():.2f} "
            f"to {gains.max():.2f}.",
        ]
    return lines


def _shown(seconds: float) -> str:
    return duration(round(seconds * PICOSECONDS))


def _described(numbers: Mapping[str, Any]) -> str:
    """Say what a worker waits for."""
    said = []
    if numbers["backup"]:
        said.append(f"{counted(int(numbers['backup']), 'update')} need not have come")
    if numbers["staleness"]:
        said.append(f"updates of {numbers['staleness']} iterations before do")
    if not said:
        said.append("every update is waited for")
    if numbers["max_gap"] is not None:
        said.append(f"tokens for a gap of {numbers['max_gap']}")
    if numbers.get("skip"):
        said.append(f"up to {counted(int(numbers['skip']), 'iteration')} skipped at once")
    return ", ".join(said)


def _table(draws: list[dict[str, Any]]) -> list[str]:
    """Return a line for each draw."""
    skips = any(any(draw["protocol"].get("skipped", ())) for draw in draws)
    slowed = any(factor != 1 for draw in draws for factor in draw["factors"])
    heading = "bandwidth of each GPU divided by" if slowed else ""
    skipped = ("skipped",) if skips else ()
    columns = ("draw", "all updates", "protocol", "speed-up", "slowest worker", "gap")
    cells = [(*columns, *skipped, heading)]
    for number, draw in enumerate(draws):
        baseline, protocol = draw["baseline"], draw["protocol"]
        slowest = max(baseline["iteration_times"]) / max(protocol["iteration_times"])
        factors = " ".join(f"{each:.1f}" for each in draw["factors"])
        cells.append(
            (
                str(number),
                _shown(baseline["iteration_time"]),
                _shown(protocol["iteration_time"]),
                f"{draw['speed_up']:.3f}",
                f"{slowest:.3f}",
                str(protocol["largest_gap"]),
                *([str(sum(protocol["skipped"]))] if skips else []),
                shortened(factors, MAX_DESCRIPTION) if slowed else "",
            )
        )
    return aligned(cells, left=(len(cells[0]) - 1,))
