"""Run of a program file → its uncertainty with sources, its assumptions, and model limits.

For recorded and captured programs, which hold no experiment; `statements` does the same for
experiments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.quantity import PICOSECONDS, Quantity
from ..base.text import format_value
from ..engine.run import Run
from ..kernels.counted import PRICED
from .launches import with_hidden_launches
from .path_shares import PathShares
from .statements import (
    METHOD,
    OVERLAP_SLOWDOWN,
    describe_random_factors,
    digits,
    network_notes,
    scale_lines,
    uncertainty_lines,
)
from .uncertainty import Uncertainty, combine
from .unused_network_keys import needs_prices

if TYPE_CHECKING:
    from ..overlap import OverlapSummary
    from .prepared_program import PreparedProgram

__all__ = ["SAMPLES", "TOKENS", "program_error_bar", "program_statements"]

SAMPLES, TOKENS = "samples", "tokens"
"""Attributes of a program: how many samples, and tokens, a step of all ranks is of."""

ALL_TIMED = "every communication has a duration of its own"

METHOD_OF_PROGRAMS = (
    f"{METHOD}; launches also where a slower CPU would make them critical, and no longer than a "
    "faster one leaves them so; durations of the program count as exact"
)
"""How their error bars are made."""

OVERLAP_OF_PROGRAMS = f"{OVERLAP_SLOWDOWN} (a program does not say what its kernels do)"

NOT_MODELLED_OF_PROGRAMS = (
    "packets: communications that share a link share its bandwidth fairly and at once",
)


def program_statements(
    prepared: PreparedProgram,
    run: Run,
    shares: PathShares | None = None,
    overlap: OverlapSummary | None = None,
) -> dict[str, Any]:
    """Return the statements of a program's results, as their attributes. Local.

    Parameters
    ----------
    prepared : PreparedProgram
    run : Run
        With its critical path.
    shares : PathShares, optional
        Of the run, if known.
    overlap : OverlapSummary, optional
        The slowdown of what overlaps, if that was modelled; it adds its statements.

    Returns
    -------
    dict
        ``assumptions`` and ``not_modelled``, lists of texts; ``throughput`` (for people) where the
        program says how many samples a step is of; where a network prices communications
        also ``uncertainty`` (relative, one standard deviation), ``uncertainty_method`` and
        ``uncertainty_sources``, as of `mpisim.prediction.statements.statements`.
    """
    choices, request, cluster = prepared.experiment, prepared.request, prepared.cluster
    rate = _throughput(prepared, run)
    varies = describe_random_factors(choices.variation)
    speeds = choices.variation.speeds
    lines = [] if varies is None else [varies]
    lines += [f"variation.speeds.{ranks} = {speed:g}" for ranks, speed in speeds.items()]
    lines += scale_lines(prepared)
    lines += prepared.counted.assumptions
    if PRICED in prepared.program.attributes:
        lines.append(f"priced by roofline: {prepared.program.attributes[PRICED]}")
    if request is None or cluster is None:
        return {
            **rate,
            **({"assumptions": lines} if lines else {}),
            **_program_error_bar(prepared, run, shares, None),
        }
    nodes = f"{request.nodes} node" + ("s" if request.nodes > 1 else "")
    shown = {
        key: value
        for key, value in choices.left_to_defaults().items()
        if key.startswith("network.") and value not in (None, {})
    }
    if request.choice.model != "nccl":
        shown.pop("network.contention", None)  # a note says so
    given = {
        f"network.{key}": value
        for key, value in vars(request.choice).items()
        if f"network.{key}" not in choices.defaulted
    }
    return {
        **rate,
        "assumptions": [
            cluster.title,
            f"{nodes}; neighbouring ranks share a node",
            *lines,
            *(f"{key} = {format_value(value)}" for key, value in given.items()),
            *([] if needs_prices(prepared.program) else [f"{ALL_TIMED}: the cluster prices none"]),
            *network_notes(cluster, prepared.program, request, prepared.networks),
            *(f"{key} = {format_value(value)} (default)" for key, value in shown.items()),
        ],
        "not_modelled": [
            *prepared.counted.not_modelled,
            *([OVERLAP_OF_PROGRAMS] if overlap is None else []),
            *NOT_MODELLED_OF_PROGRAMS,
        ],
        **_program_error_bar(prepared, run, shares, overlap),
        **({} if overlap is None else overlap.statements()),
    }


def _throughput(prepared: PreparedProgram, run: Run) -> dict[str, str]:
    """Return samples per second, for a program that states the samples of a step."""
    attributes = prepared.program.attributes
    samples, tokens = (attributes.get(key, "") for key in (SAMPLES, TOKENS))
    if not samples.isdecimal() or not run.step_time:
        return {}
    seconds = run.step_time / PICOSECONDS
    rate = f"{digits(int(samples) / seconds)} samples/s"
    if tokens.isdecimal():
        rate = f"{int(tokens) / seconds:,.0f} tokens/s ({rate})"
    return {"throughput": f"{rate}, {int(samples):,} samples a step"}


def program_error_bar(
    prepared: PreparedProgram,
    run: Run,
    shares: PathShares | None = None,
    overlap: OverlapSummary | None = None,
) -> Uncertainty | None:
    """Run of a program → error bar of its step time; None where nothing was priced. Local.

    Parameters
    ----------
    prepared : PreparedProgram
    run : Run
        With its critical path.
    shares : PathShares, optional
        Of the run, if known.
    overlap : OverlapSummary, optional
        What slowed overlapping kernels, if it is known.
    """
    errors = prepared.counted.numbers
    numbers = {name: Quantity(1, "1", error, PRICED) for name, error in errors.items()}
    if prepared.network is not None and needs_prices(prepared.program):
        numbers |= prepared.network.numbers
    if run.critical_path is None or not (numbers or prepared.counted.left_out):
        return None
    lengths = with_hidden_launches(
        (shares or PathShares(prepared, run)).lengths(),
        prepared.program,
        run,
        prepared.counted.host,
        errors,
    )
    if overlap is not None:
        numbers |= overlap.numbers
        lengths = {**lengths, **overlap.lengths()}
    off = prepared.counted.left_out
    left_out = (
        "what grows with the number of GPUs and has no part here",
        Quantity(1, "1", off, PRICED),
    )
    return combine(lengths, run.step_time, numbers, left_out if off else None)


def _program_error_bar(
    prepared: PreparedProgram,
    run: Run,
    shares: PathShares | None,
    overlap: OverlapSummary | None,
) -> dict[str, Any]:
    """Return the error bar of a step from the kernels and communications that were priced."""
    found = program_error_bar(prepared, run, shares, overlap)
    if found is None:
        return {}
    return {
        "uncertainty": found.relative,
        "uncertainty_method": METHOD_OF_PROGRAMS,
        "uncertainty_sources": uncertainty_lines(found),
    }
