"""Framework of an experiment → keys that its profile has set and what lacks for some, as lines."""

from __future__ import annotations

from ..base.presets import normalized_name
from ..base.text import format_value
from ..experiment import Cnn, Dlrm, Experiment, Transformer
from ..experiment.plan_keys import short_key
from ..experiment.profiles import Profile
from ..workloads.grid import Grid
from ..workloads.input_pipeline import loads_images

__all__ = ["OUTSIDE", "PRACTICE", "dispatcher_lines", "profile_lines"]

PRACTICE = "common practice, as no framework is named"

OUTSIDE = "is outside of what is known"
"""Of a version of a framework."""


def profile_lines(experiment: Experiment, *, at_least_a_library: bool) -> list[str]:
    """Experiment → framework, its version, and the keys set by its profile, a line each. Local.

    Parameters
    ----------
    experiment : Experiment
    at_least_a_library : bool
        Whether without a framework's name the error bar has at least what a library's name leaves
        open (`mpisim.prediction.uncertainty.at_least_a_library`).
    """
    profile, version = experiment.profile, experiment.framework.version
    if profile is None:
        lines = []
        if not experiment.says_framework:
            least = ", at least a library's" if at_least_a_library else ""
            wide = f"the error bar is wide{least}; [framework] name tells"
            lines = [f"framework: none is named; {wide}"]
        return [
            *lines,
            *(
                f"{short_key(key)} = {format_value(each.value)} ({PRACTICE}: {each.source})"
                for key, each in experiment.set_by_profile.items()
            ),
        ]
    called = profile.title
    if version is not None:
        called += f" {version}"
    name = experiment.framework.name or ""
    run = f"framework: {called}"
    if normalized_name(name) in profile.programs:
        whose = "" if version is None else f" (the framework's version, not that of {name})"
        run = f"framework: {name} trains with {called}{whose}"
    lines = [f"{run}; the profile covers {profile.versions}"]
    if version is None:
        lines[0] += "; no version is given, so the newest is taken"
    elif known := profile.stands_for(version):
        side = "ends at" if profile.is_newer(version) else "begins with"
        lines[0] = f"{run} {OUTSIDE}: the profile {side} {known}, whose behaviour is assumed"
    lines += _not_of_profile(experiment, profile)
    for key, each in experiment.set_by_profile.items():
        if key.startswith("data.") and not loads_images(experiment):
            continue
        how = ", by analogy" if each.analogy else ""
        lines.append(
            f"{short_key(key)} = {format_value(each.value)} ({called}{how}: {each.source})"
        )
    return lines


def dispatcher_lines(experiment: Experiment, grid: Grid) -> list[str]:
    """Experiment → what is left out of a dispatcher of tokens on links of no known rate. Local.

    Parameters
    ----------
    experiment : Experiment
    grid : Grid
        With the rates of the cluster's links, if they are known.
    """
    framework, model = experiment.plan.framework, experiment.model
    mixture = isinstance(model, Transformer) and model.experts > 0
    if not (mixture and grid.ep > 1 and framework.dispatches_by_kernels and grid.rates is None):
        return []
    return [
        f"framework.moe_dispatcher = {format_value(framework.moe_dispatcher)}: its kernels by what "
        "links take alone, without their latency and multiprocessors: the cluster has no "
        "link_bandwidth"
    ]


def _not_of_profile(experiment: Experiment, profile: Profile) -> list[str]:
    """Say which model or parallelism of the experiment its framework does not support."""
    lines = []
    kinds = {Cnn: "cnn", Dlrm: "dlrm"}
    family = kinds.get(type(experiment.model), "transformer")
    if profile.models and family not in profile.models:
        lines.append(
            f"framework: {profile.title} is for {' and '.join(profile.models)} models; of a "
            f"{family} its profile says nothing, so defaults are assumed"
        )
    plan = experiment.plan
    for axis in ("tp", "pp", "cp", "ep"):
        size = getattr(plan, axis)
        if size > 1 and profile.parallel and axis not in profile.parallel:
            lines.append(
                f"framework: {profile.title} has no such parallelism of its own: {axis} = {size} "
                "is as Megatron-LM's"
            )
    return lines
