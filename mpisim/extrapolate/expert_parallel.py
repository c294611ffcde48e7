"""Experts of a traced step → what one rank of an expert-parallel group has of them, and exchanges.

Experts show as grouped products: tokens of all experts in one kernel, with one matrix an expert
(``torch._grouped_mm``, ``grouped_gemm``). The experts of a layer begin with such a product and end
with the one that is back at the width they began with.

With expert parallelism a rank holds its share of the experts and computes them for the tokens of
all ranks of the group: as many rows as before, with fewer matrices. Before the experts each row
goes to the rank that has its expert, behind them back again, and so do the gradients of both. How
many rows go where the ranks tell each other first, and the CPU waits for it.

With tensor parallelism each rank routes its share of the tokens (sequence parallelism), and experts
may themselves be split over ranks (etp, by default as many as tp): the first product's features
out, the last product's features in. Then the rows that arrive at any rank of the group are gathered
for all of them, and results are reduce-scattered.

All of this is what Megatron-LM's all-to-all dispatcher does
(megatron/core/transformer/moe/token_dispatcher.py) and what the workload generator has for it
(:mod:`mpisim.workloads.transformer.token_dispatch`): tokens of `hidden` elements for each of their
experts, a probability in fp32 with each, and the counts of all experts from each rank. What a trace
of one GPU has of it, the permutation of tokens by expert, stays; rows that arrived are put in the
order of the experts where the trace has that.
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
from ..workloads.transformer.token_dispatch import COUNT_BYTES, COUNT_COPIES, COUNT_SUM_KERNELS
from .growth import Growth, share_of, times
from .step import Role, TracedOperator, TracedStep, TracedWait

__all__ = ["ExpertShare", "Experts", "check_experts", "experts_of"]


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
    width : int
        Features of a token.
    into, out : int
        Features out of the first product, and into the last: those of one expert between them.
    waits : bool
        Whether the CPU waits for the numbers of tokens as traced.
    """

    first: int
    last: int
    count: int
    rows: int
    row_bytes: int
    width: int
    into: int
    out: int
    waits: bool


def experts_of(step: TracedStep) -> tuple[Experts, ...]:
    """Traced step → the experts of each layer that has any, in order.

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
                kernel.k,
                kernel.n,
                product.k,
                any(isinstance(task, TracedWait) for each in before for task in each.forward),
            )
        )
        begin, behind = None, number + 1
    return tuple(found)


def check_experts(step: TracedStep, plan: Plan, experts: Sequence[Experts]) -> None:
    """Refuse ways to spread experts that the trace shows no way to.

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
    if not experts:
        for key, size in (("ep", plan.ep), ("etp", plan.etp or 1)):
            if size > 1:
                raise InputError(
                    f"{key} is {size}, but {step.source} shows no experts: no grouped products "
                    "(torch._grouped_mm, grouped_gemm) that lead back to the width they begin with"
                )
        return
    if plan.tp > 1 and not plan.sequence_parallel:
        raise InputError(
            f"sp is false with experts and tp = {plan.tp}: every rank of a tp group would send the "
            "same tokens; set sp=true"
        )
    if plan.ep * plan.expert_tp == 1:
        return
    if plan.framework.moe_dispatcher != "all-to-all":
        raise InputError(
            f"framework.moe_dispatcher is {plan.framework.moe_dispatcher!r}; tokens of a trace are "
            "exchanged by 'all-to-all' alone"
        )
    for each in experts:
        if each.count % plan.ep:
            raise InputError(f"ep is {plan.ep}, which does not divide the {each.count} experts")
        for width in (each.into, each.out):
            if width % plan.expert_tp:
                raise InputError(
                    f"etp is {plan.expert_tp}, which does not divide the {width} features of an "
                    "expert"
                )


class ExpertShare:
    """One rank's share of the experts of a step, which are spread over ranks (ep, etp).

    Parameters
    ----------
    experts : sequence of Experts
    plan : Plan
    growth : Growth
        Of what lies outside of tensor-parallel layers: of the tokens that a rank routes.
    """

    def __init__(self, experts: Sequence[Experts], plan: Plan, growth: Growth) -> None:
        self._ep, self._etp, self._growth = plan.ep, plan.expert_tp, growth
        self._counts = not plan.framework.moe_capacity
        self._busiest = plan.moe_imbalance if plan.ep > 1 else 1.0
        several = experts if self._ranks > 1 else ()
        self._inside = {n: each for each in several for n in range(each.first, each.last + 1)}
        self._before = {each.first - 1: each for each in several}
        self._behind = {each.last + 1: each for each in several}

    @property
    def _ranks(self) -> int:
        return self._ep * self._etp

    def holds(self, number: int) -> bool:
        """Whether an operator, by its number, is of experts that are spread over ranks."""
        return number in self._inside

    def kernel(self, kernel: Kernel, number: int, role: Role) -> Kernel:
        """Return a kernel of an operator as one rank runs it.

        Parameters
        ----------
        kernel : Kernel
            At the sizes of the micro-batch, for the rows that this rank routes.
        number : int
            Of the operator.
        role : str
            As of the traced kernel.
        """
        experts = self._inside.get(number)
        if experts is None:
            beside = self._before.get(number) or self._behind.get(number)
            return kernel if beside is None else self._sorted(kernel, beside)
        if role == "weights":
            return share_of(kernel, 1 / self._ranks)
        if isinstance(kernel, GroupedGemm):
            return self._product(kernel, experts)
        # Of as many times the rows each rank has the features of its share of an expert.
        return kernel if self._busiest == 1 else share_of(kernel, self._busiest)

    def _product(self, kernel: GroupedGemm, experts: Experts) -> GroupedGemm:
        """Return a product of experts in one rank's shape, forward or backward."""
        rows, groups = times(kernel.rows, self._etp * self._busiest), kernel.groups // self._ep
        if kernel.n == experts.width:
            return replace(kernel, rows=rows, groups=groups, k=kernel.k // self._etp)
        return replace(kernel, rows=rows, groups=groups, n=kernel.n // self._etp)

    def _sorted(self, kernel: Kernel, experts: Experts) -> Kernel:
        """Return a kernel beside experts: rows that arrived put in the order of the experts."""
        rows = times(experts.rows, self._growth.activations)
        if isinstance(kernel, Elementwise) and kernel.bytes == 2 * rows * experts.row_bytes:
            return share_of(kernel, self._etp * self._busiest)
        return kernel

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
        return size // self._ranks, True

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
            forward = (
                *self._with_counts(to, forward),
                *self._there(to, ("dispatch", "probabilities")),
            )
            gradients = self._back(to, ("probabilities gradient", "dispatch gradient"))
            backward = (*gradients, *backward)
        back = self._behind.get(number)
        if back is not None:
            forward = (*self._back(back, ("combine",)), *forward)
            backward = (*backward, *self._there(back, ("combine gradient",)))
        return forward, backward

    def _there(self, each: Experts, names: Sequence[str]) -> tuple[Task, ...]:
        """Rows where they were routed → all those of the experts of this rank."""
        sizes = self._sizes(each, names)
        sent = [_exchange(name, Operation.ALL_TO_ALL, size) for name, size in sizes]
        gathered = [_exchange(name, Operation.ALL_GATHER, self._etp * size) for name, size in sizes]
        return (*(sent if self._ep > 1 else ()), *(gathered if self._etp > 1 else ()))

    def _back(self, each: Experts, names: Sequence[str]) -> tuple[Task, ...]:
        """The reverse of `_there`, sums over the ranks of one expert included."""
        sizes = self._sizes(each, names)
        summed = [
            _exchange(name, Operation.REDUCE_SCATTER, self._etp * size) for name, size in sizes
        ]
        sent = [_exchange(name, Operation.ALL_TO_ALL, size) for name, size in sizes]
        return (*(summed if self._etp > 1 else ()), *(sent if self._ep > 1 else ()))

    def _sizes(self, each: Experts, names: Sequence[str]) -> list[tuple[str, int]]:
        """Names of exchanges → with their bytes, of the busiest rank: rows or probabilities."""
        rows = math.ceil(times(each.rows, self._growth.activations) * self._busiest)
        return [
            (name, rows * (BYTES["fp32"] if "probabilities" in name else each.row_bytes))
            for name in names
        ]

    def _with_counts(self, each: Experts, forward: tuple[Task, ...]) -> tuple[Task, ...]:
        """Tasks before rows are exchanged → those with all ranks' numbers of tokens for experts.

        These are exchanged first, and the CPU waits for them as it waited for one rank's: not for
        the rows that are sorted meanwhile (``MoEAlltoAllTokenDispatcher`` of
        megatron/core/transformer/moe/token_dispatcher.py). What one rank alone copies to the CPU
        are the counts of its experts; with others it copies what goes where, too.
        """
        if not self._counts:
            return forward
        size = self._ranks * each.count * COUNT_BYTES
        group = "-".join(axis for axis, n in (("etp", self._etp), ("ep", self._ep)) if n > 1)
        gather = Communicate("token counts all-gather", Operation.ALL_GATHER, group, size)
        sums = Compute("token count sums", Elementwise(size), launches=COUNT_SUM_KERNELS)
        copies = COUNT_COPIES - 1 if each.waits else COUNT_COPIES
        read = Compute("read counts of all ranks", Copy(size, "host"), launches=copies)
        if not each.waits:
            return (gather, sums, read, *forward, Await("wait for token counts", read.name))
        waits = [
            replace(t, kernel=read.name, kept="") if isinstance(t, Await) else t for t in forward
        ]
        return (gather, sums, read, *waits)


def _exchange(name: str, operation: Operation, size: int) -> Communicate:
    what = operation.name.lower().replace("_", "-")
    group = "ep" if operation is Operation.ALL_TO_ALL else "etp"
    return Communicate(f"{name} {what}", operation, group, size)
