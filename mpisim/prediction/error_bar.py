"""How far a predicted step time may be off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..base.quantity import Quantity
from ..engine.run import Run
from .case import Case
from .path_shares import PathShares
from .step_constants import ours, sort_of
from .uncertainty import Uncertainty, combine

if TYPE_CHECKING:
    from ..overlap import OverlapSummary

__all__ = ["error_bar"]


def error_bar(
    case: Case,
    run: Run,
    lengths: Mapping[str, float] | None = None,
    *,
    model_error: bool = True,
    overlap: OverlapSummary | None = None,
) -> Uncertainty:
    """Return the error bar of a step time, and what it consists of. Local.

    Parameters
    ----------
    case : Case
    run : Run
        With its critical path.
    lengths : mapping of str to float, optional
        `PathShares.lengths`, if known.
    model_error : bool
        Whether it holds what the model leaves out.
    overlap : OverlapSummary, optional
        What slowed what overlaps, if that was modelled.
    """
    numbers = {
        name: number for name, number in vars(case.gpu).items() if isinstance(number, Quantity)
    }
    numbers |= dict(case.network.numbers)
    for pricing in reversed(case.workload.pricings):  # of equal names those of most nodes count
        numbers |= dict(pricing.model.numbers)
    if lengths is None:
        lengths = PathShares(case, run).lengths()
    if overlap is not None and run.critical_path is not None:
        numbers |= overlap.numbers
        lengths = {**lengths, **overlap.lengths(run.critical_path)}
    left_out = _model_error(case) if model_error else None
    return combine(lengths, run.step_time, numbers, left_out)


def _model_error(case: Case) -> tuple[str, Quantity] | None:
    """Return the name and the size of what the model leaves out."""
    known, sort = case.constants, sort_of(case.experiment.model)
    if known is None:
        found = ours().model_error
        return None if found is None else ("model error", found.plain[sort])
    found = known.constants.model_error
    if found is None:
        return None
    if known.constants.knows(known.framework, known.gpu):
        return "model error (calibrated)", found.known[sort]
    return "model error (calibrated; framework or GPU new)", found.unknown[sort]
