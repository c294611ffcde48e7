"""A comparison of decentralized training as text and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.quantity import PICOSECONDS
from ..base.text import aligned, duration, quantity, shortened
from .comparison import Comparison, Draw
from .protocol import Protocol
from .simulation import Outcome

__all__ = ["as_json", "comparison_lines"]

ROOM = 48
"""Characters of the factors in a line."""


def comparison_lines(found: Comparison) -> list[str]:
    """Comparison → lines for people."""
    degrees = sorted({len(each) for each in found.graph.senders})
    sent = f"{degrees[0]} to {degrees[-1]}" if len(degrees) > 1 else str(degrees[0])
    lines = [
        f"title       {found.experiment.title}",
        f"workers     {found.graph.workers}, {found.graph_name}: each receives {sent} updates of "
        f"{quantity(found.update_bytes, 'B')} an iteration",
        f"iteration   {duration(found.compute)} of kernels, without averaging; "
        f"{found.iterations} iterations are simulated",
        f"protocol    {_described(found.protocol)}; beside it: every update of an iteration",
        "",
        *_table(found),
    ]
    if len(found.draws) > 1:
        gains = np.array([draw.speed_up for draw in found.draws])
        lines += [
            "",
            f"Speed-up over {len(gains)} draws: {gains.mean():.2f} in the mean, {gains.min():.2f} "
            f"to {gains.max():.2f}.",
        ]
    return lines


def _described(protocol: Protocol) -> str:
    """Say what a worker waits for."""
    said = []
    if protocol.backup:
        said.append(f"{protocol.backup} updates need not have come")
    if protocol.staleness:
        said.append(f"updates of {protocol.staleness} iterations before do")
    if not said:
        said.append("every update is waited for")
    if protocol.max_gap is not None:
        said.append(f"tokens for a gap of {protocol.max_gap}")
    return ", ".join(said)


def _table(found: Comparison) -> list[str]:
    """Return a line for each draw."""
    slowed = any(factor != 1 for draw in found.draws for factor in draw.factors)
    heading = "bandwidth of each GPU divided by" if slowed else ""
    cells = [("draw", "all updates", "protocol", "speed-up", "slowest worker", "gap", heading)]
    for number, draw in enumerate(found.draws):
        slowest = draw.baseline.iteration_times.max() / draw.protocol.iteration_times.max()
        cells.append(
            (
                str(number),
                duration(round(draw.baseline.iteration_time)),
                duration(round(draw.protocol.iteration_time)),
                f"{draw.speed_up:.3f}",
                f"{slowest:.3f}",
                str(draw.protocol.largest_gap),
                shortened(" ".join(f"{each:.1f}" for each in draw.factors), ROOM) if slowed else "",
            )
        )
    return aligned(cells, left=(6,))


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


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "iteration_time": outcome.iteration_time / PICOSECONDS,
        "iteration_times": (outcome.iteration_times / PICOSECONDS).tolist(),
        "ended": (outcome.ended / PICOSECONDS).tolist(),
        "largest_gap": outcome.largest_gap,
        "passes": outcome.passes,
        "digest": outcome.digest,
    }
