"""Lookups of the public data sets for embedding tables, github:facebookresearch/dlrm_datasets.

A file (``fbgemm_t856_bs65536.pt``: 856 tables, 65,536 samples) holds three tensors, as FBGEMM's
kernels take them: `indices`, the rows looked up, table by table and sample by sample; `offsets`,
where each sample of each table begins, tables × samples + 1; `lengths`, how many rows each sample
looks up, (tables, samples). It does not say how large tables are: their rows are the highest one
looked up plus one, and 100 at least, as in Lin et al. (github:owensgroup/ml_perf_model,
``generate_el_table_configs_from_datasets.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..workloads.dlrm import reuse_factors
from .torch_file import read_torch_file

__all__ = ["HEAVY_POOLING", "DatasetTable", "read_dataset_tables"]

MIN_ENTRIES = 100
"""Rows of the smallest table."""

HEAVY_POOLING = 20
"""Mean lookups a sample from which Lin et al. call a table heavy."""


@frozen
class DatasetTable:
    """A table of a data set.

    Attributes
    ----------
    number : int
    entries : int
        Rows.
    pooling : float
        Mean lookups of a sample.
    lookups, distinct : int
        Of a batch.
    reuse : tuple of float
        Reuse factors of the batch.
    """

    number: int
    entries: int
    pooling: float
    lookups: int
    distinct: int
    reuse: tuple[float, ...]


def read_dataset_tables(
    path: str | Path, batch: int, numbers: Sequence[int] = ()
) -> list[DatasetTable]:
    """File of a data set → its tables, with reuse factors of its first batch.

    Tables that no sample looks up are left out.

    Parameters
    ----------
    path : str or Path
    batch : int
        Samples; reuse factors of the whole file would be those of another batch.
    numbers : sequence of int
        Of tables; all if empty.

    Raises
    ------
    InputError
        If it is no such file, or has fewer samples or tables.
    """
    indices, offsets, lengths = _tensors(path)
    tables, samples = lengths.shape
    if batch > samples:
        raise InputError(f"{path}: has {samples:,} samples; a batch of {batch:,} was asked for")
    for number in numbers:
        if number >= tables:
            raise InputError(f"{path}: has tables 0 to {tables - 1}; {number} was asked for")
    return list(_tables(indices, offsets, numbers or range(tables), samples, batch))


def _tables(
    indices: NDArray[Any],
    offsets: NDArray[Any],
    numbers: Sequence[int],
    samples: int,
    batch: int,
) -> Iterator[DatasetTable]:
    for number in numbers:
        first = number * samples
        begin, middle, end = (int(offsets[first + each]) for each in (0, batch, samples))
        if end == begin:
            continue
        found = np.asarray(indices[begin:middle])
        yield DatasetTable(
            number,
            max(MIN_ENTRIES, int(indices[begin:end].max()) + 1),
            (end - begin) / samples,
            len(found),
            len(np.unique(found)),
            tuple(reuse_factors(found).tolist()),
        )


def _tensors(path: str | Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the three tensors, whose shapes fit."""
    found = read_torch_file(path)
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise InputError(f"{path}: does not hold three tensors: indices, offsets, lengths")
    for name, tensor, dimensions in zip(
        ("indices", "offsets", "lengths"), found, (1, 1, 2), strict=True
    ):
        whole = isinstance(tensor, np.ndarray) and tensor.dtype.kind in "iu"
        if not whole or tensor.ndim != dimensions:
            raise InputError(
                f"{path}: {name} is no tensor of integers with {dimensions} "
                f"dimension{'s' if dimensions > 1 else ''}"
            )
    indices, offsets, lengths = found
    if len(offsets) != lengths.size + 1:
        raise InputError(
            f"{path}: offsets has {len(offsets):,} entries; {lengths.shape[0]:,} tables of "
            f"{lengths.shape[1]:,} samples have {lengths.size + 1:,}"
        )
    rising = bool((np.diff(offsets) >= 0).all())
    if not rising or int(offsets[0]) < 0 or int(offsets[-1]) > len(indices):
        raise InputError(f"{path}: offsets do not rise from 0 to the {len(indices):,} indices")
    return indices, offsets, lengths
