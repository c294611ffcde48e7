"""Kineto trace of one GPU, with shapes → a traced step.

Which rows there are, what the CPU takes between them and where it waits is what a replay of the
trace has (:mod:`mpisim.traces`); what each kernel computes is what the table of operators says of
its call (:mod:`mpisim.traces.operator_calls`). Here both are joined, and sorted into passes and
layers (which of a trace's rows are the step: `.step_rows`):

forward
    What the CPU launched outside of ``autograd::engine``. Autograd numbers the nodes it makes; an
    operator makes those from the number that it records up to that of the operator after it.
backward
    Inside ``autograd::engine::evaluate_function``: of the forward operator that made the node.
parameters
    Each ``AccumulateGrad`` is the gradient of one, complete as the node before it has run. So the
    trace says which gradients there are, how large, and in which order they come, whatever the
    model.
optimizer
    Inside ``Optimizer.step`` or ``Optimizer.zero_grad``, or behind the backward pass and without a
    number of autograd.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ..base.errors import InputError, TraceError, UsageError
from ..base.presets import SUFFIX
from ..kernels import find_gpu, gpu_name
from ..kernels.operations import Copy, Elementwise, Kernel
from ..operators import OperatorCall
from ..operators.tensors import all_tensors
from ..program import Kind, Table
from ..traces import Lowered, Source, find_sources, read_program
from ..traces.et_shapes import execution_trace_beside, has_shapes, with_shapes_of
from ..traces.gradients import EVALUATE, is_backward
from ..traces.host import copy_path
from ..traces.kineto import KinetoTrace
from ..traces.modules import module_paths
from ..traces.operator_calls import (
    LaunchedCall,
    launched_calls,
    recorded_inputs,
)
from ..traces.read import read_source
from .optimizer_share import list_call
from .passes import ACCUMULATE, Passes
from .roles import activations, described
from .step import (
    TracedKernel,
    TracedOperator,
    TracedParameter,
    TracedStep,
    TracedTask,
    TracedWait,
    taken_as_one_stream,
)
from .step_rows import StepRows
from .whole import check_end, check_whole

LOADERS: Mapping[str, Literal["process", "workers"]] = {
    "_SingleProcessDataLoaderIter.__next__": "process",
    "_MultiProcessingDataLoaderIter.__next__": "workers",
}
"""In the names of what a ``DataLoader`` is annotated with, without workers and with them."""

__all__ = ["read_kineto_step"]


def read_kineto_step(
    path: Path | str,
    *,
    gpu: str | None = None,
    step: int | None = None,
    batch: int | None = None,
    execution_trace: Path | str | None = None,
) -> TracedStep:
    """Read one step from a trace of one GPU. Local.

    Parameters
    ----------
    path : Path or str
        A Kineto trace or an Nsight Systems export, or a folder with one.
    gpu, step, batch, execution_trace
        As of `mpisim.extrapolate.read.read_step`.

    Raises
    ------
    TraceError
        If the file cannot be read, or lacks what a step is made of; the message says what.
    InputError
        If the GPU is not known, or the trace is of another than `gpu`.
    """
    from mpi4py import MPI

    sources = find_sources([path])
    if len(sources) != 1:
        raise InputError(f"{path}: traces of {len(sources)} ranks; one is read here")
    source = sources[0]
    trace = read_source(source)
    check_whole(trace, source)
    trace, notes = _with_shapes(trace, source, execution_trace)
    calls = launched_calls(trace)  # says where shapes are missing
    traced = read_program(sources, MPI.COMM_SELF, np.zeros(1, np.int32))
    lowered = traced.facts[0].lowered
    names = traced.program.names
    reader = _Reader(trace, lowered, names, calls, notes)
    chosen = reader.steps.choose(step)
    name, assumed = _gpu_of(trace, gpu)
    notes += assumed
    return reader.step(chosen, name, batch)


def _with_shapes(
    trace: KinetoTrace, source: Source, given: Path | str | None
) -> tuple[KinetoTrace, list[str]]:
    """Return a trace with shapes, if need be of an execution trace, and where they are from."""
    if has_shapes(trace):
        if given is not None:
            raise UsageError(f"{given}: not needed, since {trace.path} records shapes itself")
        if source.process >= 0:
            return trace, [
                "NVTX ranges record no types of tensors: all are taken for fp32, and parameters, "
                "bytes of collectives and kernel models rest on that"
            ]
        return trace, []
    path = execution_trace_beside(trace.path) if given is None else Path(given)
    if path is None:
        return trace, []
    trace, link = with_shapes_of(trace, path)
    return trace, [f"shapes from {path}, {link.describe()}"]


def _gpu_of(trace: KinetoTrace, given: str | None) -> tuple[str, list[str]]:
    """Trace, and what it is said to be of → name of its GPU, and what was assumed.

    Raises
    ------
    InputError
        If the GPU is not known, or the trace says that it is of another than `given`.
    """
    said = trace.device_name
    name = repr(said) if said else "a GPU it does not name"
    try:
        recorded = gpu_name(said) if said else None
    except InputError:
        recorded = None
    if given is None:
        if recorded is None:
            raise InputError(
                f"{trace.path}: recorded on {name}, which is not in mpisim list gpus; "
                "--traced-gpu says which it is"
            )
        return recorded, []
    gpu, sms = gpu_name(given), find_gpu(given).sms
    if recorded is not None and not given.endswith(SUFFIX) and gpu != recorded:
        raise InputError(
            f"{trace.path}: recorded on {said!r}, which is {recorded}, and is said to be of {gpu}"
        )
    if sms and trace.multiprocessors and sms != trace.multiprocessors:
        raise InputError(
            f"{trace.path}: recorded on {said!r} with {trace.multiprocessors} multiprocessors, and "
            f"is said to be of {gpu}, which has {sms}"
        )
    if recorded == gpu:
        return gpu, []
    return gpu, [f"{trace.path} was recorded on {name}: as on {gpu}"]


@dataclass
class _Forward:
    """A forward operator while it is collected."""

    call: LaunchedCall | None
    time: int
    sequence: int
    forward: list[TracedTask] = field(default_factory=list)
    backward: list[TracedTask] = field(default_factory=list)
    completed: list[TracedParameter] = field(default_factory=list)


class _Reader:
    """One trace, of which a step is taken.

    Parameters
    ----------
    trace : KinetoTrace
    lowered : Lowered
        Its rows.
    names : tuple of str
        Of rows.
    calls : list of LaunchedCall
    notes : list of str
        What the step rests on; what is found is added.
    """

    def __init__(
        self,
        trace: KinetoTrace,
        lowered: Lowered,
        names: tuple[str, ...],
        calls: list[LaunchedCall],
        notes: list[str],
    ) -> None:
        self.trace, self.lowered, self.names = trace, lowered, names
        self.table: Table = lowered.table
        self.calls = calls
        self.passes = Passes(trace)
        self.steps = StepRows(trace, lowered, names, self.passes, calls, notes)
        self._call_of, self._launched = self.steps.call_of, self.passes.launched
        self.notes = notes
        self._bandwidth = 0.0
        self._zeroing: list[TracedTask] = []
        self._zeroing_at = 0
        self._loader: Literal["", "process", "workers"] = ""

    def step(self, chosen: tuple[int, np.ndarray], gpu: str, batch: int | None) -> TracedStep:
        """Return the step that some rows are of."""
        number, rows = chosen
        ops = [int(op) for op in self.lowered.op[rows] if op >= 0]
        check_end(self.passes, ops, f"ProfilerStep#{number}" if number >= 0 else "")
        self._check_streams(rows)
        self.steps.check_one_pass(rows)
        self._bandwidth = find_gpu(gpu).bandwidth.si
        found, optimizer = self._sorted(rows, number)
        self._parameters(found, rows)
        parameters = {each.shape for one in found for each in one.completed}
        operators = [self._operator(each, parameters) for each in found]
        paths = module_paths(self.trace, np.array([each.time for each in found], np.int64))
        source = str(self.trace.path)
        known = described(operators, paths, self._described, parameters, batch, source)
        measured = self.steps.measured.get(number) if number >= 0 else None
        if measured is None:
            on_device = rows[self.table.is_device[rows]]
            measured = int(self.lowered.end[on_device].max() - self.lowered.begin[on_device].min())
        return TracedStep(
            source=source,
            gpu=gpu,
            batch=known.samples,
            operators=known.operators,
            optimizer=tuple(optimizer),
            measured=measured,
            zeroing=tuple(self._zeroing),
            zeroing_at=self._zeroing_at,
            accumulates=self._accumulates(rows),
            sequence=known.sequence,
            embedding=known.embedding,
            head=known.head,
            notes=tuple(self.notes),
            loader=self._loader,
        )

    def _check_streams(self, rows: np.ndarray) -> None:
        """Refuse a step whose kernels run side by side."""
        on_device = rows[self.table.is_device[rows]]
        times = np.bincount(self.table.stream[on_device], weights=self.table.duration[on_device])
        self.notes += taken_as_one_stream(times.tolist(), str(self.trace.path))

    def _sorted(self, rows: np.ndarray, number: int) -> tuple[list[_Forward], list[TracedTask]]:
        """Return forward operators with the tasks of their passes, and the optimizer's tasks."""
        found: list[_Forward] = []
        optimizer: list[TracedTask] = []
        begins: list[int] = []
        target: list[TracedTask] | None = None
        launched: dict[int, tuple[list[TracedTask], int]] = {}
        early: list[TracedTask] = []
        host, behind, at = 0, False, -1
        table = self.table
        ahead = self.steps.ahead(rows, number)
        if number < 0:  # a recording without marks is as long as its device is at work
            on_device = np.flatnonzero(table.is_device[rows])
            rows = rows[on_device[0] : on_device[-1] + 1]
        for row in rows.tolist():
            kind, op = Kind(int(table.kind[row])), int(self.lowered.op[row])
            before = host + int(table.host[row])
            if number < 0 and row == rows[0]:
                before = 0  # the recording begins here
            elif op < 0 and kind is not Kind.HOST:
                before, ahead = max(0, before - ahead), 0
            elif ahead:
                before, ahead = max(0, before - ahead), max(0, ahead - before)
            if kind is Kind.HOST:
                host = before + int(table.launch_cost[row])
                continue
            if op < 0:
                task: TracedTask = TracedWait(
                    self.names[table.name[row]],
                    before,
                    int(table.launch_cost[row]),
                    self._kept(row, launched),
                )
                (early if target is None else target).append(task)
                host = 0
                continue
            what = self.passes.of(op, after_backward=behind)
            if what == "forward" and not behind:
                call = self._call_of.get(op)
                known = None if call is None else self.calls[call]
                if not found or known is None or found[-1].call is not known:
                    sequence = max(self.passes.first_number(op), begins[-1] if begins else -1)
                    found.append(_Forward(known, self._launched.get(op, 0), sequence, early))
                    begins.append(sequence)
                    early = []
                target = found[-1].forward
            elif what == "backward":
                if not found:
                    raise TraceError(
                        f"{self.trace.path}: the step begins with a backward pass; its forward "
                        "pass was not recorded"
                    )
                node = self.passes.node(op)
                last = at if behind else len(found) - 1
                at = last if node < 0 else min(last, max(0, bisect_right(begins, node) - 1))
                behind = True
                target = found[at].backward
            else:
                if behind:
                    target = optimizer
                else:
                    target = self._zeroing
                    self._zeroing_at = len(found)
            first = number < 0 and row == rows[0]
            kernel = self._kernel(row, op, before, first)
            if len(found) == 1 and target is found[0].forward and not behind:
                kernel = replace(kernel, loading=self._loading(op, before))
            launched[row] = target, len(target)
            target.append(kernel)
            host = 0
        if not found:
            raise TraceError(f"{self.trace.path}: the step has no forward pass")
        if not behind:
            raise TraceError(f"{self.trace.path}: the step that is taken has no backward pass")
        if host and self.steps.ends_on_host(number):
            (optimizer or found[0].backward).append(TracedWait("end of step", host, 0))
        return found, optimizer

    def _kept(self, row: int, launched: Mapping[int, tuple[list[TracedTask], int]]) -> str:
        """Name the kernel that a wait is for, if it is not the latest of those launched.

        Parameters
        ----------
        row : int
            Of the wait.
        launched : mapping of int to (list of TracedTask, int)
            Rows of kernels of the step so far → where their task is; that of the kernel gets the
            name.
        """
        index = self.table.wait_index
        waits = self.table.wait_row[index[row] : index[row + 1]].tolist()
        awaited = max((each for each in waits if each in launched), default=None)
        if awaited is None or awaited == max(launched):
            return ""
        tasks, place = launched[awaited]
        kernel = tasks[place]
        assert isinstance(kernel, TracedKernel)
        name = kernel.kept or f"row {awaited}"
        tasks[place] = replace(kernel, kept=name)
        return name

    def _loading(self, op: int, host: int) -> int:
        """Of the CPU's time before a launch, what it was in a data loader, in ps.

        ``DataLoader`` without workers fetches and collates in the training process, sample by
        sample, and with workers waits for their next batch, inside an annotation of its own
        (torch/utils/data/dataloader.py).
        """
        launched = self._launched.get(op)
        if launched is None:
            return 0
        found = 0
        for spans in (self.trace.operators, self.trace.annotations):
            for i, name in enumerate(spans.name):
                kind = next((kind for each, kind in LOADERS.items() if each in name), None)
                if kind is None:
                    continue
                begin, end = max(int(spans.begin[i]), launched - host), int(spans.end[i])
                if min(end, launched) - begin > found:
                    found, self._loader = min(end, launched) - begin, kind
        return found

    def _kernel(self, row: int, op: int, host: int, first: bool) -> TracedKernel:
        """Return a row of the device; the first of a recording without marks starts at once."""
        table, call = self.table, self._call_of.get(op)
        kernels: tuple[Kernel, ...] = ()
        known, name, duration = False, "copy", int(table.duration[row])
        if call is not None:
            launched = self.calls[call]
            kernels, known = launched.launched.kernels, launched.launched.known
            name = launched.call.name
        if table.kind[row] == Kind.COPY and table.bytes[row] > 0:
            # The shapes of `copy_` do not tell that the host's memory is one end.
            path = copy_path(self.names[table.name[row]])
            if call is None or path == "host":
                kernels, known = (Copy(int(table.bytes[row]), path),), True
        if not kernels:  # as if memory set its pace
            size = round(duration * 1e-12 * self._bandwidth)
            kernels, known = (Elementwise(bytes=max(1, size)),), False
        return TracedKernel(
            name=self.names[table.name[row]],
            operator=name,
            call=-1 - op if call is None else call,
            duration=duration,
            kernels=kernels,
            known=known,
            host=host,
            launch=0 if first else int(table.launch[row]),
            launch_cost=int(table.launch_cost[row]),
            gap=int(table.gap[row]),
            lists=None if call is None else list_call(self.calls[call].call),
        )

    def _parameters(self, found: list[_Forward], rows: np.ndarray) -> None:
        """Give each forward operator the parameters whose gradients its node completes."""
        operators = self.trace.operators
        ops = [int(op) for op in self.lowered.op[rows] if op >= 0]
        times = [self._launched[op] for op in ops if op in self._launched]
        begin, end = min(times, default=0), self._until(max(times, default=0), set(ops))
        begins, at = [each.sequence for each in found], len(found) - 1
        for i, name in enumerate(operators.name):
            if not begin <= int(operators.begin[i]) < end:
                continue
            args = operators.args[i]
            if name == ACCUMULATE:
                given = [] if args is None else list(all_tensors(recorded_inputs(args)))
                if given:
                    found[at].completed.append(TracedParameter(given[0].shape, given[0].dtype))
                continue
            sequence = -1 if args is None or args.sequence is None else args.sequence
            if sequence >= 0 and (name.startswith(EVALUATE) or is_backward(name)):
                at = min(at, max(0, bisect_right(begins, sequence) - 1))
        if not any(each.completed for each in found):
            raise TraceError(
                f"{self.trace.path}: the step that is taken accumulates no gradient with a shape; "
                "profile a whole step with record_shapes=True"
            )

    def _described(self, call: int) -> tuple[OperatorCall, Sequence[Kernel]]:
        """Return a call, by its number, and its kernels."""
        return self.calls[call].call, self.calls[call].launched.kernels

    def _accumulates(self, rows: np.ndarray) -> bool:
        """Whether accumulating gradients launches kernels."""
        names = self.trace.operators.name
        return any(
            names[i].endswith(ACCUMULATE)
            for op in self.lowered.op[rows].tolist()
            if op >= 0
            for i in self.passes.chains.get(op, ())
        )

    def _until(self, last: int, ops: set[int]) -> int:
        """Return when the next step begins to launch."""
        later = [at for op, at in self._launched.items() if at > last and op not in ops]
        return min(later, default=int(np.iinfo(np.int64).max))

    def _operator(self, each: _Forward, parameters: set[tuple[int, ...]]) -> TracedOperator:
        call = OperatorCall("copy", ()) if each.call is None else each.call.call
        output = next(all_tensors(call.outputs), None)
        statistics = 0
        if "batch_norm" in call.name and each.completed:
            statistics = each.completed[0].elements
        return TracedOperator(
            name=call.name,
            layer="",
            forward=tuple(each.forward),
            backward=tuple(each.backward),
            parameters=tuple(reversed(each.completed)),
            inputs=tuple(activations(call, [one.shape for one in each.completed])),
            output=output,
            statistics=statistics,
        )
