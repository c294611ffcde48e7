"""The report as numbers, ready for JSON: for ``mpisim report --json`` and for other programs.

Keys that end in ``_ps`` are whole picoseconds, which add up exactly; ``step_time`` and the values
of ``rank_steps`` are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..engine.critical_path import CriticalPath, PieceKind
from ..results import SECONDS, Results
from .tables import COMMUNICATION_KEYS, KERNEL_KEYS, communication_rows, kernel_rows

__all__ = ["figures", "path_by"]

Row = TypeVar("Row")

NOT_TIMES = ("process", "rows")
"""Columns of `Results.ranks` that are no times."""


def figures(results: Results) -> dict[str, Any]:
    """Return the figures of a report, ready for JSON.

    Parameters
    ----------
    results : Results

    Returns
    -------
    dict
        digest, step_time (s), step_time_ps, n_ranks, n_classes (equivalence classes of ranks),
        n_processes, rounds, ranks, rank_steps, kernels, communications, critical_path (by kind,
        name and rank; None if there is none), sensitivities (a list, of a prediction; else None),
        attributes, program, versions, seed, experiment.
        step_time is the mean over the steps of a recording, which has `job_steps` (s, by number),
        `shown_step` and `recording_ps`, the time of the whole of it; ranks, kernels, communications
        and critical_path are about the step shown. In every rank compute_ps + exposed_ps + idle_ps
        is shown_ps, the time of that step (without a recording: step_time_ps), and exposed_ps is
        exposed_waiting_ps + exposed_wire_ps; each list of the critical path adds up to shown_ps.
    """
    path, numbers = results.critical_path, results.rank_numbers
    return {
        "digest": results.digest,
        "step_time": results.step_time,
        "step_time_ps": results.step_time_ps,
        **_steps(results),
        "n_ranks": results.n_ranks,
        "n_classes": results.n_classes,
        "n_processes": results.n_processes,
        "rounds": results.rounds,
        "ranks": _ranks(results),
        "rank_steps": {str(numbers[rank]): s for rank, s in results.rank_steps.items()},
        "kernels": _as_dicts(KERNEL_KEYS, kernel_rows(results)),
        "communications": _as_dicts(COMMUNICATION_KEYS, communication_rows(results)),
        "critical_path": None
        if path is None
        else {
            "pieces": len(path.kind),
            **{f"by_{what}": path_by(path, what, numbers) for what in ("kind", "name", "rank")},
        },
        "sensitivities": _sensitivities(results),
        "attributes": dict(results.attributes),
        "program": dict(results.program),
        "versions": dict(results.versions),
        "seed": results.seed,
        "experiment": results.experiment,
    }


def _sensitivities(results: Results) -> list[dict[str, Any]] | None:
    found = results.sensitivities
    if found is None:
        return None
    rows = zip(found.names, found.keys, found.now, found.elasticity.tolist(), strict=True)
    return [dict(zip(("name", "key", "now", "elasticity"), row, strict=True)) for row in rows]


def _steps(results: Results) -> dict[str, Any]:
    """Return the steps of a recording, and the time of the step shown."""
    of = results.recorded
    if of is None:
        return {"shown_ps": results.shown_ps}
    times = zip(of.step.tolist(), of.times.tolist(), strict=True)
    return {
        "job_steps": {str(step): time * SECONDS for step, time in times},
        "shown_step": of.shown_step,
        "shown_ps": of.shown_ps,
        "recording_ps": of.whole_ps,
    }


def path_by(path: CriticalPath, what: str, rank_numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Add up the pieces of a critical path by ``kind``, ``name`` or ``rank``, the longest first.

    Parameters
    ----------
    path : CriticalPath
    what : str
    rank_numbers : sequence of int
        What to call each rank: `Results.rank_numbers`.

    Returns
    -------
    list of dict
        With the key `what`, ``total_ps`` and ``pieces``.
    """
    key: NDArray[Any] = getattr(path, what)
    keys, number, pieces = np.unique(key, return_inverse=True, return_counts=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, number, path.end - path.begin)
    labels: Sequence[Any] = keys.tolist()
    if what == "kind":
        labels = [PieceKind(kind).name.lower() for kind in labels]
    elif what == "name":
        labels = [path.names[name] if name >= 0 else "" for name in labels]
    else:
        labels = [rank_numbers[rank] for rank in labels]
    order = np.lexsort((keys, -total)).tolist()
    return [{what: labels[i], "total_ps": int(total[i]), "pieces": int(pieces[i])} for i in order]


def _ranks(results: Results) -> list[dict[str, int]]:
    columns = {name: column for name, column in results.ranks.items() if name != "class"}
    names = [c if c in NOT_TIMES else f"{c}_ps" for c in columns]
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [
        {"rank": rank, **dict(zip(names, row, strict=True))}
        for rank, row in zip(results.rank_numbers, values, strict=True)
    ]


def _as_dicts(
    keys: Mapping[str, Callable[[Row], Any]], rows: Sequence[Row]
) -> list[dict[str, Any]]:
    return [{key: value(row) for key, value in keys.items()} for row in rows]
