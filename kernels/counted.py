"""What operations without a recorded duration take on a GPU, by its roofline.

ASTRA-sim's: the slower of operations at the peak rate and bytes at the memory's bandwidth; here at
the shares of both that kernels are known to reach, with a constant for starting one
(:mod:`mpisim.kernels.roofline`). That a kernel is a matrix product is assumed where it counts
operations.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from mpisim.base.errors import InputError

from .gpu import Gpu
from .operations import Copy, Counted, Elementwise, Kernel, Precision
from .roofline import Roofline

__all__ = ["COUNTED", "PRICED", "CountedShares", "Counts"]

COUNTED = "counted"
"""The attribute of programs that says what such prices rest on, in JSON."""

PRICED = "priced by roofline"
"""The attribute that says so to people."""


@dataclass(frozen=True)
class CountedShares:
    """What prices of kernels rest on.

    Attributes
    ----------
    shares : dict of (str, int) to dict of str to float
        Of kernels by name and duration in ps: the share of their time that is proportional to each
        number.
    numbers : dict of str to float
        Relative errors of these numbers.
    text : str
        The attribute that says so.
    """

    shares: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    text: str = ""

    @classmethod
    def read(cls, text: str | None, source: str) -> CountedShares:
        """Return what an attribute of a program says; nothing if it has none.

        Raises
        ------
        InputError
            If it is damaged.
        """
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            shares = {
                (str(name), int(length)): {str(k): float(v) for k, v in rests.items()}
                for name, length, rests in found["shares"]
            }
            numbers = {str(name): float(error) for name, error in found["numbers"].items()}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{source}: attribute {COUNTED!r} is damaged: {error}") from error
        return cls(shares, numbers, text)


class Counts:
    """Prices of kernels by what they count.

    Parameters
    ----------
    gpu : Gpu
    precision : Precision
        Of operations.

    Raises
    ------
    InputError
        If the GPU cannot compute in the format.
    """

    def __init__(self, gpu: Gpu, precision: Precision = "bf16") -> None:
        self._gpu, self._precision, self._roofline = gpu, precision, Roofline(gpu)
        gpu.peak(precision)
        self._nodes = 0
        self._shares: dict[tuple[str, int], dict[str, float]] = {}
        self._worst = 0.0

    def duration(self, name: str, operations: int, size: int, *, memory: bool = False) -> int:
        """Return how long a kernel takes, in ps.

        Parameters
        ----------
        name : str
        operations : int
        size : int
            Bytes that pass the memory.
        memory : bool
            Whether it loads from or stores to the host's memory.

        Raises
        ------
        InputError
            If it takes longer than the simulation's clocks can hold.
        """
        kernel: Kernel
        if memory:
            kernel = Copy(size, "host")
        elif operations:
            kernel = Counted(operations, max(size, 1), self._precision)
        else:
            kernel = Elementwise(size)
        found = self._roofline.estimate(kernel)
        if found.duration > 2**60:
            raise InputError(
                f"{name!r}: {operations} operations and {size} bytes take "
                f"{found.duration / 1e12:.3g} s, which the simulation's clocks cannot hold"
            )
        self._nodes += 1
        self._worst = max(self._worst, found.error)
        self._shares[name, found.duration] = dict(found.shares)
        return found.duration

    def said(self) -> dict[str, str]:
        """Return attributes of a program: what was priced, and what that rests on."""
        if not self._nodes:
            return {}
        used = {number for shares in self._shares.values() for number in shares}
        numbers = {number: getattr(self._gpu, number).error for number in sorted(used)}
        rests = [[name, length, shares] for (name, length), shares in self._shares.items()]
        error = f"{self._worst:.0%}" if math.isfinite(self._worst) else "unknown"
        return {
            PRICED: (
                f"{self._nodes:,} nodes without a duration, by num_ops and tensor_size: "
                f"{self._gpu.title}, {self._precision}, up to ±{error} each"
            ),
            COUNTED: json.dumps({"numbers": numbers, "shares": rests}),
        }
