"""Errors of kernel and collective models by group → printed tables and JSON figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import InputError
from ..base.text import percentage
from .fit_output import print_skipped

__all__ = ["figures_of", "print_tables"]

Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By grouping (``all``, ``gpu``, …) and group: ``n``, ``mape``, ``median``, ``p90``, ``bias``,
``covered`` (None where no interval is stated)."""


def print_tables(tables: Tables, skipped: Mapping[str, int], model: str, width: int) -> None:
    """Print a table a grouping, and why rows were left out.

    Parameters
    ----------
    tables : mapping
    skipped : mapping of str to int
        Reasons, and how many rows each left out.
    model : str
        Whose errors they are.
    width : int
        Of the column of names.

    Raises
    ------
    InputError
        If there is no table: no row could be predicted.
    """
    for grouping, groups in tables.items():
        print(
            f"\n{grouping:{width}s} {'rows':>7s} {'mean':>7s} {'median':>7s} {'p90':>7s} "
            f"{'bias':>7s} {'in 90 %':>8s}"
        )
        for name, group in groups.items():
            cells = [
                *(percentage(group[key], 1) for key in ("mape", "median", "p90")),
                percentage(group["bias"], 1, signed=True),
                "" if group["covered"] is None else f" {percentage(group['covered'], 1):>7}",
            ]
            line = f"{name:{width}s} {group['n']:7,d} " + " ".join(f"{cell:>7}" for cell in cells)
            print(line.rstrip())
    print_skipped(skipped.items())
    print(
        "\nmean, median, p90: of |predicted / measured - 1|; bias: its median with sign; in 90 %:\n"
        "share of rows within the model's stated 90 % interval"
    )
    if not tables:
        raise InputError(f"{model} can predict none of the rows: {next(iter(skipped))}")


def figures_of(tables: Tables, skipped: Mapping[str, int]) -> dict[str, Any]:
    """Tables of errors → what every validation writes as JSON: of all rows, and by group.

    Parameters
    ----------
    tables : Tables
        Errors by grouping and group, ``"all"`` among them.
    skipped : mapping of str to int
        Reasons why rows were left out, and how many.
    """
    everything = tables["all"]["all"]
    return {
        "predicted": everything["n"],
        "skipped": dict(sorted(skipped.items())),
        **{key: everything[key] for key in ("mape", "median", "p90", "covered")},
        "groups": {
            f"{grouping}={name}": group
            for grouping, groups in tables.items()
            for name, group in groups.items()
        },
    }
