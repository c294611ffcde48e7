"""Prediction → its errors against the figures that its experiment's source publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..base.frozen import frozen
from ..experiment import Experiment
from ..experiment.experiment import PUBLISHED_UNITS
from ..results import Results

__all__ = ["PublishedComparison", "compare_published", "compare_results"]

TITLES: Mapping[str, str] = {
    "step_time": "step time",
    "model_flops": "model FLOP/s a GPU",
    "hardware_flops": "FLOP/s a GPU, recomputation counted",
    "utilisation": "of the dense peak",
    "throughput": "steps a second",
    "memory": "memory of a GPU",
}


@frozen
class PublishedComparison:
    """One published figure beside the predicted one.

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
        See `mpisim.experiment.experiment.PublishedFigure`.
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
        """Name of the figure in words."""
        return TITLES[self.figure]

    def __str__(self) -> str:
        text = (
            f"{self.title}: {self.published:.4g} {self.unit}, here {self.predicted:.4g} "
            f"({100 * self.error:+.1f} %); {self.source}"
        )
        return f"{text}; assumed: {self.assumed}" if self.assumed else text

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as an object for JSON, by attribute."""
        return asdict(self)


def compare_published(
    experiment: Experiment, seconds: float, attributes: Mapping[str, Any]
) -> list[PublishedComparison]:
    """Step time and attributes of a prediction → comparison with each published figure.

    Parameters
    ----------
    experiment : Experiment
    seconds : float
        Of the predicted step.
    attributes : mapping
        Of the prediction's results (`mpisim.prediction.statements.statements`).

    Returns
    -------
    list of PublishedComparison
        Empty where nothing is published.
    """
    figures = list(experiment.published.figures())
    if not figures:
        return []
    own = {
        "step_time": seconds,
        "model_flops": attributes["model_flops"] / seconds / attributes["gpus"],
        "hardware_flops": attributes["executed_flops"] / seconds / attributes["gpus"],
        "utilisation": attributes["utilisation"],
        "throughput": 1 / seconds,
        "memory": attributes["memory_peak"],
    }
    found = []
    for name, figure in figures:
        predicted = own[name] / PUBLISHED_UNITS[name][figure.unit]
        found.append(
            PublishedComparison(
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


def compare_results(experiment: Experiment, results: Results) -> list[PublishedComparison]:
    """Results of an experiment → comparison with each published figure.

    Parameters
    ----------
    experiment : Experiment
    results : Results
        Of this experiment.

    Returns
    -------
    list of PublishedComparison
        Empty where nothing is published.
    """
    attributes = {**results.attributes, "gpus": results.n_ranks}
    return compare_published(experiment, results.step_time, attributes)
