"""Tables of measured pairs: a kernel alone, a communication alone, and both at the same time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..base.csv_files import CsvRow, read_table
from ..base.errors import InputError, nearest, one_of
from ..base.frozen import frozen
from ..base.text import shortened
from ..kernels import find_gpu
from ..kernels.analytical.families import FORMULA_OF_FAMILY
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.slowdown.constants import class_of_family
from ..program import Operation
from ..topo.nccl.constants import PROTOCOLS
from ..topo.network import bus_factor
from ..topo.traffic.transfers import NCCL_ALGORITHMS

__all__ = ["COLLECTIVES", "Pairs", "read_pairs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLLECTIVES = tuple(
    each.name.lower().replace("_", "-")
    for each in Operation
    if each not in (Operation.NONE, Operation.BARRIER, Operation.UNKNOWN)
)

REQUIRED = (
    "gpu",
    "family",
    "kernel_us",
    "collective",
    "bytes",
    "ranks",
    "channels",
    "comm_us",
    "kernel_slowdown",
)
OPTIONAL = (
    "algorithm",
    "protocol",
    "sm",
    "dram",
    "occupancy",
    "l1_hit",
    "l2_hit",
    "tiles",
    "comm_slowdown",
)
SHARES = ("sm", "dram", "occupancy", "l1_hit", "l2_hit")

MAX_SLOWDOWN = 100.0
"""A larger factor is taken for a mistake in the table."""


@frozen(eq=False)
class Pairs:
    """Measured pairs, `n` of them; nan or -1: not measured.

    Attributes
    ----------
    source : str
        The file.
    gpu : tuple of str
        Name of the preset.
    kind : int64, shape (n,)
        Entry of `CLASSES` of the kernel's family.
    collective, algorithm, protocol : int64, shape (n,)
        Entries of `COLLECTIVES`, `NCCL_ALGORITHMS`, `PROTOCOLS`.
    columns : dict of str to float64, shape (n,)
        ``seconds`` of the kernel alone and ``comm_seconds`` of the communication; ``sm``, ``dram``,
        ``occupancy``, ``l1_hit``, ``l2_hit`` (shares); ``tiles``; ``bytes``, ``ranks``,
        ``channels``; ``sent`` (bytes that each GPU sends); ``kernel_slowdown``, ``comm_slowdown``.
    machines : dict of str to GpuParameters
    """

    source: str
    gpu: tuple[str, ...]
    kind: Ints
    collective: Ints
    algorithm: Ints
    protocol: Ints
    columns: dict[str, Floats]
    machines: dict[str, GpuParameters]

    def __len__(self) -> int:
        return len(self.gpu)


def read_pairs(path: str | Path) -> Pairs:
    """Read a table of pairs from a CSV file.

    Parameters
    ----------
    path : str or Path
        CSV with a header; docs/overlap.md describes the columns.

    Raises
    ------
    InputError
        Naming the file, the row and the column.
    """
    rows = _rows(path)
    machines: dict[str, GpuParameters] = {}
    gpus, kinds, names = [], [], []
    columns: dict[str, list[float]] = {}
    for line, row in rows:
        where = f"{path}: row {line}"
        try:
            gpu = find_gpu(row["gpu"])
        except InputError as error:
            raise InputError(f"{where}, gpu: {error}") from error
        machine = GpuParameters.of(gpu)
        machines[machine.name] = machine
        gpus.append(machine.name)
        family = _one_of(row["family"], tuple(FORMULA_OF_FAMILY), where, "family")
        kinds.append(class_of_family(tuple(FORMULA_OF_FAMILY)[family]))
        collective = _one_of(row["collective"], COLLECTIVES, where, "collective")
        names.append(
            (
                collective,
                _one_of(
                    row.get("algorithm", ""), NCCL_ALGORITHMS, where, "algorithm", optional=True
                ),
                _one_of(row.get("protocol", ""), PROTOCOLS, where, "protocol", optional=True),
            )
        )
        numbers = _numbers(row, where)
        operation = Operation[COLLECTIVES[collective].upper().replace("-", "_")]
        numbers["sent"] = numbers["bytes"] * bus_factor(operation, int(numbers["ranks"]))
        for name, value in numbers.items():
            columns.setdefault(name, []).append(value)
    collectives, algorithms, protocols = np.array(names, np.int64).T
    found = {name: np.array(values) for name, values in columns.items()}
    return Pairs(
        str(path),
        tuple(gpus),
        np.array(kinds, np.int64),
        collectives,
        algorithms,
        protocols,
        found,
        machines,
    )


def _rows(path: str | Path) -> list[tuple[int, CsvRow]]:
    """Return the rows of a file with their line numbers."""

    def check(head: list[str]) -> None:
        known = (*REQUIRED, *OPTIONAL)
        for name in head:
            if name not in known:
                near = one_of(name, known)
                raise InputError(f"{path}: unknown column {shortened(name, 60)!r}{near}")
        for name in REQUIRED:
            if name not in head:
                raise InputError(f"{path}: column {name!r} is missing")

    return read_table(path, check).rows


def _one_of(
    text: str, choices: tuple[str, ...], where: str, column: str, *, optional: bool = False
) -> int:
    if optional and not text:
        return -1
    if text not in choices:
        raise InputError(
            f"{where}: {column} is {text!r}{nearest(text, choices)}; allowed: {', '.join(choices)}"
        )
    return choices.index(text)


def _numbers(row: CsvRow, where: str) -> dict[str, float]:
    found = {
        "seconds": _number(row, "kernel_us", where, 0, math.inf) * 1e-6,
        "comm_seconds": _number(row, "comm_us", where, 0, math.inf) * 1e-6,
        "bytes": _number(row, "bytes", where, 1, 1e15),
        "ranks": _number(row, "ranks", where, 2, 1e7),
        "channels": _number(row, "channels", where, 0, 1024),
        "tiles": _number(row, "tiles", where, 1, 1e12),
        "kernel_slowdown": _number(row, "kernel_slowdown", where, 0, MAX_SLOWDOWN),
        "comm_slowdown": _number(row, "comm_slowdown", where, 0, MAX_SLOWDOWN),
    }
    for name in ("seconds", "comm_seconds", "kernel_slowdown", "comm_slowdown"):
        if found[name] == 0:
            raise InputError(f"{where}: a time or a slowdown is 0; they are above 0")
    return found | {name: _number(row, name, where, 0, 1) for name in SHARES}


def _number(row: CsvRow, column: str, where: str, lowest: float, highest: float) -> float:
    """Return a number within limits; nan for an empty cell of an optional column."""
    text = row.get(column, "")
    if not text and column in OPTIONAL:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not lowest <= value <= highest or math.isinf(value):
        limits = f"{lowest:g} to {highest:g}" if highest < math.inf else f"{lowest:g} on"
        raise InputError(f"{where}: {column} is {text!r}; it must be a number from {limits}")
    return value
