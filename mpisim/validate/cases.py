"""Pairs of measured and predicted values → summaries and the JSON layout of all validations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.frozen import frozen

__all__ = ["Case", "Validation", "summary"]


@frozen
class Case:
    """One measured value and its prediction, in the same unit.

    Attributes
    ----------
    id : str
    measured, predicted : float
    columns : mapping of str to str
        What to group errors by.
    extra : mapping of str to float
        Other predictions of the same value (baselines), by name.
    """

    id: str
    measured: float
    predicted: float
    columns: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Relative error, signed."""
        return self.predicted / self.measured - 1


def summary(errors: list[float]) -> dict[str, float | int | None]:
    """Relative errors → their number, and mean, median and 90th percentile of |error|.

    Parameters
    ----------
    errors : list of float
        Fractions, signed.

    Returns
    -------
    dict
        ``n``, ``mape``, ``median``, ``p90``; the last three None if there is no error.
    """
    if not errors:
        return {"n": 0, "mape": None, "median": None, "p90": None}
    size = np.abs(errors)
    return {
        "n": len(errors),
        "mape": float(size.mean()),
        "median": float(np.median(size)),
        "p90": float(np.percentile(size, 90)),
    }


@dataclass
class Validation:
    """All cases of one kind, and what was skipped and why."""

    kind: str
    cases: list[Case] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return the layout that every ``validate`` command writes; errors are fractions."""
        groups: dict[str, list[float]] = {}
        for case in self.cases:
            for column, value in case.columns.items():
                groups.setdefault(f"{column}={value}", []).append(case.error)
        whole = summary([case.error for case in self.cases])
        return {
            "kind": self.kind,
            "rows": len(self.cases) + self.skipped.total(),
            "predicted": len(self.cases),
            "skipped": dict(sorted(self.skipped.items())),
            "mape": whole["mape"],
            "median": whole["median"],
            "p90": whole["p90"],
            "groups": {name: summary(errors) for name, errors in sorted(groups.items())},
            "cases": [
                {
                    "id": case.id,
                    "measured": case.measured,
                    "predicted": case.predicted,
                    "error": case.error,
                    **case.extra,
                }
                for case in self.cases
            ],
        }
