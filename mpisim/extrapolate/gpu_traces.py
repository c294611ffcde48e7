"""Traces of one step on several GPUs → which of them the ranks of each GPU do as.

A mixed job has a rank's kernels, and its CPU, as recorded on a GPU like its own. All ranks have one
model, so that the traces must agree in what goes between ranks: parameters, layers, and what one
layer passes on to the next. Libraries may launch other kernels on each GPU, and the traces may be
of other batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..base.errors import InputError, nearest
from ..kernels import gpu_name
from .captured_step import priced_for
from .network import passed_on
from .step import TracedStep

__all__ = ["steps_by_gpu"]


def steps_by_gpu(
    step: TracedStep, traces: Mapping[str, TracedStep], named: Sequence[str]
) -> tuple[TracedStep, ...]:
    """Traced steps, GPUs of a job → the traced step of each kind of GPU.

    Parameters
    ----------
    step : TracedStep
        For GPUs without a trace of their own.
    traces : mapping of str to TracedStep
        By GPU.
    named : sequence of str
        The GPUs of the job.

    Raises
    ------
    InputError
        If a trace is of a GPU that the job does not have, or of another model than `step`.
    """
    own = {}
    gpus = [gpu_name(name) for name in named]
    for name, other in traces.items():
        gpu = gpu_name(name)
        if gpu not in gpus:
            raise InputError(
                f"a trace of {name!r} is given ({other.source}), but no rank has that GPU"
                f"{nearest(gpu, gpus)}; the job has {', '.join(gpus)} (other_gpus)"
            )
        own[gpu] = priced_for(other, gpu)
        _check_alike(step, other)
    return tuple(own.get(gpu, step) for gpu in gpus)


def _check_alike(step: TracedStep, other: TracedStep) -> None:
    """Refuse two traces that are of different models."""
    both = f"{other.source} and {step.source} are of different steps"
    layers = step.layers(), other.layers()
    if len(layers[0]) != len(layers[1]):
        raise InputError(f"{both}: {len(layers[1])} layers and {len(layers[0])}")
    ends = {(bool(each.embedding), bool(each.head)) for each in (step, other)}
    if len(ends) > 1:
        raise InputError(f"{both}: only one has modules that are an embedding, or a head")
    if step.sequence != other.sequence:
        raise InputError(f"{both}: samples of {other.sequence} tokens and of {step.sequence}")
    for (name, mine), (_, theirs) in zip(*layers, strict=True):
        own, found = (
            [(one.dtype, one.shape) for each in operators for one in each.parameters]
            for operators in (mine, theirs)
        )
        if own != found:
            differs = next(
                (pair for pair in zip(found, own, strict=False) if pair[0] != pair[1]),
                (f"{len(found)} parameters", f"{len(own)}"),
            )
            raise InputError(f"{both}: layer {name!r} has {differs[0]}, and {differs[1]}")
        sent = passed_on(mine) / step.batch, passed_on(theirs) / other.batch
        if round(sent[0]) != round(sent[1]):
            raise InputError(
                f"{both}: layer {name!r} gets {sent[1]:,.0f} bytes a sample, and {sent[0]:,.0f}"
            )
