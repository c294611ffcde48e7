"""Reading a results file: small tables at once, the timeline on request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.hdf5 import open_file, text_of
from ..base.hdf5_data import read_attributes, read_column, read_texts
from ..engine.critical_path import CriticalPath, PieceKind
from ..program import Communicators, Kind, Operation
from . import schema
from .link_use import BINS, LinkUse
from .results import Results, SharedRows, Timeline
from .sensitivities import Sensitivities
from .step_parts import PartKind, StepParts
from .step_times import Recording

if TYPE_CHECKING:
    from h5py import File, Group

__all__ = ["open_results"]


def open_results(path: str | Path) -> Results:
    """Open a results file.

    Needs no MPI. Use it as a context manager where the file has a timeline.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Results
        All tables are in memory; the timeline is read on request.

    Raises
    ------
    InputError
        If it is no results file, of another version, or damaged.

    Examples
    --------
    >>> with open_results("run.h5") as results:                     # doctest: +SKIP
    ...     print(results.step_time, results.ranks["idle"].max())
    """
    path = Path(path)
    kept_open = ExitStack()
    with ExitStack() as stack:
        file = stack.enter_context(open_file(path, schema.FORMAT, schema.VERSION))
        if file.attrs["format_version"] < schema.VERSION:
            raise InputError(
                f"was written by an older mpisim (format version "
                f"{file.attrs['format_version']}; this one reads {schema.VERSION}); simulate again"
            )
        groups = _group(file, "communicators")
        ranks = _read_table(file, "ranks", schema.RANKS)
        classes = _read_table(file, "classes", schema.CLASSES)
        _check_classes(ranks["class"], classes["representative"])
        representative = classes["representative"][ranks["class"]]
        timeline = _open_timeline(file, path, representative) if "timeline" in file else None
        results = Results(
            step_time_ps=int(_group(file, "summary")["step_time"][()]),
            digest=text_of(file.attrs["digest"]),
            n_processes=int(file.attrs["n_processes"]),
            rounds=int(file.attrs["rounds"]),
            mode=text_of(file.attrs["mode"]),
            ranks=ranks,
            classes=classes,
            steps=_read_table(file, "steps", schema.STEPS),
            kernels=_read_table(file, "kernels", schema.KERNELS),
            communications=_read_table(file, "communications", schema.COMMUNICATIONS),
            communicators=Communicators(
                read_column(groups, "index", np.int64),
                read_column(groups, "members", np.int32),
                read_texts(groups, "names"),
            ),
            links=_read_links(file),
            critical_path=_read_critical_path(file) if "critical_path" in file else None,
            recorded=_read_recorded(file) if "recorded_steps" in file else None,
            parts=_read_parts(file, len(classes["count"])) if "parts" in file else None,
            sensitivities=_read_sensitivities(file) if "sensitivities" in file else None,
            experiment=text_of(file.attrs["experiment"]),
            origin=text_of(file.attrs.get("origin", "")),  # not in files of earlier mpisim
            seed=int(file.attrs["seed"]),
            creator=text_of(file.attrs["creator"]),
            versions=read_attributes(_group(file, "versions")),
            attributes={
                name: _attribute(file.attrs[name]) for name in _attribute(file.attrs["said"])
            },
            program=read_attributes(_group(file, "program")),
            wall={phase: float(d[()]) for phase, d in _group(file, "wall").items()},
            timeline=timeline,
            path=path,
            close=kept_open.close,
        )
        _check_numbers(results)
        if timeline is not None:
            kept_open.callback(stack.pop_all().close)
    return results


def _group(file: File, name: str) -> Group:
    group = file.get(name)
    if group is None or not hasattr(group, "keys"):
        raise InputError(f"there is no group '{name}'")
    return group


def _read_table(file: File, name: str, described: schema.ColumnTypes) -> dict[str, NDArray[Any]]:
    """Read the columns of a table, all of one length."""
    group = _group(file, name)
    columns: dict[str, NDArray[Any]] = {}
    length = None
    for column, (stored, units) in described.items():
        if stored is object:
            columns[column] = np.array(read_texts(group, column, length), object)
        else:
            columns[column] = read_column(group, column, stored, units, length)
        length = len(columns[column])
    return columns


def _check_classes(of_rank: NDArray[np.int32], representative: NDArray[np.int32]) -> None:
    """Refuse classes and representatives that do not exist."""
    for column, values, end in (
        ("ranks/class", of_rank, len(representative)),
        ("classes/representative", representative, len(of_rank)),
    ):
        _check_range(column, values, 0, end)


def _check_numbers(results: Results) -> None:
    """Refuse numbers of entries that the file does not have."""
    n_groups = len(results.communicators)
    numbers = [
        ("kernels/kind", results.kernels["kind"], 0, len(Kind)),
        ("communications/operation", results.communications["operation"], 0, len(Operation)),
        ("communications/communicator", results.communications["communicator"], 0, n_groups),
    ]
    numbers += [
        ("link_sharing/link", results.links.sharing["link"], 0, len(results.links.links["name"])),
        *(
            (f"link_sharing/{column}", results.links.sharing[column], 0, n_groups)
            for column in ("communicator", "other")
        ),
    ]
    if results.parts is not None:
        numbers.append(("parts/kind", results.parts.kinds, 0, len(PartKind)))
        totals = results.parts.times.sum(axis=1)
        if (results.parts.times < 0).any() or (totals != results.shown_ps).any():
            raise InputError(
                f"parts/time: the parts of each class must add up to {results.shown_ps} ps"
            )
    pieces = results.critical_path
    if pieces is not None:
        numbers += [
            ("critical_path/kind", pieces.kind, 0, len(PieceKind)),
            ("critical_path/rank", pieces.rank, 0, results.n_ranks),
            ("critical_path/name", pieces.name, -1, len(pieces.names)),
        ]
    for column, values, lowest, end in numbers:
        _check_range(column, values, lowest, end)


def _check_range(column: str, values: NDArray[Any], lowest: int, end: int) -> None:
    bad = (values < lowest) | (values >= end)
    if bad.any():
        raise InputError(
            f"{column} is {values[bad][0]} in entry {np.argmax(bad)}; it must be from "
            f"{lowest} to {end - 1}"
        )


def _read_links(file: File) -> LinkUse:
    links = _read_table(file, "links", schema.LINKS)
    shape = (len(links["name"]), BINS)
    found = file["links"].get("utilisation")
    if found is None or found.shape != shape:
        raise InputError(f"links/utilisation is missing or not of shape {shape}")
    return LinkUse(links, found[()], _read_table(file, "link_sharing", schema.LINK_SHARING))


def _read_critical_path(file: File) -> CriticalPath:
    columns: dict[str, Any] = _read_table(file, "critical_path", schema.CRITICAL_PATH)
    return CriticalPath(**columns, names=read_texts(file["critical_path"], "names"))


def _read_parts(file: File, n_classes: int) -> StepParts:
    columns = _read_table(file, "parts", schema.PARTS)
    shape = (n_classes, len(columns["name"]))
    found = file["parts"].get("time")
    if found is None or found.shape != shape or found.dtype != np.int64:
        raise InputError(f"parts/time is missing or not of shape {shape} and type int64")
    if found.attrs.get("units") != "ps":
        raise InputError("parts/time: its attribute 'units' must be 'ps'")
    return StepParts(tuple(columns["name"].tolist()), columns["kind"], found[()])


def _read_sensitivities(file: File) -> Sensitivities:
    columns: dict[str, Any] = _read_table(file, "sensitivities", schema.SENSITIVITIES)
    names, keys, now = (tuple(columns[column].tolist()) for column in ("name", "key", "now"))
    return Sensitivities(names, keys, now, columns["elasticity"])


def _read_recorded(file: File) -> Recording:
    columns = _read_table(file, "recorded_steps", schema.RECORDED_STEPS)
    group = file["recorded_steps"]
    shown = int(read_column(group, "shown", np.int32, length=1)[0])
    which = np.flatnonzero(columns["step"] == shown)
    if len(which) != 1:
        raise InputError(
            f"{file.filename}: recorded_steps/shown is {shown}; it must be one of "
            f"{columns['step'].tolist()}"
        )
    whole = int(read_column(group, "whole", np.int64, "ps", 1)[0])
    return Recording(**columns, shown=int(which[0]), whole_ps=whole)


def _attribute(value: Any) -> Any:
    """Value of an HDF5 attribute → text, a number, or a list of these."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return value.tolist()
    if isinstance(value, np.ndarray):
        return [text_of(each) for each in value.tolist()]
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str) else []  # h5py.Empty


def _open_timeline(file: File, path: Path, representative: NDArray[np.int32]) -> Timeline:
    """Open the timeline without reading it; refuse one with missing rows."""
    group = _group(file, "timeline")
    n = len(representative)
    offset = read_column(group, "rank_offset", np.int64, length=n)
    rows = read_column(group, "rank_rows", np.int64, length=n)
    n_rows = int((offset + rows).max(initial=0))
    for column in schema.TIMELINE:
        found = group[column].shape
        if len(found) != 1 or found[0] < n_rows:
            raise InputError(f"timeline/{column} has shape {found}; it must have {n_rows} rows")
        if not group[column].attrs.get("column", False):
            raise InputError(f"timeline/{column} lacks the attribute 'column': the file is damaged")
    return Timeline(
        file,
        path,
        read_texts(group, "names"),
        offset,
        rows,
        SharedRows(
            representative,
            read_column(group, "rank_slot_index", np.int64, length=n + 1),
            read_column(group, "rank_slots", np.int32),
        ),
    )
