"""Rows of a trace of one GPU → those of one training step.

A step is marked by ``ProfilerStep#N``, with what comes between it and the one before. Where no step
is marked, one lasts from a forward pass to the next that begins behind a backward pass.
"""

from __future__ import annotations

import numpy as np

from ..base.errors import InputError, TraceError
from ..operators.tensors import all_tensors
from ..program import Table
from ..results.step_times import step_times
from ..traces import Lowered
from ..traces.kineto import KinetoTrace
from ..traces.operator_calls import LaunchedCall
from .passes import Passes
from .whole import nodes_without_forward

__all__ = ["StepRows"]


class StepRows:
    """The steps of a trace, of which one is taken.

    Parameters
    ----------
    trace : KinetoTrace
    lowered : Lowered
        Its rows.
    names : tuple of str
        Of rows.
    passes : Passes
    calls : list of LaunchedCall
    notes : list of str
        Gets what was chosen.

    Attributes
    ----------
    measured : dict of int to int
        Number of a marked step → its time in ps.
    call_of : dict of int to int
        Operation of the device → number of the call that launched it.
    """

    def __init__(
        self,
        trace: KinetoTrace,
        lowered: Lowered,
        names: tuple[str, ...],
        passes: Passes,
        calls: list[LaunchedCall],
        notes: list[str],
    ) -> None:
        self.trace, self.lowered, self.passes = trace, lowered, passes
        self.table: Table = lowered.table
        self.measured = step_times(self.table, names, lowered.begin, lowered.end)
        self.calls, self.notes = calls, notes
        self.call_of = {op: i for i, call in enumerate(calls) for op in call.ops}

    def choose(self, step: int | None) -> tuple[int, np.ndarray]:
        """Return the number of a step, -1 where none is marked, and its rows."""
        path, marked = self.trace.path, sorted(s for s in self.measured if s >= 0)
        if marked:
            if step is None:
                known = [s for s in marked if self._has_shapes(self._rows_of(s))]
                by_time = sorted(known or marked, key=lambda s: (self.measured[s], s))
                step = by_time[(len(by_time) - 1) // 2]
                if len(marked) > 1:
                    self.notes.append(f"ProfilerStep#{step}, of median length among {len(marked)}")
            if step not in marked:
                raise InputError(
                    f"{path}: has no step {step}; it has {', '.join(map(str, marked))}"
                )
            return step, self._rows_of(step)
        rows = np.arange(len(self.table))
        cycles = self._cycles(rows)
        if len(cycles) == 1:
            if step is not None:
                raise InputError(f"{path}: marks no steps (ProfilerStep#N); --step names one")
            return -1, rows
        kinds = {self._backward_kernels(each) for each in cycles[1:-1] or cycles}
        if len(kinds) > 1:
            raise TraceError(
                f"{path}: forward and backward passes take turns {len(cycles)} times, and differ: "
                "of two models, or of a step in parts; one step of one model is needed (mark "
                "steps: profiler.step())"
            )
        known = [i for i, each in enumerate(cycles) if self._has_shapes(each)]
        known = known or list(range(len(cycles)))
        middle = known[len(known) // 2]
        self.notes.append(f"{len(cycles)} steps without marks; the {middle + 1}. is taken")
        return -1, cycles[middle]

    def _has_shapes(self, rows: np.ndarray) -> bool:
        """Whether calls in some rows have shapes: an execution trace has those of one step."""
        ops = [int(op) for op in self.lowered.op[rows] if op >= 0]
        calls = [self.calls[self.call_of[op]].call for op in ops if op in self.call_of]
        found = sum(next(all_tensors(call.inputs), None) is not None for call in calls)
        return 2 * found > len(calls)

    def _rows_of(self, step: int) -> np.ndarray:
        """Return the rows of a marked step, with what comes between it and the one before."""
        own = np.flatnonzero(self.table.step == step)
        before = np.flatnonzero(self.table.step == step - 1)
        first = int(before[-1]) + 1 if len(before) and before[-1] < own[0] else int(own[0])
        return np.arange(first, int(own[-1]) + 1)

    def _cycles(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return rows cut where a forward pass begins behind a backward one."""
        cuts, behind = [0], False
        for place, row in enumerate(rows.tolist()):
            op = int(self.lowered.op[row])
            if op < 0:
                continue
            kind = self.passes.of(op, after_backward=behind)
            if kind == "forward" and behind:
                cuts.append(place)
                behind = False
            behind |= kind == "backward"
        return [part for part in np.split(rows, cuts[1:]) if len(part)]

    def _backward_kernels(self, rows: np.ndarray) -> int:
        """Return how many kernels of the backward pass a cycle has."""
        ops = [int(op) for op in self.lowered.op[rows] if op >= 0]
        return sum(self.passes.of(op, after_backward=False) == "backward" for op in ops)

    def check_one_pass(self, rows: np.ndarray) -> None:
        """Refuse a step of several backward passes, or without all of its forward pass."""
        passes = sum(self._backward_kernels(each) > 0 for each in self._cycles(rows))
        if passes > 1:
            raise TraceError(
                f"{self.trace.path}: the step that is taken has {passes} forward and backward "
                "passes that take turns: of several models, or of micro-batches whose gradients "
                "are added up; a step of one model with one pass each is needed"
            )
        lost = nodes_without_forward(
            self.passes, [int(op) for op in self.lowered.op[rows] if op >= 0]
        )
        if lost:
            raise TraceError(
                f"{self.trace.path}: {lost} kernels of the backward pass belong to forward "
                "operators that are not in the trace: layers are missing; recording has to begin "
                "before the step does"
            )

    def ends_on_host(self, number: int) -> bool:
        """Whether a step lasts until the CPU is done with it, too: the only one that is marked."""
        return number >= 0 and len([s for s in self.measured if s >= 0]) == 1

    def ahead(self, rows: np.ndarray, number: int) -> int:
        """Return how long the CPU has been at a step when the device ends the one before, in ps.

        Where steps follow each other, one lasts from the end of the one before on the device. What
        the CPU does for it until then is no part of its time.
        """
        if number < 0:  # a recording without marks begins with its first kernel
            first = int(rows[self.table.is_device[rows]][0])
            began = self.passes.launched.get(int(self.lowered.op[first]))
            return 0 if began is None else max(0, int(self.lowered.begin[first]) - began)
        before = np.flatnonzero(self.table.is_device & (self.table.step == number - 1))
        if not len(before):
            return 0
        row = int(rows[0])
        op = int(self.lowered.op[row])
        began = self.passes.launched.get(op) if op >= 0 else int(self.lowered.begin[row])
        if began is None:
            return 0
        ahead = int(self.lowered.end[before].max()) - (began - int(self.table.host[row]))
        if ahead > 0:
            self.notes.append(
                f"the CPU is {ahead / 1e9:.1f} ms ahead of the device where the step begins, as in "
                "the trace"
            )
        return max(0, ahead)
