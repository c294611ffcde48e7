"""Fused attention of a traced step → what one rank of a context computes and exchanges for it.

With context parallelism each rank has a share of every sequence. All but attention works on the
tokens that it has; attention needs the keys and values of all, which go round a ring, are gathered
or are exchanged for heads, as the workload generator has it
(:mod:`mpisim.workloads.transformer.context_parallel`). A part of it takes the measured time of the
whole, times the ratio of the kernel model for both shapes, kernel by kernel. For a scan over states
(`.scans`) ranks exchange tokens for heads, and back behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import InputError
from ..experiment import Plan
from ..kernels.operations import BYTES, Attention, Elementwise, Gemm
from ..kernels.recorded import Recorded
from ..program import Operation
from ..workloads.operators import Communicate, Compute, Task
from ..workloads.transformer.attention_shape import AttentionShape
from ..workloads.transformer.context_parallel import CONTEXT_PARALLEL, SpreadAttention
from ..workloads.transformer.shapes import (
    WHOLE_SEQUENCES,
    check_shared_heads,
)
from .step import TracedKernel, TracedStep

__all__ = ["check_context", "with_context", "with_exchange"]


def check_context(step: TracedStep, plan: Plan, sequence: int | None) -> None:
    """Refuse a context over several ranks that the trace shows no way to.

    Parameters
    ----------
    step : TracedStep
    plan : Plan
    sequence : int, optional
        Tokens of a sample; as traced if not given.

    Raises
    ------
    InputError
        The message names the key.
    """
    cp, source = plan.cp, step.source
    if cp == 1:
        return
    length = step.sequence if sequence is None else sequence
    if length is None:
        raise InputError(
            f"cp is {cp}, but how many tokens a sample of {source} has is not known: its first "
            "layer looks up no embeddings"
        )
    if length % (2 * cp):
        raise InputError(f"a sample has {length:,} tokens, no multiple of 2 × cp = {2 * cp}")
    if plan.tp > 1 and plan.sequence_parallel and length // cp % plan.tp:
        raise InputError(
            f"a sample has {length:,} tokens, no multiple of cp × tp = {cp} × {plan.tp}, as sp "
            "shares the sequence"
        )
    traced = [task for one in step.operators for task in (*one.forward, *one.backward)]
    kernels = [k for task in traced if isinstance(task, TracedKernel) for k in task.kernels]
    products = [each for each in kernels if isinstance(each, Gemm) and each.batch > 1]
    if any(step.sequence in (each.m, each.n, each.k) for each in products):
        raise InputError(
            f"cp is {cp}, but attention of {source} is made of batched products; a context is "
            "shared by fused attention (torch's scaled_dot_product_attention, flash-attn) alone"
        )
    found = [each for each in kernels if isinstance(each, Attention)]
    if not found:
        raise InputError(f"cp is {cp}, but {source} has no fused attention")
    style = plan.framework.cp_style
    for each in found:
        if each.queries != each.keys:
            raise InputError(
                f"cp is {cp}, but an attention of {source} has {each.queries:,} queries and "
                f"{each.keys:,} keys; a context is shared where both are of one sequence"
            )
        if style == "all-to-all":
            check_shared_heads(cp, each.heads // plan.tp, max(1, each.kv_heads // plan.tp))
        if each.window is not None and each.window < each.keys and style not in WHOLE_SEQUENCES:
            raise InputError(
                f"cp is {cp}, and attention of {source} has a window of {each.window:,} tokens, "
                "which needs framework.cp_style=all-gather or all-to-all"
            )


def with_exchange(
    name: str, forward: tuple[Task, ...], backward: tuple[Task, ...]
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Tasks of an operator → the same, its result and its gradient exchanged among ranks.

    As Megatron-LM's ``MambaContextParallel`` (megatron/core/ssm/mamba_context_parallel.py): a copy,
    an all-to-all, a copy.

    Parameters
    ----------
    name : str
        Of the operator.
    forward, backward : tuple of Task
        In the shapes of one rank's tokens.
    """
    computed = [task.kernel for task in forward if isinstance(task, Compute)]
    kernels = [k for each in computed if isinstance(each, Recorded) for k in each.now]
    result = [each for each in kernels if isinstance(each, Gemm)][-1]
    size = BYTES[result.output] * result.batch * result.m * result.n

    def steps(suffix: str) -> tuple[Task, ...]:
        return (
            Compute(f"{name} exchange copy{suffix}", Elementwise(2 * size)),
            Communicate(f"{name} all-to-all{suffix}", Operation.ALL_TO_ALL, "cp", size),
            Compute(f"{name} exchange order{suffix}", Elementwise(2 * size)),
        )

    return (*forward, *steps("")), (*steps(" backward"), *backward)


def with_context(
    name: str, forward: tuple[Task, ...], backward: tuple[Task, ...], plan: Plan
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Tasks of an operator → the same, attention spread over the ranks of a context.

    Parameters
    ----------
    name : str
        Of the operator.
    forward, backward : tuple of Task
        In the shapes of one rank's tokens.
    plan : Plan
    """
    ours, theirs = _attention(forward), _attention(backward)
    if not ours:
        return forward, backward
    kernel = next(each for task in ours for each in _described(task))

    def kernels(
        queries: int, keys: int, causal: bool, back: bool, ranks: int
    ) -> tuple[Compute, ...]:
        parts = theirs if back and theirs else ours  # none, where no gradients go that way
        return tuple(_part(task, queries, keys, causal, ranks) for task in parts)

    local = kernel.queries
    shape = AttentionShape(
        kernel.heads,
        kernel.kv_heads,
        kernel.head_size,
        kernel.value_size,
        local,
        local * plan.cp,
        kernel.causal,
    )
    spread = SpreadAttention(
        name,
        plan.cp,
        kernel.batch,
        BYTES[kernel.dtype],
        shape,
        kernels,
        plan.framework.fused,
    )
    there, back = CONTEXT_PARALLEL[plan.framework.cp_style](spread)
    return _in_place(forward, ours, there), _in_place(backward, theirs, back)


def _attention(tasks: Sequence[Task]) -> list[Compute]:
    return [task for task in tasks if isinstance(task, Compute) and _described(task)]


def _described(task: Compute) -> list[Attention]:
    if not isinstance(task.kernel, Recorded):
        return []
    return [each for each in task.kernel.now if isinstance(each, Attention)]


def _part(task: Compute, queries: int, keys: int, causal: bool, ranks: int) -> Compute:
    """Return a kernel of attention over some of the queries and keys, of heads that ranks share."""
    assert isinstance(task.kernel, Recorded)
    now = tuple(
        replace(
            each,
            queries=queries,
            keys=keys,
            causal=causal,
            heads=each.heads // ranks,
            kv_heads=max(1, each.kv_heads // ranks),
        )
        if isinstance(each, Attention)
        else each
        for each in task.kernel.now
    )
    return replace(task, kernel=replace(task.kernel, now=now))


def _in_place(
    tasks: tuple[Task, ...], attention: Sequence[Compute], found: tuple[Task, ...]
) -> tuple[Task, ...]:
    """Return tasks with others in place of those of attention."""
    if not attention:
        return tasks
    at = next(i for i, task in enumerate(tasks) if task is attention[0])
    others = [task for task in tasks[at:] if not any(task is each for each in attention)]
    return (*tasks[:at], *found, *others)
