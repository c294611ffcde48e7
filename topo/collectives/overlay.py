"""Which numbers of a calibration serve a machine: a user's own where there are, else ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .calibration import ANY, NUMBERS, REGIMES, Calibration, Regime, Table, ours

__all__ = ["Serving", "own_of", "served"]


@dataclass(frozen=True)
class Serving:
    """The numbers of a machine, and what their errors rest on.

    Attributes
    ----------
    numbers : dict of str to float
    tables : dict of str to Table
        By regime.
    sources : dict of str to str
        By regime: the file, and in brackets the owner.
    """

    numbers: dict[str, float]
    tables: Mapping[Regime, Table]
    sources: Mapping[Regime, str]

    def error(
        self, bytes: NDArray[np.float64], regime: Regime | None = None
    ) -> NDArray[np.float64]:
        """Return the relative standard error of times of messages of some sizes.

        Parameters
        ----------
        bytes : float64, shape (n,)
        regime : str, optional
            Whether groups stand inside a node or across nodes; the larger error if not given.

        Returns
        -------
        float64, shape (n,)
        """
        asked = REGIMES if regime is None else (regime,)
        return np.max([self.tables[each].error(bytes, each) for each in asked], axis=0)


def served(calibration: Calibration, owners: Iterable[str]) -> Serving:
    """Return what serves a machine.

    A user's own platform is taken where the machine names it, and where it is the only one of the
    calibration. What was not measured, inside nodes or across them, is that of the owners behind
    it, or of the machine's own, in the same file where it has them, else in the calibration that
    comes along.

    Parameters
    ----------
    calibration : Calibration
    owners : iterable of str
        Of the machine's numbers, the narrowest first: platform, family, architecture, ``"any"``.

    Raises
    ------
    InputError
        If none has a table; if there are several platforms of users and the machine names none; if
        the only one is of another architecture.
    """
    names = list(owners)
    own = own_of(calibration, names)
    wide = {name: table for name, table in calibration.tables.items() if not table.behind}
    chain = [(calibration, own)] if own is not None else []
    behind = calibration.tables[own].behind if own is not None else names
    chain += [(calibration, name) for name in behind if name in wide]
    lacking = [each for each in REGIMES if not any(_covers(*one, each) for one in chain)]
    if lacking and (chain or not wide):
        chain += [(ours(), name) for name in behind if name in ours().tables]
    tables, sources, numbers = {}, {}, dict[str, float]()
    for regime in REGIMES:
        found = next((one for one in chain if _covers(*one, regime)), None)
        if found is None:
            raise InputError(f"{calibration.source}: has no table for {', '.join(names)}")
        table = tables[regime] = found[0].tables[found[1]]
        sources[regime] = f"{found[0].source} [{found[1]}]"
        others = NUMBERS[REGIMES[regime == "inside"]]
        numbers |= {name: value for name, value in table.numbers.items() if name not in others}
    return Serving(numbers, tables, sources)


def _covers(calibration: Calibration, owner: str, regime: Regime) -> bool:
    return calibration.tables[owner].covers(regime)


def own_of(calibration: Calibration, owners: Iterable[str]) -> str | None:
    """Return the user's own platform of a calibration that serves a machine, if one does.

    Raises
    ------
    InputError
        See `served`.
    """
    names = list(owners)
    own = {name: table for name, table in calibration.tables.items() if table.behind}
    named = next((name for name in names if name in own), None)
    if named is not None or not own or ANY not in names:  # kernels of another library
        return named
    if len(own) > 1:
        raise InputError(
            f"{calibration.source}: has the platforms {', '.join(own)}, and the cluster is "
            f"{names[0]!r}; name one of them in the cluster's file, [nccl] platform = ..."
        )
    ((name, table),) = own.items()
    arch = names[names.index(ANY) - 1] if ANY in names[1:] else ANY
    if arch not in table.behind:
        raise InputError(
            f"{calibration.source}: the platform {name!r} was measured on "
            f"{_arch(table.behind)!r} GPUs, and the cluster's are {arch!r}; it cannot serve them"
        )
    return name


def _arch(behind: tuple[str, ...]) -> str:
    return behind[-2] if len(behind) > 1 else ANY
