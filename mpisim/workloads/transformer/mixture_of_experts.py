"""The mixture-of-experts half of a block: router, experts and shared experts.

In the order of Megatron-LM (``megatron/core/transformer/moe/moe_layer.py``): each rank routes its
own share of the tokens (:mod:`.router`), :mod:`.token_dispatch` brings them to their experts and
back. Shared experts are an ordinary feed-forward block before all that; overlapped
(``--moe-shared-expert-overlap``) their first matrix runs beside the all-to-all to the experts, the
second beside the one back. Where experts are modules that a loop in Python calls, there are only
the router and the loop (:mod:`.expert_modules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mpisim.kernels.operations import BYTES, Elementwise, GroupedGemm

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .expert_modules import expert_modules
from .feed_forward import activation, clamp_inputs, mlp
from .module_options import capture_module, recompute_module
from .pointwise import branch, dropout_add, elementwise, norm
from .precision import accumulate_gradient, cast, casts_together
from .router import load_balancing, router
from .shapes import Shapes
from .tensor_parallel import linear
from .token_dispatch import Routing, combine, dispatch

__all__ = ["mixture_of_experts"]

FP32 = BYTES["fp32"]
FIRST_LINEAR = "experts in"
SECOND_LINEAR = "experts out"


def mixture_of_experts(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → hidden states: norm, router, experts, shared experts, residual."""
    model = s.model
    routing = Routing.of(s)
    size = s.sharded_tokens * model.hidden
    inside = _in_latent_width(s)
    if s.plan.experts == "modules":
        routed = expert_modules(s, routing)
        choice = routed[:1]
    else:
        choice = (router(s, routing), *load_balancing(s, routing))
        routed = (
            *choice,
            *_latent_matrix(s, "experts latent down", down=True),
            dispatch(inside, routing),
            *_routed_experts(inside, routing),
            combine(inside, routing),
            *_latent_matrix(s, "experts latent up", down=False),
        )
    shared: tuple[Operator, ...] = ()
    in_router_graph = len(choice)
    branches = [branch(s, "routed", size)]
    if model.shared_ffn:
        branches.append(branch(s, "shared expert", size))
        total = elementwise("shared expert sum", 3 * s.element_size * size)
        # They take the router's input, which keeps it.
        width = model.shared_ffn // s.grid.tp
        shared = mlp(s, "shared expert", width, bias=False, keeps_input=False)
        if s.plan.overlap.moe and s.grid.ep > 1:
            routed = (_overlap_shared_experts(routed, shared),)
            shared = ()
            in_router_graph = 0
        routed = (*routed, Operator("shared expert sum", (total,)))
    again = recompute_module(s, "moe", *shared, *routed)
    if again:  # their input is all that is kept, and not that where the norm runs again
        again = (replace(again[0], name="mixture of experts again"),)
        shared, routed = (
            tuple(replace(each, saved=0) for each in operators) for operators in (shared, routed)
        )
        kept = 0 if "layernorm" in s.plan.recompute.modules else s.element_size * size
        routed = (replace(routed[0], saved=kept), *routed[1:])
    before = norm(s, "feed-forward norm", s.sharded_tokens, model.hidden, residual=True)
    return (
        *capture_module(s, "moe_router", (before, *branches, *shared, *routed[:in_router_graph])),
        *routed[in_router_graph:],
        *again,
        *recompute_module(s, "layernorm", before),
        dropout_add(s, "feed-forward dropout add", bias=False),
    )


def _in_latent_width(s: Shapes) -> Shapes:
    """Sizes of routed experts and of the tokens sent to them, in the latent width (LatentMoE)."""
    m = s.model
    if m.moe_latent is None:
        return s
    return replace(s, model=replace(m, hidden=m.moe_latent, head_size=m.head, ffn_hidden=m.ffn))


def _latent_matrix(s: Shapes, name: str, *, down: bool) -> tuple[Operator, ...]:
    """Hidden states of this rank's tokens → latent ones before they are dispatched, or back.

    Megatron-LM's ``fc1_latent_proj`` and ``fc2_latent_proj``
    (``megatron/core/transformer/moe/moe_layer.py``), which every rank of a tp group holds whole.
    The router keeps the hidden states.
    """
    latent, hidden = s.model.moe_latent, s.model.hidden
    if latent is None:
        return ()
    k, n = (hidden, latent) if down else (latent, hidden)
    s = s.wide("latent")
    return (linear(s, name, k, n, tokens=s.sharded_tokens, keeps_input=not down),)


def _overlap_shared_experts(routed: Sequence[Operator], shared: tuple[Operator, ...]) -> Operator:
    """Routed and shared experts → one operator, inside which they run beside each other.

    As Megatron-LM's ``--moe-shared-expert-overlap``
    (``megatron/core/transformer/moe/shared_experts.py``): the first matrix and the activation
    beside the dispatch, the second matrix beside the combination; backward in the other order.

    Parameters
    ----------
    routed : sequence of Operator
        In order, with all-to-alls on the way to the experts and on the way back.
    shared : tuple of Operator
        The operators before the matrix down, and that.
    """
    *up, down = shared
    forward = [step for operator in routed for step in operator.forward]
    backward = [step for operator in reversed(routed) for step in operator.backward]
    together = (*shared, *routed)
    return Operator(
        "mixture of experts",
        _run_beside_all_to_alls(
            forward, [step for each in up for step in each.forward], down.forward
        ),
        _run_beside_all_to_alls(
            backward, down.backward, [step for each in reversed(up) for step in each.backward]
        ),
        tuple(parameter for operator in together for parameter in operator.parameters),
        sum(operator.saved for operator in together),
    )


def _run_beside_all_to_alls(steps: Iterable[Task], *others: Sequence[Task]) -> tuple[Task, ...]:
    """Steps → the same with the i-th of `others` beside the i-th run of all-to-alls."""
    found: list[Task] = []
    waiting: tuple[str, ...] = ()
    remaining = list(others)
    exchanging = False
    for step in steps:
        if isinstance(step, Communicate) and step.operation is Operation.ALL_TO_ALL:
            waiting = (*waiting, f"exchange {len(found)}")
            found.append(replace(step, token=waiting[-1]))
            exchanging = True
            continue
        if exchanging:
            found += remaining.pop(0)
            exchanging = False
        if waiting and isinstance(step, Communicate):
            step = replace(step, after=(*(step.after or ()), *waiting))
        elif waiting and isinstance(step, Compute):
            step = replace(step, after=(*step.after, *waiting))
            waiting = ()
        found.append(step)
    return tuple(found)


# --- routed experts ------------------------------------------------------------------------------


def _routed_experts(s: Shapes, routing: Routing) -> tuple[Operator, ...]:
    """Rows of the experts → their results: two grouped products, an activation between, biases.

    `TEGroupedMLP` of megatron/core/transformer/moe/experts.py, whose activation multiplies by the
    tokens' probabilities. Their gradients are sums over features, for which a second kernel reads
    what the activation's backward pass reads (``weighted_swiglu_back`` of
    megatron/core/fusions/fused_bias_swiglu.py; the functions of other activations alike).
    """
    model = s.model
    width = model.expert_ffn // s.grid.etp
    into = width * (2 if model.gated else 1)
    between = activation(s, f"experts {model.activation}", routing.rows, width)
    if model.swiglu_limit is not None and s.is_megatron:
        between = clamp_inputs(s, between, routing.rows * width)
    if s.is_megatron and s.plan.framework.fused:
        read = (into + width) * s.element_size * routing.rows
        sums = elementwise(f"experts {model.activation} probability gradient", read)
        between = replace(between, backward=(*between.backward, sums))
    if s.plan.experts == "fused":
        between = replace(between, forward=(), backward=())
    out = _grouped_linear(s, routing, SECOND_LINEAR, width, model.hidden)
    if "moe_act" in s.plan.recompute.modules:
        out = replace(out, saved=0)
    operators = (
        _grouped_linear(s, routing, FIRST_LINEAR, model.hidden, into),
        between,
        out,
        *recompute_module(s, "moe_act", between),
    )
    if model.bias and s.is_megatron and s.plan.experts != "fused":
        operators = (*operators, _output_bias(s, routing))
    return _pad_for_fp8(s, routing, operators)


def _pad_for_fp8(
    s: Shapes, routing: Routing, operators: tuple[Operator, ...]
) -> tuple[Operator, ...]:
    """Rows of each expert → rows padded to the multiple that fp8 products need, and back.

    Transformer Engine's `Fp8Padding` and `Fp8Unpadding` (`TEGroupedMLP.forward`), forward and
    backward. HybridEP's permutation leaves the room, and capacities are multiples.
    """
    plan = s.plan
    if (
        not s.quantised
        or not s.is_megatron
        or plan.framework.moe_capacity
        or plan.experts == "fused"
    ):
        return operators
    if plan.framework.moe_dispatcher == "hybrid-ep" and s.grid.ep > 1:
        return operators
    size = 2 * s.element_size * routing.rows * s.model.hidden

    def copy(name: str) -> Operator:
        return Operator(name, (elementwise(name, size),), (elementwise(f"{name} backward", size),))

    return (copy("experts padding"), *operators, copy("experts unpadding"))


def _grouped_linear(s: Shapes, routing: Routing, name: str, k: int, n: int) -> Operator:
    """Rows (rows, k) → rows (rows, n): a matrix (k, n) for each expert of this rank, and its bias.

    ``GroupedLinear`` of Transformer Engine (transformer_engine/pytorch/module/grouped_linear.py),
    which casts the rows of one expert after the other unless one kernel does (`casts_together`).
    """
    rows, groups, experts = routing.rows, routing.local_experts, s.plan.experts
    loop = groups if experts == "loop" else 1
    even = s.plan.framework.moe_capacity or s.plan.framework.moe_dispatcher == "one-hot"
    ragged = not even and s.model.experts > s.model.topk
    # What was dispatched in fp8 is multiplied as it came; fused, the kernel before makes operands:
    # forward of the first product's results, backward of the second's.
    made = experts == "fused"
    casts = s.quantised and not (s.dispatches_fp8 if name == FIRST_LINEAR else made)
    casts_back = s.quantised and not (made and name == FIRST_LINEAR)

    def gemm(n: int, k: int) -> GroupedGemm:
        return GroupedGemm(
            rows, groups, n, k, dtype=s.linear_format, output=s.storage_format, ragged=ragged
        )

    def launched(step: Compute) -> Compute:
        return replace(step, launches=loop, compiled_loop=True, calls=loop * step.calls)

    def cast_rows(name: str, elements: int) -> Compute:
        step = cast(s, name, elements)
        return step if casts_together(s) else launched(step)

    forward: list[Task] = [cast_rows(name, rows * k)] if casts else []
    forward.append(launched(Compute(name, gemm(n, k))))
    backward: list[Task] = [cast_rows(f"{name} gradient", rows * n)] if casts_back else []
    backward.append(launched(Compute(f"{name} input gradient", gemm(k, n))))
    weights = f"{name} weight gradient"
    size = groups * n * k
    if s.is_megatron and s.plan.framework.fused:
        added = GroupedGemm(
            rows,
            groups,
            n,
            k,
            dtype=s.linear_format,
            output=s.gradient_format,
            accumulate=True,
            weight=True,
        )
        backward.append(launched(Compute(weights, added, weight=True)))
    else:
        product = GroupedGemm(
            rows, groups, n, k, dtype=s.linear_format, output=s.storage_format, weight=True
        )
        backward.append(launched(Compute(weights, product, weight=True)))
        backward += accumulate_gradient(s, f"{name} weight", size)
    parameters = [Parameter(f"{name} weight", size, expert=True)]
    if s.model.bias:
        backward += map(launched, accumulate_gradient(s, f"{name} bias", groups * n))
        # Of an etp group each rank holds all of the second bias; counted is its share.
        held = groups * n // (1 if name == FIRST_LINEAR else s.grid.etp)
        parameters.append(Parameter(f"{name} bias", held, expert=True))
    return Operator(
        name, tuple(forward), tuple(backward), tuple(parameters), saved=s.operand_bytes(rows * k)
    )


def _output_bias(s: Shapes, routing: Routing) -> Operator:
    """Results of the experts → with the second bias, scaled by the probabilities of their tokens.

    Megatron-LM adds it expert by expert (``megatron/core/transformer/moe/experts.py``,
    `TEGroupedMLP._apply_bias`): ``torch.cat([t + b * p for t, b, p in zip(...)]).to(t.dtype)``. The
    probabilities are fp32, so that the products, the sums and what is joined of them are, too. The
    bias of the first product is added where that ends.

    Backward the gradient of each expert's sum is that of its results, rounded; times the
    probabilities and added up over the tokens it is that of the bias, times the bias and added up
    over the features that of the probabilities. A bias and a column of probabilities are broadcast;
    where a kernel widens as well, dividing out places takes less than converting does, and is
    hidden behind it.
    """
    size, e, each = routing.rows * s.model.hidden, s.element_size, routing.local_experts

    def kernel(
        what: str,
        traffic: int,
        launches: int = 1,
        *,
        widens: bool = False,
        broadcasts: bool = False,
    ) -> Compute:
        moved = Elementwise(
            traffic * size,
            variant="widening" if widens and e != FP32 else None,
            indexed=size if broadcasts else None,
        )
        return Compute(f"experts bias {what}", moved, launches=launches)

    return Operator(
        "experts bias",
        (
            kernel("product", FP32, each, broadcasts=True),
            kernel("sum", e + 2 * FP32, each, widens=True),
            kernel("concatenation", 2 * FP32),
            kernel("rounding", FP32 + e),
        ),
        (
            kernel("rounding backward", e + FP32, widens=True),
            kernel("sum backward", FP32 + e, each),
            kernel("product backward", 2 * FP32, each, broadcasts=True),
            kernel("gradient", FP32, each),
            kernel("probability product", 2 * FP32, each, widens=True),
            kernel("probability gradient", FP32, each),
            kernel("split backward", 2 * e),
        ),
    )
