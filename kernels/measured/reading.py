"""Reading a file of measured kernels."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from mpisim.base.csv_files import read_table
from mpisim.base.errors import InputError, nearest
from mpisim.base.presets import table_names

from ..analytical.family import ANY, MODULES, stack
from ..gpu import FILE
from ..operations import Kernel
from . import neusight, others, vidur
from .names import gpu_name
from .rows import TEST, TRAIN, Form, Row, Rows

__all__ = ["read", "select"]

FORMS = (*neusight.FORMS, *vidur.FORMS, *others.FORMS)


def read(path: str | Path) -> tuple[list[Rows], dict[str, int]]:
    """Read a file of measured kernels.

    Rows without a split of their author's are divided by shape, so that all rows of one kernel
    description are on one side: a fifth is the test set.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    list of Rows
        One for each family, GPU, format and cost of the call, in the order in which they are met.
    dict
        Rows left out: how many, by reason.

    Raises
    ------
    InputError
        If the file cannot be read, is none of the known kinds, or a row is not as it must be.
    """
    path = Path(path)
    header, table = read_table(path, partial(_form, path))
    form = _form(path, header)
    found: dict[tuple[str, str, str, float], list[tuple[int, Row]]] = {}
    skipped: dict[str, int] = {}
    presets = set(table_names(FILE))
    known_gpus: dict[str, str | None] = {}
    for line, row in table:
        try:
            each = form.row(row)
            if not 0 < each.seconds < math.inf:
                raise ValueError(f"a time of {each.seconds * 1e3:g} ms")
        except (KeyError, OverflowError, ValueError, TypeError, InputError) as error:
            raise InputError(f"{path}, line {line}: {_why(error)}") from error
        if each.gpu not in known_gpus:
            known_gpus[each.gpu] = _known(each.gpu, presets)
        gpu = known_gpus[each.gpu]
        if gpu is None:
            reason = f"GPU {each.gpu!r} is unknown{nearest(each.gpu.casefold(), presets)}"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        dtype = getattr(each.kernel, "dtype", ANY)
        key = (MODULES[each.kernel.family], gpu, dtype, each.calls * form.launched)
        found.setdefault(key, []).append((line, each))
    return [_rows(path.name, key, rows, form) for key, rows in found.items()], skipped


def _form(path: Path, header: Sequence[str]) -> Form:
    """Return the kind of a table by its headings."""
    form = next((each for each in FORMS if set(each.columns) <= set(header)), None)
    if form is None:
        known = "; ".join(", ".join(each.columns) for each in FORMS)
        raise InputError(
            f"{path}: no known table of kernel times: its columns are {', '.join(header)[:200]}; "
            f"known: {known}"
        )
    return form


def _known(gpu: str, presets: set[str]) -> str | None:
    try:
        found = gpu_name(gpu)
    except InputError:
        return None
    return found if found in presets else None


def _why(error: Exception) -> str:
    """Say what is wrong with a row; a KeyError is of a column besides those it is known by."""
    return f"there is no column {error}" if isinstance(error, KeyError) else str(error)


def _rows(
    file: str, key: tuple[str, str, str, float], rows: list[tuple[int, Row]], form: Form
) -> Rows:
    family, gpu, dtype, launched = key
    line = np.array([line for line, _ in rows], dtype=np.int64)
    place = (line - line[0]) / max(1, line[-1] - line[0])
    return Rows(
        file=file,
        publisher=form.publisher,
        family=family,
        gpu=gpu,
        dtype=dtype,
        launched=launched,
        kernels=tuple(each.kernel for _, each in rows),
        columns=stack([each.kernel for _, each in rows]),
        seconds=np.array([each.seconds for _, each in rows]),
        op=np.array([each.op for _, each in rows]),
        split=np.array([each.split or _split(each.kernel) for _, each in rows]),
        line=line,
        run=np.array([each.run for _, each in rows]),
        elapsed=place if form.growing else np.zeros(len(rows)),
    )


def _split(kernel: Kernel) -> str:
    """Divide by the description, the same way on every machine and in every run."""
    return TEST if zlib.crc32(repr(kernel).encode()) % 5 == 0 else TRAIN


def select(
    rows: Iterable[Rows], *, gpus: Iterable[str] = (), splits: Iterable[str] = ()
) -> list[Rows]:
    """Return the rows of some GPUs and splits; none named means all.

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
