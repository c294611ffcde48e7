"""Are steps composed of their layers as rows of trust F say?

These rows (vTrain's on one node) are no measurements of whole steps: times of single layers were
measured, and a formula for 1F1B made steps of them,

    step = m (L/p a + s + c) + (p - 1) (L/p a + s) + optimizer + all-reduce

with m micro-batches, L layers on p stages, and for one micro-batch, forward and backward, a the
time of a layer, s of sending it from stage to stage, c of what the last stage does besides. a, s,
c, what a single stage does more, and the small terms (what grows with layers a stage and what does
not, once a step and with the share (d - 1) / d that a ring moves among d replicas) are read from
the rows of one width, tensor parallelism and micro-batch by least squares.
Then a program is written in which each stage works through `mpisim.schedules`' 1F1B with
these times, the engine runs it, and what comes out is compared with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import engine
from ...base.errors import InputError
from ...base.quantity import PICOSECONDS, picoseconds
from ...base.text import aligned, percentage
from ...program import Kind, Phase, Program, ProgramBuilder, TableBuilder
from ...schedules import pipeline
from .rows import Row, read

__all__ = ["Composed", "composed", "composition"]

REPRODUCED_ERROR = 0.01
"""Relative error within which a step counts as the composition of its layers."""

FORWARD_SHARE = 0.25
"""Share of a stage's work that the forward pass takes: it is recomputed, and the backward pass does
twice its work. Where 1F1B is full the sum alone matters."""

KERNEL_STREAM, ACTIVATION_STREAM, GRADIENT_STREAM = 0, 1, 3
"""Streams: kernels; sends and receives, two each, of activations and of gradients."""

NEEDED = ("layers", "hidden", "tp", "pp", "dp", "micro_batch", "global_batch")


class Composed(NamedTuple):
    """A row, its group, and the step that the engine made of the group's times, in seconds."""

    row: Row
    group: tuple[int, int, int]
    seconds: float

    @property
    def error(self) -> float:
        """Relative, signed."""
        assert self.row.seconds is not None
        return self.seconds / self.row.seconds - 1


class _Shape(NamedTuple):
    """Terms of which the step of a row is the sum."""

    stages: int
    layers: float
    micro_batches: int
    replicas: int

    @property
    def terms(self) -> list[float]:
        """What a, s, c, what one stage does more, and the small terms are multiplied by."""
        ring, turns = 1 - 1 / self.replicas, self.micro_batches + self.stages - 1
        alone = self.stages == 1
        one, several = (self.micro_batches, 0) if alone else (0, turns)
        small = [self.layers, 1.0, ring * self.layers, ring]
        return [self.layers * turns, several, self.micro_batches, one, *small]


def composition(path: str | Path) -> str:
    """Table of published steps → table of errors of steps composed from times of layers.

    Only rows of trust F are used: a formula made them, so that composition should reproduce them.

    Parameters
    ----------
    path : str or Path
        Table of steps, CSV.

    Returns
    -------
    str
        Lines by hidden size, degree of tensor parallelism and micro-batch.

    Raises
    ------
    InputError
        If the table cannot be read, or no row of trust F has what is needed.
    """
    found = composed([row for row in read(path) if row.texts["trust"] == "F"])
    if not found:
        raise InputError(f"{path}: no row of trust F has {', '.join(NEEDED)} and a step time")
    cells: list[Sequence[str]] = [
        ("hidden, tp, micro-batch", "rows", "mean", "p90", "worst", "within 1 %")
    ]
    groups: dict[str, list[Composed]] = {}
    for each in found:
        groups.setdefault(", ".join(map(str, each.group)), []).append(each)
    for name, group in [*groups.items(), ("all", found)]:
        errors = np.abs([each.error for each in group])
        cells.append(
            (
                name,
                str(len(group)),
                percentage(errors.mean(), 2),
                percentage(np.quantile(errors, 0.9), 2),
                percentage(errors.max(), 2),
                percentage((errors <= REPRODUCED_ERROR).mean()),
            )
        )
    return "\n".join(aligned(cells)) + "\nof |composed / row - 1|; times of layers from the rows"


def composed(rows: Sequence[Row]) -> list[Composed]:
    """Rows of steps → steps composed from the times that each group of rows implies for its layers.

    Parameters
    ----------
    rows : sequence of Row
        Those that lack one of `NEEDED` or a step time are left out.

    Returns
    -------
    list of Composed
        By group, in order of hidden size, degree of tensor parallelism and micro-batch.
    """
    groups: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        known = row.integers
        if row.seconds is not None and all(name in known for name in NEEDED):
            key = known["hidden"], known["tp"], known["micro_batch"]
            groups.setdefault(key, []).append(row)
    return [
        Composed(row, group, _seconds(_shape(row), times))
        for group, members in sorted(groups.items())
        for times in [_times(members)]
        for row in members
    ]


def _shape(row: Row) -> _Shape:
    known = row.integers
    batch = known["dp"] * known["micro_batch"]
    return _Shape(
        known["pp"], known["layers"] / known["pp"], known["global_batch"] // batch, known["dp"]
    )


def _times(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return what `_Shape.terms` multiply, in seconds, from relative errors; none is negative."""
    from scipy.optimize import nnls

    measured = np.array([row.seconds for row in rows], float)
    terms = np.array([_shape(row).terms for row in rows])
    found, _ = nnls(terms / measured[:, None], np.ones(len(rows)))
    return np.asarray(found)


def _seconds(shape: _Shape, times: NDArray[np.float64]) -> float:
    """Shape of a step, times of its parts → seconds of the step, simulated."""
    layer, sending, last, alone = times[:4].tolist()
    several = shape.stages > 1
    work = shape.layers * layer + (sending if several else alone)
    after = float(np.dot(shape.terms[4:], times[4:]))
    return engine.simulate(_program(shape, work, last, after)).step_time / PICOSECONDS


def _program(shape: _Shape, work: float, last: float, after: float) -> Program:
    """Return one pipeline as a program; times in seconds.

    A stage and what the last does besides have a time for one micro-batch, what follows all of
    them a time for the step.
    """
    program = ProgramBuilder()
    laid = pipeline("1f1b", shape.stages, shape.micro_batches)
    for stage, actions in enumerate(laid.actions):
        whole = work + (last if stage == shape.stages - 1 else 0.0)
        rows = program.table(f"stage {stage}")
        slots: list[int] = []
        for action in actions:
            forward = action.phase is Phase.FORWARD
            share = FORWARD_SHARE if forward else 1 - FORWARD_SHARE
            ahead, behind = stage < shape.stages - 1, stage > 0
            takes, gives = (behind, ahead) if forward else (ahead, behind)
            stream = ACTIVATION_STREAM if forward else GRADIENT_STREAM
            step = 1 if forward else -1
            name = action.phase.name.lower()
            waits = []
            if takes:
                pair = program.communicator((stage - step, stage), name)
                waits = [_message(rows, Kind.RECV, _slot(slots, pair), stream, ())]
            kernel = rows.kernel(name, KERNEL_STREAM, picoseconds(share * whole), waits=waits)
            if gives:
                pair = program.communicator((stage, stage + step), name)
                _message(rows, Kind.SEND, _slot(slots, pair), stream + 1, (kernel,))
        rows.kernel("optimizer", KERNEL_STREAM, picoseconds(after))
        program.add_rank(program.add_table(rows.build()), slots)
    return program.build()


def _slot(slots: list[int], communicator: int) -> int:
    if communicator not in slots:
        slots.append(communicator)
    return slots.index(communicator)


def _message(rows: TableBuilder, kind: Kind, slot: int, stream: int, waits: tuple[int, ...]) -> int:
    """Append a message that takes no time."""
    return rows.point_to_point(kind, slot, stream, 0, duration=0, waits=waits)
