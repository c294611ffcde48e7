"""A grown job's program → the same as the slowest of so many GPUs sets its pace.

Of more GPUs one is slower (`mpisim.prediction.variation`). A recording of n GPUs holds the slowest
of n, wherever it is. A job of N, whose ranks are copies of these, waits for the slowest of N, so
that products take

    exp(s (z(N) - z(n)))

times as long as recorded, with the spread s and Blom's z there. All ranks take it: the recorded
differences between them stay. A job that is no larger than what was recorded has only GPUs that
were recorded, and stays as it is.
"""

from __future__ import annotations

import numpy as np

from ..base.quantity import Quantity
from ..base.text import percentage
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm
from ..prediction.variation import slowest_factor
from ..program import Kind, Program
from ..replay.kernel_times import PRODUCT
from .parallel_overlap import KernelsByName

__all__ = ["SlowestOfMore"]


class SlowestOfMore:
    """How many times as long products take on the slowest of more GPUs than were recorded.

    Parameters
    ----------
    recorded : int
        GPUs of which there is a recording.
    now : int
        GPUs of the new job.
    """

    def __init__(self, recorded: int, now: int) -> None:
        self._recorded, self._now = min(recorded, now), now
        before, after = slowest_factor(self._recorded), slowest_factor(now)
        # Both rest on the same spread, so that one error bar takes the other's part with it.
        error = after.error - before.error
        self.factor = Quantity(after.value / before.value, "1", error, after.source)

    def put_in(self, program: Program, kernels: KernelsByName) -> Program:
        """Return a program whose products take that many times as long. Local.

        Parameters
        ----------
        program : Program
            Whole, with the times of kernels as recorded.
        kernels : KernelsByName
            What its kernels compute; names tell of those that are not in it.
        """
        if self.factor.value == 1:
            return program
        products = np.array([_is_product(name, kernels) for name in program.names], bool)
        tables = []
        for table in program.tables:
            assert table is not None
            rows = (table.kind == Kind.KERNEL) & products[table.name] & (table.duration > 0)
            duration = table.duration.copy()
            duration[rows] = np.rint(duration[rows] * self.factor.value).astype(np.int64)
            tables.append(table.replace(duration=duration))
        return program.replace(tables=tuple(tables))

    @property
    def text(self) -> str:
        """Factor of the slowest GPU as a line; nothing where it is 1."""
        if self.factor.value == 1:
            return ""
        longer = percentage(self.factor.value - 1, 1)
        return (
            f"the slowest of {self._now:,} GPUs is slower than that of the {self._recorded:,} "
            f"recorded: products take {longer} longer ± {percentage(self.factor.error, 1)} "
            "(data/variation.toml)"
        )


def _is_product(name: str, kernels: KernelsByName) -> bool:
    """Whether kernels of a name are what draws most power, by their shapes or else the name."""
    known = kernels.get(name)
    if known is None:
        return bool(PRODUCT.search(name))
    return all(isinstance(each, Gemm | GroupedGemm | Convolution | Attention) for _, each in known)
