"""Small transformers, and how their steps are written down in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from plans import plan_of

from mpisim.experiment.models import FAMILIES, Transformer
from mpisim.experiment.plan import Plan
from mpisim.kernels.operations import Attention, Gemm, GroupedGemm, Kernel
from mpisim.program import Operation
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import (
    Await,
    Communicate,
    Compute,
    Layer,
    LayerStack,
    Operator,
    Task,
)
from mpisim.workloads.transformer import transformer_network

SHORT = {
    Operation.ALL_REDUCE: "AR",
    Operation.ALL_GATHER: "AG",
    Operation.REDUCE_SCATTER: "RS",
    Operation.ALL_TO_ALL: "A2A",
    Operation.SEND_RECV: "ring",
}


def model(family: str, **keys: Any) -> Transformer:
    """A model of a family, with the defaults its members share."""
    defaults: dict[str, Any] = FAMILIES[family][1]
    return Transformer(family=family, **{**defaults, **keys})  # type: ignore[arg-type]


def plan(**keys: Any) -> Plan:
    """A plan of one micro-batch a rank."""
    return plan_of(**{"global_batch": 1_000_000, **keys})


def network(model: Transformer, plan: Plan) -> LayerStack:
    """The network on as few GPUs as the plan needs."""
    experts = plan.ep * plan.expert_tp
    dp = plan.dp or max(1, experts // (plan.tp * plan.cp))
    return transformer_network(model, plan, Grid.of(plan, plan.tp * plan.cp * plan.pp * dp))


def operator(found: LayerStack | Layer, name: str) -> Operator:
    """The first operator of a name."""
    layers = found.layers if isinstance(found, LayerStack) else (found,)
    return next(each for layer in layers for each in layer.operators if each.name == name)


def communications(layer: Layer, *, backward: bool = False) -> list[tuple[str, str, int]]:
    """What a layer communicates: operation, group and bytes, in order."""
    operators = reversed(layer.operators) if backward else layer.operators
    steps = [s for o in operators for s in (o.backward if backward else o.forward)]
    return [(SHORT[s.operation], s.group, s.bytes) for s in steps if isinstance(s, Communicate)]


def lines(steps: Iterable[Task]) -> list[str]:
    """Steps as text: what, how large, and what it waits for."""
    return list(_lines(steps))


def _lines(steps: Iterable[Task]) -> Iterator[str]:
    for step in steps:
        if isinstance(step, Await):
            yield f"{step.name}: {step.kernel}"
            continue
        if isinstance(step, Compute):
            text = _size(step.kernel)
        else:
            text = f"{SHORT[step.operation]} {step.group} {step.bytes}"
        if isinstance(step, Communicate) and step.token:
            text += f" => {step.token}"
        if step.after is not None and (step.after or isinstance(step, Communicate)):
            text += f" after {', '.join(step.after)}"
        if step.weight:
            text += " (weight)"
        yield f"{step.name}: {text}"


def _size(kernel: Kernel) -> str:
    if isinstance(kernel, Gemm):
        batch = f"{kernel.batch} x " if kernel.batch > 1 else ""
        added = " +=" if kernel.accumulate else ""
        return f"{batch}{kernel.m} x {kernel.n} x {kernel.k} {kernel.dtype}{added}"
    if isinstance(kernel, GroupedGemm):
        return f"{kernel.groups} experts {kernel.rows} x {kernel.n} x {kernel.k} {kernel.dtype}"
    if isinstance(kernel, Attention):
        half = " causal" if kernel.causal else ""
        half += f" window {kernel.window}" if kernel.window else ""
        return f"{kernel.heads}/{kernel.kv_heads} heads {kernel.queries} x {kernel.keys}{half}"
    return f"{kernel.traffic} bytes"
