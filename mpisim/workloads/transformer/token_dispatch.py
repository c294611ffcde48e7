"""Exchange of tokens between router and experts: dispatch to the experts, combine on the way back.

All-to-all dispatcher
    In the order of Megatron-LM's `MoEAlltoAllTokenDispatcher`
    (``megatron/core/transformer/moe/token_dispatcher.py``). The ranks tell each other how many
    tokens each expert gets, each token is copied for each of its experts, and two all-to-alls bring
    the copies and their probabilities to the experts. How many rows each rank sends and gets the
    CPU has to know before it can launch these, and waits for it (`_maybe_dtoh_and_synchronize`),
    unless all experts get as many (`moe_capacity`). Where an expert is itself tensor parallel
    (etp), copies are gathered and results reduce-scattered. The way back is one all-to-all and the
    sum over a token's experts.

Flexible dispatcher
    Megatron-LM's `MoEFlexTokenDispatcher` with DeepEP (github:deepseek-ai/DeepEP) or HybridEP:
    routing goes to one kernel that sends each token once to each rank that has any of its experts,
    and where ranks stand in several nodes once to each node, from where the fast links take it
    further. With DeepEP :mod:`.multihot` makes a map of the lists of experts that arrive with it.
    It is copied for each expert only after it has arrived, and added up over a rank's (a
    node's) experts before it returns. The CPU waits for the number of tokens that arrive, as it
    does without. HybridEP gathers all ranks' maps of tokens to experts before, and sends with each
    token a probability for every expert of the node (``deep_ep/hybrid_ep_buffer.py`` and
    ``csrc/hybrid_ep`` of its branch); its other kernels are in :mod:`.hybrid_ep`. What links inside
    a node carry beside the network is hidden behind it, and left out. Their kernels are not as fast
    as NCCL's all-to-all, and run on a few multiprocessors: the bytes here are those for which
    NCCL's takes as long (:mod:`.exchange_rates`).
    How many ranks or nodes have one of a token's experts: :mod:`.destinations`.

One-hot dispatcher
    Products with masks: :mod:`.one_hot_dispatch`.

`moe_imbalance` makes the busiest expert-parallel rank the measure of all: the rows its experts
multiply and the bytes of all-to-alls grow by the same factor.
"""

from __future__ import annotations

import math

from mpisim.kernels.operations import BYTES, Copy, Elementwise

from ...base.frozen import frozen
from ...program import Operation
from ..operators import Await, Communicate, Compute, Operator, Task
from .destinations import expected_destinations, round_robin_destinations
from .exchange_rates import Direction, ExchangeGroup, priced_bytes
from .hybrid_ep import Exchange, copy_rows, place_rows, scan_maps, sum_rows
from .module_options import capture_steps
from .multihot import Arrived, map_experts, map_experts_backward
from .one_hot_dispatch import one_hot_combine, one_hot_dispatch
from .pointwise import elementwise
from .shapes import Shapes

__all__ = [
    "COUNT_BYTES",
    "COUNT_COPIES",
    "COUNT_SUM_KERNELS",
    "MAP_ENTRY_BYTES",
    "Routing",
    "combine",
    "dispatch",
]

FP32 = BYTES["fp32"]
MAP_ENTRY_BYTES = 1
"""Of the map of tokens to experts."""
ROW_NUMBER_BYTES = 4
COUNT_BYTES = 8
"""Of a number of tokens."""
READ_COUNTS = "read token counts"
WAIT_FOR_COUNTS = Await("wait for token counts", READ_COUNTS)
COUNT_COPIES = 4
"""Copies of counts to the CPU: rows sent, rows received, of its tp group, of each expert."""
COUNT_SUM_KERNELS = 5
"""What each rank sends and gets, and what each of its experts does: four sums, and a copy."""
TOP_K_KERNELS = 2
"""Kernels that make the lists of experts that DeepEP takes of the map: the best of each token,
found, and put in order (PyTorch's `topk`)."""


@frozen
class Routing:
    """Rows of the tensors between router and experts on one rank.

    Attributes
    ----------
    tokens : int
        Tokens that this rank routes.
    copies : int
        Rows that it sends: one for each expert of each token.
    received : int
        Rows that the busiest rank receives.
    rows : int
        Rows that the experts of the busiest rank multiply: what its etp group received.
    local_experts : int
        Experts of this rank.
    """

    tokens: int
    copies: int
    received: int
    rows: int
    local_experts: int

    @classmethod
    def of(cls, s: Shapes) -> Routing:
        """Shapes of a rank → numbers of its rows."""
        copies = s.sharded_tokens * s.model.topk
        if s.plan.framework.moe_dispatcher == "one-hot":
            places = math.ceil(copies * s.plan.framework.moe_capacity_factor)
            local_experts = s.model.experts // s.grid.ep
            return cls(s.sharded_tokens, places, places, places, local_experts)
        # All experts on one rank: it gets every copy, however unevenly they are ranks.
        busiest = s.plan.moe_imbalance if s.grid.ep > 1 else 1.0
        received = math.ceil(copies * busiest)
        rows, local_experts = received * s.grid.etp, s.model.experts // s.grid.ep
        return cls(s.sharded_tokens, copies, received, rows, local_experts)


def dispatch(s: Shapes, routing: Routing) -> Operator:
    """Tokens where they were routed → rows of their experts; backward gradients return.

    Parameters
    ----------
    s : Shapes
    routing : Routing
        Rows before and after the exchange.
    """
    if s.plan.framework.moe_dispatcher == "all-to-all":
        return _all_to_all_dispatch(s, routing)
    if s.plan.framework.moe_dispatcher == "one-hot":
        return one_hot_dispatch(s, routing.tokens, routing.copies)
    return _flexible_dispatch(s, routing)


def combine(s: Shapes, routing: Routing) -> Operator:
    """Results of the experts → their sums where the tokens were routed.

    Parameters
    ----------
    s : Shapes
    routing : Routing
        Rows before and after the exchange.
    """
    if s.plan.framework.moe_dispatcher == "all-to-all":
        return _all_to_all_combine(s, routing)
    if s.plan.framework.moe_dispatcher == "one-hot":
        return one_hot_combine(s, routing.tokens, routing.copies)
    return _flexible_combine(s, routing)


# --- all-to-all dispatcher ----------------------------------------------------------------------


def _all_to_all_dispatch(s: Shapes, routing: Routing) -> Operator:
    """As `dispatch`, a copy for each expert."""
    h, e, grid = s.model.hidden, s.element_size, s.grid
    sent_size = _dispatch_element_size(s)
    ranks = grid.etp * grid.ep
    permutation_traffic = e * h * (routing.tokens + routing.copies)
    cast_row_traffic = (e + sent_size) * h

    needs_counts = not s.plan.framework.moe_capacity
    forward: list[Task] = []
    if needs_counts:
        forward.append(_local_counts(routing.tokens, s.model.experts))
        if ranks > 1:
            size = ranks * s.model.experts * COUNT_BYTES
            gather = Operation.ALL_GATHER
            forward.append(Communicate("token counts all-gather", gather, _dispatch_group(s), size))
            forward.append(_count_sums(size))
        counts = Copy(COUNT_BYTES * (2 * ranks + routing.local_experts), "host")
        forward.append(Compute(READ_COUNTS, counts, launches=COUNT_COPIES if ranks > 1 else 1))
    forward.append(_token_rows(routing.tokens, s.model.experts))
    forward.append(_row_copies("permutation", permutation_traffic))
    if sent_size != e:
        forward.append(elementwise("dispatch cast", cast_row_traffic * routing.copies))
    forward = [*capture_steps(s, "moe_preprocess", forward)]
    if ranks > 1 and needs_counts:
        forward.append(WAIT_FOR_COUNTS)
    if grid.ep > 1:
        forward += [
            _all_to_all("dispatch", sent_size * routing.received * h),
            _all_to_all("probabilities", FP32 * routing.received),
        ]
    if grid.etp > 1:
        forward += [
            _expert_tp_collective("dispatch", Operation.ALL_GATHER, sent_size * routing.rows * h),
            _expert_tp_collective("probabilities", Operation.ALL_GATHER, FP32 * routing.rows),
        ]
    sort_size = sent_size if s.dispatches_fp8 else e
    if sent_size != e and not s.dispatches_fp8:
        forward.append(elementwise("dispatch cast back", cast_row_traffic * routing.rows))
    backward: list[Task] = []
    if routing.local_experts > 1:
        forward.append(_chunk_rows(routing.rows))
        forward.append(_row_copies("sort by expert", 2 * sort_size * routing.rows * h))
        backward.append(_row_copies("sort by expert backward", 2 * e * routing.rows * h))
    if ranks == 1 and needs_counts:
        forward.append(WAIT_FOR_COUNTS)
    # Gradients return in the activations' format.
    if grid.etp > 1:
        backward += [
            _expert_tp_collective(
                "probabilities gradient", Operation.REDUCE_SCATTER, FP32 * routing.rows
            ),
            _expert_tp_collective(
                "dispatch gradient", Operation.REDUCE_SCATTER, e * routing.rows * h
            ),
        ]
    if grid.ep > 1:
        backward += [
            _all_to_all("probabilities gradient", FP32 * routing.received),
            _all_to_all("dispatch gradient", e * routing.received * h),
        ]
    backward.append(_row_sums("permutation backward", permutation_traffic))
    return Operator("dispatch", tuple(forward), tuple(backward))


def _all_to_all_combine(s: Shapes, routing: Routing) -> Operator:
    """As `combine`, a copy from each expert."""
    h, e, grid = s.model.hidden, s.element_size, s.grid
    sent_size = _dispatch_element_size(s)  # gradients go to the experts as tokens do
    permutation_traffic = e * h * (routing.tokens + routing.copies)
    forward: list[Task] = []
    backward: list[Task] = [_row_copies("unpermutation backward", permutation_traffic)]
    if sent_size != e:
        backward.append(elementwise("combine gradient cast", (e + sent_size) * h * routing.copies))
    if grid.ep > 1:
        backward.append(_all_to_all("combine gradient", sent_size * routing.received * h))
    if grid.etp > 1:
        size = sent_size * routing.rows * h
        backward.append(_expert_tp_collective("combine gradient", Operation.ALL_GATHER, size))
    sort_size = sent_size if s.dispatches_fp8 else e
    if sent_size != e and not s.dispatches_fp8:
        backward.append(
            elementwise("combine gradient cast back", (e + sent_size) * h * routing.rows)
        )
    if routing.local_experts > 1:
        forward.append(_row_copies("unsort by expert", 2 * e * routing.rows * h))
        backward.append(_row_copies("unsort by expert backward", 2 * sort_size * routing.rows * h))
    if grid.etp > 1:
        forward.append(
            _expert_tp_collective("combine", Operation.REDUCE_SCATTER, e * routing.rows * h)
        )
    if grid.ep > 1:
        forward.append(_all_to_all("combine", e * routing.received * h))
    forward.append(_row_sums("unpermutation", permutation_traffic))
    return Operator("combine", tuple(forward), tuple(backward))


def _all_to_all(name: str, size: int) -> Communicate:
    return Communicate(f"{name} all-to-all", Operation.ALL_TO_ALL, "ep", size)


def _expert_tp_collective(name: str, operation: Operation, size: int) -> Communicate:
    what = operation.name.lower().replace("_", "-")
    return Communicate(f"{name} {what}", operation, "etp", size)


def _dispatch_group(s: Shapes) -> str:
    """The group of ranks among which the tokens of one layer are exchanged."""
    if s.grid.etp == 1:
        return "ep"
    return "etp" if s.grid.ep == 1 else "etp-ep"


# --- flexible dispatcher: DeepEP, HybridEP ------------------------------------------------------


def _flexible_dispatch(s: Shapes, routing: Routing) -> Operator:
    """As `dispatch`, a copy for each rank or node that has an expert of the token."""
    h, e = s.model.hidden, s.element_size
    sent_size = _dispatch_element_size(s)
    arrived, _ = _arriving_tokens(s, routing)
    received_size = sent_size if s.dispatches_fp8 else e

    hybrid = s.plan.framework.moe_dispatcher == "hybrid-ep"
    exchange = _hybrid_exchange(s, routing)
    choices = routing.tokens * s.model.experts
    forward: list[Task] = []
    if not hybrid:
        chosen = Elementwise(FP32 * choices)
        forward.append(Compute("chosen experts", chosen, launches=TOP_K_KERNELS))
        if s.grid.ep > 1:
            forward.append(_small("dispatch layout", routing.tokens * s.grid.ep))
            forward.append(_small("dispatch notification", s.grid.ep * COUNT_BYTES))
    elif s.grid.ep > 1:
        size = MAP_ENTRY_BYTES * choices * s.grid.ep
        forward.append(Communicate("token maps all-gather", Operation.ALL_GATHER, "ep", size))
        forward.append(
            _token_maps(size) if exchange is None else scan_maps(exchange, s.model.experts)
        )
    forward.append(Compute(READ_COUNTS, Copy(COUNT_BYTES * (1 + routing.local_experts), "host")))
    if sent_size != e:
        forward.append(elementwise("dispatch cast", (e + sent_size) * h * routing.tokens))
    forward = [*capture_steps(s, "moe_preprocess", forward)]
    forward.append(WAIT_FOR_COUNTS)
    backward: list[Task] = []
    # Probabilities of all experts of a node travel with each token, and their gradients back.
    probabilities = FP32 * s.model.experts // s.grid.nodes("ep") if hybrid else 0
    if s.grid.ep > 1:
        row = sent_size * h + probabilities
        forward.append(_flexible_all_to_all(s, "dispatch", routing, row, "dispatch"))
    if received_size != sent_size:
        forward.append(elementwise("dispatch cast back", (e + sent_size) * h * arrived))
    deep_ep = not hybrid and s.grid.ep > 1
    found = Arrived(arrived, routing.rows, routing.local_experts, s.model.topk)
    fused = s.plan.framework.moe_multihot_fusion
    if deep_ep:
        forward += map_experts(found, fused=fused)
    if exchange is not None:
        forward.append(place_rows(exchange))
        forward.append(copy_rows("permutation", exchange, received_size * h))
        backward.append(sum_rows("permutation backward", exchange, e * h))
    else:
        forward.append(_token_rows(arrived, routing.local_experts))
        forward.append(_row_copies("permutation", received_size * h * (arrived + routing.rows)))
        backward.append(_row_sums("permutation backward", e * h * (arrived + routing.rows)))
    if deep_ep:
        backward += map_experts_backward(found, fused=fused)
        backward.append(_small("dispatch gradient notification", routing.tokens * s.grid.ep))
    if s.grid.ep > 1:  # gradients return in the activations' format
        row = e * h + probabilities
        backward.append(_flexible_all_to_all(s, "dispatch gradient", routing, row, "combine"))
    return Operator("dispatch", tuple(forward), tuple(backward))


def _flexible_combine(s: Shapes, routing: Routing) -> Operator:
    """As `combine`, a sum from each rank or node that has an expert of the token."""
    h, e = s.model.hidden, s.element_size
    sent_size = _dispatch_element_size(s)  # gradients go to the experts as tokens do
    arrived, _ = _arriving_tokens(s, routing)
    received_size = sent_size if s.dispatches_fp8 else e

    moved = arrived + routing.rows
    added = _row_sums("unpermutation", e * h * moved)
    copied = _row_copies("unpermutation backward", received_size * h * moved)
    exchange = _hybrid_exchange(s, routing)
    if exchange is not None:
        added = sum_rows("unpermutation", exchange, e * h)
        copied = copy_rows("unpermutation backward", exchange, received_size * h)
    forward: list[Task] = [added]
    backward: list[Task] = []
    if sent_size != e:
        backward.append(elementwise("combine gradient cast", (e + sent_size) * h * routing.tokens))
    if s.plan.framework.moe_dispatcher == "flex" and s.grid.ep > 1:
        forward.append(_small("combine notification", routing.tokens * s.grid.ep))
        backward.append(_small("combine gradient notification", s.grid.ep * COUNT_BYTES))
    if s.grid.ep > 1:
        forward.append(_flexible_all_to_all(s, "combine", routing, e * h, "combine"))
        backward.append(
            _flexible_all_to_all(s, "combine gradient", routing, sent_size * h, "dispatch")
        )
    if received_size != sent_size:
        backward.append(elementwise("combine gradient cast back", (e + sent_size) * h * arrived))
    backward.append(copied)
    return Operator("combine", tuple(forward), tuple(backward))


def _small(name: str, numbers: int) -> Compute:
    """One of the kernels of DeepEP before it sends, that reads 4 bytes for each of `numbers`.

    `get_dispatch_layout`, `notify_dispatch`, `cached_notify_dispatch` and `cached_notify_combine`
    of ``csrc/kernels``.
    """
    return Compute(name, Elementwise(ROW_NUMBER_BYTES * numbers))


def _flexible_all_to_all(
    s: Shapes, name: str, routing: Routing, row: int, direction: Direction
) -> Communicate:
    """Tokens of `row` bytes sent by the dispatcher → NCCL's all-to-all that takes as long."""
    arrived, exchanged = _arriving_tokens(s, routing)
    nodes = s.grid.nodes("ep")
    inside, across = s.grid.rates or (None, None)
    group = ExchangeGroup(s.grid.ep, nodes, inside if nodes == 1 else across)
    dispatcher = s.plan.framework.moe_dispatcher
    return _all_to_all(
        name, priced_bytes(dispatcher, direction, group, row * exchanged, arrived, row)
    )


def _dispatch_element_size(s: Shapes) -> int:
    """Bytes of an element on its way to the experts."""
    return BYTES["fp8"] if s.plan.precision.dispatch == "fp8" else s.element_size


def _arriving_tokens(s: Shapes, routing: Routing) -> tuple[int, int]:
    """Tokens that arrive at the busiest rank, and those of them that it exchanges over `ep`."""
    model, grid = s.model, s.grid
    nodes = grid.nodes("ep")
    busiest = routing.received / routing.copies

    def tokens(parts: int) -> int:
        if s.plan.framework.moe_balance == "round-robin":
            needed = round_robin_destinations(model.experts, model.topk, parts)
        else:
            needed = expected_destinations(
                model.experts, model.topk, parts, model.expert_groups, model.topk_groups
            )
        return math.ceil(routing.tokens * needed * busiest)

    return tokens(grid.ep), tokens(nodes if nodes > 1 else grid.ep)


def _token_maps(size: int) -> Compute:
    """A kernel that reads all ranks' maps of tokens to experts, of `size` bytes."""
    return Compute("token maps", Elementwise(size))


def _hybrid_exchange(s: Shapes, routing: Routing) -> Exchange | None:
    """Tokens and rows that HybridEP's kernels besides its transfers work through.

    None where these kernels delay no others. Where two passes overlap they run beside the kernels
    of the other pass, which lose the memory bandwidth that they take and nothing more.
    """
    framework = s.plan.framework
    if framework.moe_dispatcher != "hybrid-ep" or s.grid.ep == 1 or s.plan.overlap.ep:
        return None
    arrived, _ = _arriving_tokens(s, routing)
    ranks = s.grid.ep // s.grid.nodes("ep")
    tokens = routing.tokens * s.grid.ep
    return Exchange(tokens, ranks, arrived, routing.rows, routing.local_experts)


# --- kernels that move rows -----------------------------------------------------------------------


def _row_copies(name: str, traffic: int) -> Compute:
    """Kernel that copies rows to other places, some several times; `traffic` bytes."""
    return Compute(name, Elementwise(traffic, variant="row_copies"))


def _row_sums(name: str, traffic: int) -> Compute:
    """Kernel that adds up the rows of each token; `traffic` bytes."""
    return Compute(name, Elementwise(traffic, variant="row_sums"))


# --- kernels that find out which token goes where -----------------------------------------------
#
# Little work, but each is launched. As Megatron-LM has them
# (``megatron/core/transformer/moe/token_dispatcher.py``): sums of the map of tokens to experts, and
# the rows of copies, which Transformer Engine finds in three kernels
# (``transformer_engine/pytorch/triton/permutation.py``, `make_row_id_map`) that work on one or two
# numbers for each token and expert.


def _local_counts(tokens: int, experts: int) -> Compute:
    """Map → number of tokens of each expert on this rank."""
    return Compute("token counts", Elementwise(MAP_ENTRY_BYTES * tokens * experts))


def _count_sums(size: int) -> Compute:
    """Token counts of all ranks, `size` bytes → send and receive counts (`preprocess`)."""
    return Compute("token count sums", Elementwise(size), launches=COUNT_SUM_KERNELS)


def _token_rows(tokens: int, experts: int) -> Compute:
    """Map → rows of the copies of tokens: counted within blocks, over blocks, and put in order.

    A flag is read and a number written; it is read and written; read, and two are written.
    """
    traffic = (MAP_ENTRY_BYTES + ROW_NUMBER_BYTES) + 2 * ROW_NUMBER_BYTES + 3 * ROW_NUMBER_BYTES
    return Compute("token rows", Elementwise(traffic * tokens * experts), launches=3)


def _chunk_rows(rows: int) -> Compute:
    """Rows by rank → rows by expert (`make_chunk_sort_map`)."""
    return Compute("chunk rows", Elementwise(ROW_NUMBER_BYTES * rows))
