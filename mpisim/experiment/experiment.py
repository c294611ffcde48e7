"""One experiment: a model, a plan, a cluster, how to predict them, and what was published.

A source may report figures of the run, which the experiment keeps in ``[published]``:

    [published.step_time]
    value = 13.75
    unit = "s"
    source = "arXiv:2205.05198, table 5"

The figures are those of the run as the file describes it: they say nothing of one whose model, plan
or cluster was changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits
from .choices import (
    CalibrationChoice,
    ClusterChoice,
    DataChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
)
from .framework import FrameworkOptions
from .models import Model
from .plan import Plan
from .profile_filling import ProfileKey
from .profiles import NO_FRAMEWORK, Profile, profile_of
from .traced import Traced

if TYPE_CHECKING:
    from .job_choice import JobChoice
    from .likely_models import Guess

__all__ = ["PUBLISHED_UNITS", "Experiment", "Published", "PublishedFigure", "keys_at_defaults"]

PUBLISHED_UNITS: Mapping[str, Mapping[str, float]] = {
    "step_time": {"s": 1.0, "ms": 1e-3},
    "model_flops": {"TFLOP/s": 1e12},
    "hardware_flops": {"TFLOP/s": 1e12},
    "utilisation": {"%": 1e-2},
    "throughput": {"steps/s": 1.0},
    "memory": {"GiB": 2.0**30, "GB": 1e9},
}
"""Units of each figure, and how much each is in seconds, FLOP/s, of 1, steps/s and bytes."""


@frozen
class PublishedFigure:
    """A figure that a source reports of a run.

    Attributes
    ----------
    value : float
        In `unit`.
    unit : str
    source : str
        Where it stands.
    assumed : str
        What the figure depends on and the source does not say of the run, in words. A comparison
        with such a figure is worth little.
    """

    value: Annotated[float, Limits(least=1e-9)]
    unit: str
    source: str
    assumed: str = ""


@frozen
class Published:
    """What a source reports of a run.

    Attributes
    ----------
    step_time : PublishedFigure, optional
        Of one step: "s", "ms".
    model_flops : PublishedFigure, optional
        "TFLOP/s" a GPU that the mathematics needs, without recomputation.
    hardware_flops : PublishedFigure, optional
        "TFLOP/s" a GPU, recomputation counted.
    utilisation : PublishedFigure, optional
        `model_flops` in "%" of the GPU's dense peak.
    throughput : PublishedFigure, optional
        "steps/s".
    memory : PublishedFigure, optional
        Of the GPU that holds most: "GiB", "GB".
    """

    step_time: PublishedFigure | None = None
    model_flops: PublishedFigure | None = None
    hardware_flops: PublishedFigure | None = None
    utilisation: PublishedFigure | None = None
    throughput: PublishedFigure | None = None
    memory: PublishedFigure | None = None

    def __post_init__(self) -> None:
        for name, figure in self.figures():
            allowed = PUBLISHED_UNITS[name]
            if figure.unit not in allowed:
                raise InputError(
                    f"{name}.unit is {figure.unit!r}{nearest(figure.unit, allowed)}; allowed: "
                    f"{', '.join(allowed)}"
                )

    def figures(self) -> Iterator[tuple[str, PublishedFigure]]:
        """Go through the figures that are given, by name."""
        for each in fields(self):
            figure = getattr(self, each.name)
            if figure is not None:
                yield each.name, figure


@frozen
class Experiment:
    """One experiment: the tables of a file as dataclasses, and which keys were given.

    Attributes
    ----------
    model : Transformer, Cnn, Dlrm or Traced
    plan : Plan
    cluster : ClusterChoice
    data : DataChoice
    scale : ScaleChoice
    kernels : KernelChoice
    network : NetworkChoice
    overlap : OverlapChoice
    variation : VariationChoice
    calibration : CalibrationChoice
    prices : PriceChoice
    run : RunChoice
    published : Published
        What the source of the experiment reports.
    job : JobChoice, optional
        The job that it is a step of.
    title : str
    source : str
        The file it was read from, for messages.
    defaulted : mapping of str to object
        Keys that neither the file nor the command line gave, by full name (``"framework.bucket"``),
        with their defaults; those of the model are left out.
    set_by_profile : mapping of str to ProfileKey
        Keys that the profile of the framework has set, by full name.
    given : mapping of str to object
        The tables as the file and the command line gave them.
    config_length : str
        The config.json that `seq_len` of the model was read from; empty where it was given, or
        comes with a preset.
    guess : Guess, optional
        What was not said of the model, and taken from a published one.
    """

    model: Model | Traced
    plan: Plan
    cluster: ClusterChoice
    data: DataChoice = field(default_factory=DataChoice)
    scale: ScaleChoice = field(default_factory=ScaleChoice)
    kernels: KernelChoice = field(default_factory=KernelChoice)
    network: NetworkChoice = field(default_factory=NetworkChoice)
    overlap: OverlapChoice = field(default_factory=OverlapChoice)
    variation: VariationChoice = field(default_factory=VariationChoice)
    calibration: CalibrationChoice = field(default_factory=CalibrationChoice)
    prices: PriceChoice = field(default_factory=PriceChoice)
    run: RunChoice = field(default_factory=RunChoice)
    published: Published = field(default_factory=Published)
    job: JobChoice | None = None
    title: str = "experiment"
    source: str = "experiment"
    defaulted: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    set_by_profile: Mapping[str, ProfileKey] = field(
        default_factory=dict, compare=False, repr=False
    )
    given: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    config_length: str = field(default="", compare=False, repr=False)
    guess: Guess | None = field(default=None, compare=False, repr=False)

    @property
    def framework(self) -> FrameworkOptions:
        """Table ``[framework]``, which is part of the plan."""
        return self.plan.framework

    @property
    def profile(self) -> Profile | None:
        """The profile of the framework that is named; None if none is."""
        name = self.plan.framework.name
        return None if name in (None, NO_FRAMEWORK) else profile_of(name, self.source)

    @property
    def says_framework(self) -> bool:
        """Whether the framework that runs the plan, or its kernels, are stated.

        That is how attention is computed and whether elementwise work is fused; one of them will
        do where nothing is filled in.
        """
        elementwise = self._is_stated("fused")
        attention = self._is_stated("kernels") or self._is_stated("attention")
        if self.framework.name == NO_FRAMEWORK or not self.given:
            return elementwise or attention
        return self.profile is not None or (elementwise and attention)

    def _is_stated(self, key: str) -> bool:
        """Whether a key of ``[framework]`` is given, or has a value that nothing else set."""
        return key in self.given.get("framework", {}) or (
            getattr(self.framework, key) != getattr(FrameworkOptions, key)
            and f"framework.{key}" not in self.set_by_profile
        )

    @property
    def software(self) -> str | None:
        """Whose launches and overhead of a step fitted constants are to be; None if not known."""
        return None if self.profile is None else self.profile.host

    def left_to_defaults(self) -> dict[str, object]:
        """Return the keys that were not given and have kept their defaults, with these."""
        return keys_at_defaults(self, self.defaulted)


def keys_at_defaults(tables: object, defaulted: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of `defaulted` that still have their default values.

    Parameters
    ----------
    tables : object
        An experiment: its attributes are the tables.
    defaulted : mapping of str to object
        Default values by full key (``"framework.bucket"``).
    """
    found = {}
    for key, value in defaulted.items():
        used: object = tables
        for name in key.split("."):
            used = getattr(used, name)
        if used == value:
            found[key] = value
    return found
