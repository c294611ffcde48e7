"""Threads of one process: ``torch.nn.DataParallel``, "standard" in TrioSim, and PyTorch's ``Pipe``.

In each step of ``DataParallel`` (torch/nn/parallel/data_parallel.py)

1. the batch is scattered, and the parameters and buffers of the first GPU are sent to the others,
   in pieces of 10 MiB (``broadcast_coalesced``);
2. a thread for each GPU runs the forward pass. They share one interpreter: what the CPU does for
   one GPU the others wait for. How much of that holds the interpreter's lock a trace does not say;
   all of it is taken to, so that forward passes that the CPU sets the pace of are an upper limit;
3. outputs are gathered on the first GPU, which computes the loss of the whole batch;
4. the backward pass runs in C++, a thread for each GPU; gradients are added up on the first GPU
   when all of them are there (``ReduceAddCoalesced`` is one node of autograd), beside nothing;
5. the optimizer updates the parameters of the first GPU. The others wait.

All ranks are written alike: what the first one does alone takes the others as long.

``Pipe`` (torch/distributed/pipeline/sync of PyTorch until 2.4) has a thread for each stage, which
runs the stage's forward passes. In one clock cycle (``_clock_cycles`` of pipeline.py) all stages
that have a micro-batch run theirs; the next cycle begins when they have launched all of it. With
the interpreter's lock m micro-batches on n stages take the CPU as long as all m × n forward passes
one after the other, in m + n - 1 cycles: in the mean a stage's forward pass takes
m × n / (m + n - 1) times as long as alone. The backward pass is that of a pipeline of processes,
and one optimizer updates the parameters of one stage after the other. Activations that the plan
computes again are those of all micro-batches but the last: ``checkpoint="except_last"``, which is
the default of ``Pipe``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..kernels.operations import BYTES
from ..kernels.recorded import Recorded
from ..program import COLUMNS, Operation, Phase, Program, Table
from ..workloads.data_parallel.frameworks import frameworks
from ..workloads.operators import Communicate, Compute, Layer, LayerStack, Operator, Task
from .network import passed_on
from .step import TracedStep

__all__ = ["SCHEDULE", "as_pipe", "as_threads", "check_threads", "last_is_kept"]

SCHEDULE = "gpipe"
"""The schedule of a pipeline whose stages are threads."""


def check_threads(keys: Mapping[str, Any], source: str) -> None:
    """Refuse keys of a plan that threads of one process do not have.

    Parameters
    ----------
    keys : mapping of str to object
        Of ``[plan]``. A pipeline without a schedule is to get `SCHEDULE`.
    source : str
        What messages call the plan.

    Raises
    ------
    InputError
        If there are other axes than ``dp`` or ``pp``, or both.
    """
    where = "threads of one process (--threads) have"
    pipeline = keys.get("pp", 1) != 1
    axes = ("vpp", "tp", "cp", "ep", "etp", "zero", "framework.dp_style")
    others = [key for key in axes if key in keys]
    if pipeline and keys.get("dp", 1) != 1:
        raise InputError(f"{source}: dp and pp are given; {where} one of both")
    if others or (not pipeline and "micro_batch" in keys):
        key = (*others, "micro_batch")[0]
        raise InputError(f"{source}: {key} is given; {where} dp or pp")
    schedule = keys.get("pipeline.schedule", SCHEDULE) if pipeline else SCHEDULE
    if schedule != SCHEDULE:
        raise InputError(f"{source}: pipeline.schedule is {schedule!r}; {where} {SCHEDULE!r}")


def as_threads(network: LayerStack, step: TracedStep, samples: float, gpus: int) -> LayerStack:
    """Network → the same, run by one of several threads of a process (DataParallel).

    Parameters
    ----------
    network : LayerStack
        With the batch of one GPU.
    step : TracedStep
        That it was made of: one operator each.
    samples : float
        Samples of one GPU, over those traced.
    gpus : int
    """
    if gpus == 1:
        return network
    element = BYTES[step.format]
    size = element * sum(each.elements for each in step.parameters)
    statistics = sum(8 * each.statistics for each in step.operators)
    given = round(passed_on(step.operators) * samples) * gpus
    loss = _loss(step)
    scores = round(passed_on(step.operators[loss:]) * samples) * gpus
    number, layers = 0, []
    last = len(step.operators) - 1
    for layer in network.layers:
        operators = []
        for each in layer.operators:
            forward = [_by_turns(task, gpus) for task in each.forward]
            backward = list(each.backward)
            if number == 0:
                pieces = [
                    *_pieces(Operation.BROADCAST, size),
                    *_pieces(Operation.BROADCAST, statistics),
                ]
                forward = [_send(Operation.SCATTER, "input", given), *pieces, *forward]
                backward += _pieces(Operation.REDUCE, size)
            if number == loss <= last and scores:
                forward = [_send(Operation.GATHER, "output", scores), *forward]
                backward.append(_send(Operation.SCATTER, "output gradient", scores))
            operators.append(_without_parameters(each, forward, backward))
            number += 1
        layers.append(
            Layer(layer.name, tuple(operators), layer.role, layer.output, layer.checkpoint)
        )
    return replace(network, layers=tuple(layers), size=0)


def as_pipe(network: LayerStack, stages: int, micro_batches: int) -> LayerStack:
    """Network, stages → pipeline whose stages are threads of one process (Pipe).

    Parameters
    ----------
    network : LayerStack
        Of one stage, with the CPU to itself.
    stages, micro_batches : int
        Of the pipeline.
    """
    active = micro_batches * stages / (micro_batches + stages - 1)
    layers = tuple(
        replace(
            layer,
            operators=tuple(
                replace(each, forward=tuple(_by_turns(task, active) for task in each.forward))
                for each in layer.operators
            ),
        )
        for layer in network.layers
    )
    update = network.optimizer
    if update is None:
        return replace(network, layers=layers)

    def by_turns(share: float) -> tuple[Task, ...]:
        return tuple(_by_turns(task, stages) for task in update(share))

    return replace(network, layers=layers, optimizer=by_turns)


def last_is_kept(program: Program) -> Program:
    """Pipeline with recomputation → without that of the last micro-batch, as `Pipe` does.

    Parameters
    ----------
    program : Program
        Of a pipeline that exchanges nothing but activations and their gradients.
    """
    return program.replace(
        tables=tuple(None if table is None else _last_is_kept(table) for table in program.tables)
    )


def _last_is_kept(table: Table) -> Table:
    """Leave out the kernels that compute the last micro-batch's activations again.

    What waited for one of them waits for what that one waited for, and for the row before it on its
    stream; so does the next row of the stream for the former.
    """
    last = table.micro_batch == table.micro_batch.max(initial=-1)
    gone = last & (table.phase == Phase.RECOMPUTE)
    number = np.cumsum(~gone) - 1
    stands_for: dict[int, set[int]] = {}
    """Row of a table that is left out → the rows that its dependents wait for instead."""
    owed: dict[int, set[int]] = {}
    """Stream → rows that its next one has to wait for."""
    before: dict[int, int] = {}
    """Stream → its last row that stays."""
    index, waits = table.wait_index.tolist(), []
    for row, stream in enumerate(table.stream.tolist()):
        own: set[int] = set()
        for wait in table.wait_row[index[row] : index[row + 1]].tolist():
            own |= stands_for.get(wait, {wait})
        if gone[row]:
            owed.setdefault(stream, set()).update(own)
            latest = {before[stream]} if stream in before else set()
            stands_for[row] = owed[stream] | latest
        else:
            waits.append(sorted(int(number[wait]) for wait in own | owed.pop(stream, set())))
            before[stream] = row
    return Table(
        **{name: getattr(table, name)[~gone] for name in COLUMNS},
        wait_index=np.cumsum([0, *map(len, waits)]).astype(np.int64),
        wait_row=np.array([wait for own in waits for wait in own], np.int32),
        queue_depth=table.queue_depth,
        label=table.label,
    )


def _loss(step: TracedStep) -> int:
    """Return the first operator behind the last one with parameters: that of the loss."""
    owners = [i for i, each in enumerate(step.operators) if each.parameters]
    return owners[-1] + 1


def _by_turns(task: Task, threads: float) -> Task:
    """Return a task whose CPU time is that of so many threads together."""
    if not isinstance(task, Compute) or not isinstance(task.kernel, Recorded):
        return task
    kernel = task.kernel
    kernel = replace(
        kernel,
        host=round(kernel.host * threads),
        launch_cost=round(kernel.launch_cost * threads),
    )
    return replace(task, kernel=kernel)


def _without_parameters(each: Operator, forward: list[Task], backward: list[Task]) -> Operator:
    """Return an operator of whose parameters data parallelism of processes takes no care."""
    own = tuple(replace(one, local=True) for one in each.parameters)
    return replace(each, forward=tuple(forward), backward=tuple(backward), parameters=own)


def _pieces(operation: Operation, size: int) -> Iterator[Task]:
    piece = int(frameworks().data_parallel.buffer.si)
    what = "parameter" if operation is Operation.BROADCAST else "gradient"
    while size > 0:
        yield _send(operation, what, min(size, piece))
        size -= piece


def _send(operation: Operation, what: str, size: int) -> Communicate:
    return Communicate(f"{what} {operation.name.lower()}", operation, "dp", max(1, size))
