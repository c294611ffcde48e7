"""Toy networks and kernel times that can be added up by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from plans import plan_of

from mpisim.base.quantity import Quantity
from mpisim.experiment import ClusterChoice, Experiment, Transformer
from mpisim.kernels import Estimate, Gpu, find_gpu
from mpisim.kernels.operations import Elementwise, Kernel
from mpisim.program import Operation
from mpisim.schedules import pipeline
from mpisim.topo import Price
from mpisim.workloads import Layout
from mpisim.workloads.grid import Grid
from mpisim.workloads.layout import split_layers
from mpisim.workloads.operators import Compute, Layer, LayerStack, Operator, Parameter

MODEL = Transformer("gpt", layers=1, hidden=8, heads=1, seq_len=8, vocab=8)
"""Of the experiment; the toy network takes nothing from it."""


def instant() -> Gpu:
    """A GPU whose launches take no time."""
    nothing = Quantity(0, "us", 0, "none")
    return dataclasses.replace(
        find_gpu("h100-sxm"),
        launch_call=nothing,
        launch_latency=nothing,
        host_gap=nothing,
        kernel_gap=nothing,
        graph_gap=nothing,
    )


@dataclass
class Times:
    """Kernels take as many picoseconds as they touch bytes."""

    gpu: Gpu = dataclasses.field(default_factory=instant)

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return bytes as picoseconds."""
        return Estimate(kernel.traffic if isinstance(kernel, Elementwise) else 1, {})

    def scaled(self, factors: Mapping[str, float]) -> Times:
        """Return the same times."""
        return self


class Free:
    """Communications take no time."""

    numbers: ClassVar[dict[str, Quantity]] = {}

    def group_classes(
        self, index: np.ndarray, members: np.ndarray, operations: np.ndarray | None = None
    ) -> tuple[np.ndarray, list[int]]:
        """All groups are alike."""
        return np.zeros(len(index) - 1, np.int64), [0]

    def price(self, operation: Operation, bytes: int, group: int) -> Price:
        """Return nothing."""
        return Price(0)

    def shares(self, operation: Operation, bytes: int, group: int) -> dict[str, float]:
        """Return none."""
        return {}


def block(name: str, forward: int, inputs: int, weights: int, parameters: int = 8) -> Layer:
    """A layer of one operator: three kernels of given times."""
    operator = Operator(
        name,
        forward=(Compute(f"{name} forward", Elementwise(forward)),),
        backward=(
            Compute(f"{name} backward", Elementwise(inputs)),
            Compute(f"{name} weight", Elementwise(weights), weight=True),
        ),
        parameters=(Parameter(f"{name} weight", parameters),),
        saved=100,
    )
    return Layer(name, (operator,), "block", output=16, checkpoint=10)


def layout(network: LayerStack, gpus: int, **plan: object) -> Layout:
    """Lay a toy network out, as `mpisim.workloads.lay_out` does with a model."""
    experiment = Experiment(
        model=MODEL,
        plan=plan_of(**plan),
        cluster=ClusterChoice("dgx-h100", nodes=gpus),  # type: ignore[arg-type]
    )
    grid = Grid.of(experiment.plan, gpus)
    each = grid.dp * experiment.plan.micro_batch
    laid = pipeline(
        experiment.plan.pipeline.schedule,
        grid.pp,
        experiment.plan.global_batch // each,
        experiment.plan.vpp,
    )
    parts = tuple(split_layers(network, experiment.plan, laid.parts))
    return Layout(experiment, grid, laid, (network,), np.zeros(grid.world, np.int64), (parts,))
