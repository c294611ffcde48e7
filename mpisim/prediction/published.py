"""A prediction beside what the source of its experiment reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..experiment import Experiment
from ..experiment.experiment import PUBLISHED_UNITS
from ..results import Results

__all__ = ["Compared", "compared", "of_results"]

TITLES: Mapping[str, str] = {
    "step_time": "step time",
    "model_flops": "model FLOP/s a GPU",
    "hardware_flops": "FLOP/s a GPU, recomputation counted",
    "utilisation": "of the dense peak",
    "throughput": "steps a second",
    "memory": "memory of a GPU",
}


@dataclass(frozen=True)
class Compared:
    """One figure.

    Attributes
    ----------
    figure : str
        A field of `Published`.
    published, predicted : float
        In `unit`.
    unit : str
    error : float
        Of the prediction, relative.
    source : str
    assumed : str
        See `mpisim.experiment.experiment.Figure`.
    """

    figure: str
    published: float
    predicted: float
    unit: str
    error: float
    source: str
    assumed: str

    @property
    def title(self) -> str:
        """What it is, in words."""
        return TITLES[self.figure]

    def __str__(self) -> str:
        said = (
            f"{self.title}: {self.published:.4g} {self.unit}, here {self.predicted:.4g} "
            f"({100 * self.error:+.1f} %); {self.source}"
        )
        return f"{said}; assumed: {self.assumed}" if self.assumed else said

    def as_json(self) -> dict[str, Any]:
        """Return the attributes."""
        return asdict(self)


def compared(experiment: Experiment, seconds: float, said: Mapping[str, Any]) -> list[Compared]:
    """Compare a prediction with what its experiment's source reports.

    Parameters
    ----------
    experiment : Experiment
    seconds : float
        Of the predicted step.
    said : mapping
        What the prediction says of itself (`statements`).

    Returns
    -------
    list of Compared
        None where nothing is published.
    """
    figures = list(experiment.published.figures())
    if not figures:
        return []
    own = {
        "step_time": seconds,
        "model_flops": said["model_flops"] / seconds / said["gpus"],
        "hardware_flops": said["executed_flops"] / seconds / said["gpus"],
        "utilisation": said["utilisation"],
        "throughput": 1 / seconds,
        "memory": said["memory_peak"],
    }
    found = []
    for name, figure in figures:
        predicted = own[name] / PUBLISHED_UNITS[name][figure.unit]
        found.append(
            Compared(
                name,
                figure.value,
                predicted,
                figure.unit,
                predicted / figure.value - 1,
                figure.source,
                figure.assumed,
            )
        )
    return found


def of_results(experiment: Experiment, results: Results) -> list[Compared]:
    """Compare a result with what its experiment's source reports."""
    said = {**results.attributes, "gpus": results.n_ranks}
    return compared(experiment, results.step_time, said)
