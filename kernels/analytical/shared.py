"""Models that are shared: a kernel that one plan has priced is priced for the next."""

from __future__ import annotations

from ..gpu import Gpu
from .model import Analytical

__all__ = ["shared"]

_MOST = 8
"""Models that are kept: kinds of GPUs of the experiments that are compared."""

_kept: list[Analytical] = []
"""The one asked for last comes first."""


def shared(gpu: Gpu) -> Analytical:
    """Return the model of a GPU by our calibration: one and the same for all who ask."""
    for i, model in enumerate(_kept):
        if model.gpu is gpu or model.gpu == gpu:
            _kept.insert(0, _kept.pop(i))
            return model
    _kept.insert(0, Analytical(gpu))
    del _kept[_MOST:]
    return _kept[0]
