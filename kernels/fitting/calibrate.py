"""Measured kernels → calibration file: fits for every GPU, every architecture and all together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mpisim.base.quantity import Z_90

from ..analytical.calibration import (
    HELD_OUT_GPUS,
    MIN_BIN_ROWS,
    ErrorBin,
    FittedConstants,
    HeldOut,
)
from ..analytical.families import FORMULAS
from ..analytical.formula import ANY, Formula
from ..analytical.lookup import unseen_chip_error
from ..gpu_parameters import gpu_parameters
from ..measured import MeasuredKernels
from .cross_validation import (
    LeftOutChip,
    best_chip_weight,
    chip_count,
    cross_validate,
    leave_out_chips,
    shrink,
)
from .least_squares import FormulaFit, fit

__all__ = ["calibrate", "unseen_tables", "write"]

AMD = "cdna"
"""What the names of AMD's architectures begin with."""

MIN_CHIPS = 3
"""Of a maker, that say how far off another of its chips may be."""

Key = tuple[str, str, str]
"""Family, GPU or architecture or ``"any"``, format."""


def calibrate(batches: Sequence[MeasuredKernels]) -> Iterator[tuple[Key, FittedConstants]]:
    """Measured kernels → all constants that the rows determine.

    The constants of all GPUs together start from the textbook's, those of an architecture from
    these, those of a GPU from its architecture's. The table of an architecture, which serves its
    GPUs that were not measured, is shrunk towards all GPUs' (:func:`.cross_validation.shrink`).
    Errors are found on rows that a fit did not see: for a GPU by leaving out runs or shapes; for an
    architecture (from all chips of its maker) and for all by leaving out chips.

    Parameters
    ----------
    batches : sequence of MeasuredKernels

    Yields
    ------
    tuple of str
        Family, owner and format.
    FittedConstants
        As each is done: a large family takes a minute.
    """
    groups: dict[tuple[str, str], list[MeasuredKernels]] = {}
    for rows in batches:
        groups.setdefault((rows.family, rows.dtype), []).append(rows)
    for family, dtype in sorted(groups):
        formula = FORMULAS[family]
        for owner, table in _tables(formula, groups[family, dtype]):
            yield (family, owner, dtype), table


def _tables(
    formula: Formula, batches: list[MeasuredKernels]
) -> Iterator[tuple[str, FittedConstants]]:
    everything = fit(formula, batches)
    left_out = leave_out_chips(formula, batches)
    weight = best_chip_weight(formula, left_out)
    unseen: tuple[HeldOut, tuple[ErrorBin, ...]]
    if left_out:
        unseen = HELD_OUT_GPUS, unseen_errors(formula, left_out, weight)
    else:
        unseen = _validated(formula, batches, None)
    yield ANY, _table(everything, batches, *unseen)
    for architecture in sorted({gpu_parameters(rows.gpu).family for rows in batches}):
        near = [rows for rows in batches if gpu_parameters(rows.gpu).family == architecture]
        together = fit(formula, near, everything.constants)
        held_out, errors = unseen
        if left_out:
            errors = unseen_errors(formula, _same_maker(left_out, architecture), weight)
        shrunk = shrink(together, everything, chip_count(near), weight)
        yield architecture, _table(shrunk, near, held_out, errors)
        for gpu in sorted({rows.gpu for rows in near}):
            own = [rows for rows in near if rows.gpu == gpu]
            alone = fit(formula, own, together.constants)
            if alone.rows < MIN_BIN_ROWS:
                # Too few to say how far off they are.
                yield gpu, _table(alone, own, held_out, errors)
            else:
                yield gpu, _table(alone, own, *_validated(formula, own, together.constants))


def _validated(
    formula: Formula, batches: list[MeasuredKernels], towards: Mapping[str, float] | None
) -> tuple[HeldOut, tuple[ErrorBin, ...]]:
    """Return the unit left out in turn (shapes or runs), and errors of left-out rows by size."""
    held_out, errors = cross_validate(formula, batches, towards)
    return held_out, _bins(batches, errors)


def unseen_tables(
    formula: Formula, chip: LeftOutChip, others: Sequence[LeftOutChip]
) -> dict[str, FittedConstants]:
    """Return the tables for a chip that was left out, by owner.

    They are those that `calibrate` would write without it, but for what only its own boards could
    use; its errors are those of the other chips.

    Parameters
    ----------
    formula : Formula
    chip : LeftOutChip
    others : sequence of LeftOutChip
        The rest of `leave_out_chips`.
    """
    weight = best_chip_weight(formula, others)
    batches = chip.fitted

    def table(found: FormulaFit, of: Sequence[LeftOutChip]) -> FittedConstants:
        if of:
            return _table(found, batches, HELD_OUT_GPUS, unseen_errors(formula, of, weight))
        return _table(found, batches, *_validated(formula, list(batches), None))

    tables = {ANY: table(chip.others, others)}
    if chip.related:
        near = _same_maker(others, chip.architecture)
        shrunk = shrink(chip.related, chip.others, chip.chips, weight)
        tables[chip.architecture] = table(shrunk, near)
    return tables


def unseen_errors(
    formula: Formula, found: Sequence[LeftOutChip], weight: float
) -> tuple[ErrorBin, ...]:
    """Return the errors of chips that were left out, in each decade of the chip predicted worst.

    An interval is to hold nine tenths of the rows of the next chip, whichever it is: of the chips
    left out, the worst says how wide. Where a chip's distance from the others is known to add to
    the error (`lookup.unseen_chip_error`), that is taken off, in squares.

    Parameters
    ----------
    formula : Formula
    found : sequence of LeftOutChip
        At least one.
    weight : float
        As in `shrink`.
    """
    worst: dict[int, ErrorBin] = {}
    for chip in found:
        for each in _bins(chip.rows, chip.errors(formula, weight)):
            net = _without_added(each, formula, chip)
            other = worst.get(each.decade)
            key = net.rows >= MIN_BIN_ROWS, net.p90
            if other is None or key > (other.rows >= MIN_BIN_ROWS, other.p90):
                worst[each.decade] = net
    return tuple(worst[decade] for decade in sorted(worst))


def _without_added(found: ErrorBin, formula: Formula, chip: LeftOutChip) -> ErrorBin:
    """Errors on a chip → the part of them that its GPU's own error bar does not hold.

    Errors add in quadrature; a tenth of the 90th percentile stays in any case. Bias and spread are
    of the same errors: they become smaller by the same factor.
    """
    designs = {gpu_parameters(rows.gpu).design for rows in chip.fitted}
    boards = [gpu_parameters(rows.gpu) for rows in chip.rows]
    added = min(
        unseen_chip_error(formula.name, gpu, bool(chip.related) and gpu.design not in designs)
        for gpu in boards
    )
    p90 = math.sqrt(max(found.p90**2 - (Z_90 * added) ** 2, (0.1 * found.p90) ** 2))
    factor = p90 / found.p90 if found.p90 else 1.0
    return replace(
        found,
        bias=_digits(factor * found.bias),
        sd=_digits(factor * found.sd),
        median=_digits(factor * found.median),
        p90=_digits(factor * found.p90),
    )


def _same_maker(found: Sequence[LeftOutChip], architecture: str) -> Sequence[LeftOutChip]:
    """Return the chips of an architecture's maker; all of them where few of it were measured."""
    amd = architecture.startswith(AMD)
    same_maker = [
        each for each in found if gpu_parameters(each.rows[0].gpu).family.startswith(AMD) == amd
    ]
    return same_maker if len(same_maker) >= MIN_CHIPS else found


def _bins(batches: Sequence[MeasuredKernels], errors: Sequence[np.ndarray]) -> tuple[ErrorBin, ...]:
    """Return errors by size."""
    found = []
    error = np.concatenate(list(errors))
    predicted = np.concatenate([rows.seconds for rows in batches]) * np.exp(error)
    size = np.floor(np.log10(predicted)).astype(int)
    for power in np.unique(size).tolist():
        here = error[size == power]
        absolute, bias = np.abs(here), np.median(here)
        found.append(
            ErrorBin(
                decade=power,
                rows=len(here),
                bias=_digits(bias),
                sd=_digits(np.percentile(np.abs(here - bias), 90) / Z_90),
                median=_digits(np.median(absolute)),
                p90=_digits(np.percentile(absolute, 90)),
            )
        )
    return tuple(found)


def _digits(value: float) -> float:
    """Return a number as the file shows it."""
    return float(f"{value:.4g}")


def _table(
    found: FormulaFit,
    batches: Sequence[MeasuredKernels],
    held_out: HeldOut,
    errors: tuple[ErrorBin, ...],
) -> FittedConstants:
    launch, growth = (
        float(np.median(list(each.values()))) if each else 0.0
        for each in (found.launch, found.growth)
    )
    return FittedConstants(
        source=", ".join(sorted({rows.publisher for rows in batches})),
        files=tuple(sorted({rows.file for rows in batches})),
        gpus=tuple(sorted({rows.gpu for rows in batches})),
        splits=tuple(sorted({str(each) for rows in batches for each in np.unique(rows.split)})),
        rows=found.rows,
        held_out=held_out,
        launch=_digits(launch),
        growth=_digits(growth),
        constants={name: float(f"{value:.6g}") for name, value in found.constants.items()},
        errors=errors,
    )


HEADER = """\
# Constants of the kernel models, fitted to published measurements. Written by
#     mpisim calibrate kernels
# and read by kernels/analytical/calibration.py, which says what each key means. Errors are those of
# rows that a fit did not see, log(predicted / measured), by decade of duration in seconds.
"""


def write(tables: Sequence[tuple[Key, FittedConstants]]) -> str:
    """Return the text of a calibration file."""
    parts = [HEADER]
    for (family, owner, dtype), table in tables:
        constants = ", ".join(f"{name} = {value!r}" for name, value in table.constants.items())
        parts += [
            f"[{family}.{owner}.{dtype}]",
            f"source = {_text(table.source)}",
            f"files = {_texts(table.files)}",
            f"gpus = {_texts(table.gpus)}",
            f"splits = {_texts(table.splits)}",
            f"rows = {table.rows}",
            f"held_out = {_text(table.held_out)}",
            f"launch = {table.launch!r}",
            *([f"growth = {table.growth!r}"] if table.growth else []),
            f"constants = {{ {constants} }}",
            "errors = [",
            *(
                f"    {{ decade = {each.decade}, rows = {each.rows}, bias = {each.bias!r}, "
                f"sd = {each.sd!r}, median = {each.median!r}, p90 = {each.p90!r} }},"
                for each in table.errors
            ),
            "]",
            "",
        ]
    return "\n".join(parts)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(_text(each) for each in values)}]"
