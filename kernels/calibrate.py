"""From measured kernels to a calibration file: fits for every GPU, architecture and for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mpisim.base.toml import toml_value

from .analytical.calibration import FEWEST, GPUS, Bin, HeldOut, Table
from .analytical.family import ANY, FamilyModule, load
from .fit import Fit, fit, machine
from .held_out import Stranger, blend, cross_validate, members, shrinkage, strangers
from .measured import Rows

__all__ = ["calibrate", "write"]

Key = tuple[str, str, str]
"""Family, GPU or architecture or ``"any"``, format."""


def calibrate(batches: Sequence[Rows]) -> Iterator[tuple[Key, Table]]:
    """Fit all that the rows allow.

    The constants of all GPUs together start from the textbook's, those of an architecture from
    these, those of a GPU from its architecture's. The table of an architecture, which serves its
    GPUs that were not measured, is shrunk towards all GPUs' (:func:`.held_out.blend`). Errors are
    found on rows that a fit did not see: for a GPU by leaving out runs or shapes; for an
    architecture and for all by leaving out chips.

    Parameters
    ----------
    batches : sequence of Rows

    Yields
    ------
    tuple of str
        Family, owner and format.
    Table
        As each is done: a large family takes a minute.
    """
    groups: dict[tuple[str, str], list[Rows]] = {}
    for rows in batches:
        groups.setdefault((rows.family, rows.dtype), []).append(rows)
    for family, dtype in sorted(groups):
        module = load(family)
        for owner, table in _tables(module, groups[family, dtype]):
            yield (family, owner, dtype), table


def _tables(module: FamilyModule, batches: list[Rows]) -> Iterator[tuple[str, Table]]:
    everything = fit(module, batches)
    left_out = strangers(module, batches)
    share = shrinkage(module, left_out)
    unseen: tuple[HeldOut, tuple[Bin, ...]]
    if left_out:
        unseen = GPUS, _errors(module, left_out, 0.0)
    else:
        unseen = _validated(module, batches, None)
    yield ANY, _table(everything, batches, *unseen)
    for architecture in sorted({machine(rows.gpu).family for rows in batches}):
        near = [rows for rows in batches if machine(rows.gpu).family == architecture]
        together = fit(module, near, everything.constants)
        served = [each for each in left_out if each.owner == architecture]
        held_out, errors = (GPUS, _errors(module, served, share)) if served else unseen
        shrunk = blend(together, everything, members(near), share)
        yield architecture, _table(shrunk, near, held_out, errors)
        for gpu in sorted({rows.gpu for rows in near}):
            own = [rows for rows in near if rows.gpu == gpu]
            alone = fit(module, own, together.constants)
            if alone.rows < FEWEST:
                # Too few to say how far off they are.
                yield gpu, _table(alone, own, held_out, errors)
            else:
                yield gpu, _table(alone, own, *_validated(module, own, together.constants))


def _validated(
    module: FamilyModule, batches: list[Rows], towards: Mapping[str, float] | None
) -> tuple[HeldOut, tuple[Bin, ...]]:
    """Return what was left out at a time, and the errors there."""
    held_out, errors = cross_validate(module, batches, towards)
    return held_out, _bins(batches, errors)


def _errors(module: FamilyModule, found: Sequence[Stranger], share: float) -> tuple[Bin, ...]:
    """Return the errors of GPUs that were left out."""
    rows = [each for stranger in found for each in stranger.rows]
    return _bins(rows, [each for one in found for each in one.errors(module, share)])


def _bins(batches: Sequence[Rows], errors: Sequence[np.ndarray]) -> tuple[Bin, ...]:
    """Return errors by size."""
    found = []
    error = np.concatenate(list(errors))
    predicted = np.concatenate([rows.seconds for rows in batches]) * np.exp(error)
    size = np.floor(np.log10(predicted)).astype(int)
    for power in np.unique(size).tolist():
        here = error[size == power]
        absolute = np.abs(here)
        found.append(
            Bin(
                decade=power,
                rows=len(here),
                bias=_digits(np.median(here)),
                sd=_digits(here.std()),
                median=_digits(np.median(absolute)),
                p90=_digits(np.percentile(absolute, 90)),
            )
        )
    return tuple(found)


def _digits(value: float) -> float:
    """Return a number as the file shows it."""
    return float(f"{value:.4g}")


def _table(
    found: Fit, batches: Sequence[Rows], held_out: HeldOut, errors: tuple[Bin, ...]
) -> Table:
    launch, growth = (
        float(np.median(list(each.values()))) if each else 0.0
        for each in (found.launch, found.growth)
    )
    return Table(
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


def write(tables: Sequence[tuple[Key, Table]]) -> str:
    """Return the text of a calibration file."""
    parts = [HEADER]
    for (family, owner, dtype), table in tables:
        constants = ", ".join(f"{name} = {value!r}" for name, value in table.constants.items())
        parts += [
            f"[{family}.{owner}.{dtype}]",
            f"source = {toml_value(table.source)}",
            f"files = {toml_value(table.files)}",
            f"gpus = {toml_value(table.gpus)}",
            f"splits = {toml_value(table.splits)}",
            f"rows = {table.rows}",
            f"held_out = {toml_value(table.held_out)}",
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
