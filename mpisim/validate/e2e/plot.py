"""Predicted over measured steps as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ...base.errors import InputError
from ...base.files import check_output, write_whole
from .compare import Compared

__all__ = ["check_plot", "scatter"]

BAND = 0.1
"""Errors that the grey band holds."""


def check_plot(path: str | Path) -> None:
    """Refuse a picture that cannot be drawn or written, before the work that fills it.

    Raises
    ------
    InputError
        If matplotlib is not installed, or cannot write files of that kind.
    OutputError
        If the file cannot be written.
    """
    try:
        kinds = import_module("matplotlib.backend_bases").FigureCanvasBase.get_supported_filetypes()
    except ImportError as error:
        raise InputError(f"--plot {path}: needs matplotlib: pip install matplotlib") from error
    if Path(path).suffix.lstrip(".") not in kinds:
        raise InputError(f"--plot {path}: the ending must be one of {', '.join(sorted(kinds))}")
    check_output(path, overwrite=True)


def scatter(rows: Sequence[Compared], path: str | Path) -> None:
    """Draw predicted over measured times, a colour for each source.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    figure = import_module("matplotlib.figure").Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    # Rows of a formula are no measurements, and many: they lie beneath the others.
    groups: dict[str, list[Compared]] = {}
    for each in sorted(rows, key=lambda row: (row.row.texts["trust"] != "F", row.mapped.source)):
        name = each.mapped.source + (" (formula)" if each.row.texts["trust"] == "F" else "")
        groups.setdefault(name, []).append(each)
    ends = [min(each.measured for each in rows) / 2, max(each.measured for each in rows) * 2]
    axes.fill_between(
        ends,
        [x * (1 - BAND) for x in ends],
        [x * (1 + BAND) for x in ends],
        color="0.9",
        label=f"within {BAND:.0%}",
    )
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    for i, (name, group) in enumerate(groups.items()):
        axes.scatter(
            [each.measured for each in group],
            [each.predicted for each in group],
            s=9,
            marker="osD^v<>"[i // 10 % 7],
            color=f"C{i % 10}",
            label=f"{name} ({len(group)})",
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
    axes.legend(fontsize="small")
    with write_whole(path, overwrite=True) as file:
        figure.savefig(file, format=Path(path).suffix[1:], dpi=150)
