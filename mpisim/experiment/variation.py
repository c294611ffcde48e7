"""How GPUs and kernels differ from what they should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ..base.errors import InputError
from ..base.rank_ranges import span
from ..base.schema import Limits

__all__ = ["VariationChoice"]

Spread = Annotated[float, Limits(least=0, most=1)]
Speed = Annotated[float, Limits(least=0.001, most=1000)]
Seed = Annotated[int, Limits(least=0, most=2**63 - 1)]


@dataclass(frozen=True)
class VariationChoice:
    """How GPUs and kernels differ from what they should be.

    Attributes
    ----------
    kernels : float
        Jitter: standard deviation of the logarithm of a random factor on each kernel of each GPU.
        Factors are lognormal with mean 1.
    gpus : float
        The same for a factor that all kernels of a GPU share.
    slowest : bool, optional
        Whether matrix products, convolutions and attention take as long as on the slowest GPU to be
        expected among all of the run, which the others wait for (:mod:`mpisim.prediction.slowest`).
        Nothing is drawn: by default it takes the place of `gpus` where that is 0.
    seed : int
        Of both. The same seed gives the same factors, on any number of processes.
    speeds : mapping of str to float
        Speeds of single GPUs, by rank: ``"3" = 0.9``, ``"8-15,20" = 0.5``; those not named have
        speed 1.
    """

    kernels: Spread = 0.0
    gpus: Spread = 0.0
    slowest: bool | None = None
    seed: Seed = 0
    speeds: dict[str, Speed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ranks in self.speeds:
            span(ranks, "speeds", "rank")
        if self.slowest and self.gpus:
            raise InputError("slowest is true and gpus is above 0; allowed: one of the two")

    @property
    def waits_for_slowest(self) -> bool:
        """Whether products take as long as on the slowest GPU to be expected."""
        return not self.gpus if self.slowest is None else self.slowest

    @property
    def random(self) -> bool:
        """Whether another seed gives another answer."""
        return self.kernels > 0 or self.gpus > 0
