"""Fitting a form's numbers to measured communications.

Least squares of log(predicted / measured) with the Cauchy loss. Every platform counts the same,
but none that is odd more than the middle one; of a platform every set-up counts, however many rows
and repetitions it has. What the rows leave open is settled by a weak pull towards a wider fit: a
platform's numbers towards those of its family (architecture and kind of fabric), these towards its
architecture's, those towards the ones of all machines, and these towards the form's own start.
Some numbers are held firmly (`Form.firm`). Nothing here is random.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .batches import Batch
from .calibration import ANY
from .form import Form
from .solve import least_squares, tempered

__all__ = [
    "DEEPEP",
    "Fit",
    "chain",
    "cross_validate",
    "fit",
    "fit_all",
    "learners",
    "log_errors",
    "setup",
]

DEEPEP = "deepep"
"""The owner of what serves DeepEP's kernels on all machines, as `ANY` of collectives."""

PULL = 0.5
"""Set-ups that the wider fit counts as."""

THIN = 24
"""Rows of a curve that are enough for a fit, evenly spread over the logarithm of the size."""

KEPT = 1e6
"""Set-ups that hold a number: it is the wider fit's."""

FOLDS = 5

ROUNDS = 2
"""Fits of several platforms after the first, each with the odd ones held back anew."""

Numbers = dict[str, float]


@dataclass(frozen=True)
class Fit:
    """Fitted numbers.

    Attributes
    ----------
    numbers : dict of str to float
    curves, rows : int
        That they were fitted to.
    wider : str, optional
        The owner whose numbers they stay near.
    """

    numbers: Numbers
    curves: int
    rows: int
    wider: str | None = None


def chain(batch: Batch) -> tuple[str, ...]:
    """Return the owners of numbers that may serve a batch, the narrowest first."""
    platform = batch.platform
    if batch.library.startswith(DEEPEP):
        return (platform.name, DEEPEP)
    behind = platform.behind or (platform.family, platform.arch, ANY)
    return tuple(dict.fromkeys((platform.name, *behind)))


def learners(owner: str, training: Iterable[Batch]) -> list[Batch]:
    """Return the batches that an owner's numbers are fitted to."""
    return [each for each in training if owner in chain(each) and each.platform.feeds(owner)]


def log_errors(form: Form, batch: Batch, numbers: Mapping[str, float]) -> NDArray[np.float64]:
    """Return log(predicted / measured) of every row.

    Raises
    ------
    InputError
        If the form does not cover the operation.
    """
    predicted = form.seconds(
        numbers, batch.platform.system, batch.operation, batch.bytes, batch.shape, batch.settings
    )
    found: NDArray[np.float64] = np.log(predicted / batch.seconds)
    return found


def fit(
    form: Form,
    training: Sequence[Batch],
    towards: Mapping[str, float] | None = None,
    owner: str = ANY,
    free: Sequence[str] | None = None,
) -> Fit:
    """Fit a form's numbers.

    Parameters
    ----------
    form : Form
    training : sequence of Batch
        Of which those that the form covers are used. Of none, the numbers to stay near come back.
    towards : mapping of str to float, optional
        Numbers to start from and to stay near; by default the form's own.
    owner : str
        Whose numbers they are to be: what is `Form.kindred` stays near the wider numbers on a
        platform, and is the same in a family.
    free : sequence of str, optional
        Names of the numbers to be fitted; by default all. The others stay as they are.
    """
    wider = dict(towards or form.start)
    covered = [_thinned(batch) for batch in training if _covers(form, batch, wider)]
    if not covered:
        return Fit(wider, 0, 0)
    names = list(wider if free is None else free)
    weights = _weights(covered)

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers = wider | dict(zip(names, point.tolist()))
        return np.concatenate([log_errors(form, each, numbers) for each in covered])

    start = np.array([wider[name] for name in names])
    pull = PULL + weights.sum() * np.array([form.firm.get(name, 0.0) for name in names])
    kindred = np.array([form.kindred.get(name, 0.0) for name in names])
    if any(owner == each.platform.family for each in covered):
        pull += KEPT * (kindred > 0)
    elif any(owner == each.platform.name for each in covered):
        switched = all(each.platform.system.intra == "nvswitch" for each in covered)
        pull += kindred * switched
    found = least_squares(errors, start, weights, towards=start, pull=pull)
    if len({each.platform.name for each in covered}) > 1:
        for _ in range(ROUNDS):
            even = weights * _held_back(covered, tempered(errors(found)) ** 2, weights)
            found = least_squares(errors, start, even, towards=start, pull=pull)
    curves = {each.curve for each in covered}
    rows = sum(len(batch) for batch in training if batch.curve in curves)
    return Fit(wider | dict(zip(names, found.tolist())), len(curves), rows)


def fit_all(form: Form, training: Sequence[Batch]) -> Iterator[tuple[str, Fit]]:
    """Fit all owners that some batches have, the wider before the narrower.

    Parameters
    ----------
    form : Form
    training : sequence of Batch
        Whose chains end in the same owner.

    Yields
    ------
    str
        ``"any"``, an architecture, a family or a platform.
    Fit
    """
    done: dict[str, Fit] = {}
    for path in sorted({chain(batch)[::-1] for batch in training}):
        wider: str | None = None
        for owner in path:
            if owner not in done:
                towards = done[wider].numbers if wider else None
                found = fit(form, learners(owner, training), towards, owner)
                done[owner] = replace(found, wider=wider)
                yield owner, done[owner]
            wider = owner


def cross_validate(
    form: Form,
    members: Sequence[Batch],
    wider: Mapping[str, float] | None,
    owner: str = ANY,
    free: Sequence[str] | None = None,
) -> list[tuple[Batch, NDArray[np.float64]]]:
    """Return the errors of what a fit did not see, leaving out a fifth at a time.

    Of several platforms whole ones are left out, as a machine is that nobody measured; of a single
    one set-ups, with their repetitions. Of the numbers those that are `free` are fitted (`fit`).

    Returns
    -------
    list of (Batch, float64)
        log(predicted / measured). Of a single set-up, from the wider numbers alone.
    """
    several = len({each.platform.name for each in members}) > 1
    names = [each.platform.name if several else setup(each) for each in members]
    ordered = sorted(set(names), key=lambda name: (zlib.crc32(name.encode()), name))
    fold = {name: i % FOLDS for i, name in enumerate(ordered)}
    found = []
    for left_out in range(min(FOLDS, len(ordered))):
        others = [each for name, each in zip(names, members) if fold[name] != left_out]
        numbers = fit(form, others, wider, owner, free).numbers
        for name, each in zip(names, members):
            if fold[name] == left_out and _covers(form, each, numbers):
                found.append((each, log_errors(form, each, numbers)))
    return found


def setup(batch: Batch) -> str:
    """Return what repetitions of a batch's curve have in common."""
    return batch.rows[0].setup or batch.curve


def _held_back(
    covered: Sequence[Batch], loss: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return factors of the weights: no platform may cost more than the middle one does."""
    names = np.repeat([each.platform.name for each in covered], [len(each) for each in covered])
    platforms, number = np.unique(names, return_inverse=True)
    costs = np.bincount(number, loss * weights, len(platforms))
    factors: NDArray[np.float64] = np.minimum(1.0, np.median(costs) / np.maximum(costs, 1e-12))
    return factors[number]


def _weights(covered: Sequence[Batch]) -> NDArray[np.float64]:
    """Return the weight of every row: they add up to the number of set-ups.

    Repetitions share the weight of their set-up, which grows with the root of the sizes that were
    measured: one size says less than thirty, and thirty less than thirty times as much.
    """
    units = [(each.platform.name, setup(each)) for each in covered]
    rows = Counter[tuple[str, str]]()
    sizes: dict[tuple[str, str], set[float]] = {}
    for unit, each in zip(units, covered, strict=True):
        rows[unit] += len(each)
        sizes.setdefault(unit, set()).update(each.bytes.tolist())
    of_unit = {unit: len(found) ** 0.5 for unit, found in sizes.items()}
    of_platform = Counter[str]()
    for (platform, _), weight in of_unit.items():
        of_platform[platform] += weight
    average = len(sizes) / len(of_platform)
    return np.concatenate(
        [
            np.full(len(each), average * of_unit[unit] / of_platform[unit[0]] / rows[unit])
            for unit, each in zip(units, covered, strict=True)
        ]
    )


def _covers(form: Form, batch: Batch, numbers: Mapping[str, float]) -> bool:
    try:
        log_errors(form, batch, numbers)
    except InputError:
        return False
    return True


def _thinned(batch: Batch) -> Batch:
    """Return at most `THIN` rows."""
    if len(batch) <= THIN:
        return batch
    order = np.argsort(batch.bytes, kind="stable")
    logs = np.log(batch.bytes[order])
    wanted = np.linspace(logs[0], logs[-1], THIN)
    chosen = np.unique(order[np.clip(np.searchsorted(logs, wanted), 0, len(order) - 1)])
    return replace(
        batch,
        bytes=batch.bytes[chosen],
        seconds=batch.seconds[chosen],
        rows=tuple(batch.rows[i] for i in chosen.tolist()),
    )
