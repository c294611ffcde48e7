"""Where a traced step is to run, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from ..base.frozen import frozen
from ..experiment import DataChoice
from .step import TracedStep

__all__ = ["Target"]


@frozen
class Target:
    """Where a traced step is to run, and how.

    Attributes
    ----------
    cluster : str
        A name of ``mpisim list clusters``, or the path of a file.
    plan : mapping of str to object
        Keys of ``[plan]``, those of ``[framework]`` with their table's name.
    batch : int, optional
        Samples of the step on all GPUs; by default each replica's share is the traced batch.
    sequence : int, optional
        Tokens of a sample; as traced if not given.
    gpu : str, optional
        GPU in place of the cluster's.
    other_gpus : mapping of str to str
        Nodes with other GPUs, as ``"4-7"`` → ``"a100-sxm"``.
    source : str
        What messages call the plan.
    threads : bool
        Whether replicas, or the stages of a pipeline, are threads of one process
        (``torch.nn.DataParallel``, ``torch.distributed.pipeline.sync.Pipe``).
    scaling : {"kernel-model", "li"}
        What scales measured times to other sizes and GPUs: the ratio of the kernel model, or of
        Li's regression lines over the trace's own kernels.
    upload : bool
        Whether each micro-batch begins with the copy of its input from the host, which the trace
        does not show.
    traces : mapping of str to TracedStep
        The same step as recorded on other GPUs of the job, by the GPU's name: ranks that have such
        a GPU do as its trace says.
    data : DataChoice, optional
        Where samples come from, in place of what the trace shows of its loader; None: as traced.
    """

    cluster: str
    plan: Mapping[str, Any]
    batch: int | None = None
    sequence: int | None = None
    gpu: str | None = None
    threads: bool = False
    other_gpus: Mapping[str, str] = field(default_factory=dict)
    source: str = "--plan"
    scaling: Literal["kernel-model", "li"] = "kernel-model"
    upload: bool = False
    traces: Mapping[str, TracedStep] = field(default_factory=dict)
    data: DataChoice | None = None
