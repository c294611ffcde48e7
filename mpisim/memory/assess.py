"""The verdict on an experiment: laid out on ranks, or with a plan that is yet to be laid out."""

from __future__ import annotations

from dataclasses import replace

from ..experiment import Experiment, Plan, Transformer
from ..kernels import Gpu
from ..workloads import Layout, lay_out
from .constants import capacity
from .model import memory
from .remedies import Evaluate
from .verdict import Verdict

__all__ = ["assess", "evaluator"]


def assess(layout: Layout, gpu: Gpu, *, node: int = 8) -> Verdict:
    """Return whether a layout fits into a GPU's memory.

    Where networks differ by rank (tables of a recommendation model), the fullest rank of each stage
    stands for it.

    Parameters
    ----------
    layout : Layout
    gpu : Gpu
    node : int
        GPUs of a node.
    """
    experiment = layout.experiment
    transformer = isinstance(experiment.model, Transformer)
    by_network = [
        memory(
            layout.pipeline, parts, experiment.plan, layout.grid, transformer=transformer, node=node
        )
        for parts in layout.model_chunks
    ]
    stages = tuple(
        max(stage, key=lambda each: each.total) for stage in zip(*by_network, strict=True)
    )
    return Verdict(stages, capacity(gpu), gpu.title)


def evaluator(experiment: Experiment, gpus: int, gpu: Gpu, *, node: int = 8) -> Evaluate:
    """Return what `remedies` calls: the verdict on another plan, with so many times the GPUs.

    Parameters
    ----------
    experiment : Experiment
    gpus : int
        Of the cluster.
    gpu : Gpu
    node : int
        GPUs of a node.
    """

    def evaluate(plan: Plan, times: int) -> Verdict:
        changed = replace(experiment, plan=plan)
        return assess(lay_out(changed, gpus * times), gpu, node=node)

    return evaluate
