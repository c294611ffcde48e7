"""A model that is known by a trace of it, in place of its dimensions.

No file of an experiment has one: :mod:`mpisim.extrapolate` makes it of a trace, together with the
plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from .models import Transformer

__all__ = ["Traced", "weights_as_products"]


@frozen
class Traced:
    """A traced model.

    Attributes
    ----------
    trace : str
        The file.
    batch : int
        Samples of the traced step.
    weights : str
        Format of most weights: ``fp32``, ``bf16``, ``fp16``.
    network : callable
        Plan, grid → the layers in one rank's shapes (`mpisim.workloads.operators.LayerStack`).
    others : tuple of callable
        The same, of traces of the model on other GPUs.
    of_rank : int64, optional
        Which of these each rank has: 0, or ``1 + i`` for ``others[i]``; 0 if not given.
    image : int, optional
        Side of the images that it takes, in pixels; None if it takes none.
    uploads : bool
        Whether its rows have the copy of images to the GPU.
    """

    family: ClassVar[str] = "traced"
    trace: str
    batch: int
    weights: str
    network: Callable[..., Any] = field(compare=False, repr=False)
    others: tuple[Callable[..., Any], ...] = field(default=(), compare=False, repr=False)
    of_rank: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    image: int | None = None
    uploads: bool = False

    @property
    def samples(self) -> str:
        """Plural of what a batch is counted in: ``samples``."""
        return "samples"


def weights_as_products(model: object) -> bool:
    """Model → whether its weights have the number format of its products; otherwise fp32.

    Parameters
    ----------
    model : object
        Model of an experiment, or `Traced`.

    Returns
    -------
    bool
    """
    return isinstance(model, Transformer) or (isinstance(model, Traced) and model.weights != "fp32")
