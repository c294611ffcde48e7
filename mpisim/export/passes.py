"""Rows of a rank → the passes that its GPU was in: forward of micro-batch 3, and within it layers.

A pass lasts from its first kernel to its last, as far as no kernel of another is between them:
where two overlap, as in DualPipe, they take turns. What is recomputed is part of the backward pass.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from ..program import Kind, Phase
from ..traces.export_communications import Event, RankRun

__all__ = ["pass_events"]


def pass_events(of: RankRun) -> list[Event]:
    """Return the passes of a rank and the layers in them, as events that lie within each other.

    Parameters
    ----------
    of : RankRun
    """
    table = of.table
    rows = np.flatnonzero((table.kind == Kind.KERNEL) & (table.phase != Phase.NONE))
    rows = rows[np.argsort(of.begin[rows], kind="stable")]
    columns = (table.phase, table.micro_batch, table.layer, of.begin, of.end)
    kernels = list(zip(*(column[rows].tolist() for column in columns), strict=True))
    found: list[Event] = []
    for (phase, micro_batch), of_pass in groupby(kernels, _pass_of):
        inside = list(of_pass)
        name = phase.name.lower()
        whole = name if micro_batch < 0 else f"{name} of micro-batch {micro_batch}"
        found.append(_event("pass", whole, inside))
        for (layer, again), of_layer in groupby(inside, _layer_of):
            if layer >= 0:
                name = f"layer {layer}" + (", recomputed" if again else "")
                found.append(_event("layer", name, list(of_layer)))
    return found


def _pass_of(kernel: tuple[int, ...]) -> tuple[Phase, int]:
    phase = Phase(kernel[0])
    return Phase.BACKWARD if phase is Phase.RECOMPUTE else phase, kernel[1]


def _layer_of(kernel: tuple[int, ...]) -> tuple[int, bool]:
    return kernel[2], kernel[0] == Phase.RECOMPUTE


def _event(category: str, name: str, kernels: list[tuple[int, ...]]) -> Event:
    """An event from the begin of the first kernel to the end of the last."""
    begin = kernels[0][3]
    end = max(kernel[4] for kernel in kernels)
    return {"cat": category, "name": name, "ts": begin, "dur": end - begin, "args": {}}
