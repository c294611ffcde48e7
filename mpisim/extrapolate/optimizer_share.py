"""The optimizer's tasks of a traced step → those of a rank that has a share of the parameters.

Its kernels go through parameters, gradients and states, of which a rank has its share; what no rule
describes does so, too. An operator over lists of tensors (``_foreach_…``, fused optimizers, apex's
``multi_tensor_…``) launches as many kernels as their elements need, so that smaller shares need
fewer of them (`mpisim.operators.optimizers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ..base.frozen import frozen
from ..kernels.operations import BYTES, Copy, Elementwise, Kernel
from ..kernels.recorded import Recorded
from ..operators import Argument, OperatorCall, TensorSpec
from ..operators.table import kernels_of
from ..operators.tensors import all_tensors
from ..workloads.operators import Await, Compute, Task
from .growth import share_of, times
from .step import TracedKernel, TracedTask, TracedWait

__all__ = ["OptimizerShare", "list_call", "recorded", "with_full_gradients"]


def list_call(call: OperatorCall) -> OperatorCall | None:
    """Call of an operator → the call, if it takes lists of tensors, as fused optimizers do.

    Parameters
    ----------
    call : OperatorCall

    Returns
    -------
    OperatorCall or None
        None if no input is a list with a tensor.
    """
    lists = (each for each in call.inputs if isinstance(each, tuple))
    return call if any(True for _ in all_tensors(tuple(lists))) else None


def recorded(each: TracedKernel, now: tuple[Kernel, ...], counts: bool) -> Recorded:
    """Traced kernel, kernels at other sizes → kernel timed by the ratio of both.

    Parameters
    ----------
    each : TracedKernel
    now : tuple of Kernel
        What its call computes there.
    counts : bool
        As of `Recorded`.
    """
    return Recorded(
        each.duration,
        each.kernels,
        now,
        each.known,
        counts,
        host=each.host,
        launch=each.launch,
        launch_cost=each.launch_cost,
        gap=each.gap,
        priced=each.priced,
    )


@frozen
class OptimizerShare:
    """Share of the parameters → the optimizer's tasks.

    Attributes
    ----------
    tasks : tuple of TracedTask
        As traced, of all parameters.
    """

    tasks: tuple[TracedTask, ...]

    def __call__(self, share: float) -> tuple[Task, ...]:
        """Return the tasks on a share of the parameters; the CPU's part of what is run stays."""
        found: list[Task] = []
        for _, group in groupby(self.tasks, _call):
            own = list(group)
            if isinstance(own[0], TracedWait):
                found += [Await(w.name, host=w.host, tail=w.tail) for w in own]  # type: ignore[union-attr]
            else:
                found += _of_calls(own, share)  # type: ignore[arg-type]
        return tuple(found)


def with_full_gradients(tasks: Sequence[TracedTask], elements: int) -> tuple[TracedTask, ...]:
    """Tasks of an optimizer of 16-bit weights → those of FSDP, whose shards are in fp32.

    FSDP adds gradients up in fp32, and converts the weights of a unit before it gathers them
    (PyTorch, ``MixedPrecision``): there are no 16-bit copies to write behind the optimizer, nor
    16-bit gradients to convert before it. A call that goes through every weight with 6 bytes each
    is taken for one of these. Where there is one alone the optimizer itself reads 16-bit gradients,
    and goes through 2 bytes more of each, by which its time grows.

    Parameters
    ----------
    tasks : sequence of TracedTask
    elements : int
        Of all trained weights.
    """
    groups = [list(group) for _, group in groupby(tasks, _call)]
    sizes = [_streamed(group) for group in groups]
    converts = (BYTES["fp32"] + BYTES["bf16"]) * elements
    found = sizes.count(converts)
    more = (BYTES["fp32"] - BYTES["bf16"]) * elements
    largest = max(sizes, default=0)
    kept: list[TracedTask] = []
    for group, size in zip(groups, sizes, strict=True):
        if size == converts:
            continue
        if found == 1 and size == largest > converts and len(group) == 1:
            group = [_longer(group[0], 1 + more / size)]
        kept += group
    return tuple(kept)


def _streamed(group: Sequence[TracedTask]) -> int:
    """Return the bytes of a call that does nothing but go through them; 0 of any other."""
    first = group[0]
    kernels = first.kernels if isinstance(first, TracedKernel) else ()
    sizes = [each.bytes for each in kernels if isinstance(each, Elementwise | Copy)]
    return sum(sizes) if len(sizes) == len(kernels) else 0


def _longer(task: TracedTask, factor: float) -> TracedTask:
    """Return a kernel that goes through so many times the bytes, and takes as many the time."""
    assert isinstance(task, TracedKernel)
    kernels = tuple(share_of(each, factor) for each in task.kernels)
    return replace(task, duration=round(task.duration * factor), kernels=kernels)


def _call(task: TracedTask) -> object:
    """What tasks of one call over lists have alike; nothing that others have."""
    if isinstance(task, TracedWait):
        return None
    return task.call if task.lists is None else id(task.lists)


def _of_calls(kernels: Sequence[TracedKernel], share: float) -> Iterator[Task]:
    """Yield the kernels of one call, or of equal ones in turn, on a share of the parameters."""
    lists = kernels[0].lists
    before = after = 0
    fewer: tuple[Kernel, ...] = ()
    if lists is not None and share < 1:
        before = len(kernels_of(lists).kernels)
        fewer = kernels_of(_smaller(lists, share)).kernels
        after = len(fewer)
    if not 0 < after < before or len(kernels) % before:
        for each in kernels:
            now = each.kernels
            if share != 1:
                now = tuple(share_of(kernel, share) for kernel in now)
            yield _compute(each, now)
        return
    for begin in range(0, len(kernels), before):
        one = kernels[begin : begin + before]
        time = sum(each.duration for each in one) // after
        for each, kernel in zip(one, fewer, strict=False):
            now = fewer if len(each.kernels) > 1 else (kernel,)
            yield _compute(replace(each, duration=time), now)


def _compute(each: TracedKernel, now: tuple[Kernel, ...]) -> Compute:
    kernel = recorded(each, now, counts=False)
    kernel = replace(kernel, known=each.known or not each.priced)
    return Compute(each.name, kernel, launches=each.launches)


def _smaller(call: OperatorCall, share: float) -> OperatorCall:
    """Return a call over a share of each tensor of its lists."""

    def of(value: Argument) -> Argument:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        if isinstance(value, TensorSpec):
            return TensorSpec(value.dtype, (times(value.elements, share),))
        return value

    inputs = tuple(of(each) if isinstance(each, tuple) else each for each in call.inputs)
    outputs = tuple(of(each) if isinstance(each, tuple) else each for each in call.outputs)
    return OperatorCall(call.name, inputs, outputs)
