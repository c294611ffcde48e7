"""What a model of communications is made of: a formula and the few numbers fitted to a platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpisim.base.kinds import Operation

from ..nccl import Shape, System

__all__ = ["Form", "Model"]

Bytes = TypeVar("Bytes", float, NDArray[np.float64])
Settings = tuple[tuple[str, str], ...]


class Form(Protocol):
    """A formula with numbers to be fitted, all above 0."""

    name: str
    """On the command line."""

    start: Mapping[str, float]
    """The numbers, and where a fit starts: what is true of a machine that nobody measured."""

    firm: Mapping[str, float]
    """Numbers that differ little between machines, and how firmly they stay near wider fits: a
    factor of e costs as much as so many times all set-ups."""

    kindred: Mapping[str, float]
    """Numbers of what GPUs of an architecture have in common whatever joins their nodes, and the
    set-ups that the wider fit counts as for a platform. Families, which are kinds of fabrics, have
    the architecture's."""

    def seconds(
        self,
        numbers: Mapping[str, float],
        system: System,
        operation: Operation,
        bytes: NDArray[np.float64],
        shape: Shape,
        settings: Settings,
    ) -> NDArray[np.float64]:
        """Return the durations of communications that differ in size alone.

        Raises
        ------
        InputError
            If the formula does not cover the operation.
        """
        ...


@dataclass(frozen=True)
class Model:
    """A formula with its numbers, on one machine.

    Attributes
    ----------
    form : Form
    numbers : mapping of str to float
    system : System
    settings : tuple of (str, str)
        ``NCCL_*`` variables.
    """

    form: Form
    numbers: Mapping[str, float]
    system: System
    settings: Settings = ()

    def seconds(self, operation: Operation, bytes: Bytes, shape: Shape) -> Bytes:
        """Return how long a communication takes, or several that differ in size alone."""
        sizes = np.atleast_1d(np.asarray(bytes, np.float64))
        found = self.form.seconds(self.numbers, self.system, operation, sizes, shape, self.settings)
        return found if isinstance(bytes, np.ndarray) else float(found[0])
