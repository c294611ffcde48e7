"""Router and experts of a mixture: what is computed between the exchanges."""

from __future__ import annotations

from dataclasses import replace

from mpisim.kernels.operations import BYTES, Gemm, GroupedGemm, Softmax

from ..operators import Compute, Operator, Parameter, Task
from .again import again
from .casts import cast
from .clamped import clamped
from .expert_bias import scaled_bias
from .gradients import accumulate
from .pointwise import activation, stream
from .routing import Routing
from .shapes import Shapes

__all__ = ["experts", "router"]

FP32 = BYTES["fp32"]
INTO = "experts in"
OUT = "experts out"
FLAG = 1
"""Bytes of an entry of the map of tokens to experts."""


def router(s: Shapes, routing: Routing) -> Operator:
    """Scores of all experts in fp32, their softmax and the best `topk` of each token.

    It keeps the block's input, of which shared experts and copies need no second one, unless the
    norm before is computed again.
    """
    tokens, h, n, e = routing.tokens, s.model.hidden, s.model.experts, s.element
    widened = (e + FP32) * tokens * h
    scores = tokens * n

    def gemm(m: int, n: int, k: int) -> Gemm:
        return Gemm(m, n, k, dtype="fp32", output="fp32")

    casts = s.element != FP32
    kept = 0 if "layernorm" in s.plan.recompute_modules else e * tokens * h
    forward: list[Task] = [stream("router cast", widened)] if casts else []
    forward += [
        Compute("router", gemm(tokens, n, h)),
        Compute("router softmax", Softmax(tokens, n, dtype="fp32")),
        stream("router top k", (2 * FP32 + FLAG) * scores),
    ]
    backward: list[Task] = [
        stream("router top k backward", (2 * FP32 + FLAG) * scores),
        Compute("router softmax backward", Softmax(tokens, n, backward=True, dtype="fp32")),
        Compute("router input gradient", gemm(tokens, h, n)),
    ]
    if casts:
        backward.append(stream("router cast backward", widened))
    backward.append(Compute("router weight gradient", gemm(n, h, tokens), weight=True))
    backward += accumulate(s, "router weight", n * h)
    return Operator(
        "router",
        tuple(forward),
        tuple(backward),
        (Parameter("router weight", n * h, replicated=True),),
        saved=kept + (FP32 + FLAG) * scores,
    )


def experts(s: Shapes, routing: Routing) -> tuple[Operator, ...]:
    """Two grouped matrix products with a non-linearity between them, and their biases."""
    model = s.model
    width = model.expert_ffn // s.grid.etp
    into = width * (2 if model.gated else 1)
    between = activation(s, f"experts {model.activation}", routing.rows, width)
    if model.swiglu_limit is not None and s.megatron:
        between = clamped(s, between, routing.rows * width)
    if s.plan.experts == "fused":
        between = replace(between, forward=(), backward=())
    out = _grouped(s, routing, OUT, width, model.hidden)
    if "moe_act" in s.plan.recompute_modules:
        out = replace(out, saved=0)
    operators = (
        _grouped(s, routing, INTO, model.hidden, into),
        between,
        out,
        *again(s, "moe_act", between),
    )
    if model.bias and s.megatron and s.plan.experts != "fused":
        operators = (*operators, scaled_bias(s, routing))
    return _padded(s, routing, operators)


def _padded(s: Shapes, routing: Routing, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Copy rows to where those of each expert are a multiple of what fp8 products take, and back.

    Transformer Engine's `Fp8Padding` and `Fp8Unpadding` (`TEGroupedMLP.forward`), forward and
    backward. HybridEP's permutation leaves the room, and capacities are multiples.
    """
    plan = s.plan
    if not s.quantised or not s.megatron or plan.moe_capacity or plan.experts == "fused":
        return operators
    if plan.moe_dispatcher == "hybrid-ep" and s.grid.ep > 1:
        return operators
    size = 2 * s.element * routing.rows * s.model.hidden

    def copy(name: str) -> Operator:
        return Operator(name, (stream(name, size),), (stream(f"{name} backward", size),))

    return (copy("experts padding"), *operators, copy("experts unpadding"))


def _grouped(s: Shapes, routing: Routing, name: str, k: int, n: int) -> Operator:
    """A matrix (k, n) for each expert of this rank, and its bias."""
    rows, groups, experts = routing.rows, routing.experts, s.plan.experts
    loop = groups if experts == "loop" else 1
    # What was dispatched in fp8 is multiplied as it came; fused, the kernel before makes operands:
    # forward of the first product's results, backward of the second's.
    made = experts == "fused"
    casts = s.quantised and not (s.dispatches_operands if name == INTO else made)
    casts_back = s.quantised and not (made and name == INTO)

    def gemm(n: int, k: int) -> GroupedGemm:
        return GroupedGemm(rows, groups, n, k, dtype=s.linear, output=s.stored)

    def launched(step: Compute) -> Compute:
        return replace(step, launches=loop)

    forward: list[Task] = [launched(cast(s, name, rows * k))] if casts else []
    forward.append(launched(Compute(name, gemm(n, k))))
    gradient = cast(s, f"{name} gradient", rows * n)
    backward: list[Task] = [launched(gradient)] if casts_back else []
    backward.append(launched(Compute(f"{name} input gradient", gemm(k, n))))
    weights = f"{name} weight gradient"
    size = groups * n * k
    if s.megatron and s.plan.fused:
        added = GroupedGemm(
            rows, groups, n, k, dtype=s.linear, output=s.gradient, accumulate=True, weight=True
        )
        backward.append(launched(Compute(weights, added, weight=True)))
    else:
        product = GroupedGemm(rows, groups, n, k, dtype=s.linear, output=s.stored, weight=True)
        backward.append(launched(Compute(weights, product, weight=True)))
        backward += accumulate(s, f"{name} weight", size)
    parameters = [Parameter(f"{name} weight", size, expert=True)]
    if s.model.bias:
        backward += map(launched, accumulate(s, f"{name} bias", groups * n))
        # Of an etp group each rank holds all of the second bias; counted is its share.
        held = groups * n // (1 if name == INTO else s.grid.etp)
        parameters.append(Parameter(f"{name} bias", held, expert=True))
    return Operator(
        name, tuple(forward), tuple(backward), tuple(parameters), saved=s.operand(rows * k)
    )
