"""A mixture whose experts are modules of PyTorch, which a loop in Python calls one after another.

Hugging Face's transformers before version 5 (``src/transformers/models``: `MixtralSparseMoeBlock`
of ``mixtral/modeling_mixtral.py``, from which `Qwen2MoeSparseMoeBlock` and `Qwen3MoeSparseMoeBlock`
are made)::

    expert_mask = one_hot(selected_experts, num_classes=num_experts).permute(2, 1, 0)
    for expert_idx in range(num_experts):
        idx, top_x = torch.where(expert_mask[expert_idx])
        current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
        current = experts[expert_idx](current_state) * routing_weights[top_x, idx, None]
        final_hidden_states.index_add_(0, top_x, current.to(hidden_states.dtype))

Each line is kernels of its own, launched from Python, and ``torch.where`` makes the CPU wait for
the number of rows. Backward each expert's rows are sorted into a tensor of zeros as large as all
hidden states (the gradient of an index is ``index_put_`` with accumulation), which is added to that
of the experts before; so with the probabilities. Releases from 4.53 on loop over the experts that
have rows and read each one's number first, a kernel and a copy more for each, which is left out.

Kernels and bytes are those of :mod:`mpisim.operators`, which `mpisim capture` takes for the same
calls (tests/test_transformer_expert_modules.py). All experts are on each rank: no exchange of
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mpisim.kernels.operations import BYTES, Copy, Elementwise, Softmax

from ...base.errors import InputError
from ...operators.indexing import sort_kernels
from ..operators import Await, Compute, Operator, Task
from .pointwise import broadcast, elementwise
from .shapes import Shapes
from .tensor_parallel import linear
from .token_dispatch import Routing

__all__ = ["expert_modules"]

FP32 = BYTES["fp32"]
PLACE_BYTES = 8
"""Of an index, and of an element of the one-hot mask: PyTorch's int64."""
COUNT_KERNELS = 2
"""Kernels of ``nonzero`` that work on a number alone: the sum of sums, the start of CUB's
selection."""


def expert_modules(s: Shapes, routing: Routing) -> tuple[Operator, ...]:
    """Hidden states → sums of their experts' results: router, mask, then expert after expert.

    Parameters
    ----------
    s : Shapes
    routing : Routing
        Tokens and rows of this rank.

    Returns
    -------
    tuple of Operator
        The router; an operator for each expert that has rows, or one of all where DeepSpeed's
        ZeRO-3 takes the block for one module (``framework.leaf_modules``).

    Raises
    ------
    InputError
        If the experts have a width of their own.
    """
    if s.model.moe_latent is not None:
        raise InputError(
            f"framework.moe_experts is 'modules', but model.moe_latent is {s.model.moe_latent}; "
            "allowed: 'loop', 'grouped', 'fused'"
        )
    hit = _experts_hit(s.model.experts, s.model.topk, routing.tokens)
    rows, more = divmod(routing.rows, hit)
    # As few different ones as there are: what is written of equal operators is kept.
    usual, larger = (_expert(s, routing, each) for each in (rows, rows + 1))
    last = _expert(s, routing, rows, first=True)
    idle = _expert(s, routing, 0)
    experts = [*[larger] * more, *[usual] * (hit - more - 1), last]
    experts += [idle] * (s.model.experts - hit)
    style = s.plan.style(transformer=True)
    if style == "deepspeed" and s.plan.zero == 3 and s.plan.framework.leaf_modules:
        experts = [_together(experts)]
    return (_router(s, routing), *experts)


def _experts_hit(experts: int, topk: int, tokens: int) -> int:
    """Experts that have rows if every token chooses `topk` of them without preference, rounded."""
    return max(topk, round(experts * (1 - (1 - topk / experts) ** tokens)))


def _together(experts: list[Operator]) -> Operator:
    """Operators → one that has the tasks of all, for which parameters are gathered at once."""
    return Operator(
        "experts",
        tuple(task for each in experts for task in each.forward),
        tuple(task for each in reversed(experts) for task in each.backward),
        tuple(parameter for each in experts for parameter in each.parameters),
        sum(each.saved for each in experts),
        alive=max(each.alive or (0, 0) for each in experts),
    )


# --- router -------------------------------------------------------------------------------------


def _router(s: Shapes, routing: Routing) -> Operator:
    """Hidden states → probabilities of the chosen experts in the storage format, and the mask.

    The product in the storage format, softmax in fp32, the best `topk`, divided by their sum in
    place: of what that overwrites a copy is kept for the backward pass.
    """
    tokens, h, n, e = routing.tokens, s.model.hidden, s.model.experts, s.element_size
    scores, chosen = tokens * n, routing.copies
    wide = (e + FP32) * scores
    casts, sigmoid = e != FP32, s.model.router_scores == "sigmoid"
    product = linear(s, "router", h, n, tokens=tokens, quantised=False)

    def softmax(*, backward: bool = False) -> Compute:
        name = "router softmax backward" if backward else "router softmax"
        if sigmoid:
            return elementwise(name, (3 if backward else 2) * FP32 * scores)
        return Compute(name, Softmax(tokens, n, backward=backward, dtype="fp32"))

    several = chosen > tokens  # probabilities of a token, for which its sum is broadcast

    def by_sum(name: str) -> Compute:
        traffic = FP32 * (2 * chosen + tokens)
        return broadcast(name, traffic, chosen) if several else elementwise(name, traffic)

    places, mask = PLACE_BYTES * chosen, PLACE_BYTES * chosen * n
    forward: list[Task] = [
        *product.forward,
        *([elementwise("router cast", wide)] if casts else []),
        softmax(),
        elementwise("router top k", FP32 * scores),
        elementwise("router order", 2 * (FP32 + PLACE_BYTES) * chosen),
        elementwise("router sum", FP32 * (chosen + tokens)),
        Compute("router copy", Copy(FP32 * chosen)),
        by_sum("router shares"),
        *([elementwise("router round", (FP32 + e) * chosen)] if casts else []),
        elementwise("expert sums zeros", e * tokens * h),
        elementwise("mask zeros", mask),
        elementwise("mask", 4 * places),
    ]
    backward: list[Task] = [
        *([elementwise("router round backward", (FP32 + e) * chosen)] if casts else []),
        by_sum("router quotient"),
        by_sum("router share"),
        elementwise("router minus", 2 * FP32 * chosen),
        elementwise("router product", 3 * FP32 * chosen),
        by_sum("router shares backward"),
        *([elementwise("router sum backward", FP32 * (chosen + tokens))] if several else []),
        by_sum("router gradient sum"),
        elementwise("router zeros", FP32 * scores),
        elementwise("router scatter copy", 2 * FP32 * scores),
        elementwise("router scatter", 3 * FP32 * chosen + places),
        *([] if sigmoid else [elementwise("router softmax product", 3 * FP32 * scores)]),
        softmax(backward=True),
        *([elementwise("router cast backward", wide)] if casts else []),
        *product.backward,
    ]
    saved = e * tokens * h + FP32 * scores + (2 * FP32 + e + PLACE_BYTES) * chosen
    alive = mask + e * tokens * h
    return Operator(
        "router", tuple(forward), tuple(backward), product.parameters, saved, alive=(alive, alive)
    )


# --- experts ------------------------------------------------------------------------------------


def _expert(s: Shapes, routing: Routing, rows: int, *, first: bool = False) -> Operator:
    """Hidden states, mask → results of one expert, added to those of its tokens.

    Parameters
    ----------
    s : Shapes
    routing : Routing
    rows : int
        Of this expert; 0: they are looked for, and that is all.
    first : bool
        Whether the backward pass comes to it before any other: there is nothing to add to.
    """
    h, f, e = s.model.hidden, s.model.expert_ffn, s.element_size
    tokens, chosen = routing.tokens, routing.copies
    matrices = _matrices(s, rows)
    parameters = tuple(replace(p, replicated=False) for each in matrices for p in each.parameters)
    if not rows:
        return Operator("expert", tuple(_find_rows(chosen, 0)), (), parameters)
    *into, out = matrices
    size, width = rows * h, rows * f
    weighted = e * (2 * size + rows)
    between, between_backward = _activation(s, [each.name for each in into], width)
    forward: list[Task] = [
        *_find_rows(chosen, rows),
        elementwise("expert rows", 2 * e * size + PLACE_BYTES * rows),
        *into[0].forward,
        *between[:1],
        *(task for each in into[1:] for task in each.forward),
        *between[1:],
        *out.forward,
        elementwise("expert probabilities", 2 * (e + PLACE_BYTES) * rows),
        broadcast("expert weighting", weighted, size),
        elementwise("expert sums", 3 * e * size + PLACE_BYTES * rows),
    ]
    backward: list[Task] = [
        elementwise("expert sums backward", 2 * e * size + PLACE_BYTES * rows),
        elementwise("expert probability product", 3 * e * size),
        broadcast("expert weighting backward", weighted, size),
        elementwise("expert probability gradient", e * (size + rows)),
        elementwise("expert probabilities zeros", e * chosen),
        *_put("expert probabilities", rows, tokens * s.model.topk, e, rows),
        *([] if first else [elementwise("expert probability sum", 3 * e * chosen)]),
        *out.backward,
        *between_backward[:-1],
        *(task for each in reversed(into[1:]) for task in each.backward),
        *between_backward[-1:],
        *into[0].backward,
        *([elementwise("expert input sum", 3 * e * size)] if len(into) > 1 else []),
        elementwise("expert rows zeros", e * tokens * h),
        *_put("expert rows", rows, tokens, e, size),
        *([] if first else [elementwise("expert rows sum", 3 * e * tokens * h)]),
    ]
    # Inputs, results before and after the activation, results, where they came from.
    features = (len(into) + len(between)) * width
    saved = e * (2 * size + features + rows) + 2 * PLACE_BYTES * rows
    alive = (e * (size + width), e * (2 * tokens * h + 2 * size + 2 * width))
    return Operator("expert", tuple(forward), tuple(backward), parameters, saved, alive=alive)


def _matrices(s: Shapes, rows: int) -> list[Operator]:
    """The products of an expert's rows: gate and value of a gated block, or one matrix; out."""
    h, f = s.model.hidden, s.model.expert_ffn
    names = ("expert gate", "expert value") if s.model.gated else ("expert in",)
    sizes = [*((name, h, f) for name in names), ("expert out", f, h)]
    return [linear(s, name, k, n, tokens=max(1, rows), bias=s.model.bias) for name, k, n in sizes]


def _activation(s: Shapes, names: list[str], width: int) -> tuple[list[Task], list[Task]]:
    """Kernels between an expert's matrices: the function, and the product of a gated block.

    Backward those of the product, and last that of the function.
    """
    e, name = s.element_size, f"expert {s.model.activation}"
    forward: list[Task] = [elementwise(name, 2 * e * width)]
    backward: list[Task] = []
    if len(names) > 1:
        forward.append(elementwise(f"{name} gate", 3 * e * width))
        backward += [
            elementwise(f"{name} gate backward", 3 * e * width),
            elementwise(f"{name} value backward", 3 * e * width),
        ]
    return forward, [*backward, elementwise(f"{name} backward", 3 * e * width)]


def _find_rows(chosen: int, rows: int) -> Iterator[Task]:
    """``torch.where`` of an expert's part of the mask: how many rows, for which the CPU waits.

    A sum and that of the sums, CUB's selection of places, and their division into two numbers
    (``nonzero`` of :mod:`mpisim.operators.indexing`).
    """
    mask = PLACE_BYTES * chosen
    yield elementwise("expert row count", mask)
    for i in range(1, COUNT_KERNELS + 1):
        yield elementwise(f"expert row count {i}", PLACE_BYTES)
    yield elementwise("expert row places", mask + PLACE_BYTES * rows)
    if rows:
        yield elementwise("expert row numbers", 3 * PLACE_BYTES * rows)
    yield Compute("read row count", Copy(PLACE_BYTES, "host"))
    yield Await("wait for row count")


def _put(name: str, rows: int, places: int, e: int, elements: int) -> Iterator[Task]:
    """``index_put_`` with accumulation: rows are sorted by their places, and added up."""
    bits = max(1, (places - 1).bit_length())
    for i, kernel in enumerate(sort_kernels(rows, PLACE_BYTES, PLACE_BYTES, bits), start=1):
        yield Compute(f"{name} sort {i}", kernel)
    moved = 3 * e * elements + PLACE_BYTES * rows
    yield Compute(f"{name} backward", Elementwise(moved, indexed=elements))
