"""Router of a mixture of experts: hidden states → scores, chosen experts, load-balancing loss.

In the order of Megatron-LM (``megatron/core/transformer/moe/router.py`` and ``moe_utils.py``): a
product gives scores in fp32, softmax or sigmoid makes probabilities of them, the best `topk` are
chosen, perhaps of some groups of experts alone, and perhaps by what a bias of each expert adds; an
auxiliary loss keeps their loads alike. Fused (``--moe-router-fusion``) scores, choice and loss are
a kernel each of Transformer Engine. Otherwise each operation of PyTorch is one, most of them on few
bytes: they take the CPU's time where launches are not captured.
"""

from __future__ import annotations

from collections.abc import Iterable

from mpisim.kernels.operations import BYTES, Elementwise, Gemm, Precision, Softmax

from ...program import Operation
from ...schedules import SCHEDULES
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .pointwise import elementwise
from .precision import accumulate_gradient
from .shapes import Shapes
from .token_dispatch import MAP_ENTRY_BYTES, Routing

__all__ = ["load_balancing", "router"]

FP32 = BYTES["fp32"]

UNFUSED_CHOICE: tuple[tuple[str, int], ...] = (
    ("zeros", FP32),
    ("scatter", 0),
    ("order", 0),
    ("map zeros", FP32),
    ("map integers", FP32 + 4),
    ("map scatter", 0),
    ("map", 4 + MAP_ENTRY_BYTES),
)
"""Kernels beside the choice itself that make a map and probabilities of it, and bytes that each
moves of a score; 0: of chosen ones alone (`topk_routing_with_score_function` and
`compute_routing_scores_for_aux_loss` of moe_utils.py, the latter without the first two)."""

GROUP_CHOICE: tuple[tuple[str, int], ...] = (
    ("group top k", FP32),
    ("group order", 0),
    ("group sums", 0),
    ("group choice", 0),
    ("group zeros", 0),
    ("group scatter", 0),
    ("group mask", FP32),
    ("group mask flags", FP32 + MAP_ENTRY_BYTES),
    ("group mask inverse", 2 * MAP_ENTRY_BYTES),
    ("group copy", 2 * FP32),
    ("group fill", FP32 + MAP_ENTRY_BYTES),
)
"""The same of the choice of groups before that of experts (`group_limited_topk`): the sum of the
best scores of each group, the best groups, and all other scores filled with minus infinity."""

CAPACITY: tuple[tuple[str, int], ...] = (
    ("top k", FP32),
    ("zeros", FP32),
    ("scatter", 0),
    ("map", FP32 + MAP_ENTRY_BYTES),
    ("product", 2 * FP32 + MAP_ENTRY_BYTES),
)
"""The same of a capacity: the tokens that each expert takes, and their probabilities alone
(`apply_router_token_dropping`, before 0.14 the end of `topk_softmax_with_capacity`)."""

DIVISION_BACKWARD = ("quotient", "share", "square", "minus", "product", "sum", "gradient sum")
"""Kernels of the gradients of values over their sum: that of the values; of the sum, by two
quotients, a sign, a product and a sum along each token (PyTorch's `div_tensor_other_grad`); both
together."""

CHOSEN_BYTES = FP32 + 8
"""Of a chosen score: itself and its place."""

LOSS_NUMBERS = 4
"""Kernels on a number for each expert, or on one number: products of shares and probabilities,
their sum, the coefficient, the sum for the log (`switch_load_balancing_loss_func` and
`save_to_aux_losses_tracker` of moe_utils.py)."""


def router(s: Shapes, routing: Routing) -> Operator:
    """Hidden states → probabilities and map of experts: scores in fp32 and the best `topk`.

    It keeps the block's input, of which shared experts and copies need no second one, unless the
    norm before is recomputed. Transformer Engine's products (`RouterGatingLinearFunction` of
    moe_utils.py) take 16-bit operands forward, and "TF32 only for pure FP32 GEMM"
    (``transformer_engine/common/gemm/cublaslt_gemm.cu``): those backward, before which the input is
    cast.

    Parameters
    ----------
    s : Shapes
    routing : Routing
        Tokens of this rank.
    """
    tokens, h, n, e = routing.tokens, s.model.hidden, s.model.experts, s.element_size
    widened = (e + FP32) * tokens * h
    scores = tokens * n
    by_engine = s.plan.framework.moe_router == "transformer-engine"

    def gemm(m: int, n: int, k: int, dtype: Precision | None = None) -> Gemm:
        return Gemm(m, n, k, dtype=dtype or ("tf32" if by_engine else "fp32"), output="fp32")

    casts = s.element_size != FP32
    kept = 0 if "layernorm" in s.plan.recompute.modules else e * tokens * h
    to_fp32 = [Compute("router cast", Elementwise(widened, variant="widening"))] if casts else []
    forward: list[Task] = [] if by_engine else [*to_fp32]
    forward += [
        Compute("router", gemm(tokens, n, h, s.storage_format if by_engine and casts else None)),
        _probabilities(s, "router", tokens),
        elementwise("router top k", (2 * FP32 + MAP_ENTRY_BYTES) * scores),
    ]
    backward: list[Task] = [
        elementwise("router top k backward", (2 * FP32 + MAP_ENTRY_BYTES) * scores),
        _probabilities(s, "router", tokens, backward=True),
        Compute("router input gradient", gemm(tokens, h, n)),
    ]
    if casts:
        backward.append(elementwise("router cast backward", widened))
    if by_engine:
        backward += to_fp32
    backward.append(Compute("router weight gradient", gemm(n, h, tokens), weight=True))
    backward += accumulate_gradient(s, "router weight", n * h)
    return Operator(
        "router",
        tuple(forward),
        tuple(backward),
        (Parameter("router weight", n * h, replicated=True, rows=n),),
        saved=kept + (FP32 + MAP_ENTRY_BYTES) * scores,
    )


def load_balancing(s: Shapes, routing: Routing) -> tuple[Operator, ...]:
    """Scores → Megatron-LM's further kernels of the top-k choice, and its load-balancing loss.

    `aux_loss_load_balancing`: scores again, shares of tokens, the loss, and back. What each expert
    gets is added up over the ranks of a sequence. Fused, scores and loss are a kernel each
    (`fused_compute_score_for_moe_aux_loss` and `fused_moe_aux_loss`); else they and the map of the
    router's own choice are operations of PyTorch. With what comes before tokens are exchanged these
    are 31 and 72 kernels in DeepSeek-V3 (Megatron-LM,
    docs/discussions/deepseek-v3-gb200-optimization).

    Parameters
    ----------
    s : Shapes
    routing : Routing
        Tokens of this rank.
    """
    if not s.is_megatron:
        return ()
    tokens, n = routing.tokens, s.model.experts
    scores, chosen = tokens * n, tokens * s.model.topk

    def small(name: str) -> Task:
        return elementwise(name, 2 * FP32 * n)

    loss = "load balancing"
    if s.plan.framework.moe_router_fusion:
        forward: list[Task] = [elementwise(f"{loss} scores", (2 * FP32 + MAP_ENTRY_BYTES) * scores)]
    else:
        forward = [
            *_choice_of_scores(s, routing),
            *_kernels("router", UNFUSED_CHOICE, scores, chosen),
            _probabilities(s, loss, tokens),
            *_shares_of_sum(s, loss, tokens, scores),
            elementwise(f"{loss} top k", FP32 * scores),
            *_kernels(loss, UNFUSED_CHOICE[2:], scores, chosen),
        ]
    if s.plan.framework.moe_capacity:
        forward += _kernels("capacity", CAPACITY, scores, chosen)
    if s.model.expert_bias:  # counts by which the biases are changed after the step
        forward += [
            elementwise("router token sums", MAP_ENTRY_BYTES * scores),
            small("router token counts"),
        ]
    forward.append(elementwise(f"{loss} token sums", MAP_ENTRY_BYTES * scores))
    # Of two passes that overlap, the other runs where one waits: in Megatron-LM only at exchanges
    # of tokens, not at this, which takes some us and is left out there.
    paired = s.plan.overlap.ep or SCHEDULES[s.plan.pipeline.schedule].pairs_passes
    if s.grid.tp * s.grid.cp > 1 and not paired:
        group = "tp" if s.grid.tp > 1 else "cp"
        forward.append(Communicate(f"{loss} all-reduce", Operation.ALL_REDUCE, group, FP32 * n))
    forward.append(elementwise(f"{loss} probability sums", FP32 * scores))
    forward += [small(f"{loss} loss {i}") for i in range(1, LOSS_NUMBERS + 1)]
    return (Operator(loss, tuple(forward), _backward(s, routing, loss), saved=FP32 * scores),)


def _backward(s: Shapes, routing: Routing, loss: str) -> tuple[Task, ...]:
    """Return the backward pass of `load_balancing`."""
    tokens, n = routing.tokens, s.model.experts
    scores, chosen = tokens * n, tokens * s.model.topk
    fused = s.plan.framework.moe_router_fusion
    backward: list[Task] = [
        elementwise(f"{loss} scale", 2 * FP32 * n),
        elementwise(f"{loss} loss backward", FP32 * scores),
    ]
    if not fused:
        backward += _shares_of_sum_backward(s, loss, scores)
    backward += [
        _probabilities(s, loss, tokens, backward=True),
        elementwise(f"{loss} score gradient sum", 3 * FP32 * scores),
    ]
    if s.plan.framework.moe_capacity:
        backward.append(elementwise("capacity backward", (2 * FP32 + MAP_ENTRY_BYTES) * scores))
    if not fused:
        backward += [
            elementwise("router scatter backward", CHOSEN_BYTES * chosen),
            elementwise("router zeros backward", FP32 * scores),
            *_shares_of_sum_backward(s, "router", chosen),
        ]
        if s.model.expert_bias:
            backward.append(elementwise("router scale backward", 2 * FP32 * chosen))
    return tuple(backward)


def _probabilities(s: Shapes, name: str, tokens: int, *, backward: bool = False) -> Compute:
    """Scores → probabilities: softmax along the experts, or sigmoid."""
    n, direction = s.model.experts, " backward" if backward else ""
    if s.model.router_scores == "sigmoid":
        return elementwise(f"{name} sigmoid{direction}", (3 if backward else 2) * FP32 * tokens * n)
    kernel = Softmax(tokens, n, backward=backward, dtype="fp32")
    return Compute(f"{name} softmax{direction}", kernel)


def _choice_of_scores(s: Shapes, routing: Routing) -> list[Task]:
    """Probabilities → those of the choice, by operations of PyTorch: bias, groups, shares, scale.

    The bias counts for the choice alone, so that what it chose is gathered of the probabilities. A
    model that has one scales the shares (`moe_router_topk_scaling_factor`).
    """
    scores, chosen = routing.tokens * s.model.experts, routing.tokens * s.model.topk
    found: list[Task] = []
    if s.model.expert_bias:
        found.append(elementwise("router bias", 2 * FP32 * scores))
    if s.model.expert_groups > 1:
        found += _kernels("router", GROUP_CHOICE, scores, chosen)
    if s.model.expert_bias:
        found.append(elementwise("router gather", CHOSEN_BYTES * chosen))
    found += _shares_of_sum(s, "router", routing.tokens, chosen)
    if s.model.expert_bias:
        found.append(elementwise("router scale", 2 * FP32 * chosen))
    return found


def _shares_of_sum(s: Shapes, name: str, tokens: int, values: int) -> list[Task]:
    """Sigmoids → their shares of each token's sum (clamped above 0); none for a single value."""
    if not _has_shares(s, name):
        return []
    return [
        elementwise(f"{name} sum", FP32 * values),
        elementwise(f"{name} sum offset", 2 * FP32 * tokens),
        elementwise(f"{name} shares", 2 * FP32 * values),
    ]


def _shares_of_sum_backward(s: Shapes, name: str, values: int) -> list[Task]:
    if not _has_shares(s, name):
        return []
    return [elementwise(f"{name} {what}", 2 * FP32 * values) for what in DIVISION_BACKWARD]


def _has_shares(s: Shapes, name: str) -> bool:
    return s.model.router_scores == "sigmoid" and (s.model.topk > 1 or name != "router")


def _kernels(name: str, kernels: Iterable[tuple[str, int]], scores: int, chosen: int) -> list[Task]:
    """Names and bytes of each score (0: of chosen ones alone) → kernels."""
    return [
        elementwise(f"{name} {what}", size * scores or CHOSEN_BYTES * chosen)
        for what, size in kernels
    ]
