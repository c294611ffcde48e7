"""What a row of a published table says, and the rows of one family and GPU together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mpisim.base.csv_files import CsvRow

from ..operations import Kernel

__all__ = ["ASIDE", "TEST", "TRAIN", "Form", "Row", "Rows"]

TRAIN, TEST, ASIDE = "train", "test", "aside"
"""Splits; rows set aside are not typical of their kind: no fit should see them."""


@dataclass(frozen=True)
class Rows:
    """Measured kernels of one family, one GPU and one format, from one file.

    Attributes
    ----------
    file : str
        Its name, without folders.
    publisher : str
    family : str
        Of `analytical.family.MODULES`.
    gpu : str
        Name of the preset.
    dtype : str
        Format, or ``"any"`` for kernels that have none.
    launched : float
        How many launches of a plain kernel the times hold on top of the kernel: 0 where it was
        timed by itself.
    kernels : tuple of Kernel
    columns : mapping
        As `analytical.family.Columns`.
    seconds : ndarray of float64
        Measured.
    op : ndarray of str
        The author's name of the operation.
    split : ndarray of str
        ``"train"`` or ``"test"``, the author's or by shape, see `read`; or ``"aside"``.
    line : ndarray of int64
        Line of the file, the header being line 1.
    run : ndarray of str
        Which rows of the file the author took in one go, with the board in one state: of one name.
    elapsed : ndarray of float64
        How much of the author's run on this GPU was over when the row was taken, 0 to 1, by its
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

    def net(self, launch: Callable[[Rows], float | np.ndarray] | None) -> np.ndarray:
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

    def take(self, wanted: np.ndarray) -> Rows:
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


class Row(NamedTuple):
    """What a row of any file says."""

    gpu: str
    op: str
    kernel: Kernel
    seconds: float
    split: str | None = None
    calls: float = 1.0
    """CPU time of the operation's call, beside that of a plain one of its family."""
    run: str = ""
    """Of the author's runs, where he made several."""


class Form(NamedTuple):
    """A kind of file: who publishes it, the columns it is known by, how a row is read, whether
    launches count, and whether they grew in the course of the run."""

    publisher: str
    columns: tuple[str, ...]
    row: Callable[[CsvRow], Row]
    launched: bool
    growing: bool = False
