"""Cost formula, measured communications → fitted numbers.

Least squares of log(predicted / measured) with the Cauchy loss. Every platform counts the same,
except that none costs more than the median platform; of a platform every set-up counts, however
many rows and repetitions it has. What the rows leave open is decided by a weak prior, the numbers
of a wider fit: a platform's numbers are drawn towards those of its family (architecture and kind of
fabric), these towards its architecture's, those towards the ones of all machines, and these towards
the formula's own start. Some numbers have a strong prior (`CostFormula.strong_priors`). Nothing is
random.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .batches import Batch
from .calibration import ANY, DEEPEP
from .formulas import CostFormula, Sweep

__all__ = [
    "CAUCHY_SCALE",
    "CollectiveFit",
    "cauchy_residuals",
    "cross_validate",
    "fit_formula",
    "fit_owners",
    "least_squares",
    "log_errors",
    "owner_chain",
    "setup_of",
    "training_batches",
]

CAUCHY_SCALE = 0.2
"""Relative errors beyond which a row counts ever less."""

MAX_FACTOR = 50.0
"""Largest factor by which a fitted number may leave its start."""

Logs = NDArray[np.float64]


def cauchy_residuals(errors: Logs) -> Logs:
    """Log errors → residuals whose squares are their Cauchy loss.

    S² log(1 + (e / S)²), with S = `CAUCHY_SCALE`, is what errors cost that scatter by about S, with
    some rows far off (Student's distribution of one degree of freedom). Single sizes take many
    times as long as those beside them; a loss that keeps its slope there, such as the soft-L1 loss,
    pays for them with all others.
    """
    size: Logs = CAUCHY_SCALE * np.sqrt(np.log1p((errors / CAUCHY_SCALE) ** 2))
    return np.copysign(size, errors)


def least_squares(
    log_errors: Callable[[Logs], Logs],
    start: Logs,
    weights: Logs,
    towards: Logs,
    pull: Logs,
) -> Logs:
    """Robust least squares of positive numbers.

    Parameters
    ----------
    log_errors : callable
        From the numbers to log(predicted / measured) of every row.
    start : float64, shape (n,)
        The numbers to start from, above 0.
    weights : float64
        Of the squared loss of every row; they should add up to the number of curves.
    towards : float64, shape (n,)
        Where the numbers lie if the rows do not say.
    pull : float64, shape (n,)
        In curves: a number that is off `towards` by a factor of e costs `CAUCHY_SCALE`² for each.

    Returns
    -------
    float64, shape (n,)
    """
    from scipy import optimize

    root = np.sqrt(weights)
    strength = np.sqrt(pull) * CAUCHY_SCALE
    centre, origin = np.log(towards), np.log(start)

    def residuals(point: Logs) -> Logs:
        numbers = np.exp(point)
        return np.concatenate(
            [root * cauchy_residuals(log_errors(numbers)), strength * (point - centre)]
        )

    found = optimize.least_squares(
        residuals,
        origin,
        bounds=(origin - np.log(MAX_FACTOR), origin + np.log(MAX_FACTOR)),
        diff_step=1e-4,
        x_scale=1.0,
        ftol=1e-4,
        xtol=1e-3,
        max_nfev=40,
    )
    numbers: Logs = np.exp(found.x)
    return numbers


PRIOR_SETUPS = 0.5
"""Set-ups that the wider fit counts as."""

MAX_ROWS_PER_CURVE = 24
"""Rows of a curve that are enough for a fit, evenly spread over the logarithm of the size."""

PINNED_SETUPS = 1e6
"""Set-ups that hold a number: it is the wider fit's."""

CROSS_VALIDATION_FOLDS = 5

REWEIGHTING_ROUNDS = 2
"""Fits of several platforms after the first, each with the odd ones held back anew."""

Numbers = dict[str, float]


@frozen
class CollectiveFit:
    """Numbers of a formula, fitted for one owner.

    Attributes
    ----------
    numbers : dict of str to float
    curves, rows : int
        Number of curves, and of their rows, that the numbers were fitted to.
    wider : str, optional
        The owner whose numbers they stay near.
    """

    numbers: Numbers
    curves: int
    rows: int
    wider: str | None = None


def owner_chain(batch: Batch) -> tuple[str, ...]:
    """Batch → owners of numbers that may serve it, the narrowest first."""
    platform = batch.platform
    if batch.library.startswith(DEEPEP):
        return (platform.name, DEEPEP)
    behind = platform.behind or (platform.family, platform.arch, ANY)
    return tuple(dict.fromkeys((platform.name, *behind)))


def training_batches(owner: str, training: Iterable[Batch]) -> list[Batch]:
    """Owner → the batches that its numbers are fitted to.

    Parameters
    ----------
    owner : str
        As in `owner_chain`: a platform, or what is wider.
    training : iterable of Batch
        Of all owners.
    """
    return [each for each in training if owner in owner_chain(each) and each.platform.trains(owner)]


def log_errors(
    form: CostFormula, batch: Batch, numbers: Mapping[str, float]
) -> NDArray[np.float64]:
    """Form, batch, numbers → log(predicted / measured) of every row.

    Parameters
    ----------
    form : CostFormula
    batch : Batch
        Of n rows.
    numbers : mapping of str to float
        The formula's numbers, all of them.

    Returns
    -------
    float64, shape (n,)
        Natural logarithms; above 0 where the prediction is too long.

    Raises
    ------
    InputError
        If the form does not cover the operation.
    """
    system = batch.platform.system
    sweep = Sweep(system, batch.operation, batch.bytes, batch.shape, batch.settings)
    predicted = form.seconds(numbers, sweep)
    found: NDArray[np.float64] = np.log(predicted / batch.seconds)
    return found


def fit_formula(
    form: CostFormula,
    training: Sequence[Batch],
    towards: Mapping[str, float] | None = None,
    owner: str = ANY,
    free: Sequence[str] | None = None,
) -> CollectiveFit:
    """Formula and training batches → fitted numbers.

    Parameters
    ----------
    form : CostFormula
    training : sequence of Batch
        Of which those that the formula covers are used. Without any, the result is
        `towards`.
    towards : mapping of str to float, optional
        Numbers to start from and to stay near; by default the formula's own.
    owner : str
        Whose numbers they are to be: those in `CostFormula.family_priors` stay near the wider
        numbers on a platform, and are the same in a family.
    free : sequence of str, optional
        Names of the numbers to be fitted; by default all. The others stay as they are.
    """
    wider = dict(towards or form.start)
    covered = [_thin(batch) for batch in training if _covers(form, batch, wider)]
    if not covered:
        return CollectiveFit(wider, 0, 0)
    names = list(wider if free is None else free)
    weights = _row_weights(covered)

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers = wider | dict(zip(names, point.tolist()))
        return np.concatenate([log_errors(form, each, numbers) for each in covered])

    start = np.array([wider[name] for name in names])
    pull = PRIOR_SETUPS + weights.sum() * np.array(
        [form.strong_priors.get(name, 0.0) for name in names]
    )
    family = np.array([form.family_priors.get(name, 0.0) for name in names])
    if any(owner == each.platform.family for each in covered):
        pull += PINNED_SETUPS * (family > 0)
    elif any(owner == each.platform.name for each in covered):
        switched = all(each.platform.system.intra == "nvswitch" for each in covered)
        pull += family * switched
    found = least_squares(errors, start, weights, towards=start, pull=pull)
    if len({each.platform.name for each in covered}) > 1:
        for _ in range(REWEIGHTING_ROUNDS):
            even = weights * _outlier_factors(
                covered, cauchy_residuals(errors(found)) ** 2, weights
            )
            found = least_squares(errors, start, even, towards=start, pull=pull)
    curves = {each.curve for each in covered}
    rows = sum(len(batch) for batch in training if batch.curve in curves)
    return CollectiveFit(wider | dict(zip(names, found.tolist())), len(curves), rows)


def fit_owners(form: CostFormula, training: Sequence[Batch]) -> Iterator[tuple[str, CollectiveFit]]:
    """Fit all owners that some batches have, the wider before the narrower.

    Parameters
    ----------
    form : CostFormula
    training : sequence of Batch
        Batches whose owner chains end in the same owner.

    Yields
    ------
    str
        ``"any"``, an architecture, a family or a platform.
    CollectiveFit
    """
    done: dict[str, CollectiveFit] = {}
    for path in sorted({owner_chain(batch)[::-1] for batch in training}):
        wider: str | None = None
        for owner in path:
            if owner not in done:
                towards = done[wider].numbers if wider else None
                found = fit_formula(form, training_batches(owner, training), towards, owner)
                done[owner] = replace(found, wider=wider)
                yield owner, done[owner]
            wider = owner


def cross_validate(
    form: CostFormula,
    members: Sequence[Batch],
    wider: Mapping[str, float] | None,
    owner: str = ANY,
    free: Sequence[str] | None = None,
) -> list[tuple[Batch, NDArray[np.float64]]]:
    """Batches → errors of rows that a fit left out, a fifth at a time.

    Of several platforms whole ones are left out, like a machine that was not measured; of a single
    one set-ups, with their repetitions. Only the numbers in `free` are fitted
    (`fit_formula`).

    Parameters
    ----------
    form : CostFormula
    members : sequence of Batch
        Batches that the owner's numbers are fitted to.
    wider : mapping of str to float or None
        Numbers of the wider owner, to start from and to stay near; None: the formula's own.
    owner : str
        Owner of the fitted numbers; see `fit_formula`.
    free : sequence of str, optional
        Names of the numbers to be fitted; by default all.

    Returns
    -------
    list of (Batch, float64)
        log(predicted / measured). Of a single set-up, from the wider numbers alone.
    """
    several = len({each.platform.name for each in members}) > 1
    names = [each.platform.name if several else setup_of(each) for each in members]
    ordered = sorted(set(names), key=lambda name: (zlib.crc32(name.encode()), name))
    fold = {name: i % CROSS_VALIDATION_FOLDS for i, name in enumerate(ordered)}
    found = []
    for left_out in range(min(CROSS_VALIDATION_FOLDS, len(ordered))):
        others = [each for name, each in zip(names, members) if fold[name] != left_out]
        numbers = fit_formula(form, others, wider, owner, free).numbers
        for name, each in zip(names, members):
            if fold[name] == left_out and _covers(form, each, numbers):
                found.append((each, log_errors(form, each, numbers)))
    return found


def setup_of(batch: Batch) -> str:
    """Batch → the key that repetitions of its curve share."""
    return batch.rows[0].setup or batch.curve


def _outlier_factors(
    covered: Sequence[Batch], loss: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return factors of the weights: no platform may cost more than the middle one does."""
    names = np.repeat([each.platform.name for each in covered], [len(each) for each in covered])
    platforms, number = np.unique(names, return_inverse=True)
    costs = np.bincount(number, loss * weights, len(platforms))
    factors: NDArray[np.float64] = np.minimum(1.0, np.median(costs) / np.maximum(costs, 1e-12))
    return factors[number]


def _row_weights(covered: Sequence[Batch]) -> NDArray[np.float64]:
    """Return the weight of every row: they add up to the number of set-ups.

    Repetitions share the weight of their set-up, which grows with the root of the sizes that were
    measured: one size says less than thirty, and thirty less than thirty times as much.
    """
    units = [(each.platform.name, setup_of(each)) for each in covered]
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


def _covers(form: CostFormula, batch: Batch, numbers: Mapping[str, float]) -> bool:
    try:
        log_errors(form, batch, numbers)
    except InputError:
        return False
    return True


def _thin(batch: Batch) -> Batch:
    """Return at most `MAX_ROWS_PER_CURVE` rows."""
    if len(batch) <= MAX_ROWS_PER_CURVE:
        return batch
    order = np.argsort(batch.bytes, kind="stable")
    logs = np.log(batch.bytes[order])
    wanted = np.linspace(logs[0], logs[-1], MAX_ROWS_PER_CURVE)
    chosen = np.unique(order[np.clip(np.searchsorted(logs, wanted), 0, len(order) - 1)])
    return replace(
        batch,
        bytes=batch.bytes[chosen],
        seconds=batch.seconds[chosen],
        rows=tuple(batch.rows[i] for i in chosen.tolist()),
    )
