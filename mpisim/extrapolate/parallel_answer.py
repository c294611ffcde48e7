"""Job of several ranks at another scale → text for people, figures for JSON, program.

`parallel.extrapolate_parallel` makes it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from ..base.frozen import frozen
from ..base.text import quantity
from ..program import UNPRICED, Operation, Program
from ..replay import Repriced
from .parallel_growth import Grown
from .parallel_structure import ParallelStructure, Traffic

__all__ = ["Extrapolated"]

MIN_WAITING_SHARE = 0.05
"""Of a step, from which on it is said that waiting for missing ranks is left out."""

MAX_KINDS_SHOWN = 3
"""Sorts of communications of an axis that are shown; the rest is counted."""


@frozen
class Extrapolated:
    """A job at another scale, ready to be simulated; equal on every process.

    Attributes
    ----------
    structure : ParallelStructure
        Of the recorded job.
    program : Program
        Of the new one; as recorded if nothing is changed.
    network : Network, optional
        That prices what has no duration; None if nothing is changed.
    grown : Grown, optional
    recorded, step : float
        Seconds of the step as replayed, and of the new job's.
    uncertainty : float
        Relative; nine of ten such predictions should be within.
    attributes : dict
        For results: uncertainty, assumptions, what is not modelled.
    kernels : Repriced, optional
        Where they run on another GPU.
    """

    structure: ParallelStructure
    program: Program
    network: Any
    grown: Grown | None
    recorded: float
    step: float
    uncertainty: float
    attributes: dict[str, Any] = field(default_factory=dict)
    kernels: Repriced | None = None

    @property
    def text(self) -> str:
        """The structure found, and what became of it, for people."""
        structure = self.structure
        grid = f"{structure.text}, the innermost axis first" if structure.axes else "none: one rank"
        lines = [f"parallel structure  {grid}"]
        for name in dict.fromkeys(each.axes for each in structure.traffic):
            own = [each for each in structure.traffic if each.axes == name]
            lines.append(f"  {name:16s}  {_groups_of(structure, name)}{'; '.join(_said(own))}")
        lines += [f"  assumed: {note}" for note in structure.notes]
        if self.grown is not None:
            axes = ",".join(f"{axis.name}={axis.size}" for axis in self.grown.axes)
            lines.append(
                f"new job             {axes}, {self.program.n_ranks:,} ranks: "
                f"{self.step * 1e3:,.3f} ms in place of {self.recorded * 1e3:,.3f} ms "
                f"({(self.step / self.recorded - 1) * 100:+.2f} %)"
            )
            before, after = self.grown.waited
            if before - after > MIN_WAITING_SHARE * self.recorded:
                lines.append(
                    "  left out: communications with ranks that have no file took "
                    f"{before * 1e3:,.3f} ms in all, priced {after * 1e3:,.3f} ms: the rest they "
                    "waited for those ranks, or for a network slower than modelled; files of more "
                    "ranks tell"
                )
        return "\n".join(lines)

    def priced_program(self) -> Program:
        """Return the program with the time that each communication takes for itself."""
        if self.network is None:
            return self.program
        program, groups = self.program, self.program.communicators
        label, classes = self.network.group_classes(
            groups.index, groups.members, program.operation_bits
        )
        tables = list(program.tables)
        first = np.unique(program.table, return_index=True)[1]
        for rank in first.tolist():
            table = program.table_of(rank)
            own, duration = program.slots_of(rank), table.duration.copy()
            for row in np.flatnonzero(duration == UNPRICED).tolist():
                group = classes[int(label[own[table.slot[row]]])]
                operation = Operation(int(table.operation[row]))
                price = self.network.price(operation, int(table.bytes[row]), group)
                duration[row] = price.duration
            tables[program.table[rank]] = table.replace(duration=duration)
        return program.replace(tables=tuple(tables))

    @property
    def figures(self) -> dict[str, Any]:
        """The same for JSON; times in seconds, sizes in bytes."""
        grown = self.grown
        return {
            "structure": {
                "axes": [
                    {"name": a.name, "size": a.size, "stride": a.stride, "unseen": a.unseen}
                    for a in self.structure.axes
                ],
                "traffic": [
                    {
                        "axes": each.axes,
                        "operation": _word(each.operation),
                        "bytes": each.bytes,
                        "count": each.count,
                        "ranks": each.ranks,
                    }
                    for each in self.structure.traffic
                ],
            },
            "recorded_step": self.recorded,
            "kernels": {}
            if self.kernels is None
            else {
                "recorded_on": self.kernels.recorded.title,
                "gpu": self.kernels.gpu.title,
                "before": self.kernels.before,
                "after": self.kernels.after,
                "by_shape": self.kernels.share("scaled"),
                "error": self.kernels.error,
            },
            "new_axes": {} if grown is None else {a.name: a.size for a in grown.axes},
            "repriced": {} if grown is None else grown.repriced,
            "measured_over_model": {}
            if grown is None
            else {
                where: {"median": ratio, "spread": spread, "sorts": count}
                for where, (ratio, spread, count) in grown.ratios.items()
            },
        }


def _groups_of(structure: ParallelStructure, name: str) -> str:
    axis = next((a for a in structure.axes if a.name == name), None)
    return "" if axis is None else f"{axis.size} ranks, {axis.stride} apart: "


def _said(traffic: list[Traffic]) -> list[str]:
    """Traffic of groups → lines, the most bytes first."""
    said = []
    for each in sorted(traffic, key=lambda t: -t.bytes * t.count)[:MAX_KINDS_SHOWN]:
        size = "unknown size" if each.bytes < 0 else _size(each.bytes)
        said.append(f"{each.count:,} {_word(each.operation)} of {size}")
    more = len(traffic) - MAX_KINDS_SHOWN
    return [*said, *([f"{more} smaller sorts"] if more > 0 else [])]


def _word(operation: Operation) -> str:
    return operation.name.lower().replace("_", "-")


def _size(bytes: int) -> str:
    return quantity(bytes, "B", 1024)
