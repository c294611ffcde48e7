"""Tokens to experts and back by kernels that know which tokens go where.

Megatron-LM's flexible dispatcher (``megatron/core/transformer/moe/token_dispatcher.py``,
`MoEFlexTokenDispatcher`) with DeepEP (github:deepseek-ai/DeepEP) or HybridEP: routing goes to one
kernel that sends each token once to each rank that has any of its experts, and where ranks stand in
several nodes once to each node, from where the fast links take it further. It is copied for each
expert only after it has arrived, and added up over a rank's (a node's) experts before it returns.
The CPU waits for the number of tokens that arrive, as it does without. HybridEP gathers all ranks'
maps of tokens to experts before, and sends with each token a probability for every expert of the
node (``deep_ep/hybrid_ep_buffer.py`` and ``csrc/hybrid_ep`` of its branch). What links inside a
node carry beside the network is hidden behind it, and left out.

How many ranks or nodes have one of a token's experts is that of a router without preference, which
first chooses groups of experts where the model has them (node-limited routing of DeepSeek-V3).
"""

from __future__ import annotations

import math

from mpisim.kernels.operations import BYTES, Copy, Elementwise

from ...program import Operation
from ..operators import Await, Communicate, Compute, Operator, Task
from .bookkeeping import FLAG, token_rows
from .graphs import captured_steps
from .pointwise import stream
from .routing import Routing
from .shapes import Shapes

__all__ = ["flex_combine", "flex_dispatch", "places"]

READ = "read token counts"
COUNT = 8
"""Bytes of a number of tokens."""
FP32 = BYTES["fp32"]
CHOICES = 3
"""Kernels that make the lists of experts that DeepEP takes of the map: the best of each token."""


def places(experts: int, topk: int, parts: int, groups: int = 1, chosen: int = 1) -> float:
    """Return how many of `parts` equal parts of the experts a token needs, on average.

    A part is spared if all `topk` experts, taken without repetition, lie in the others; they come
    from `chosen` of `groups` equal groups of experts that follow each other.

    Examples
    --------
    >>> places(8, 1, 4)
    1.0
    >>> places(8, 8, 4)
    4.0
    >>> places(8, 4, 4, groups=4, chosen=2)
    2.0
    """
    group, part = experts // groups, experts // parts
    within = max(part // group, 1)  # groups that a part has, or is one's share of
    eligible = chosen * group

    def spared(own: int) -> float:
        others = eligible - own
        return math.prod((others - i) / (eligible - i) for i in range(topk))

    return parts * sum(
        math.comb(within, k)
        * math.comb(groups - within, chosen - k)
        / math.comb(groups, chosen)
        * (1 - spared(k * min(part, group)))
        for k in range(max(0, chosen - groups + within), min(within, chosen) + 1)
    )


def flex_dispatch(s: Shapes, routing: Routing) -> Operator:
    """From the router to the experts."""
    h, e = s.model.hidden, s.element
    sent = _sent(s)
    arrived, exchanged = _arrived(s, routing)
    received = sent if s.dispatches_operands else e

    hybrid = s.plan.moe_dispatcher == "hybrid-ep"
    choices = routing.tokens * s.model.experts
    forward: list[Task] = []
    if not hybrid:
        chosen = Elementwise(FP32 * choices)
        forward.append(Compute("chosen experts", chosen, launches=CHOICES))
    elif s.grid.ep > 1:
        forward += _maps(choices * s.grid.ep)
    forward.append(Compute(READ, Copy(COUNT * (1 + routing.experts), "host")))
    if sent != e:
        forward.append(stream("dispatch cast", (e + sent) * h * routing.tokens))
    forward = [*captured_steps(s, "moe_preprocess", forward)]
    forward.append(Await("wait for token counts", READ))
    backward: list[Task] = []
    # Probabilities of all experts of a node travel with each token, and their gradients back.
    probabilities = FP32 * s.model.experts // s.grid.nodes("ep") if hybrid else 0
    if s.grid.ep > 1:
        forward.append(_exchange("dispatch", (sent * h + probabilities) * exchanged))
    if received != sent:
        forward.append(stream("dispatch cast back", (e + sent) * h * arrived))
    forward.append(token_rows(arrived, routing.experts))
    forward.append(stream("permutation", received * h * (arrived + routing.rows)))
    backward.append(stream("permutation backward", e * h * (arrived + routing.rows)))
    if s.grid.ep > 1:  # gradients return in the activations' format
        backward.append(_exchange("dispatch gradient", (e * h + probabilities) * exchanged))
    return Operator("dispatch", tuple(forward), tuple(backward))


def flex_combine(s: Shapes, routing: Routing) -> Operator:
    """From the experts back to the tokens."""
    h, e = s.model.hidden, s.element
    sent = _sent(s)  # gradients go to the experts as tokens do
    arrived, exchanged = _arrived(s, routing)
    received = sent if s.dispatches_operands else e

    forward: list[Task] = [stream("unpermutation", e * h * (arrived + routing.rows))]
    backward: list[Task] = []
    if sent != e:
        backward.append(stream("combine gradient cast", (e + sent) * h * routing.tokens))
    if s.grid.ep > 1:
        forward.append(_exchange("combine", e * exchanged * h))
        backward.append(_exchange("combine gradient", sent * exchanged * h))
    if received != sent:
        backward.append(stream("combine gradient cast back", (e + sent) * h * arrived))
    backward.append(stream("unpermutation backward", received * h * (arrived + routing.rows)))
    return Operator("combine", tuple(forward), tuple(backward))


def _sent(s: Shapes) -> int:
    """Bytes of a number on its way to the experts."""
    return BYTES[s.plan.dispatch_precision] if s.plan.dispatch_precision == "fp8" else s.element


def _arrived(s: Shapes, routing: Routing) -> tuple[int, int]:
    """Return tokens that arrive at the busiest rank, and those that it exchanges."""
    model, grid = s.model, s.grid
    nodes = grid.nodes("ep")
    busiest = routing.received / routing.copies

    def tokens(parts: int) -> int:
        needed = places(model.experts, model.topk, parts, model.expert_groups, model.topk_groups)
        return math.ceil(routing.tokens * needed * busiest)

    return tokens(grid.ep), tokens(nodes if nodes > 1 else grid.ep)


def _maps(size: int) -> tuple[Task, ...]:
    """All ranks' maps of tokens to experts, together `size` entries, and what is found in them."""
    gather = Communicate("token maps all-gather", Operation.ALL_GATHER, "ep", FLAG * size)
    return gather, Compute("token maps", Elementwise(FLAG * size))


def _exchange(name: str, size: int) -> Communicate:
    return Communicate(f"{name} all-to-all", Operation.ALL_TO_ALL, "ep", size)
