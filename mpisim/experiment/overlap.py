"""What an experiment says of the slowdown of what overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..base.errors import InputError
from ..base.schema import Limits

__all__ = ["OverlapChoice"]


@dataclass(frozen=True)
class OverlapChoice:
    """How kernels and communications that run at the same time slow each other.

    Attributes
    ----------
    model : {"static", "coupled", "off"}
        Slowed by what ran beside them in a step without slowdown; repeated until durations and
        what overlaps agree; or not slowed.
    calibration : str, optional
        Constants of the slowdown: a file that ``mpisim calibrate overlap`` has written, its path
        relative to the experiment's. Those that come with mpisim if not given.
    pairs : str, optional
        A table of measured pairs (CSV, docs/overlap.md), from which to learn how much kernels and
        communications slow each other, in place of the constants; needs mpisim[learn].
    passes : int
        Of a coupled run, at most.
    """

    model: Literal["static", "coupled", "off"] = "static"
    calibration: str | None = None
    pairs: str | None = None
    passes: Annotated[int, Limits(least=1, most=1000)] = 50

    def __post_init__(self) -> None:
        if self.model == "off":
            for key in ("calibration", "pairs"):
                if getattr(self, key):
                    raise InputError(f"{key} is given; model = 'off' has no use for it")
