"""Read measured communications: outputs of nccl-tests, and tables in CSV as published.

Outputs of nccl-tests and rccl-tests (`nccl_tests`) are recognised by their content; a table by the
names of its columns (`published_tables.TABLE_FORMATS`):

==============================================  ===================================================
columns                                         table
==============================================  ===================================================
op, gpu, num_gpus, …, out_of_place_time_us      gathered outputs of nccl-tests and rccl-tests
grade, op, gpu, num_gpus, …, points             grades of those curves
network, op, gpu, num_gpus, …, median_us        Vidur (github:microsoft/vidur), fp16, PyTorch
gpu, num_gpus, size_bytes, …, time_us           vTrain (github:VIA-Research/vTrain), one node
gpu, num_gpus, num_nodes, …, time_us_median     spread over ten configurations on Alps
kernel, version, gpu, ep_size, direction        DeepEP's all-to-all kernels
op, group, msg_bytes, count, median_ms          AICB, collectives of a training run
==============================================  ===================================================

Grades are found in a file of grades among those given, or beside a table that has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpisim.base.csv_files import CsvRow, parse_table, read_table
from mpisim.base.errors import InputError, UsageError, nearest
from mpisim.base.files import read_text

from .measurement import Measurement
from .nccl_tests import is_json, is_output, read_json, read_output
from .published_tables import GRADE_COLUMNS, TABLE_FORMATS, TableFormat, curve_name
from .runs import RunOverrides, measurements

__all__ = ["read"]

GRADES_FILE = "curves_index.csv"
"""The name of a file of grades, where it stands beside a table."""


def read(
    paths: Iterable[str | Path], overrides: RunOverrides | None = None
) -> tuple[list[Measurement], Counter[str]]:
    """Read measured communications.

    Parameters
    ----------
    paths : iterable of str or Path
        Outputs of nccl-tests, tables, and perhaps the file of grades.
    overrides : RunOverrides, optional
        What the user says of the outputs of nccl-tests.

    Returns
    -------
    list of Measurement
        In the order of the files and their rows.
    Counter
        Rows left out: how many, by reason.

    Raises
    ------
    InputError
        If a file cannot be read, is none of the known kinds, a row is not as it must be, or an
        output does not say what is needed. If the user says something of outputs and there are
        none.
    """
    found: list[Measurement] = []
    skipped: Counter[str] = Counter()
    grades: dict[str, str] = {}
    graded = False
    folders: list[Path] = []
    outputs = False
    for path in map(Path, paths):
        contents = read_text(path)
        if is_json(contents) or is_output(contents):
            outputs = True
            runs = (read_json if is_json(contents) else read_output)(contents, str(path))
            for row in (
                each for run in runs for each in measurements(run, overrides or RunOverrides())
            ):
                if isinstance(row, str):
                    skipped[row] += 1
                else:
                    found.append(row)
            continue
        check = partial(_table_format, path)
        header, rows = parse_table(contents, path, check)
        form = check(header)
        if form is None:
            graded = True
            grades |= dict(_grade(path, line, cells) for line, cells in rows)
            continue
        folders.append(path.parent)
        for line, cells in rows:
            each = _read_row(form, path, line, cells)
            if isinstance(each, str):
                skipped[each] += 1
            else:
                found.append(each)
    if not outputs and (overrides or RunOverrides()) != RunOverrides():
        raise UsageError(
            "--operation, --gpus, --nodes and --network say what outputs of nccl-tests leave out; "
            "tables have columns for it"
        )
    if not graded:
        for beside in dict.fromkeys(folder / GRADES_FILE for folder in folders):
            if beside.is_file():
                rows = read_table(beside).rows
                grades |= dict(_grade(beside, line, cells) for line, cells in rows)
    graded_rows = [replace(each, grade=grades.get(each.curve, each.grade)) for each in found]
    return graded_rows, skipped


def _table_format(path: Path, header: Sequence[str]) -> TableFormat | None:
    """Return the kind of a table by its headings; None for a file of grades."""
    if set(GRADE_COLUMNS) <= set(header):
        return None
    for form in TABLE_FORMATS:
        if set(form.columns) <= set(header):
            return form
    closest = max(TABLE_FORMATS, key=lambda each: len(set(each.columns) & set(header)))
    missing = [each for each in closest.columns if each not in header]
    near = nearest(missing[0], [each for each in header if each not in closest.columns])
    known = "; ".join(", ".join(form.columns) for form in TABLE_FORMATS)
    raise InputError(
        f"{path}: no output of nccl-tests, and no known table of measured communications: its "
        "columns are "
        f"{', '.join(header)[:200] or 'none'}; nearest is that of {closest.publisher}, of which "
        f"{', '.join(missing)} is missing{near}; known: {known}"
    )


def _read_row(form: TableFormat, path: Path, line: int, row: CsvRow) -> Measurement | str:
    try:
        each = form.row(row, path.name, line)
    except KeyError as error:  # a column that this form reads where there is one
        raise InputError(f"{path}, line {line}: there is no column {error}") from error
    except ValueError as error:
        raise InputError(f"{path}, line {line}: {error}") from error
    if isinstance(each, Measurement):
        for what, value in (("time", each.seconds), ("size", each.bytes)):
            if not 0 < value < float("inf"):
                raise InputError(f"{path}, line {line}: a {what} of {value:g}; it must be above 0")
        if not 1 <= each.nodes <= each.gpus:
            raise InputError(
                f"{path}, line {line}: {each.gpus} GPUs on {each.nodes} nodes; every node needs one"
            )
    return each


def _grade(path: Path, line: int, row: CsvRow) -> tuple[str, str]:
    try:
        grade = row["grade"].upper()
        if grade not in ("A", "B", "C"):
            raise row.error("grade", "A, B or C")
        return curve_name(row), grade
    except KeyError as error:
        raise InputError(f"{path}, line {line}: there is no column {error}") from error
    except ValueError as error:
        raise InputError(f"{path}, line {line}: {error}") from error
