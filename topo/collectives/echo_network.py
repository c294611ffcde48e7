"""Echo's formulas as a network model that an experiment chooses: ``[network] model = "echo"``.

It serves comparisons. Its numbers (``data/calibration/collectives_echo.toml``) are fitted to the
training half of published measurements, by the same code as for ``mpisim validate collectives``;
`fit_echo` makes the file's contents. The model does not look at the links of a topology: nothing is
shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.presets import packaged
from mpisim.base.quantity import PICOSECONDS, Z_90, Quantity
from mpisim.base.schema import Limits, build

from ..nccl import Shape, System
from ..network import Price
from ..traffic.groups import shapes_of
from .batches import Batch
from .fit import fit_owners, log_errors, owner_chain
from .formulas import EchoFormula, Sweep

__all__ = ["FILE", "EchoNetwork", "fit_echo"]

FILE = "calibration/collectives_echo.toml"

BARRIER_BYTES = 4
"""Bytes of the all-reduce that frameworks use as a barrier."""

_QUANTITY = "echo_collectives"

Positive = Annotated[float, Limits(least=0)]


@frozen
class EchoNumbers:
    """The file of fitted numbers.

    Attributes
    ----------
    error : float
        Relative standard error of a time: the 90th percentile of the errors of the test half, over
        1.645.
    owners : dict of str to dict
        Numbers of `EchoFormula` by platform, family, architecture, and ``"any"``.
    """

    error: Positive
    owners: dict[str, dict[str, Positive]]


class EchoNetwork:
    """Prices by Echo's formulas; all of a price is latency, since links are not shared.

    Parameters
    ----------
    system : System
        Of the cluster: how many GPUs and NICs its nodes have.
    owners : sequence of str
        Of numbers that may serve, the narrowest first: platform, family, architecture, ``"any"``.

    Raises
    ------
    InputError
        If none of the owners has numbers.
    """

    def __init__(self, system: System, owners: Sequence[str]) -> None:
        fitted = _packaged()
        owner = next((each for each in owners if each in fitted.owners), None)
        if owner is None:
            raise InputError(f"{FILE}: has no numbers for {', '.join(owners)}")
        self._system, self._fitted = system, fitted.owners[owner]
        self._formula = EchoFormula()
        source = f"{FILE} [{owner}]: curves that the fit did not see"
        self.numbers = {_QUANTITY: Quantity(1, "1", fitted.error, source)}

    def group_classes(
        self,
        index: NDArray[np.int64],
        members: NDArray[np.int32],
        operations: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], list[Shape]]:
        """Shapes of groups, the same for every operation; see `Network.group_classes`."""
        return shapes_of(index, members, self._system)

    def price(self, operation: Operation, bytes: int, group: Shape) -> Price:
        """The formula's seconds as a latency without volume; nothing for a rank with itself.

        A barrier is priced as an all-reduce of `BARRIER_BYTES`. Parameters as of `Network.price`.
        """
        if group.ranks == 1:
            return Price(0)
        if operation is Operation.BARRIER:
            operation, bytes = Operation.ALL_REDUCE, BARRIER_BYTES
        sizes = np.array([float(bytes)])
        seconds = self._formula.seconds(self._fitted, Sweep(self._system, operation, sizes, group))
        return Price(round(float(seconds[0]) * PICOSECONDS))

    def shares(self, operation: Operation, bytes: int, group: Shape) -> dict[str, float]:
        """All of a time is the share of the model's error; see `Network.shares`."""
        return {} if group.ranks == 1 else {_QUANTITY: 1.0}


@cache
def _packaged() -> EchoNumbers:
    return build(EchoNumbers, packaged(FILE), FILE)


def fit_echo(training: Sequence[Batch], test: Sequence[Batch]) -> str:
    """Halves of measured curves → contents of `FILE`.

    Parameters
    ----------
    training : sequence of Batch
        Batches that the numbers are fitted to.
    test : sequence of Batch
        That the stated error is taken from; what the formulas do not cover is left out.

    Returns
    -------
    str
        TOML.
    """
    formula = EchoFormula()
    fits = dict(fit_owners(formula, training))
    errors = []
    for batch in test:
        owner = next(each for each in owner_chain(batch) if each in fits)
        try:
            errors.append(np.abs(log_errors(formula, batch, fits[owner].numbers)))
        except InputError:  # an operation that Echo's formulas do not cover
            continue
    lines = [
        "# Numbers of Echo's formulas (network.model = 'echo'), fitted to half of published",
        "# measurements. Written by run_scripts/fit_echo.py, and read by",
        "# topo/collectives/echo_network.py, which says what each key means.",
        "",
        f"error = {float(np.percentile(np.concatenate(errors), 90)) / Z_90:.3g}",
    ]
    for owner, fit in sorted(fits.items()):
        lines += ["", f"[owners.{owner}]"]
        lines += [f"{name} = {value:.4g}" for name, value in fit.numbers.items()]
    return "\n".join([*lines, ""])
