"""The input of a traced step: what the trace shows of its loader, and ``[data]`` in its place.

    trace ─► wait for the loader (kept as traced) ──────────────┐
                                                                ├─► the CPU's time of a step
    [data] ─► images/s of a node (mpisim.workloads.input_pipeline) in place of that wait

A step's trace does not tell what its input needs on more GPUs: the workers of one process had all
cores of the node, and those of eight share them. So the wait that was traced stays as it is unless
``[data]`` is given. Then it is taken out, and the host of each node prepares the images of the next
step for all of its GPUs, as in an experiment of a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..base.errors import InputError
from ..base.text import percentage
from ..experiment import DataChoice
from ..kernels.operations import Copy
from ..workloads.input_pipeline import CHANNELS, InputPipeline
from .network import passed_on
from .roles import first_with_weight
from .step import TracedKernel, TracedStep
from .target import Target

__all__ = ["check_data", "input_lines", "input_not_modelled", "shows_upload", "side_of_images"]

LEAST_SHARE = 0.02
"""Share of a step that the CPU is busy before the first kernel, from which on a report says so."""


def side_of_images(step: TracedStep) -> int | None:
    """Step → side of the images that it takes, in pixels; None if it takes none.

    Those of the first layer with a weight: samples × 3 × side × side.
    """
    first = first_with_weight(step.operators)
    for each in () if first is None else first.inputs:
        if len(each.shape) == 4 and each.shape[1] == CHANNELS and "conv" in _first_name(step):
            return max(each.shape[2:])
    return None


def _first_name(step: TracedStep) -> str:
    """Step → name of its first operator with a weight; empty if there is none."""
    first = first_with_weight(step.operators)
    return "" if first is None else first.name


def shows_upload(step: TracedStep) -> int:
    """Step → bytes of the copy of its input from the host; 0 if the trace shows none."""
    copies = [
        kernel.bytes
        for one in step.operators
        for task in one.forward
        if isinstance(task, TracedKernel)
        for kernel in task.kernels
        if isinstance(kernel, Copy) and kernel.path == "host"
    ]
    largest = max(copies, default=0)
    return largest if 2 * largest >= passed_on(step.operators) else 0


def check_data(step: TracedStep, data: DataChoice | None) -> None:
    """Refuse images that a step does not take.

    Parameters
    ----------
    step : TracedStep
    data : DataChoice, optional
        The table ``[data]``; None if it is not given.

    Raises
    ------
    InputError
    """
    if data is not None and data.images != "synthetic" and side_of_images(step) is None:
        raise InputError(
            f"data.images is {data.images!r}, but {step.source} takes no images: its first layer "
            f"with a weight, {_first_name(step) or 'none'}, has no input of samples × {CHANNELS} × "
            "height × width"
        )


def input_lines(
    step: TracedStep, target: Target, pipeline: InputPipeline | None, world: int
) -> Iterator[str]:
    """Traced step, target → assumptions of its input, a line each.

    Parameters
    ----------
    step : TracedStep
    target : Target
    pipeline : InputPipeline, optional
        What prepares images, by ``[data]``.
    world : int
        GPUs of the job.
    """
    loading = step.loading
    if target.data is not None:
        if loading:
            yield (
                f"of the traced step {loading / 1e9:,.3f} ms are the CPU's in a DataLoader: taken "
                "out, since [data] says where samples come from"
            )
        if pipeline is not None:
            yield pipeline.text
        return
    shared = ""
    if world > 1:
        shared = "; GPUs of a node are taken not to share its cores ([data] lets them)"
    if loading and step.loader == "process":
        yield (
            f"the trace has {loading / 1e9:,.3f} ms of a DataLoader without workers: kept, by the "
            f"number of samples{shared}"
        )
    elif loading:
        yield (
            f"the trace waits {loading / 1e9:,.3f} ms for the workers of a DataLoader: kept as "
            f"traced{shared}"
        )
    elif step.before > LEAST_SHARE * step.measured and not step.priced:
        yield (
            f"the CPU comes {step.before / 1e9:,.3f} ms "
            f"({percentage(step.before / step.measured)} of the step) to its first kernel, in "
            f"which it may wait for input: kept as traced{shared}"
        )


def input_not_modelled(data: DataChoice | None) -> list[str]:
    """``[data]`` → what of the input is not modelled, lines for people.

    Parameters
    ----------
    data : DataChoice, optional
    """
    if data is None or data.images == "synthetic":
        return []
    lines = ["reading of files from storage, checkpoints"]
    if data.loader == "dali-gpu":
        lines.append("what nvJPEG takes of the GPU")
    return lines
