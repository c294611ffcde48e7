"""Errors of rows that a fit did not see: of a GPU's own shapes and runs, and of whole chips."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from .analytical.calibration import RUNS, SHAPES, HeldOut
from .analytical.family import FamilyModule
from .analytical.stand_ins import KIN
from .fit import Fit, fit, log_ratios, machine
from .measured import Rows
from .operations import Kernel

__all__ = ["Stranger", "blend", "cross_validate", "members", "shrinkage", "strangers"]

FOLDS = 5

MOST = 0.75
"""Share of the rows from which on a run is divided by shape: the rest could not tell what the
constants are."""

SHARES = (0.0, 0.2, 1 / 3, 0.5, 2 / 3, 0.8, 1.0)
"""What one chip may count beside all others, for `shrinkage` to choose from."""

EVEN = 0.5
"""The same where no GPU left out can tell."""


def cross_validate(
    module: FamilyModule,
    batches: Sequence[Rows],
    towards: Mapping[str, float] | None = None,
) -> tuple[HeldOut, list[np.ndarray]]:
    """Return log(predicted / measured) of every row of one GPU, by constants fitted without it.

    Where an author measured in several runs, one is left out at a time: what a board's temperature
    and power do to a whole run shows in none of its rows alone, and no user's run is among those
    that were fitted to. Within one run, and one that has most of the rows, rows of about the same
    shape are in one of five folds together: with the shape beside it among the rows, an error that
    a formula makes for shapes of a kind would not show.

    Returns
    -------
    str
        What was left out at a time, ``"runs"`` or ``"shapes"``.
    list of ndarray of float64
        One for each batch.
    """
    runs = sorted({(rows.file, each) for rows in batches for each in np.unique(rows.run).tolist()})
    folds = _runs(batches, runs) if len(runs) > 1 else [_folds(rows) for rows in batches]
    found = [np.empty(len(rows)) for rows in batches]
    for fold in range(FOLDS + len(runs)):
        kept = [rows.take(of != fold) for rows, of in zip(batches, folds)]
        held = [rows.take(of == fold) for rows, of in zip(batches, folds)]
        if not any(len(rows) for rows in held):
            continue
        fitted = fit(module, [rows for rows in kept if len(rows)], towards)
        for rows, of, out in zip(held, folds, found):
            if len(rows):
                (out[of == fold],) = log_ratios(module, [rows], fitted)
    return (RUNS if len(runs) > 1 else SHAPES), found


def _runs(batches: Sequence[Rows], runs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
    """Return a fold for each run, those of shapes for a run of most rows."""
    numbers = {run: FOLDS + number for number, run in enumerate(runs)}
    found = [np.array([numbers[rows.file, each] for each in rows.run.tolist()]) for rows in batches]
    counts = np.bincount(np.concatenate(found))
    for rows, of in zip(batches, found):
        most = counts[of] > MOST * counts.sum()
        of[most] = _folds(rows)[most]
    return found


def _folds(rows: Rows) -> np.ndarray:
    return np.array([zlib.crc32(repr(_cell(kernel)).encode()) % FOLDS for kernel in rows.kernels])


def _cell(kernel: Kernel) -> tuple[object, ...]:
    """Return what kernels of about the same shape share: every size down to a power of two."""
    values = (getattr(kernel, each.name) for each in fields(kernel))
    return tuple(v.bit_length() if type(v) is int else v for v in values)


@dataclass(frozen=True)
class Stranger:
    """A chip that was left out, and what would serve its boards then.

    Attributes
    ----------
    rows : sequence of Rows
        Its measurements.
    wide : Fit
        To all other chips.
    kin : Fit, optional
        To those of its architecture, or of the nearest that was measured.
    owner : str
        That architecture; empty if there is none.
    members : int
        Chips that `kin` rests on.
    """

    rows: Sequence[Rows]
    wide: Fit
    kin: Fit | None = None
    owner: str = ""
    members: int = 0

    def errors(self, module: FamilyModule, share: float) -> list[np.ndarray]:
        """Return log(predicted / measured) of each batch; `share` as in `blend`."""
        serves = blend(self.kin, self.wide, self.members, share) if self.kin else self.wide
        return log_ratios(module, self.rows, serves)


def strangers(module: FamilyModule, batches: Sequence[Rows]) -> list[Stranger]:
    """Leave out one chip at a time, with all boards that have it: none if there is only one."""
    chips = {rows.gpu: machine(rows.gpu).chip for rows in batches}
    found = []
    for chip in dict.fromkeys(chips[gpu] for gpu in sorted(chips)):
        mine = [rows for rows in batches if chips[rows.gpu] == chip]
        others = [rows for rows in batches if chips[rows.gpu] != chip]
        if not others:
            break
        wide = fit(module, others)
        own = machine(mine[0].gpu).family
        for owner in (own, *KIN.get(own, ())):
            near = [rows for rows in others if machine(rows.gpu).family == owner]
            if near:
                kin = fit(module, near, wide.constants)
                found.append(Stranger(mine, wide, kin, owner, members(near)))
                break
        else:
            found.append(Stranger(mine, wide))
    return found


def members(batches: Sequence[Rows]) -> int:
    """Return how many chips were measured."""
    return len({machine(rows.gpu).chip for rows in batches})


def blend(kin: Fit, wide: Fit, members: int, share: float) -> Fit:
    """Return the constants of an architecture for its GPUs that were not measured.

    Few chips say little of their architecture: their constants are shrunk towards those of all.
    One chip has the weight `share`, n of them n share / (n share + 1 - share).

    Parameters
    ----------
    kin, wide : Fit
        To the architecture's GPUs, and to all.
    members : int
        How many chips `kin` rests on.
    share : float
        From 0 to 1.
    """
    weight = members * share / (members * share + 1 - share)

    def between(near: Mapping[str, float], far: Mapping[str, float]) -> dict[str, float]:
        """Return CPU times, alike for all GPUs: they go with the constants, the floor above all."""
        if not near:
            return dict(far)
        middle = (float(np.median(list(each.values()))) for each in (near, far))
        first, second = middle
        return {"": weight * first + (1 - weight) * second}

    return Fit(
        {
            name: weight * kin.constants[name] + (1 - weight) * wide.constants[name]
            for name in kin.constants
        },
        between(kin.launch, wide.launch),
        kin.rows,
        between(kin.growth, wide.growth),
    )


def shrinkage(module: FamilyModule, found: Sequence[Stranger]) -> float:
    """Return the share of `blend` by which GPUs that were left out are foretold best.

    By the mean over them of the mean of |log(predicted / measured)|.
    """
    told = [each for each in found if each.kin]
    if not told:
        return EVEN

    def miss(share: float) -> float:
        return sum(
            float(np.abs(np.concatenate(each.errors(module, share))).mean()) for each in told
        )

    return min(SHARES, key=miss)
