"""What a source reports of a run: the table ``[published]`` of an experiment.

    [published.step_time]
    value = 13.75
    unit = "s"
    source = "arXiv:2205.05198, table 5"

The figures are those of the run as the file describes it: they say nothing of one whose model, plan
or cluster was changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from ..base.errors import InputError, nearest
from ..base.schema import Limits

__all__ = ["UNITS", "Figure", "Published"]

UNITS: Mapping[str, Mapping[str, float]] = {
    "step_time": {"s": 1.0, "ms": 1e-3},
    "model_flops": {"TFLOP/s": 1e12},
    "hardware_flops": {"TFLOP/s": 1e12},
    "utilisation": {"%": 1e-2},
    "throughput": {"steps/s": 1.0},
    "memory": {"GiB": 2.0**30, "GB": 1e9},
}
"""Units of each figure, and how much each is in seconds, FLOP/s, of 1, steps/s and bytes."""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes
    ----------
    value : float
        In `unit`.
    unit : str
    source : str
        Where it stands.
    assumed : str
        What the source does not say of the run and the figure depends on, in words: what was chosen
        for it makes the comparison worth little.
    """

    value: Annotated[float, Limits(least=1e-9)]
    unit: str
    source: str
    assumed: str = ""


@dataclass(frozen=True)
class Published:
    """What a source reports of a run.

    Attributes
    ----------
    step_time : Figure, optional
        Of one step: "s", "ms".
    model_flops : Figure, optional
        "TFLOP/s" a GPU that the mathematics needs, without recomputation.
    hardware_flops : Figure, optional
        "TFLOP/s" a GPU, recomputation counted.
    utilisation : Figure, optional
        `model_flops` in "%" of the GPU's dense peak.
    throughput : Figure, optional
        "steps/s".
    memory : Figure, optional
        Of the GPU that holds most: "GiB", "GB".
    """

    step_time: Figure | None = None
    model_flops: Figure | None = None
    hardware_flops: Figure | None = None
    utilisation: Figure | None = None
    throughput: Figure | None = None
    memory: Figure | None = None

    def __post_init__(self) -> None:
        for name, figure in self.figures():
            allowed = UNITS[name]
            if figure.unit not in allowed:
                raise InputError(
                    f"{name}.unit is {figure.unit!r}{nearest(figure.unit, allowed)}; allowed: "
                    f"{', '.join(allowed)}"
                )

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Go through the figures that are given, by name."""
        for field in fields(self):
            figure = getattr(self, field.name)
            if figure is not None:
                yield field.name, figure
