"""Data parallelism by threads of one process: ``torch.nn.DataParallel``, "standard" in TrioSim.

In each step (torch/nn/parallel/data_parallel.py)

1. the batch is scattered, and the parameters and buffers of the first GPU are sent to the others,
in
   pieces of 10 MiB (``broadcast_coalesced``);
2. a thread for each GPU runs the forward pass. They share one interpreter: what the CPU does for
one
   GPU the others wait for. How much of that holds the interpreter's lock a trace does not say; all
   of it is taken to, so that forward passes that the CPU sets the pace of are an upper limit;
3. outputs are gathered on the first GPU, which computes the loss of the whole batch; 4. the
backward pass runs in C++, a thread for each GPU; gradients are added up on the first GPU when
   all of them are there (``ReduceAddCoalesced`` is one node of autograd), beside nothing;
5. the optimizer updates the parameters of the first GPU. The others wait.

All ranks are written alike: what the first one does alone takes the others as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..kernels.operations import BYTES
from ..kernels.recorded import Recorded
from ..program import Operation
from ..workloads.data_parallel.frameworks import frameworks
from ..workloads.operators import Communicate, Compute, Layer, LayerStack, Operator, Task
from .network import passed_on
from .step import TracedStep

__all__ = ["as_threads"]


def as_threads(network: LayerStack, step: TracedStep, samples: float, gpus: int) -> LayerStack:
    """Return a network as one thread of several runs it.

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


def _loss(step: TracedStep) -> int:
    """Return the first operator behind the last one with parameters: that of the loss."""
    owners = [i for i, each in enumerate(step.operators) if each.parameters]
    return owners[-1] + 1


def _by_turns(task: Task, gpus: int) -> Task:
    """Return a task whose CPU time is that of all threads together."""
    if not isinstance(task, Compute) or not isinstance(task.kernel, Recorded):
        return task
    kernel = task.kernel
    kernel = replace(kernel, host=kernel.host * gpus, launch_cost=kernel.launch_cost * gpus)
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
