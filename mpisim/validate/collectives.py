"""Collective models beside measured collectives → errors by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import Z_90
from ..mpi.parallel import progress
from ..topo.collectives.batches import Batch
from ..topo.collectives.models import Predictor
from .cases import summary

__all__ = ["CollectiveErrors", "Compared", "as_cases", "compare", "tabulate"]

Figures = dict[str, float | int | None]

MIN_LARGE_BYTES = 1 << 20
"""Bytes from which bandwidth counts for more than latency: sizes below are distinguished."""


@frozen(eq=False)
class Compared:
    """A batch with its predictions.

    Attributes
    ----------
    batch : Batch
    predicted : float64
        Seconds.
    error : float64, optional
        Relative standard error that the model states; None if it states none.
    """

    batch: Batch
    predicted: NDArray[np.float64]
    error: NDArray[np.float64] | None

    @property
    def relative(self) -> NDArray[np.float64]:
        """Predicted over measured, less one."""
        return self.predicted / self.batch.seconds - 1

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the stated 90 % interval holds the measurement."""
        off = np.abs(np.log(self.predicted / self.batch.seconds))
        error = np.zeros(len(off)) if self.error is None else self.error
        return np.asarray(off <= Z_90 * error)


@dataclass
class CollectiveErrors:
    """A validation: what was compared, and the rows left out by reason."""

    compared: list[Compared] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def compare(batches: Sequence[Batch], predict: Predictor) -> CollectiveErrors:
    """Predict measured communications.

    Parameters
    ----------
    batches : sequence of Batch
    predict : callable
        Of `mpisim.topo.collectives.models.predictor`.

    Returns
    -------
    CollectiveErrors
        Rows that the model does not cover are counted with its words.
    """
    found = CollectiveErrors()
    done, total = 0, sum(map(len, batches))
    with progress(None, "predicting collectives", total) as update:
        for batch in batches:
            update(done)
            done += len(batch)
            try:
                predicted, error = predict(batch)
            except InputError as reason:
                found.skipped[str(reason)] += len(batch)
                continue
            found.compared.append(Compared(batch, predicted, error))
    return found


def tabulate(found: CollectiveErrors) -> dict[str, dict[str, Figures]]:
    """Errors of collectives → tables by size, grade, operation, platform and number of GPUs.

    All but the tables ``all`` and ``size`` (decades of bytes) distinguish sides of 1 MiB.

    Parameters
    ----------
    found : CollectiveErrors

    Returns
    -------
    dict
        For each grouping the groups; each with n, and mean (``mape``), median and 90th percentile
        of the absolute relative errors, the median signed error (``bias``), and the share of rows
        within the stated 90 % interval (``covered``; None where the model states none).
    """
    if not found.compared:
        return {}
    relative = np.concatenate([each.relative for each in found.compared])
    inside = np.concatenate([each.inside for each in found.compared])
    states = all(each.error is not None for each in found.compared)
    labels: dict[str, list[str]] = {}
    for each in found.compared:
        batch = each.batch
        for size in batch.bytes.tolist():
            side = "1 MiB and more" if size >= MIN_LARGE_BYTES else "below 1 MiB"
            for grouping, name in (
                ("all", "all"),
                ("side", side),
                ("grade", f"{side}, {batch.grade or 'no grade'}"),
                ("operation", f"{side}, {batch.operation.name.lower()}"),
                ("platform", f"{side}, {batch.platform.name}"),
                ("GPUs", f"{side}, {_scale(batch.shape.ranks)}"),
                ("size", f"1e{int(np.log10(size)):02d} B"),
            ):
                labels.setdefault(grouping, []).append(name)
    tables: dict[str, dict[str, Figures]] = {}
    for grouping, column in labels.items():
        values = np.array(column)
        tables[grouping] = {
            str(value): _figures(relative[values == value], inside[values == value], states)
            for value in np.unique(values)
        }
    return tables


def as_cases(found: CollectiveErrors) -> list[dict[str, Any]]:
    """Errors of collectives → every row with its prediction, as ``--json`` writes them.

    Parameters
    ----------
    found : CollectiveErrors

    Returns
    -------
    list of dict
        Times in s, errors as fractions.
    """
    cases = []
    for each in found.compared:
        batch = each.batch
        stated = [None] * len(batch) if each.error is None else each.error.tolist()
        for row, predicted, error in zip(batch.rows, each.predicted.tolist(), stated):
            cases.append(
                {
                    "id": row.id,
                    "measured": row.seconds,
                    "predicted": predicted,
                    "error": predicted / row.seconds - 1,
                    "stated_error": error,
                    "operation": batch.operation.name.lower(),
                    "platform": batch.platform.name,
                    "gpus": row.gpus,
                    "nodes": row.nodes,
                    "bytes": row.bytes,
                    "grade": batch.grade,
                    "split": batch.split,
                    "curve": batch.curve,
                }
            )
    return cases


def _figures(errors: NDArray[np.float64], inside: NDArray[np.bool_], states: bool) -> Figures:
    return {
        **summary(errors.tolist()),
        "bias": float(np.median(errors)),
        "covered": float(inside.mean()) if states else None,
    }


def _scale(ranks: int) -> str:
    """Name a range of group sizes so that names sort by size."""
    low = 1 << (ranks - 1).bit_length() - 1 if ranks > 1 else 1
    return f"{low + 1:5d} to {2 * low:5d} GPUs" if ranks > 2 else "    2 GPUs"
