"""Operators and layers of the tests of memory, whose bytes can be added up by hand."""

from __future__ import annotations

from plans import changed, plan_of

from mpisim.experiment import Plan
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.workloads.operators import Compute, Layer, Operator, Parameter

__all__ = ["layer", "operator", "plan"]


def plan(**keys: object) -> Plan:
    """A plan whose data parallelism is settled."""
    found = plan_of(**{"global_batch": 64, **keys})  # type: ignore[arg-type]
    return changed(found, dp_style=found.style(transformer=True))


def operator(
    saved: int = 0,
    forward: int = 0,
    backward: int = 0,
    *,
    selective: bool = False,
    parameters: tuple[Parameter, ...] = (),
    gemm: Gemm | None = None,
) -> Operator:
    """An operator whose kernels have results of given bytes."""
    weights = (Compute("weight", gemm, weight=True),) if gemm else ()
    return Operator(
        "operator",
        (Compute("forward", Elementwise(2 * forward)),) if forward else (),
        (*((Compute("backward", Elementwise(2 * backward)),) if backward else ()), *weights),
        parameters,
        saved,
        selective,
    )


def layer(*operators: Operator, role: str = "block", checkpoint: int = 0, size: int = 0) -> Layer:
    """A layer; with `size` it has one parameter of so many elements besides."""
    held = (operator(parameters=(Parameter("weight", size),)),) if size else ()
    return Layer("layer", (*operators, *held), role, output=16, checkpoint=checkpoint)  # type: ignore[arg-type]
