"""Experts of a traced step → what one rank of an expert-parallel group has of them, and exchanges.

Experts show as grouped products: tokens of all experts in one kernel, with one matrix an expert
(``torch._grouped_mm``, ``grouped_gemm``). The experts of a layer begin with such a product and end
with the one that is back at the width they began with.

With expert parallelism a rank holds its share of the experts and computes them for the tokens of
all ranks of the group: as many rows as before, with fewer matrices. Before the experts each row
goes to the rank that has its expert, behind them back again, and so do the gradients of both. How
many rows go where the ranks tell each other first, and the CPU waits for it. All of this is what
Megatron-LM's all-to-all dispatcher does (megatron/core/transformer/moe/token_dispatcher.py) and
what the workload generator has for it (:mod:`mpisim.workloads.transformer.token_dispatch`): tokens
of `hidden` elements for each of their experts, a probability in fp32 with each, and the counts of
all experts from each rank. What a trace of one GPU has of it, the permutation of tokens by expert,
stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import InputError
from ..base.frozen import frozen
from ..experiment import Plan
from ..kernels.operations import BYTES, Copy, Elementwise, GroupedGemm, Kernel
from ..operators.tensors import element_bytes
from ..program import Operation
from ..workloads.operators import Await, Communicate, Compute, Task
from .growth import Growth, share_of, times
from .step import Role, TracedOperator, TracedStep, TracedWait

__all__ = ["ExpertShare", "Experts", "check_experts", "experts_of"]

COUNT_BYTES = 8
"""Of a number of tokens."""
COUNT_KERNELS = 5
"""What each rank sends and gets, and what each of its experts does: four sums, and a copy."""


@frozen
class Experts:
    """The experts of one layer.

    Attributes
    ----------
    first, last : int
        Their first and their last operator, by its number in the step.
    count : int
    rows : int
        Tokens times the experts of each, as traced.
    row_bytes : int
        Of a token on its way to its expert, or back.
    waits : bool
        Whether the CPU waits for the numbers of tokens as traced.
    """

    first: int
    last: int
    count: int
    rows: int
    row_bytes: int
    waits: bool


def experts_of(step: TracedStep) -> tuple[Experts, ...]:
    """Return the experts of each layer that has any, in order.

    Parameters
    ----------
    step : TracedStep
    """
    found: list[Experts] = []
    begin: tuple[int, GroupedGemm] | None = None
    behind = 0
    for number, operator in enumerate(step.operators):
        product = next((k for k in operator.products() if isinstance(k, GroupedGemm)), None)
        if product is None:
            continue
        if begin is None:
            begin = number, product
        first, kernel = begin
        if product.n != kernel.k or number == first:
            continue
        given = max(step.operators[first].inputs, key=lambda each: each.elements, default=None)
        element = BYTES[kernel.output] if given is None else element_bytes(given.dtype)
        before = step.operators[behind:first]
        found.append(
            Experts(
                first,
                number,
                kernel.groups,
                kernel.rows,
                element * kernel.k,
                any(isinstance(task, TracedWait) for each in before for task in each.forward),
            )
        )
        begin, behind = None, number + 1
    return tuple(found)


def check_experts(step: TracedStep, plan: Plan, experts: Sequence[Experts]) -> None:
    """Refuse expert parallelism that the trace shows no way to.

    Parameters
    ----------
    step : TracedStep
    plan : Plan
    experts : sequence of Experts

    Raises
    ------
    InputError
        The message names the key.
    """
    if plan.ep == 1:
        return
    if not experts:
        raise InputError(
            f"ep is {plan.ep}, but {step.source} shows no experts: no grouped products "
            "(torch._grouped_mm, grouped_gemm) that lead back to the width they begin with"
        )
    if plan.tp > 1:
        raise InputError(
            f"ep is {plan.ep} and tp is {plan.tp}; experts of a trace are spread with tp = 1 alone"
        )
    if plan.framework.moe_dispatcher != "all-to-all":
        raise InputError(
            f"framework.moe_dispatcher is {plan.framework.moe_dispatcher!r}; tokens of a trace are "
            "exchanged by 'all-to-all' alone"
        )
    for each in experts:
        if each.count % plan.ep:
            raise InputError(f"ep is {plan.ep}, which does not divide the {each.count} experts")


class ExpertShare:
    """What one rank of an expert-parallel group has of the experts of a step.

    Parameters
    ----------
    experts : sequence of Experts
    plan : Plan
    growth : Growth
        Of the micro-batch.
    """

    def __init__(self, experts: Sequence[Experts], plan: Plan, growth: Growth) -> None:
        self._ep, self._growth = plan.ep, growth
        self._counts = not plan.framework.moe_capacity
        self._busiest = plan.moe_imbalance
        several = experts if plan.ep > 1 else ()
        self._inside = {n: each for each in several for n in range(each.first, each.last + 1)}
        self._before = {each.first - 1: each for each in several}
        self._behind = {each.last + 1: each for each in several}

    def holds(self, number: int) -> bool:
        """Whether an operator, by its number, is of experts that are spread over ranks."""
        return number in self._inside

    def kernel(self, kernel: Kernel, number: int, role: Role) -> Kernel:
        """Return a kernel of an operator as one rank runs it.

        Parameters
        ----------
        kernel : Kernel
            At the sizes of the micro-batch.
        number : int
            Of the operator.
        role : str
            As of the traced kernel.
        """
        if number not in self._inside:
            return kernel
        if role == "weights":
            return share_of(kernel, 1 / self._ep)
        if isinstance(kernel, GroupedGemm):
            rows, groups = times(kernel.rows, self._busiest), kernel.groups // self._ep
            return replace(kernel, rows=rows, groups=groups)
        return kernel if self._busiest == 1 else share_of(kernel, self._busiest)

    def parameter(self, shape: tuple[int, ...], number: int) -> tuple[int, bool]:
        """Return how many elements of a parameter a rank holds, and whether it is of experts.

        Parameters
        ----------
        shape : tuple of int
        number : int
            Of the operator that it belongs to.
        """
        size = math.prod(shape)
        each = self._inside.get(number)
        if each is None or not shape or shape[0] != each.count:
            return size, False
        return size // self._ep, True

    def exchanges(
        self,
        number: int,
        operator: TracedOperator,
        forward: tuple[Task, ...],
        backward: tuple[Task, ...],
    ) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Return an operator's tasks with the all-to-alls before or behind experts.

        Parameters
        ----------
        number : int
        operator : TracedOperator
        forward, backward : tuple of Task
        """
        to = self._before.get(number)
        if to is not None:
            size, rows = self._sizes(to)
            forward = (
                *forward,
                *self._tell_counts(to),
                _all_to_all("dispatch", size),
                _all_to_all("probabilities", BYTES["fp32"] * rows),
            )
            backward = (
                _all_to_all("probabilities gradient", BYTES["fp32"] * rows),
                _all_to_all("dispatch gradient", size),
                *backward,
            )
        back = self._behind.get(number)
        if back is not None:
            size, _ = self._sizes(back)
            forward = (_all_to_all("combine", size), *forward)
            backward = (*backward, _all_to_all("combine gradient", size))
        return forward, backward

    def _sizes(self, each: Experts) -> tuple[int, int]:
        """Bytes, and rows, that the busiest rank gets."""
        rows = math.ceil(times(each.rows, self._growth.activations) * self._busiest)
        return rows * each.row_bytes, rows

    def _tell_counts(self, each: Experts) -> tuple[Task, ...]:
        """All ranks' numbers of tokens for all experts, and what is made of them."""
        if not self._counts:
            return ()
        size = self._ep * each.count * COUNT_BYTES
        gather = Communicate("token counts all-gather", Operation.ALL_GATHER, "ep", size)
        sums = Compute("token count sums", Elementwise(size), launches=COUNT_KERNELS)
        if each.waits:
            return gather, sums
        read = Compute("read token counts", Copy(size, "host"))
        return gather, sums, read, Await("wait for token counts")


def _all_to_all(name: str, size: int) -> Communicate:
    return Communicate(f"{name} all-to-all", Operation.ALL_TO_ALL, "ep", size)
