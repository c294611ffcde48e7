"""From an experiment to a run and back: the program to simulate, and what to say of the answer.

`prepare` is what is known before the run. `statements` is what a prediction must say of itself
afterwards: its error bar and where it comes from, what was assumed, what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .engine.run import PieceKind, Run
from .errors import InputError
from .experiment import Experiment
from .kernels import Gpu, find_gpu
from .program import Kind, Operation, Program
from .quantity import PICOSECONDS, Quantity
from .topo import AlphaBeta, Cluster, find_cluster
from .uncertainty import propagate
from .workloads import Workload, gpt_step

__all__ = ["Case", "PathShares", "prepare", "statements"]

ASSUMED = (
    "bf16 matrices and activations; gradients, master weights and Adam in fp32",
    "fused causal attention, fused bias-dropout-add; no recomputation",
    "neighbouring ranks share a node; every rank does the same work at the same speed",
)

LEFT_OUT = (
    "links shared by communications that run at the same time",
    "the slowdown of kernels and communications that overlap",
    "NCCL's choice of algorithm and protocol: one latency and one bandwidth for each link",
    "tiles and waves of matrix products, clocks under the power limit",
    "memory capacity, input pipeline, checkpoints, jitter, stragglers",
)

WORTH_SAYING = 0.0005
"""Relative effects on the step time below this are not listed one by one."""


@dataclass(frozen=True)
class Case:
    """An experiment, ready to be simulated.

    Attributes
    ----------
    experiment : Experiment
    cluster : Cluster
    gpu : Gpu
    workload : Workload
    cost : AlphaBeta
        Of the communications, which the program leaves unpriced.
    """

    experiment: Experiment
    cluster: Cluster
    gpu: Gpu
    workload: Workload
    cost: AlphaBeta

    @property
    def program(self) -> Program:
        """What every rank does."""
        return self.workload.program


def prepare(experiment: Experiment) -> Case:
    """Look up the hardware of an experiment and generate its program. Local.

    Raises
    ------
    InputError
        If the cluster is unknown or has too few GPUs, or the model is too large.
    """
    choice, plan = experiment.cluster, experiment.plan
    hardware = find_cluster(choice.preset)
    available = choice.nodes * hardware.gpus_per_node
    if plan.gpus > available:
        raise InputError(
            f"the plan needs {plan.tensor} × {plan.data} = {plan.gpus} GPUs, but {choice.nodes} "
            f"nodes of {choice.preset!r} have {available}: raise 'nodes' in [cluster]"
        )
    device = find_gpu(hardware.gpu)
    return Case(experiment, hardware, device, gpt_step(experiment, device), hardware.cost())


def statements(case: Case, run: Run, defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return what a prediction says of itself, as attributes of its results. Local.

    Parameters
    ----------
    case : Case
    run : Run
        With its critical path.
    defaults : mapping of str to value
        Keys the experiment did not give, with the values taken instead.

    Returns
    -------
    dict
        ``throughput`` (for people), ``tokens`` and ``model_flops`` (of the step), ``utilisation``
        (of the GPUs' dense bf16 peak), ``uncertainty`` (relative, one standard deviation),
        ``uncertainty_method``, and as lists of texts ``uncertainty_sources``, ``assumptions`` and
        ``not_modelled``.
    """
    numbers = {
        name: number
        for part in (case.gpu, case.cluster)
        for name, number in vars(part).items()
        if isinstance(number, Quantity)
    }
    assert run.critical_path is not None
    found = propagate(run.critical_path, PathShares(case, run), numbers)
    seconds = run.step_time / PICOSECONDS
    work, gpus = case.workload, case.experiment.plan.gpus
    utilisation = work.flops / (seconds * gpus * case.gpu.peak.si)
    return {
        "throughput": (
            f"{work.tokens / seconds:,.0f} tokens/s, {work.flops / seconds / gpus / 1e12:.0f} "
            f"TFLOP/s a GPU, {utilisation:.1%} of its dense bf16 peak"
        ),
        "tokens": work.tokens,
        "model_flops": float(work.flops),
        "utilisation": utilisation,
        "uncertainty": found.relative,
        "uncertainty_method": (
            "one standard deviation, first order along the critical path, inputs independent of "
            "each other (error bars and sources: mpisim/data); what is not modelled is not in it"
        ),
        "uncertainty_sources": [
            f"{each.name} ±{each.error:.0%} on {each.share:.1%} of the step: ±{each.effect:.1%}"
            for each in found.effects
            if each.effect >= WORTH_SAYING
        ],
        "assumptions": [
            case.cluster.title,
            case.gpu.title,
            *ASSUMED,
            *(f"{key} = {_toml(value)} (default)" for key, value in defaults.items()),
        ],
        "not_modelled": list(LEFT_OUT),
    }


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class PathShares:
    """The numbers each piece of a critical path rests on."""

    def __init__(self, case: Case, run: Run) -> None:
        assert run.critical_path is not None
        self.case, self.path = case, run.critical_path
        self.communication = cache(case.cluster.shares)

    def __call__(self, piece: int) -> Mapping[str, float]:
        path, case = self.path, self.case
        kind = PieceKind(int(path.kind[piece]))
        if kind is PieceKind.COMPUTE:
            return case.workload.shares[path.names[path.name[piece]]]
        if kind is PieceKind.HOST:
            return case.workload.host_shares
        if kind is PieceKind.LAUNCH:
            return {"launch_latency": 1.0}
        if kind is PieceKind.COMMUNICATION:
            rank, row = int(path.rank[piece]), int(path.row[piece])
            table = case.program.table_of(rank)
            assert table.kind[row] == Kind.COLLECTIVE
            group = case.program.slots_of(rank)[table.slot[row]]
            return self.communication(
                Operation(int(table.operation[row])),
                int(table.bytes[row]),
                case.program.communicators.group(int(group)),
            )
        return {}
