"""From measured communications to a calibration: fits for every platform, family, architecture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .batches import Batch
from .calibration import NUMBERS, Bin, Regime, Table
from .fit import DEEPEP, Fit, chain, cross_validate, fit_all, learners, setup
from .models import form_of
from .nccl_form import NcclForm

__all__ = ["FEWEST", "bins", "calibrate", "completed", "rounded", "sources"]

FEWEST = 2
"""Set-ups from which on those left out in turn say how far off a platform's numbers are."""


def calibrate(measured: Sequence[Batch], split: str) -> Iterator[tuple[str, Table]]:
    """Fit all that some batches allow.

    A family's errors, an architecture's and those of all are of whole platforms left out in turn: a
    machine that falls back on them was not measured. A platform's are of set-ups left out; with a
    single set-up, and for sizes that it has no rows of, it has its family's errors. Of an owner
    whose groups all stand inside nodes numbers and errors are of these alone, and so they are where
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
    Table
    """
    for kernels in (False, True):
        members = [each for each in measured if (chain(each)[-1] == DEEPEP) is kernels]
        yield from _tables(members, split)


def _tables(members: Sequence[Batch], split: str) -> Iterator[tuple[str, Table]]:
    done: dict[str, Fit] = {}
    errors: dict[str, tuple[Bin, ...]] = {}
    form = form_of(members[0].library) if members else None
    every = {each.regime for each in members}
    for owner, found in fit_all(form, members) if form else ():
        assert form is not None
        done[owner] = found
        own = learners(owner, members)
        # What was measured inside nodes alone says nothing of the way across. (Across nodes both
        # kinds of numbers count, and were fitted together.)
        regime: Regime | Literal[""] = ""
        decided = tuple(form.start)
        regimes = {each.regime for each in own}
        if form.name == NcclForm.name and (regimes == {"inside"} or len(every) == 1):
            (regime,) = regimes
            decided = NUMBERS[regime]
        wider = done[found.wider].numbers if found.wider else None
        if not found.curves:
            errors[owner] = errors[found.wider] if found.wider else ()
            continue
        known = found.wider is not None and errors[found.wider]
        fallback = any(each.platform.name != owner for each in own)
        enough = fallback or len({setup(each) for each in own}) >= FEWEST or not known
        if enough:
            beyond = errors[found.wider] if found.wider else ()
            errors[owner] = completed(bins(cross_validate(form, own, wider, owner), beyond), beyond)
        else:
            errors[owner] = errors[str(found.wider)]
        yield (
            owner,
            Table(
                form=form.name,
                numbers=rounded({name: found.numbers[name] for name in decided}),
                source=sources(own),
                files=tuple(sorted({row.file for each in own for row in each.rows})),
                split=split,
                curves=found.curves,
                rows=found.rows,
                held_out="wider" if not enough else "platforms" if fallback else "set-ups",
                errors=tuple(replace(each, regime=regime) for each in errors[owner]),
            ),
        )


def bins(
    unseen: Sequence[tuple[Batch, NDArray[np.float64]]], wider: Sequence[Bin]
) -> tuple[Bin, ...]:
    """Return errors by decade of the size.

    The 90th percentile is of the rows of a decade and its two neighbours: a decade alone may be of
    three rows. And few set-ups left out say little of the next one, however many their rows: the
    wider owner's percentile counts as one more of them, p² = (k own² + wider²) / (k + 1).

    Parameters
    ----------
    unseen : sequence of (Batch, float64)
        Of `cross_validate`.
    wider : sequence of Bin
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
            Bin(
                decade=power,
                rows=len(here),
                bias=_digits(np.median(here)),
                median=_digits(np.median(np.abs(here))),
                p90=_digits(p90),
            )
        )
    return tuple(found)


def _units(unseen: Sequence[tuple[Batch, NDArray[np.float64]]]) -> list[str]:
    """Return what was left out together with each batch: its platform, or of one its set-up."""
    names = [batch.platform.name for batch, _ in unseen]
    return names if len(set(names)) > 1 else [setup(batch) for batch, _ in unseen]


def completed(own: Iterable[Bin], wider: Iterable[Bin]) -> tuple[Bin, ...]:
    """Return an owner's errors, those of the wider owner where it has no rows of a decade."""
    found = {each.decade: each for each in wider} | {each.decade: each for each in own}
    return tuple(found[decade] for decade in sorted(found))


def rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return fitted numbers as the file shows them."""
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def _digits(value: float) -> float:
    """Return a number as the file shows it."""
    return float(f"{value:.3g}")


def sources(batches: Sequence[Batch]) -> str:
    """Return the repositories that rows come from."""
    sources = {row.source.split("#")[0] for each in batches for row in each.rows[:1]}
    return ", ".join(sorted({_repository(each) for each in sources if each}))


def _repository(source: str) -> str:
    """Return ``github:owner/name`` of a file there."""
    host, _, rest = source.partition(":")
    return f"{host}:{rest.split(':')[0].split('@')[0]}" if rest else source
