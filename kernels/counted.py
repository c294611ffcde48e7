"""Operations without a recorded duration, priced by the roofline of a GPU.

ASTRA-sim's: the slower of operations at the peak rate and bytes at the memory's bandwidth; here at
the shares of both that kernels are known to reach, with a constant for starting one
(:mod:`mpisim.kernels.roofline`). That a kernel is a matrix product is assumed where it counts
operations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.text import percentage

from . import operations
from .gpu import Gpu
from .operations import Copy, Counted, Elementwise, Kernel, Precision
from .roofline import Roofline

__all__ = ["COUNTED", "PRICED", "PricedShares", "RooflinePricer", "kept_kernels"]

COUNTED = "counted"
"""The attribute of programs that holds the shares of such prices, in JSON."""

PRICED = "priced by roofline"
"""The attribute that describes them to people."""


KINDS: Mapping[str, type[Kernel]] = {
    each.__name__: each
    for each in (
        *(operations.Attention, operations.Convolution, operations.Copy, operations.CrossEntropy),
        *(operations.Elementwise, operations.Embedding, operations.Gemm, operations.GroupedGemm),
        *(operations.Norm, operations.OptimizerStep, operations.Softmax),
    )
}
"""Kernels whose descriptions a program keeps, by name: numbers and words alone."""


def kept_kernels(kernels: Mapping[tuple[str, int], Kernel]) -> list[list[Any]]:
    """Kernels by name and duration in ps → attribute that `PricedShares.read` reads back."""
    return [
        [
            name,
            length,
            type(kernel).__name__,
            {f.name: getattr(kernel, f.name) for f in fields(kernel)},
        ]
        for (name, length), kernel in kernels.items()
        if type(kernel).__name__ in KINDS
    ]


@frozen
class PricedShares:
    """The numbers that prices of kernels depend on, as an attribute of a program keeps them.

    Attributes
    ----------
    shares : dict of (str, int) to dict of str to float
        By name and duration in ps of a kernel: the share of its time that is proportional to each
        number.
    numbers : dict of str to float
        Relative errors of these numbers.
    host, launch : dict of str to float
        The same shares of the CPU's time between kernels, and of what passes from a launch to its
        kernel; empty where these were recorded.
    gap : dict of int to dict of str to float
        By length in ps: the same shares of what passes from a kernel to the next one of its stream;
        empty where it was recorded.
    assumptions, not_modelled : tuple of str
        What else the program says of its prices; lines for people.
    kernels : dict of (str, int) to Kernel
        What kernels are, by name and duration in ps; empty where the program does not say.
    gpu : str
        Name of the GPU that they were priced for; empty where there are none.
    left_out : float
        How far what the program has no part for puts its whole step off, as a relative error.
    text : str
        The attribute as read.
    """

    shares: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    launch: dict[str, float] = field(default_factory=dict)
    gap: dict[int, dict[str, float]] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    kernels: dict[tuple[str, int], Kernel] = field(default_factory=dict)
    gpu: str = ""
    left_out: float = 0.0
    text: str = ""

    @classmethod
    def read(cls, text: str | None, source: str) -> PricedShares:
        """Return the contents of an attribute of a program; nothing if it has none.

        Parameters
        ----------
        text : str or None
            JSON, the value of the attribute `COUNTED`; None: the program lacks it.
        source : str
            What messages name.

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
            numbers, host, launch = (
                {str(name): float(number) for name, number in found.get(key, {}).items()}
                for key in ("numbers", "host", "launch")
            )
            gap = {
                int(length): {str(k): float(v) for k, v in rests.items()}
                for length, rests in found.get("gap", ())
            }
            assumptions, missing = (
                tuple(map(str, found.get(key, ()))) for key in ("assumptions", "not_modelled")
            )
            kernels = {
                (str(name), int(length)): KINDS[kind](**own)
                for name, length, kind, own in found.get("kernels", ())
            }
            gpu, left_out = str(found.get("gpu", "")), float(found.get("left_out", 0.0))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{source}: attribute {COUNTED!r} is damaged: {error}") from error
        return cls(
            shares,
            numbers,
            host,
            launch,
            gap,
            assumptions,
            missing,
            kernels,
            gpu,
            left_out,
            text,
        )


class RooflinePricer:
    """Prices of kernels by their operations and bytes.

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
        """Return the duration of a kernel, in ps.

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

    def count_again(self, nodes: int) -> None:
        """Count further nodes whose times were taken over from equal ones."""
        self._nodes += nodes

    def attributes(self, counted: str = "num_ops and tensor_size") -> dict[str, str]:
        """Return attributes of a program: priced kernels, and the numbers that prices depend on.

        Parameters
        ----------
        counted : str
            What of the file operations and bytes are of, in words.
        """
        if not self._nodes:
            return {}
        used = {number for shares in self._shares.values() for number in shares}
        numbers = {number: getattr(self._gpu, number).error for number in sorted(used)}
        rests = [[name, length, shares] for (name, length), shares in self._shares.items()]
        error = percentage(self._worst) if math.isfinite(self._worst) else "unknown"
        return {
            PRICED: (
                f"{self._nodes:,} nodes without a duration, by {counted}: "
                f"{self._gpu.title}, {self._precision}, up to ±{error} each"
            ),
            COUNTED: json.dumps({"numbers": numbers, "shares": rests}),
        }
