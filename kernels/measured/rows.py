"""Measured kernels: a single row, and all rows of one formula, GPU and number format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpisim.base.frozen import frozen

from ..operations import Kernel

__all__ = ["ASIDE", "TEST", "TRAIN", "MeasuredKernel", "MeasuredKernels"]

TRAIN, TEST, ASIDE = "train", "test", "aside"
"""Splits; rows set aside are not typical of their kind: no fit should see them."""


@frozen
class MeasuredKernels:
    """Measured kernels of one formula, one GPU and one format, from one file.

    Attributes
    ----------
    file : str
        Its name, without folders.
    publisher : str
    family : str
        The formula that serves them, a name of `analytical.families.FORMULAS`.
    gpu : str
        Name of the preset.
    dtype : str
        Format, or ``"any"`` for kernels that have none.
    launched : float
        How many launches of a plain kernel the times hold on top of the kernel: 0 where it was
        timed by itself.
    kernels : tuple of Kernel
    columns : mapping
        As `analytical.formula.Columns`.
    seconds : ndarray of float64
        Measured.
    op : ndarray of str
        The author's name of the operation.
    split : ndarray of str
        ``"train"`` or ``"test"``, the author's or by shape, see `read`; or ``"aside"``.
    line : ndarray of int64
        Line of the file, the header being line 1.
    run : ndarray of str
        Name of the author's run, in which the board was in one state.
    elapsed : ndarray of float64
        Part of the author's run on this GPU that was over when the row was taken, 0 to 1, by its
        place in the file; 0 where launches did not grow in its course.
    """

    file: str
    publisher: str
    family: str
    gpu: str
    dtype: str
    launched: float
    kernels: tuple[Kernel, ...]
    columns: Mapping[str, Any]
    seconds: np.ndarray
    op: np.ndarray
    split: np.ndarray
    line: np.ndarray
    run: np.ndarray
    elapsed: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    def net(self, launch: Callable[[MeasuredKernels], float | np.ndarray] | None) -> np.ndarray:
        """Return the times without the launch, in seconds.

        Parameters
        ----------
        launch : callable, optional
            From rows whose times hold the launch to its CPU time in seconds. One that is estimated
            too long leaves a tenth of the time.
        """
        if launch is None or not self.launched:
            return self.seconds
        return np.maximum(self.seconds - self.launched * launch(self), 0.1 * self.seconds)

    def take(self, wanted: np.ndarray) -> MeasuredKernels:
        """Return some rows: a mask or indices."""
        chosen = np.arange(len(self))[wanted]
        return replace(
            self,
            kernels=tuple(self.kernels[i] for i in chosen.tolist()),
            columns={
                name: column if isinstance(column, str) else column[chosen]
                for name, column in self.columns.items()
            },
            seconds=self.seconds[chosen],
            op=self.op[chosen],
            split=self.split[chosen],
            line=self.line[chosen],
            run=self.run[chosen],
            elapsed=self.elapsed[chosen],
        )


class MeasuredKernel(NamedTuple):
    """One row of a table of any format.

    Attributes
    ----------
    gpu : str
        As the table writes it.
    op : str
        The author's name of the operation.
    kernel : Kernel
    seconds : float
    split : str, optional
        The author's, if there is one.
    calls : float
        CPU time of the operation's call, in units of a plain one of its family.
    run : str
        Of the author's runs, if there were several.
    """

    gpu: str
    op: str
    kernel: Kernel
    seconds: float
    split: str | None = None
    calls: float = 1.0
    run: str = ""
