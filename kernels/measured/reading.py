"""CSV file of measured kernels → `MeasuredKernels` by formula, GPU and format."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np

from mpisim.base.csv_files import read_table
from mpisim.base.errors import InputError, nearest
from mpisim.base.presets import match_name, packaged, table_names

from ..analytical.families import formula_of, stack_columns
from ..analytical.formula import ANY
from ..gpu import FILE
from ..operations import Kernel
from .formats import FORMATS, TableFormat
from .rows import TEST, TRAIN, MeasuredKernel, MeasuredKernels

__all__ = ["NOT_SIZES", "gpu_name", "read", "read_all", "select"]

GPU_ALIASES = {
    "A100-80GB": "a100-sxm",
    "A100 SXM": "a100-sxm",
    "A100 PCIe": "a100-pcie-80gb",
    "GH200 SXM": "gh200-96gb",
    "H100 SXM": "h100-sxm",
    "H200 SXM": "h200",
    "H800-SXM": "h800-sxm",
    "B200 SXM": "b200",
    "B300 SXM": "b300",
    "GB200 SXM": "gb200",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "MI250": "mi210",
}
"""Names in these files beside those of ``data/gpus.toml``. PyTorch sees one die of an MI250, which
has the units, the clock and the bandwidth of an MI210."""

NOT_SIZES = ("variant", "instructions", "loads", "chained", "summed", "sums", "steps", "sorts")
"""Fields of kernels that no measured row tells apart: neither the side of a row nor its fold may
depend on them."""


def gpu_name(text: str) -> str:
    """Return the name of a preset for a GPU as these files write it."""
    return GPU_ALIASES.get(text) or match_name(text, packaged(FILE), "GPU", f"see {FILE}")


def read(path: str | Path) -> tuple[list[MeasuredKernels], dict[str, int]]:
    """Read a file of measured kernels.

    Rows without a split of their author's are divided by shape, so that all rows of one kernel
    description are on one side: a fifth is the test set.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    list of MeasuredKernels
        One for each formula, GPU, format and cost of the call, in the order in which they occur.
    dict
        Rows left out: how many, by reason.

    Raises
    ------
    InputError
        If the file cannot be read, is none of the known kinds, or a row is not as it must be.
    """
    path = Path(path)
    header, table = read_table(path, partial(_format_of, path))
    table_format = _format_of(path, header)
    found: dict[tuple[str, str, str, float], list[tuple[int, MeasuredKernel]]] = {}
    skipped: dict[str, int] = {}
    presets = set(table_names(FILE))
    preset_names: dict[str, str | None] = {}
    for line, row in table:
        try:
            each = table_format.row(row)
            if not 0 < each.seconds < math.inf:
                raise ValueError(f"a time of {each.seconds * 1e3:g} ms")
        except (KeyError, OverflowError, ValueError, TypeError, InputError) as error:
            raise InputError(f"{path}, line {line}: {_reason(error)}") from error
        if each.gpu not in preset_names:
            preset_names[each.gpu] = _preset_name(each.gpu, presets)
        gpu = preset_names[each.gpu]
        if gpu is None:
            reason = f"GPU {each.gpu!r} is unknown{nearest(each.gpu.casefold(), presets)}"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        formula = formula_of(each.kernel.qualified_family).name
        dtype = getattr(each.kernel, "dtype", ANY)
        key = (formula, gpu, dtype, each.calls * table_format.launched)
        found.setdefault(key, []).append((line, each))
    return [_gathered(path.name, key, rows, table_format) for key, rows in found.items()], skipped


def read_all(
    paths: Iterable[str | Path],
) -> tuple[list[MeasuredKernels], dict[str | Path, dict[str, int]]]:
    """Files of measured kernels → their rows together, and those left out.

    Parameters
    ----------
    paths : iterable of str or Path

    Returns
    -------
    rows : list of MeasuredKernels
        In the order of the files.
    left_out : dict of (str or Path) to (dict of str to int)
        By file, how many rows by reason.

    Raises
    ------
    InputError
        As of `read`.
    """
    rows: list[MeasuredKernels] = []
    left_out = {}
    for path in paths:
        found, left_out[path] = read(path)
        rows += found
    return rows, left_out


def _format_of(path: Path, header: Sequence[str]) -> TableFormat:
    """Return the format of a table by its headings."""
    found = next((each for each in FORMATS if set(each.columns) <= set(header)), None)
    if found is None:
        known = "; ".join(", ".join(each.columns) for each in FORMATS)
        raise InputError(
            f"{path}: no known table of kernel times: its columns are {', '.join(header)[:200]}; "
            f"known: {known}"
        )
    return found


def _preset_name(gpu: str, presets: set[str]) -> str | None:
    try:
        found = gpu_name(gpu)
    except InputError:
        return None
    return found if found in presets else None


def _reason(error: Exception) -> str:
    """Error of reading a row → message; a KeyError names an unlisted column."""
    return f"there is no column {error}" if isinstance(error, KeyError) else str(error)


def _gathered(
    file: str,
    key: tuple[str, str, str, float],
    rows: list[tuple[int, MeasuredKernel]],
    table_format: TableFormat,
) -> MeasuredKernels:
    family, gpu, dtype, launched = key
    line = np.array([line for line, _ in rows], dtype=np.int64)
    place = (line - line[0]) / max(1, line[-1] - line[0])
    return MeasuredKernels(
        file=file,
        publisher=table_format.publisher,
        family=family,
        gpu=gpu,
        dtype=dtype,
        launched=launched,
        kernels=tuple(each.kernel for _, each in rows),
        columns=stack_columns([each.kernel for _, each in rows]),
        seconds=np.array([each.seconds for _, each in rows]),
        op=np.array([each.op for _, each in rows]),
        split=np.array([each.split or _split(each.kernel) for _, each in rows]),
        line=line,
        run=np.array([each.run for _, each in rows]),
        elapsed=place if table_format.growing else np.zeros(len(rows)),
    )


def _split(kernel: Kernel) -> str:
    """Return the side of a kernel by its sizes, the same on every machine and in every run.

    The same sizes are on the same side in all variants of a family.
    """
    sizes = (
        f"{each.name}={getattr(kernel, each.name)!r}"
        for each in fields(kernel)
        if each.name not in NOT_SIZES
    )
    text = f"{type(kernel).__name__}({', '.join(sizes)})"
    return TEST if zlib.crc32(text.encode()) % 5 == 0 else TRAIN


def select(
    rows: Iterable[MeasuredKernels], *, gpus: Iterable[str] = (), splits: Iterable[str] = ()
) -> list[MeasuredKernels]:
    """Return the rows of some GPUs and splits.

    Parameters
    ----------
    rows : iterable of MeasuredKernels
    gpus : iterable of str
        Names as tables write them; all if empty.
    splits : iterable of str
        ``"train"``, ``"test"``, ``"aside"``; all if empty.

    Raises
    ------
    InputError
        For the name of a GPU that is none.
    """
    wanted = {gpu_name(each) for each in gpus}
    sides = set(splits)
    found = []
    for each in rows:
        if wanted and each.gpu not in wanted:
            continue
        kept = each.take(np.isin(each.split, list(sides))) if sides else each
        if len(kept):
            found.append(kept)
    return found
