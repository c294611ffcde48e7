"""Fitting a form's numbers to measured communications.

Least squares of log(predicted / measured) with the soft-L1 loss. Every platform counts the same,
and of a platform every curve, however many rows it has. What the rows leave open is settled by a
weak pull towards a wider fit: a platform's numbers towards those of its family (architecture and
kind of fabric), these towards its architecture's, those towards the ones of all machines, and these
towards the form's own start. Nothing here is random.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpisim.errors import InputError

from .batches import Batch
from .form import Form
from .solve import least_squares

__all__ = [
    "ANY",
    "DEEPEP",
    "Fit",
    "chain",
    "cross_validate",
    "fit",
    "fit_all",
    "learners",
    "log_errors",
]

ANY = "any"
DEEPEP = "deepep"
"""Owners of what serves all machines, of collectives and of DeepEP's kernels."""

PULL = 0.5
"""Curves that the wider fit counts as."""

THIN = 24
"""Rows of a curve that are enough for a fit, evenly spread over the logarithm of the size."""

FOLDS = 5

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
    return tuple(dict.fromkeys((platform.name, platform.family, platform.arch, ANY)))


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


def fit(form: Form, training: Sequence[Batch], towards: Mapping[str, float] | None = None) -> Fit:
    """Fit a form's numbers.

    Parameters
    ----------
    form : Form
    training : sequence of Batch
        Of which those that the form covers are used. Of none, the numbers to stay near come back.
    towards : mapping of str to float, optional
        Numbers to start from and to stay near; by default the form's own.
    """
    wider = dict(towards or form.start)
    covered = [_thinned(batch) for batch in training if _covers(form, batch, wider)]
    if not covered:
        return Fit(wider, 0, 0)
    names = list(wider)
    weights = _weights(covered)

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers = dict(zip(names, point.tolist()))
        return np.concatenate([log_errors(form, each, numbers) for each in covered])

    start = np.array(list(wider.values()))
    found = least_squares(errors, start, weights, towards=start, pull=PULL)
    curves = {each.curve for each in covered}
    rows = sum(len(batch) for batch in training if batch.curve in curves)
    return Fit(dict(zip(names, found.tolist())), len(curves), rows)


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
                found = fit(form, learners(owner, training), towards)
                done[owner] = replace(found, wider=wider)
                yield owner, done[owner]
            wider = owner


def cross_validate(
    form: Form, members: Sequence[Batch], wider: Mapping[str, float] | None
) -> list[tuple[Batch, NDArray[np.float64]]]:
    """Return the errors of curves that a fit did not see, leaving out a fifth at a time.

    Returns
    -------
    list of (Batch, float64)
        log(predicted / measured). Of a single curve, from the wider numbers alone.
    """
    curves = sorted({each.curve for each in members}, key=lambda name: zlib.crc32(name.encode()))
    fold = {name: i % FOLDS for i, name in enumerate(curves)}
    found = []
    for left_out in range(min(FOLDS, len(curves))):
        others = [each for each in members if fold[each.curve] != left_out]
        numbers = fit(form, others, wider).numbers
        for each in members:
            if fold[each.curve] == left_out and _covers(form, each, numbers):
                found.append((each, log_errors(form, each, numbers)))
    return found


def _weights(covered: Sequence[Batch]) -> NDArray[np.float64]:
    """Return the weight of every row: they add up to the curves of an average platform for each."""
    held = Counter(each.platform.name for each in covered)
    average = len(covered) / len(held)
    return np.concatenate(
        [np.full(len(each), average / held[each.platform.name] / len(each)) for each in covered]
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
