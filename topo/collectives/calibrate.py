"""Measured communications → calibration: fitted numbers by platform, with their errors.

`calibrate` fits all platforms of many measurements, with their families, architectures and all
machines. `calibrate_platform` fits a user's own platform: only the numbers of what was measured,
inside nodes or across them, near those of the packaged calibration, which keeps the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from ..nccl.shape import REGIMES, Regime
from .batches import Batch
from .calibration import (
    DEEPEP,
    NUMBERS_OF_REGIME,
    ErrorBin,
    MachineCalibration,
    OwnerCalibration,
    calibration_of,
    packaged_calibration,
)
from .fit import (
    CollectiveFit,
    cross_validate,
    fit_formula,
    fit_owners,
    owner_chain,
    setup_of,
    training_batches,
)
from .formulas import NcclFormula
from .models import formula_of
from .platforms import owners_behind
from .runs import OUTPUT_SOURCES

__all__ = ["calibrate", "calibrate_platform", "error_bins", "one_platform", "with_wider_errors"]

MIN_SETUPS = 2
"""Set-ups from which on those left out in turn say how far off a platform's numbers are."""


def calibrate(measured: Sequence[Batch], split: str) -> Iterator[tuple[str, OwnerCalibration]]:
    """Batches → calibrations of all platforms, families, architectures and ``any``.

    A family's errors, an architecture's and those of all are of whole platforms left out in turn: a
    machine that falls back on them was not measured. A platform's are of set-ups left out; with a
    single set-up, and for sizes that it has no rows of, it has its family's errors. Of an owner
    whose groups are all inside nodes numbers and errors are of these alone, and so they are where
    all measurements are of one regime.

    Parameters
    ----------
    measured : sequence of Batch
    split : str
        What to call the half that they are.

    Yields
    ------
    str
        Owner.
    OwnerCalibration
    """
    for kernels in (False, True):
        members = [each for each in measured if (owner_chain(each)[-1] == DEEPEP) is kernels]
        yield from _tables(members, split)


def _tables(members: Sequence[Batch], split: str) -> Iterator[tuple[str, OwnerCalibration]]:
    done: dict[str, CollectiveFit] = {}
    errors: dict[str, tuple[ErrorBin, ...]] = {}
    form = formula_of(members[0].library) if members else None
    every = {each.regime for each in members}
    for owner, found in fit_owners(form, members) if form else ():
        assert form is not None
        done[owner] = found
        own = training_batches(owner, members)
        # What was measured inside nodes alone says nothing of the way across. (Across nodes both
        # kinds of numbers count, and were fitted together.)
        regime: Regime | Literal[""] = ""
        decided = tuple(form.start)
        regimes = {each.regime for each in own}
        if form.name == NcclFormula.name and (regimes == {"inside"} or len(every) == 1):
            (regime,) = regimes
            decided = NUMBERS_OF_REGIME[regime]
        wider = done[found.wider].numbers if found.wider else None
        if not found.curves:
            errors[owner] = errors[found.wider] if found.wider else ()
            continue
        known = found.wider is not None and errors[found.wider]
        fallback = any(each.platform.name != owner for each in own)
        enough = fallback or len({setup_of(each) for each in own}) >= MIN_SETUPS or not known
        if enough:
            beyond = errors[found.wider] if found.wider else ()
            errors[owner] = with_wider_errors(
                error_bins(cross_validate(form, own, wider, owner), beyond), beyond
            )
        else:
            errors[owner] = errors[str(found.wider)]
        yield (
            owner,
            OwnerCalibration(
                form=form.name,
                numbers=rounded_numbers({name: found.numbers[name] for name in decided}),
                source=source_repositories(own),
                files=tuple(sorted({row.file for each in own for row in each.rows})),
                split=split,
                curves=found.curves,
                rows=found.rows,
                held_out="wider" if not enough else "platforms" if fallback else "set-ups",
                errors=tuple(replace(each, regime=regime) for each in errors[owner]),
            ),
        )


def error_bins(
    unseen: Sequence[tuple[Batch, NDArray[np.float64]]], wider: Sequence[ErrorBin]
) -> tuple[ErrorBin, ...]:
    """Errors of rows → errors by decade of the size.

    The 90th percentile is of the rows of a decade and its two neighbours: a decade alone may be of
    three rows. And few set-ups left out say little of the next one, however many their rows: the
    wider owner's percentile counts as one more of them, p² = (k own² + wider²) / (k + 1).

    Parameters
    ----------
    unseen : sequence of (Batch, float64)
        Of `cross_validate`.
    wider : sequence of ErrorBin
        The wider owner's errors; none for the widest.
    """
    error = np.concatenate([each for _, each in unseen])
    decade = np.floor(np.log10(np.concatenate([batch.bytes for batch, _ in unseen]))).astype(int)
    units = np.repeat(_units(unseen), [len(each) for _, each in unseen])
    found = []
    for power in np.unique(decade).tolist():
        here = error[decade == power]
        near = np.abs(decade - power) <= 1
        p90 = float(np.percentile(np.abs(error[near]), 90))
        if wider:
            beyond = min(wider, key=lambda each: abs(each.decade - power)).p90
            count = len(np.unique(units[near]))
            p90 = ((count * p90**2 + beyond**2) / (count + 1)) ** 0.5
        found.append(
            ErrorBin(
                decade=power,
                rows=len(here),
                bias=_digits(np.median(here)),
                median=_digits(np.median(np.abs(here))),
                p90=_digits(p90),
            )
        )
    return tuple(found)


def _units(unseen: Sequence[tuple[Batch, NDArray[np.float64]]]) -> list[str]:
    """Return the unit left out with each batch: its platform, or its set-up within a platform."""
    names = [batch.platform.name for batch, _ in unseen]
    return names if len(set(names)) > 1 else [setup_of(batch) for batch, _ in unseen]


def with_wider_errors(own: Iterable[ErrorBin], wider: Iterable[ErrorBin]) -> tuple[ErrorBin, ...]:
    """An owner's errors, the wider owner's → its own, the wider's where a decade has no rows.

    Parameters
    ----------
    own : iterable of ErrorBin
        Of the owner; at most one for each decade.
    wider : iterable of ErrorBin
        Of the wider owner, likewise.

    Returns
    -------
    tuple of ErrorBin
        One for each decade that either has, ascending.
    """
    found = {each.decade: each for each in wider} | {each.decade: each for each in own}
    return tuple(found[decade] for decade in sorted(found))


def rounded_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    """Fitted numbers → as the file shows them."""
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def _digits(value: float) -> float:
    """Return a number as the file shows it."""
    return float(f"{value:.3g}")


def source_repositories(batches: Sequence[Batch]) -> str:
    """Batches → repositories that their rows come from."""
    sources = {row.source.split("#")[0] for each in batches for row in each.rows[:1]}
    return ", ".join(sorted({_repository(each) for each in sources if each}))


def _repository(source: str) -> str:
    """Return ``github:owner/name`` of a file there."""
    host, _, rest = source.partition(":")
    return f"{host}:{rest.split(':')[0].split('@')[0]}" if rest else source


def one_platform(measured: Sequence[Batch]) -> str | None:
    """Batches → name of their platform, if it is a single one.

    Outputs of nccl-tests on GPUs of one name are of one, though those of a single node do not say
    what the network is.
    """
    if not measured or any(each.library.startswith(DEEPEP) for each in measured):
        return None
    names = {each.platform.name for each in measured}
    if len(names) == 1:
        return names.pop()
    outputs = all(each.rows[0].source in OUTPUT_SOURCES for each in measured)
    if outputs and len({each.rows[0].gpu for each in measured}) == 1:
        return _common_owners(measured)[0]
    return None


def calibrate_platform(name: str, measured: Sequence[Batch], split: str) -> OwnerCalibration:
    """Fit a user's own platform.

    Errors are those of set-ups left out in turn, by regime. Those of a single set-up say little of
    the next one: its regime has the larger of them and of the errors behind it.

    Parameters
    ----------
    name : str
    measured : sequence of Batch
        Of that platform.
    split : str
        What to call the half that they are.

    Raises
    ------
    InputError
        If the batches are of several architectures, or of what NCCL's model does not cover.
    """
    form = formula_of(measured[0].library)
    archs = sorted({each.platform.arch for each in measured})
    if len(archs) > 1 or any(each.library.startswith(DEEPEP) for each in measured):
        what = f"{' and '.join(archs)} GPUs" if len(archs) > 1 else "kernels of DeepEP"
        raise InputError(f"the platform {name!r} has rows of {what}; it must be one machine's NCCL")
    behind = _common_owners(measured)
    wider = calibration_of(packaged_calibration(), behind)
    regimes = [each for each in REGIMES if any(one.regime == each for one in measured)]
    free = [number for regime in regimes for number in NUMBERS_OF_REGIME[regime]]
    found = fit_formula(form, measured, wider.numbers, free=free)
    if not found.curves:
        raise InputError(f"the platform {name!r}: NCCL's model covers none of the rows")
    unseen = cross_validate(form, measured, wider.numbers, free=free)
    errors: list[ErrorBin] = []
    mine: tuple[ErrorBin, ...]
    own: set[bool] = set()
    for regime in regimes:
        left_out = [(batch, each) for batch, each in unseen if batch.regime == regime]
        mine, beyond = (), _regime_errors(wider, regime)
        if left_out:
            mine = error_bins(left_out, beyond)
            enough = len({setup_of(batch) for batch, _ in left_out}) >= MIN_SETUPS
            mine = mine if enough else _no_lower_than(mine, beyond)
            own.add(enough)
        errors += [replace(each, regime=regime) for each in with_wider_errors(mine, beyond)]
    return OwnerCalibration(
        form=form.name,
        numbers=rounded_numbers({number: found.numbers[number] for number in free}),
        source=source_repositories(measured),
        files=tuple(sorted({row.file for each in measured for row in each.rows})),
        split=split,
        curves=found.curves,
        rows=found.rows,
        held_out="set-ups" if True in own else "wider",
        errors=tuple(errors),
        behind=behind,
    )


def _common_owners(measured: Iterable[Batch]) -> tuple[str, ...]:
    """Return the fall-back owners common to all batches; those across nodes name the fabric."""
    found = [
        (each.platform.behind or owners_behind(each.platform), each.regime == "across")
        for each in measured
    ]
    return max(found, key=lambda each: (len(each[0]) > 2, each[1], len(each[0]), each[0]))[0]


def _regime_errors(wider: MachineCalibration, regime: Regime) -> tuple[ErrorBin, ...]:
    """Return the errors of a regime that a platform falls back on."""
    return tuple(each for each in wider.tables[regime].errors if each.regime in ("", regime))


def _no_lower_than(own: Iterable[ErrorBin], wider: Sequence[ErrorBin]) -> tuple[ErrorBin, ...]:
    """Return an owner's errors, none below the wider owner's of the nearest decade."""
    return tuple(
        replace(
            each,
            p90=max(each.p90, min(wider, key=lambda bin: abs(bin.decade - each.decade)).p90),
        )
        for each in own
    )
