"""What the result of a program that says of no experiment says of itself."""

from __future__ import annotations

from typing import Any

from ..base.quantity import Quantity
from ..engine.run import Run
from ..kernels.counted import PRICED
from .path_shares import PathShares
from .program_case import ProgramCase
from .statements import METHOD, network_notes, random_factors, sources, worded
from .uncertainty import combine
from .without_effect import priced

__all__ = ["program_statements"]

ALL_TIMED = "every communication has a duration of its own"

LEFT_OUT = (
    "the slowdown of kernels and communications that overlap (a program does not say what its "
    "kernels do)",
    "packets: communications that share a link share its bandwidth fairly and at once",
)


def program_statements(case: ProgramCase, run: Run) -> dict[str, Any]:
    """Return what results of a program say of it: assumptions, error bar, what is left out. Local.

    Parameters
    ----------
    case : ProgramCase
    run : Run
        With its critical path.

    Returns
    -------
    dict
        ``assumptions`` and ``not_modelled``, lists of texts; where a network prices communications
        also ``uncertainty`` (relative, one standard deviation), ``uncertainty_method`` and
        ``uncertainty_sources``, as of `mpisim.prediction.statements.statements`.
    """
    choices, asked, cluster = case.experiment, case.asked, case.cluster
    varies = random_factors(choices.variation)
    speeds = choices.variation.speeds
    said = [] if varies is None else [varies]
    said += [f"variation.speeds.{ranks} = {speed:g}" for ranks, speed in speeds.items()]
    if case.counted.shares:
        said.append(f"priced by roofline: {case.program.attributes[PRICED]}")
    if asked is None or cluster is None:
        return {**({"assumptions": said} if said else {}), **_error_bar(case, run)}
    nodes = f"{asked.nodes} node" + ("s" if asked.nodes > 1 else "")
    shown = {
        key: value
        for key, value in choices.left_to_defaults().items()
        if key.startswith("network.") and value not in (None, {})
    }
    if asked.choice.model != "nccl":
        shown.pop("network.contention", None)  # a note says so
    given = {
        f"network.{key}": value
        for key, value in vars(asked.choice).items()
        if f"network.{key}" not in choices.defaulted
    }
    return {
        "assumptions": [
            cluster.title,
            f"{nodes}; neighbouring ranks share a node",
            *said,
            *(f"{key} = {worded(value)}" for key, value in given.items()),
            *([] if priced(case.program) else [f"{ALL_TIMED}: the cluster prices none"]),
            *network_notes(cluster, case.program, asked),
            *(f"{key} = {worded(value)} (default)" for key, value in shown.items()),
        ],
        "not_modelled": list(LEFT_OUT),
        **_error_bar(case, run),
    }


def _error_bar(case: ProgramCase, run: Run) -> dict[str, Any]:
    """Return how far communications and kernels that were priced put the step time off."""
    errors = case.counted.numbers
    numbers = {name: Quantity(1, "1", error, PRICED) for name, error in errors.items()}
    if case.network is not None and priced(case.program):
        numbers |= case.network.numbers
    if run.critical_path is None or not numbers:
        return {}
    found = combine(PathShares(case, run).lengths(), run.step_time, numbers, None)
    return {
        "uncertainty": found.relative,
        "uncertainty_method": f"{METHOD}; durations of the program count as exact",
        "uncertainty_sources": sources(found),
    }
