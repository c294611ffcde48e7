"""Run → error bar of its step time, propagated from its inputs along the critical path.

First order, along the critical path: its pieces sum exactly to the step time, and each depends on a
few numbers that have error bars. If a number is off by a relative error e, all pieces that are
proportional to it change together, so the step time changes by e × their length. Different numbers
are taken as independent: their effects add in squares. So does the part of a kernel model's error
that each kernel has for itself, over the unlike kernels of the step. First order misses that a
larger error may make another path critical, and effects that are not modelled. The model error
covers both; it is measured on predictions of measured steps
(:mod:`mpisim.prediction.step_constants`).

`combine` adds the effects of errors on a path whose dependence on each number is known
(:mod:`.path_shares`), and `error_bar` does both for a prepared experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..engine.run import Run
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.numbers import quantity
from ..kernels.scaled import rated_gpu
from .path_shares import OWN_KERNELS, PathShares
from .prepared import PreparedExperiment
from .step_constants import model_class, packaged_constants

if TYPE_CHECKING:
    from ..engine.critical_path import CriticalPath
    from ..kernels.gpu import Gpu
    from ..overlap import OverlapSummary

__all__ = [
    "Effect",
    "Uncertainty",
    "at_least_a_library",
    "combine",
    "design_name",
    "difference_error",
    "error_bar",
    "is_part",
    "propagate",
    "unnamed_class",
    "unshared_share",
]

PLANS_FILE = "plans.toml"

GUESSED = "what is not said of the model"
"""Name of the error of a guessed model (`mpisim.experiment.likely_models`), on the whole step."""

UNNAMED = "framework not named"
"""Name of the error of an experiment that leaves its framework's ways open, on the whole step."""

AS_OPEN = "no better known than what a library's name leaves open"
"""What the source of that error begins with where it is that of `LEFT_OPEN`."""

UNNAMED_FILE = "calibration/unnamed_framework.toml"

GENERATIONS_FILE = "gpu_generations.toml"

FIRST_YEAR = 2022
"""Year from which on GPUs share the class of today's; keys of `UNNAMED_FILE` name it."""

UNCOMPARED = "framework, GPU or parallelism not compared with measured steps"
"""Name of the error of a framework, a division of the work and a design of GPUs of which together
no predictions were compared with measured steps, or of a model half as wide, on the whole step."""

UNCOMPARED_FILE = "calibration/uncompared.toml"

WAYS = {"dense": "ways", "experts": "expert_ways"}
"""Classes of models → their key of compared ways in `UNCOMPARED_FILE`."""

LEFT_OPEN = "what the framework's name leaves open: the model's code, or the recipe"
"""Name of the error of what runs a model of the user's own, as PyTorch's FSDP, and of settings
other than those of a framework's recipe for performance, on the whole step: predictions were
compared with steps of other code on the one, mostly with the recipes' of the other."""


@frozen
class Effect:
    """Error of the step time from the error of one number.

    Attributes
    ----------
    name : str
    share : float
        Share of the step time that is proportional to the number.
    error : float
        Relative error bar of the number.
    source : str
        Where the number comes from.
    """

    name: str
    share: float
    error: float
    source: str

    @property
    def effect(self) -> float:
        """Relative error of the step time from this number alone."""
        return self.share * self.error


@frozen
class Uncertainty:
    """The error bar of a step time.

    Attributes
    ----------
    relative : float
        One standard deviation, as a fraction of the step time.
    effects : tuple of Effect
        Effects of the single numbers, the largest first.
    """

    relative: float
    effects: tuple[Effect, ...]


def propagate(
    path: CriticalPath,
    shares: Callable[[int], Mapping[str, float]],
    numbers: Mapping[str, Quantity],
) -> Uncertainty:
    """Critical path, error bars of the numbers it depends on → error bar of the step time.

    Parameters
    ----------
    path : CriticalPath
    shares : callable
        For the i-th piece of the path, the share of its length that is proportional (directly or
        inversely) to each number, by name.
    numbers : mapping of str to Quantity
        The numbers.

    Returns
    -------
    Uncertainty
    """
    total = int(path.end[-1]) if len(path.end) else 0
    lengths: dict[str, float] = {}
    for piece, length in enumerate((path.end - path.begin).tolist()):
        for name, share in shares(piece).items():
            lengths[name] = lengths.get(name, 0.0) + share * length
    return combine(lengths, total, numbers)


def combine(
    lengths: Mapping[str, float],
    total: int,
    numbers: Mapping[str, Quantity],
    model_error: tuple[str, Quantity] | None = None,
) -> Uncertainty:
    """Share of the step that depends on each number, their error bars → error bar of the step.

    Parameters
    ----------
    lengths : mapping of str to float
        In ps, by name of the number.
    total : int
        The step, in ps.
    numbers : mapping of str to Quantity
    model_error : tuple of str and Quantity, optional
        What the model leaves out, as a factor of the whole step: its name, and 1 with the error
        bar that steps which it was not fitted to have shown.
    """
    effects = [
        Effect(name, length / total, numbers[name].error, numbers[name].source)
        for name, length in lengths.items()
        if total and name in numbers and numbers[name].error > 0
    ]
    if total and model_error is not None:
        name, number = model_error
        effects.append(Effect(name, 1.0, number.error, number.source))
    effects.sort(key=lambda each: (-each.effect, each.name))
    relative = math.sqrt(math.fsum(each.effect**2 for each in effects))
    return Uncertainty(relative, tuple(effects))


# --- of an experiment -----------------------------------------------------------------------------


def error_bar(
    prepared: PreparedExperiment,
    run: Run,
    lengths: Mapping[str, float] | None = None,
    *,
    model_error: bool = True,
    overlap: OverlapSummary | None = None,
    shares: PathShares | None = None,
) -> Uncertainty:
    """Run of an experiment → error bar of its step time, with the parts. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    run : Run
        With its critical path.
    lengths : mapping of str to float, optional
        `PathShares.lengths`, if known.
    model_error : bool
        Whether it holds what the model leaves out.
    overlap : OverlapSummary, optional
        What slowed what overlaps, if that was modelled.
    shares : PathShares, optional
        Of the run, if known.
    """
    numbers = {
        name: number for name, number in vars(prepared.gpu).items() if isinstance(number, Quantity)
    }
    numbers |= dict(prepared.network.numbers)
    for pricing in reversed(prepared.workload.pricings):  # of equal names those of most nodes count
        numbers |= dict(pricing.model.numbers)
    shares = shares or PathShares(prepared, run)
    numbers |= {
        name: replace(numbers[name], error=numbers[name].error * factor)
        for name, factor in shares.averaging().items()
        if name in numbers
    }
    if lengths is None:
        lengths = shares.lengths()
    if overlap is not None and run.critical_path is not None:
        numbers |= overlap.numbers
        lengths = {**lengths, **overlap.lengths()}
    if prepared.input_pipeline is not None:
        numbers |= prepared.input_pipeline.numbers
    numbers |= prepared.host.numbers(prepared.experiment.plan)
    guess = prepared.experiment.guess
    if guess is not None:
        numbers[GUESSED] = Quantity(1, "1", guess.error, "published models of such sizes")
        lengths = {**lengths, GUESSED: float(run.step_time)}
    numbers[OWN_KERNELS] = quantity("own_kernels")
    unknown = _unknown(prepared)
    if not prepared.experiment.says_framework:
        numbers[UNNAMED] = _unnamed(prepared)
        lengths = {**lengths, UNNAMED: float(run.step_time)}
    for name, key in unknown:
        numbers[name] = _uncompared(key)
        lengths = {**lengths, name: float(run.step_time)}
    left_out = _model_error(prepared) if model_error else None
    return combine(lengths, run.step_time, numbers, left_out)


def difference_error(
    one: Mapping[str, float],
    one_time: float,
    other: Mapping[str, float],
    other_time: float,
    unshared: float | None = None,
) -> float:
    """Two predicted steps → one standard deviation of the difference of their times.

    An input that is off is off for both: what depends on it in both cancels, as far as both depend
    on it equally long. Of what the model leaves out most is the same share of both; the rest is
    each plan's own.

    Parameters
    ----------
    one, other : mapping of str to float
        Relative error of each step from each number alone (`Effect.effect`).
    one_time, other_time : float
        Of the steps, in one unit, which is that of the result.
    unshared : float, optional
        What the model leaves out and the two do not share, relative to the shorter step; by
        default as measured plans show (``data/plans.toml``).
    """
    if unshared is None:
        unshared = unshared_share()
    return math.hypot(
        unshared * min(one_time, other_time),
        *(
            one.get(name, 0.0) * one_time - other.get(name, 0.0) * other_time
            for name in sorted({*one, *other})
        ),
    )


def unshared_share() -> float:
    """Return the model error that two plans do not share, relative to the shorter step."""
    return build(Quantity, packaged(PLANS_FILE)["unshared"], PLANS_FILE, "unshared").value


def at_least_a_library(prepared: PreparedExperiment) -> bool:
    """Experiment without a framework's name → whether that adds at least what a library's does.

    Who names nothing knows no more than who names a library. So it is for transformers on compared
    GPUs, where nothing else is added.
    """
    return model_class(prepared.experiment.model) in WAYS and not _unknown(prepared)


def _unnamed(prepared: PreparedExperiment) -> Quantity:
    """Return 1 with the error bar that an unnamed framework adds."""
    designs = [design_name(rated_gpu(each.model.gpu)) for each in prepared.workload.pricings]
    experiment = prepared.experiment
    kind = model_class(experiment.model)
    key = unnamed_class(kind, experiment.plan.zero, designs)
    found = build(Quantity, packaged(UNNAMED_FILE)[key], UNNAMED_FILE, key)
    left_open = _uncompared("left_open")
    if not at_least_a_library(prepared) or found.error >= left_open.error:
        return found
    return replace(found, error=left_open.error, source=f"{AS_OPEN}: {left_open.source}")


def _uncompared(key: str) -> Quantity:
    """Return 1 with an error bar of `UNCOMPARED_FILE`."""
    return build(Quantity, packaged(UNCOMPARED_FILE)[key], UNCOMPARED_FILE, key)


def unnamed_class(kind: str, zero: int, designs: Sequence[str]) -> str:
    """Kind of model, ZeRO stage, GPU designs → class for the error of an unnamed framework.

    Dense transformers whose states alone are sharded, or parameters, too; on GPUs of before 2022
    apart, as frameworks of their time had kernels that those of today, for which common practice
    stands, have not.

    Parameters
    ----------
    kind : str
        As `model_class` names it.
    zero : int
    designs : sequence of str
        As `design_name` writes them.
    """
    if kind != "dense":
        return kind
    sharding = "sharded" if zero >= 2 else "dense"
    years = packaged(GENERATIONS_FILE)
    older = any(years[each.split(",")[0]]["year"] < FIRST_YEAR for each in designs)
    return f"{sharding}_before_{FIRST_YEAR}" if older else sharding


def _unknown(prepared: PreparedExperiment) -> list[tuple[str, str]]:
    """Experiment → errors of what no measured step has tested: name of each, key of its size.

    Of transformers: of other models the error of the model is that of few, unlike steps. What an
    experiment without a framework's name leaves open has an error of its own.
    """
    profile = prepared.experiment.profile
    kind = model_class(prepared.experiment.model)
    seen: Mapping[str, Any] = packaged(UNCOMPARED_FILE)
    if kind not in WAYS:
        return []
    if not _compared(prepared, seen[WAYS[kind]]):
        return [(UNCOMPARED, kind)]
    if profile is None:
        return []
    own_settings = profile.has_recipe and prepared.experiment.framework.recipe == "none"
    return [(LEFT_OPEN, "left_open")] if profile.host in seen["open"] or own_settings else []


def _compared(prepared: PreparedExperiment, ways: Sequence[Any]) -> bool:
    """Whether measured steps of this framework, kind of plan and GPU are among those compared.

    A division counts that is part of one that was (`is_part`), and a model at least half as wide as
    the narrowest: in narrower ones launches and small products decide. Frameworks that run one
    library count as one, versions that a profile does not cover as none.
    """
    experiment = prepared.experiment
    seen: Mapping[str, Any] = packaged(UNCOMPARED_FILE)
    designs = {design_name(rated_gpu(each.model.gpu)) for each in prepared.workload.pricings}
    if experiment.profile is None:
        return designs <= {design for _, design, *_ in ways}
    version = experiment.framework.version
    if version and experiment.profile.stands_for(version):
        return False
    library = seen["libraries"].get(experiment.profile.host, experiment.profile.host)
    division = experiment.plan.division(prepared.workload.layout.grid.dp)
    hidden = getattr(experiment.model, "hidden", 0)
    return all(
        any(
            each[:2] == [library, design] and is_part(division, each[2]) and each[3] <= 2 * hidden
            for each in ways
        )
        for design in designs
    )


def is_part(division: str, other: str) -> bool:
    """Two divisions of the work → whether the other divides it along all axes of the first.

    Steps of the other then had every kind of kernel and communication that the first has, and one
    GPU is part of all.

    Parameters
    ----------
    division, other : str
        As `Plan.division` writes them.
    """
    alone = {"one GPU"}
    return set(division.split("+")) - alone <= set(other.split("+"))


def design_name(gpu: Gpu) -> str:
    """GPU → its architecture and the lanes of a multiprocessor, as ``"ampere, 64 lanes"``."""
    family, many_lanes = GpuParameters.of(gpu).design
    return f"{family}, {128 if many_lanes else 64} lanes"


def _model_error(prepared: PreparedExperiment) -> tuple[str, Quantity] | None:
    """Return name and size of the model error."""
    applied, kind = prepared.constants, model_class(prepared.experiment.model)
    if applied is None:
        found = packaged_constants().model_error
        return None if found is None else ("model error", found.plain[kind])
    found = applied.constants.model_error
    if found is None:
        return None
    if applied.fitted:
        return "model error (calibrated)", found.known[kind]
    return "model error (calibrated; framework or GPU new)", found.unknown[kind]
