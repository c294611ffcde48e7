"""Slowdown factors: how much longer kernels and communications take beside each other.

`ParametricFactors` are those of the parametric model of `mpisim.kernels.slowdown`. `LearnedFactors`
replace its factors of kernels by slowdowns learned from measured pairs: gradient-boosted trees on
Echo's features (arXiv:2412.12487), which are of the communication its kind, NCCL's algorithm and
protocol, size and channels; of the kernel its class, duration, the shares of the multiprocessors'
and the memory's rates that it reaches, occupancy and hit rates of the caches. Occupancy and hit
rates of simulated kernels are unknown, which trees can handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.quantity import Quantity
from ..base.text import percentage
from ..kernels.slowdown import CLASSES, Load, Parametric
from ..topo.nccl.constants import PROTOCOLS
from ..topo.traffic.transfers import NCCL_ALGORITHMS
from .communication_kernels import CommunicationKernel
from .pairs import COLLECTIVES, SHARES, Pairs, read_pairs

__all__ = ["LearnedFactors", "LearnedSlowdowns", "ParametricFactors", "SlowdownFactors"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MULTIPROCESSORS, BANDWIDTH = "overlap: multiprocessors", "overlap: bandwidth of memory"

MIN_PAIRS = 30
"""Number of pairs of a GPU that is enough to learn from."""

CROSS_VALIDATION_FOLDS = 4
"""Parts of the pairs that are left out in turn to find the error."""

LEARNED = "overlap: learned slowdowns"

_CATEGORIES = (0, 1, 2, 3)  # columns of `_features`


class SlowdownFactors(Protocol):
    """A model of how much longer kernels and communications take beside each other."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the numbers that factors of kernels depend on."""

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """All numbers that factors depend on, with error bars."""

    def kernels(
        self, kernel: Ints, load: Load, beside: list[CommunicationKernel]
    ) -> tuple[Floats, Floats]:
        """Return the factors of kernels and their dependence on `terms`.

        Parameters
        ----------
        kernel : int64, shape (p,)
            Entries of the device's `KernelWork`.
        load : Load
            Beside each kernel; `load.which` is an entry of `beside`.
        beside : list of CommunicationKernel

        Returns
        -------
        float64, shape (p,)
        float64, shape (p, c)
        """

    def communications(self, use: Floats) -> Floats:
        """Return the factors of communications beside kernels.

        Parameters
        ----------
        use : float64, shape (n,)
            Shares of the memory's bandwidth that kernels use, 0 to 1.

        Returns
        -------
        float64, shape (n,)
            Each depends on its own share alone.
        """


class ParametricFactors:
    """Factors of the parametric model.

    Parameters
    ----------
    model : Parametric
    """

    terms = (*(f"overlap: {name} kernels" for name in CLASSES), BANDWIDTH, MULTIPROCESSORS)

    def __init__(self, model: Parametric) -> None:
        self.model = model
        self.numbers = model.numbers()

    def kernels(
        self, kernel: Ints, load: Load, beside: list[CommunicationKernel]
    ) -> tuple[Floats, Floats]:
        """See `SlowdownFactors.kernels`; `load` says all that this model needs."""
        factor, found = self.model.kernels(kernel, load)
        kind = self.model.work.kind[kernel]
        own = found.own[:, None] * (kind[:, None] == np.arange(len(CLASSES)))
        return factor, np.column_stack([own, found.bandwidth, found.taken])

    def communications(self, use: Floats) -> Floats:
        """See `SlowdownFactors.communications`."""
        return self.model.communications(use)


class LearnedSlowdowns:
    """Slowdowns of kernels learned from pairs of one GPU.

    Parameters
    ----------
    pairs : Pairs
    gpu : str
        Name of the GPU, as `GpuParameters.name`.

    Raises
    ------
    InputError
        If scikit-learn is not installed, or there are too few pairs of the GPU.
    """

    def __init__(self, pairs: Pairs, gpu: str) -> None:
        here = np.flatnonzero([name == gpu for name in pairs.gpu])
        if len(here) < MIN_PAIRS:
            there = ", ".join(sorted(set(pairs.gpu)))
            raise InputError(
                f"{pairs.source}: {len(here)} pairs of {gpu!r}; at least {MIN_PAIRS} are needed "
                f"(there are pairs of {there})"
            )
        columns = {name: values[here] for name, values in pairs.columns.items()}
        features = _features(
            pairs.kind[here],
            pairs.collective[here],
            pairs.algorithm[here],
            pairs.protocol[here],
            columns,
        )
        target = np.log(np.maximum(columns["kernel_slowdown"], 1.0))
        self._trees = _Trees(features, target)
        error = _cross_validated(features, target)
        size = float(np.sqrt(np.mean(target**2))) or 1.0
        self.number = Quantity(
            1.0,
            "1",
            min(error / size, 10.0),
            f"slowdowns of pairs of {pairs.source} left out in turn: off by {percentage(error, 1)}",
        )
        self.error = error

    @classmethod
    def read(cls, path: str | Path, gpu: str) -> LearnedSlowdowns:
        """Learn from a file of pairs.

        Parameters
        ----------
        path : str or Path
        gpu : str
            Name of the GPU, as `GpuParameters.name`; pairs of others are left out.
        """
        _trees_class()  # before the work of reading
        return cls(read_pairs(path), gpu)

    def factors(self, features: Floats) -> Floats:
        """Features → predicted slowdowns, 1 or more."""
        found: Floats = np.maximum(np.exp(self._trees.predict(features)), 1.0)
        return found


class LearnedFactors(ParametricFactors):
    """Learned factors of kernels beside communications that move data.

    Beside one that waits, and for communications themselves, factors are those of the parametric
    model. Of several communications at a time the one with the most channels counts.

    Parameters
    ----------
    learned : LearnedSlowdowns
    model : Parametric
    """

    terms = (*ParametricFactors.terms, LEARNED)

    def __init__(self, learned: LearnedSlowdowns, model: Parametric) -> None:
        super().__init__(model)
        self.numbers[LEARNED] = learned.number
        self._learned = learned
        self._known: dict[tuple[int, CommunicationKernel], float] = {}

    def kernels(
        self, kernel: Ints, load: Load, beside: list[CommunicationKernel]
    ) -> tuple[Floats, Floats]:
        """See `SlowdownFactors.kernels`; where `load.which` is -1 the parametric model counts."""
        factor, terms = super().kernels(kernel, load, beside)
        terms = np.column_stack([terms, np.zeros(len(kernel))])
        moving = np.flatnonzero(load.which >= 0)
        if len(moving):
            found = self._looked_up(kernel[moving], load.which[moving], beside)
            factor[moving] = found
            terms[moving] = 0.0
            terms[moving, -1] = 1 - 1 / found
        return factor, terms

    def _looked_up(self, kernel: Ints, which: Ints, beside: list[CommunicationKernel]) -> Floats:
        pairs = [(k, beside[w]) for k, w in zip(kernel.tolist(), which.tolist())]
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._known))
        if new:
            work = self.model.work
            at = np.array([k for k, _ in new])
            communications = [each for _, each in new]
            columns = {
                **{name: np.full(len(new), np.nan) for name in SHARES},
                "seconds": work.seconds[at],
                "sm": work.arithmetic[at],
                "dram": work.use[at],
                "bytes": np.array([max(each.bytes, 1) for each in communications], float),
                "ranks": np.array([each.ranks for each in communications], float),
                "channels": np.array([each.channels for each in communications], float),
            }
            features = _features(
                work.kind[at],
                np.array([_entry(c.operation.name.lower(), COLLECTIVES) for c in communications]),
                np.array([_entry(c.algorithm, NCCL_ALGORITHMS) for c in communications]),
                np.array([_entry(c.protocol, PROTOCOLS) for c in communications]),
                columns,
            )
            self._known |= dict(zip(new, self._learned.factors(features).tolist()))
        return np.array([self._known[pair] for pair in pairs])


def _entry(name: str, choices: tuple[str, ...]) -> int:
    name = name.replace("_", "-")
    return choices.index(name) if name in choices else -1


def _features(
    kind: Ints, collective: Ints, algorithm: Ints, protocol: Ints, columns: dict[str, Floats]
) -> Floats:
    """Return the features of pairs, shape (n, n_features); nan: unknown."""
    named = [np.where(each >= 0, each, np.nan) for each in (kind, collective, algorithm, protocol)]
    return np.column_stack(
        [
            *named,
            np.log(columns["seconds"]),
            np.log(columns["bytes"]),
            columns["channels"],
            columns["ranks"],
            *(columns[name] for name in SHARES),
        ]
    )


class _Trees:
    """Gradient-boosted trees on the features that differ among pairs.

    Parameters
    ----------
    features : float64, shape (n, features)
    target : float64, shape (n,)
    """

    def __init__(self, features: Floats, target: Floats) -> None:
        differing = [len(np.unique(column[np.isfinite(column)])) > 1 for column in features.T]
        self._columns = np.flatnonzero(differing)
        self._same = float(target.mean())
        self._trees: Any = None
        if len(self._columns):
            named = [i for i, column in enumerate(self._columns.tolist()) if column in _CATEGORIES]
            self._trees = _trees_class()(
                max_iter=200,
                learning_rate=0.1,
                categorical_features=named,
                min_samples_leaf=max(2, min(20, len(target) // 20)),
                early_stopping=False,
                random_state=0,
            ).fit(features[:, self._columns], target)

    def predict(self, features: Floats) -> Floats:
        """Return the expected target of some features, shape (m,)."""
        if self._trees is None:
            return np.full(len(features), self._same)
        found: Floats = self._trees.predict(features[:, self._columns])
        return found


def _cross_validated(features: Floats, target: Floats) -> float:
    """Return the root of the mean square error of pairs that were left out."""
    fold = np.arange(len(target)) % CROSS_VALIDATION_FOLDS
    off = np.zeros(len(target))
    for part in range(CROSS_VALIDATION_FOLDS):
        test = fold == part
        off[test] = _Trees(features[~test], target[~test]).predict(features[test]) - target[test]
    return float(np.sqrt(np.mean(off**2)))


def _trees_class() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise InputError(
            "'pairs' needs scikit-learn, which is not installed: pip install 'mpisim[learn]'"
        ) from error
    return HistGradientBoostingRegressor
