"""The front of a search as a picture: its first two objectives, all candidates simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.picture import name_text, save_picture
from ..base.quantity import GIB
from .answer import Answer
from .choice import OBJECTIVES
from .finalists import Finalist
from .records import Records, Status, least_values
from .space import SearchSpace

__all__ = ["check_front", "draw_front"]

NAMED = 12
"""Candidates of the front that are named in the picture."""


class Axis(NamedTuple):
    """How an objective is drawn.

    Attributes
    ----------
    label : str
    factor : float
        What values are multiplied by.
    error : callable
        Candidate → relative error of its value.
    """

    label: str
    factor: float
    error: Callable[[Finalist], float]


def _of_step(of: Finalist) -> float:
    return of.error


def _none(of: Finalist) -> float:
    return 0.0


def _of_power(of: Finalist) -> float:
    return of.cost.get("power_error", 0.0)


def _of_energy(of: Finalist) -> float:
    return float(np.hypot(of.error, _of_power(of)))


def _of_dollars(of: Finalist) -> float:
    return float(np.hypot(of.error, of.cost.get("usd_error", 0.0)))


AXES: Mapping[str, Axis] = {
    "step_time": Axis("step time (s)", 1.0, _of_step),
    "tokens_per_second": Axis("tokens a second", 1.0, _of_step),
    "tokens_per_second_per_gpu": Axis("tokens a second and GPU", 1.0, _of_step),
    "gpus": Axis("GPUs", 1.0, _none),
    "memory": Axis("memory of the fullest GPU (GiB)", 1 / GIB, _none),
    "usd_per_token": Axis("dollars of a million tokens", 1e6, _of_dollars),
    "energy_per_token": Axis("kWh of a million tokens", 1e6 / 3.6e6, _of_energy),
    "usd_per_hour": Axis("dollars of an hour", 1.0, lambda of: of.cost.get("usd_error", 0.0)),
    "power": Axis("power with the building (kW)", 1e-3, _of_power),
    "job_time": Axis("days of the whole job", 1 / 86400, _of_step),
    "job_usd": Axis("million dollars of the whole job", 1e-6, _of_dollars),
    "price": Axis("price of the cluster (million dollars)", 1e-6, _none),
}
"""By objective."""


def check_front(space: SearchSpace) -> None:
    """Search space → nothing, if its search has a Pareto front to draw.

    Parameters
    ----------
    space : SearchSpace

    Raises
    ------
    UsageError
        If the search has one objective.
    """
    if len(space.choice.objectives) < 2:
        raise UsageError(
            "--draw: the search has one objective, and no front; give another: --objective memory"
        )


def draw_front(
    space: SearchSpace,
    records: Records,
    found: Answer,
    path: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Draw the front in its first two objectives, and all other candidates that were simulated.

    Bars are one standard deviation. Numbers are those of the printed table.

    Parameters
    ----------
    space : SearchSpace
        With two objectives or more (`check_front`).
    records : Records
    found : Answer
    path : str or Path
        That `mpisim.base.picture.check_picture` has accepted.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    names = space.choice.objectives[:2]
    done = records.numbers(Status.SIMULATED)
    shown = [each.number for each in found.front]
    others = np.setdiff1d(done, shown)
    figure = import_module("matplotlib.figure").Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    x, y = _coordinates(space, records, others)
    if len(others):
        axes.plot(x, y, ".", color="0.7", label="simulated")
    if found.front:
        x, y = _coordinates(space, records, np.array(shown, np.int64))
        order = np.argsort(x, kind="stable")
        if len(space.choice.objectives) == 2:
            axes.plot(x[order], y[order], "-", color="C0", linewidth=0.8)
        relative = [[AXES[name].error(each) for each in found.front] for name in names]
        errors = [of * np.array(error) for of, error in zip((x, y), relative, strict=True)]
        axes.errorbar(x, y, errors[1], errors[0], "o", color="C0", capsize=2, label="front")
        _name(axes, space, shown, x, y)
    for name, label, limits in zip(
        names, (axes.set_xlabel, axes.set_ylabel), (axes.set_xlim, axes.set_ylim), strict=True
    ):
        better = "more" if OBJECTIVES[name] else "less"
        label(f"{AXES[name].label}; {better} is better")
        if not OBJECTIVES[name]:
            limits(0, None)
    if found.front:
        figure.legend(loc="outside right upper", fontsize=7)
    title = Path(space.source).stem or "search"
    axes.set_title(name_text(title, 70), fontsize=9, parse_math=False)
    save_picture(figure, path, title, overwrite=overwrite)


def _coordinates(
    space: SearchSpace, records: Records, numbers: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first two objectives of candidates, in the units of the axes."""
    values = least_values(space, records, numbers)
    x, y = (
        values[:, at] * AXES[name].factor * (-1 if OBJECTIVES[name] else 1)
        for at, name in enumerate(space.choice.objectives[:2])
    )
    return x, y


def _name(axes: Any, space: SearchSpace, shown: Sequence[int], x: Any, y: Any) -> None:
    """Number the candidates of the front, and say beside the picture what they set."""
    among = list(shown) if len(shown) > 1 else []
    at_point: dict[tuple[float, float], list[str]] = {}  # candidates that cost and do the same
    for place in range(min(len(shown), NAMED)):
        at_point.setdefault((float(x[place]), float(y[place])), []).append(f"{place + 1}")
    for point, places in at_point.items():
        text = ", ".join(places)
        axes.annotate(text, point, xytext=(4, 4), textcoords="offset points", fontsize=7)
    for place, number in enumerate(shown[:NAMED]):
        text = name_text(f"{place + 1}: {space.described(number, among)}", 48)
        axes.plot([], [], " ", label=text.replace("$", r"\$"))
