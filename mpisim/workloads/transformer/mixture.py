"""Mixture of experts, in the order of Megatron-LM's all-to-all dispatcher.

(``megatron/core/transformer/moe/moe_layer.py`` and ``token_dispatcher.py``,
`MoEAlltoAllTokenDispatcher`.)

Each rank routes its own share of the tokens. The ranks tell each other how many tokens each expert
gets, each token is copied for each of its experts, and two all-to-alls bring the copies and their
probabilities to the experts. How many rows each rank sends and gets the CPU has to know before it
can launch these, and waits for it (`_maybe_dtoh_and_synchronize`), unless all experts get as many
(`moe_capacity`). Where an expert is itself tensor
parallel (etp), copies are gathered and results reduce-scattered. The way back is one all-to-all and
the sum over a token's experts. Shared experts are an ordinary feed-forward block before all that;
overlapped (``--moe-shared-expert-overlap``) their first matrix runs beside the all-to-all to the
experts, the second beside the one back. With the flexible dispatcher tokens are exchanged otherwise
(:mod:`.flex_dispatch`).

`moe_imbalance` makes the busiest expert-parallel rank the measure of all: the rows its experts
multiply and the bytes of all-to-alls grow alike. The auxiliary loss, a few kernels on numbers of
tokens, is left out.
"""

from __future__ import annotations

from mpisim.kernels.operations import BYTES, Copy

from ...program import Operation
from ..operators import Await, Communicate, Compute, Operator, Task
from .again import again
from .bookkeeping import chunk_rows, count_sums, local_counts, token_rows
from .experts import experts, router
from .feed_forward import two_matrices
from .flex_dispatch import flex_combine, flex_dispatch
from .graphs import captured, captured_steps
from .mixture_overlap import overlapped
from .pointwise import branch, dropout_add, norm, stream
from .routing import Routing
from .shapes import Shapes

__all__ = ["mixture"]

COUNT = 8
"""Bytes of a number of tokens."""
FP32 = BYTES["fp32"]
READ = "read token counts"
WAIT = Await("wait for token counts", READ)
COPIES = 4
"""Of counts to the CPU: rows sent, rows received, of its tp group, of each expert."""


def mixture(s: Shapes) -> tuple[Operator, ...]:
    """Norm, router, exchange and experts, and the sum with what came in."""
    model = s.model
    routing = Routing.of(s)
    size = s.shared * model.hidden
    routed: tuple[Operator, ...]
    flex = s.plan.moe_dispatcher != "all-to-all"
    dispatch, combine = (flex_dispatch, flex_combine) if flex else (_dispatch, _combine)
    routed = (router(s, routing), dispatch(s, routing), *experts(s, routing), combine(s, routing))
    shared: tuple[Operator, ...] = ()
    first = 1  # the router
    ways = [branch(s, "routed", size)]
    if model.shared_ffn:
        ways.append(branch(s, "shared expert", size))
        total = stream("shared expert sum", 3 * s.element * size)
        # They take the router's input, which keeps it.
        width = model.shared_ffn // s.grid.tp
        shared = two_matrices(s, "shared expert", width, bias=False, keeps_input=False)
        if s.plan.moe_overlap and s.grid.ep > 1:
            routed = (overlapped(routed, shared),)
            shared = ()
            first = 0
        routed = (*routed, Operator("shared expert sum", (total,)))
    before = norm(s, "feed-forward norm", s.shared, model.hidden, residual=True)
    return (
        *captured(s, "moe_router", (before, *ways, *shared, *routed[:first])),
        *routed[first:],
        *again(s, "layernorm", before),
        dropout_add(s, "feed-forward dropout add", bias=False),
    )


def _dispatch(s: Shapes, routing: Routing) -> Operator:
    """From the router to the experts."""
    h, e, grid = s.model.hidden, s.element, s.grid
    sent = BYTES[s.plan.dispatch_precision] if s.plan.dispatch_precision == "fp8" else e
    spread = grid.etp * grid.ep
    copied = e * h * (routing.tokens + routing.copies)
    quantised = (e + sent) * h

    asks = not s.plan.moe_capacity
    forward: list[Task] = []
    if asks:
        forward.append(local_counts(routing.tokens, s.model.experts))
        if spread > 1:
            size = spread * s.model.experts * COUNT
            gather = Operation.ALL_GATHER
            forward.append(Communicate("token counts all-gather", gather, _group(s), size))
            forward.append(count_sums(size))
        counts = Copy(COUNT * (2 * spread + routing.experts), "host")
        forward.append(Compute(READ, counts, launches=COPIES if spread > 1 else 1))
    forward.append(token_rows(routing.tokens, s.model.experts))
    forward.append(stream("permutation", copied))
    if sent != e:
        forward.append(stream("dispatch cast", quantised * routing.copies))
    forward = [*captured_steps(s, "moe_preprocess", forward)]
    if spread > 1 and asks:
        forward.append(WAIT)
    if grid.ep > 1:
        forward += [
            _all_to_all("dispatch", sent * routing.received * h),
            _all_to_all("probabilities", FP32 * routing.received),
        ]
    if grid.etp > 1:
        forward += [
            _within("dispatch", Operation.ALL_GATHER, sent * routing.rows * h),
            _within("probabilities", Operation.ALL_GATHER, FP32 * routing.rows),
        ]
    sort = sent if s.dispatches_operands else e
    if sent != e and not s.dispatches_operands:
        forward.append(stream("dispatch cast back", quantised * routing.rows))
    backward: list[Task] = []
    if routing.experts > 1:
        forward.append(chunk_rows(routing.rows))
        forward.append(stream("sort by expert", 2 * sort * routing.rows * h))
        backward.append(stream("sort by expert backward", 2 * e * routing.rows * h))
    if spread == 1 and asks:
        forward.append(WAIT)
    # Gradients return in the activations' format.
    if grid.etp > 1:
        backward += [
            _within("probabilities gradient", Operation.REDUCE_SCATTER, FP32 * routing.rows),
            _within("dispatch gradient", Operation.REDUCE_SCATTER, e * routing.rows * h),
        ]
    if grid.ep > 1:
        backward += [
            _all_to_all("probabilities gradient", FP32 * routing.received),
            _all_to_all("dispatch gradient", e * routing.received * h),
        ]
    backward.append(stream("permutation backward", copied))
    return Operator("dispatch", tuple(forward), tuple(backward))


def _combine(s: Shapes, routing: Routing) -> Operator:
    """From the experts back to the tokens."""
    h, e, grid = s.model.hidden, s.element, s.grid
    # Gradients go to the experts as tokens do.
    sent = BYTES[s.plan.dispatch_precision] if s.plan.dispatch_precision == "fp8" else e
    copied = e * h * (routing.tokens + routing.copies)
    forward: list[Task] = []
    backward: list[Task] = [stream("unpermutation backward", copied)]
    if sent != e:
        backward.append(stream("combine gradient cast", (e + sent) * h * routing.copies))
    if grid.ep > 1:
        backward.append(_all_to_all("combine gradient", sent * routing.received * h))
    if grid.etp > 1:
        size = sent * routing.rows * h
        backward.append(_within("combine gradient", Operation.ALL_GATHER, size))
    sort = sent if s.dispatches_operands else e
    if sent != e and not s.dispatches_operands:
        backward.append(stream("combine gradient cast back", (e + sent) * h * routing.rows))
    if routing.experts > 1:
        forward.append(stream("unsort by expert", 2 * e * routing.rows * h))
        backward.append(stream("unsort by expert backward", 2 * sort * routing.rows * h))
    if grid.etp > 1:
        forward.append(_within("combine", Operation.REDUCE_SCATTER, e * routing.rows * h))
    if grid.ep > 1:
        forward.append(_all_to_all("combine", e * routing.received * h))
    forward.append(stream("unpermutation", copied))
    return Operator("combine", tuple(forward), tuple(backward))


def _all_to_all(name: str, size: int) -> Communicate:
    return Communicate(f"{name} all-to-all", Operation.ALL_TO_ALL, "ep", size)


def _within(name: str, operation: Operation, size: int) -> Communicate:
    what = operation.name.lower().replace("_", "-")
    return Communicate(f"{name} {what}", operation, "etp", size)


def _group(s: Shapes) -> str:
    """All ranks among which the tokens of one layer are exchanged."""
    if s.grid.etp == 1:
        return "ep"
    return "etp" if s.grid.ep == 1 else "etp-ep"
