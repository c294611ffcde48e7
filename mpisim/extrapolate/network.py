"""A traced step → a network of the workload generator, in the shapes of one rank of a plan.

    traced operators ─► operators of `mpisim.workloads`, whose kernels are `Recorded`
    traced layers    ─► layers, which pipelines cut and FSDP gathers

Everything else, buckets, units, schedules and messages, the generator then does as for any model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..experiment import Plan
from ..kernels.operations import BYTES, Convolution, Copy, Elementwise, Gemm, GroupedGemm, Kernel
from ..operators import TensorSpec
from ..operators.tensors import element_bytes
from ..workloads.grid import Grid
from ..workloads.operators import Await, Compute, Layer, LayerStack, Operator, Parameter, Task
from .context_parallel import with_context, with_exchange
from .expert_parallel import ExpertShare, experts_of
from .growth import Growth, grown, product_role
from .optimizer_share import OptimizerShare, recorded, with_full_gradients
from .scans import scans_of
from .split import NOT_SPLIT, Split, split_kernel, split_tasks
from .step import (
    TracedKernel,
    TracedOperator,
    TracedParameter,
    TracedStep,
    TracedTask,
    TracedWait,
)
from .tensor_parallel import sums_input_gradient

__all__ = ["growth_of", "passed_on", "traced_network"]

FP32 = BYTES["fp32"]


def growth_of(step: TracedStep, plan: Plan, sequence: int | None) -> Growth:
    """Traced step, plan → ratio of a rank's share of a micro-batch to the traced one.

    Parameters
    ----------
    step : TracedStep
    plan : Plan
    sequence : int, optional
        Tokens of a sample; as traced if not given.
    """
    length = 1.0
    if sequence is not None and step.sequence is not None:
        length = sequence / step.sequence
    return Growth(
        plan.micro_batch / step.batch,
        length / plan.cp,
        step.sequence,
        step.batch * (step.sequence or 1),
    )


def traced_network(
    step: TracedStep,
    plan: Plan,
    grid: Grid,
    *,
    sequence: int | None = None,
    splits: Mapping[int, Split] | None = None,
    upload: bool = False,
    loads: bool = True,
) -> LayerStack:
    """Traced step, plan, grid → network of the workload generator, in shapes of one rank.

    Parameters
    ----------
    step : TracedStep
    plan : Plan
    grid : Grid
    sequence : int, optional
        Tokens of a sample; as traced if not given.
    splits : mapping of int to Split, optional
        How tensor parallelism divides operators, by their number in `step.operators`.
    upload : bool
        Whether the first layer's input comes from the host, which the trace does not show.
    loads : bool
        Whether the CPU loads samples as traced.
    """
    growth = growth_of(step, plan, sequence)
    once = grid.pp == 1 and plan.global_batch == plan.micro_batch * grid.dp
    several = plan.global_batch > plan.micro_batch * grid.dp
    adds = several and not step.accumulates
    sequence_parallel = grid.tp > 1 and plan.sequence_parallel
    outside = replace(growth, samples=growth.samples / grid.tp) if sequence_parallel else growth
    experts = ExpertShare(experts_of(step), plan, outside)
    found = _Writer(
        step,
        growth,
        plan,
        splits or {},
        experts,
        outside=outside,
        zeroing=once,
        adds=adds,
        loads=loads,
    ).network()
    return _with_upload(found, step, growth) if upload else found


def _with_upload(network: LayerStack, step: TracedStep, growth: Growth) -> LayerStack:
    """Return a network whose first operator begins with the copy of its input from the host."""
    size = max(1, round(passed_on(step.operators) * growth.activations))
    copy = Compute("input upload", Copy(size, "host"))
    layer = network.layers[0]
    first = replace(layer.operators[0], forward=(copy, *layer.operators[0].forward))
    layer = replace(layer, operators=(first, *layer.operators[1:]))
    return replace(network, layers=(layer, *network.layers[1:]))


class _Writer:
    """Write the network of a traced step.

    Parameters
    ----------
    step : TracedStep
    growth : Growth
    plan : Plan
    splits : mapping of int to Split
    experts : ExpertShare
    outside : Growth
        Outside of `splits`, where ranks of a tensor-parallel group may have a share of the tokens.
    zeroing : bool
        Whether gradients are set to zero where the trace does so; otherwise with the optimizer, as
        a pass that is run for every micro-batch is no place for it.
    adds : bool
        Whether gradients of micro-batches are added up, which the traced step has no kernels for.
    loads : bool
        Whether the CPU loads samples as traced.
    """

    def __init__(
        self,
        step: TracedStep,
        growth: Growth,
        plan: Plan,
        splits: Mapping[int, Split],
        experts: ExpertShare,
        *,
        outside: Growth,
        zeroing: bool,
        adds: bool,
        loads: bool,
    ) -> None:
        self.adds, self.loads = adds, loads
        self.gathers = any(each.kind == "gathered" for each in splits.values())
        self.step, self.growth, self.splits = step, growth, splits
        self.plan, self.tp = plan, plan.tp
        self.scans = scans_of(step)
        self.experts, self.outside, self.sequence = experts, outside, outside is not growth
        self.zeroing = zeroing and bool(step.zeroing)
        self.weights = {
            shape
            for each in step.parameters
            if len(each.shape) == 2
            for shape in ((each.shape[0], each.shape[1]),)
        }

    def network(self) -> LayerStack:
        step = self.step
        layers: list[Layer] = []
        flops = number = 0
        traced = step.layers()
        for place, (name, members) in enumerate(traced):
            operators = []
            for each in members:
                operators.append(self._operator(each, number))
                number += 1
            following = traced[place + 1][1] if place + 1 < len(traced) else []
            before = layers[-1].output if layers else 0
            role: Literal["embedding", "block", "head"] = "block"
            if name in step.embedding:
                role = "embedding"
            elif name in step.head:
                role = "head"
            output = round(passed_on(following) * self.outside.activations)
            layers.append(Layer(name, tuple(operators), role, output, before))
        for layer in layers:
            flops += sum(each.kernel.flops for each in layer.kernels())
        tokens = self.growth.activations * step.batch * (step.sequence or 1) * self.plan.cp
        return LayerStack(
            tuple(layers),
            flops * self.tp * self.plan.cp,
            round(tokens),
            OptimizerShare(self._optimizer()),
            sum(each.elements for each in step.parameters),
        )

    def _optimizer(self) -> tuple[TracedTask, ...]:
        """Traced step, plan → tasks of the optimizer on a rank's share of all parameters."""
        step, plan = self.step, self.plan
        tasks = step.optimizer if self.zeroing else (*step.zeroing, *step.optimizer)
        if plan.framework.dp_style == "fsdp" and plan.zero >= 2 and step.format != "fp32":
            tasks = with_full_gradients(tasks, sum(each.elements for each in step.parameters))
        return tasks

    def _operator(self, each: TracedOperator, number: int) -> Operator:
        split = self.splits.get(number, NOT_SPLIT)
        forward = self._tasks(each, each.forward, split, number, backward=False)
        backward = self._tasks(each, each.backward, split, number, backward=True)
        size = round(sum(_bytes(one) for one in each.inputs) * self.growth.activations)
        if split is not NOT_SPLIT:
            forward, backward = split_tasks(each, split, forward, backward, self.growth, self.tp)
        if self.plan.cp > 1:
            forward, backward = with_context(each.name, forward, backward, self.plan)
            if number in self.scans:
                forward, backward = with_exchange(each.name, forward, backward)
        forward, backward = self.experts.exchanges(number, each, forward, backward)
        # Where outputs are gathered, gradients between are sums over ranks not added up yet.
        partial = self.gathers and split is NOT_SPLIT
        size //= self.tp if self.sequence and split is NOT_SPLIT else 1
        if self.zeroing and number == max(0, self.step.zeroing_at - 1):
            zeros = OptimizerShare(self.step.zeroing)(1 / self.tp)
            first = self.step.zeroing_at == 0
            forward = (*zeros, *forward) if first else (*forward, *zeros)
        parameters = tuple(
            self._parameter(each, one, split, number, partial=partial) for one in each.parameters
        )
        if each.tied is not None and not any(one.tied for one in parameters):
            size = split.parameter(each.tied, self.tp)
            parameters = (Parameter(f"{each.name} (tied)", size, tied=True), *parameters)
        if self.adds and backward:
            backward = (*backward, *_additions(self._element(each), parameters))
        frozen = each.frozen_weight(self.weights)
        if frozen is not None:
            # Counted in elements of the format that trained weights are gathered in.
            own = _element(each, frozen) / BYTES[self.plan.parameter_format]
            held = round(split.parameter(frozen, self.tp) * own)
            parameters = (*parameters, Parameter(f"{each.name} (frozen)", held, frozen=True))
        return Operator(
            each.name, forward, backward, parameters, saved=size, statistics=each.statistics
        )

    def _parameter(
        self,
        each: TracedOperator,
        one: TracedParameter,
        split: Split,
        number: int,
        *,
        partial: bool,
    ) -> Parameter:
        name = f"{each.name} {'×'.join(map(str, one.shape))}"
        if self.experts.holds(number):
            size, of_expert = self.experts.parameter(one.shape, number)
            return Parameter(name, size, expert=of_expert)
        partial = partial or self._of_heads(split, one)
        return Parameter(
            name,
            split.parameter(one.shape, self.tp),
            tied=one.shape == each.tied,
            replicated=partial or self._of_tokens(split, one),
            partial=partial,
        )

    def _of_tokens(self, split: Split, one: TracedParameter) -> bool:
        """Whether each rank sees its share of the tokens alone of what a parameter works on."""
        behind_row = split.kind == "row" and len(one.shape) == 1
        return self.sequence and (split is NOT_SPLIT or behind_row)

    def _element(self, each: TracedOperator) -> int:
        """Bytes of an element of an operator's gradients; of a shared weight's as it shows."""
        shown = [*each.parameters, *(p for p in self.step.parameters if p.shape == each.tied)]
        return max((element_bytes(one.dtype) for one in shown), default=FP32)

    def _of_heads(self, split: Split, one: TracedParameter) -> bool:
        """Whether each rank sees its heads alone of what a whole parameter works on."""
        whole = split.parameter(one.shape, self.tp) == one.elements
        return split.kind == "inside" and len(one.shape) == 1 and whole

    def _tasks(
        self,
        of: TracedOperator,
        tasks: Iterable[TracedTask],
        split: Split,
        number: int,
        *,
        backward: bool,
    ) -> tuple[Task, ...]:
        found: list[Task] = []
        seen: set[int] = set()
        for each in tasks:
            if isinstance(each, TracedWait):
                found.append(Await(each.name, host=each.host, tail=each.tail, kept=each.kept))
                continue
            reads = len(each.kernels) if backward else _first_product(each.kernels)
            now = tuple(
                self.experts.kernel(
                    self._now(kernel, each, split, backward, of, reads_input=i < reads),
                    number,
                    each.role,
                )
                for i, kernel in enumerate(each.kernels)
            )
            counts = each.call not in seen
            seen.add(each.call)
            if each.loading:
                each = replace(each, host=each.host - each.loading + self._loaded(each))
            weight = backward and bool(now) and not each.on_weight
            weight = weight and all(map(self._of_weights, each.kernels))
            kernel = recorded(each, now, counts)
            found.append(
                Compute(each.name, kernel, weight=weight, launches=each.launches, kept=each.kept)
            )
        return tuple(found)

    def _loaded(self, each: TracedKernel) -> int:
        """Kernel → time that the CPU is in the data loader before it, in ps."""
        if not self.loads:
            return 0
        own = self.step.loader == "process"  # sample by sample
        return round(each.loading * self.growth.samples) if own else each.loading

    def _now(
        self,
        kernel: Kernel,
        of: TracedKernel,
        split: Split,
        backward: bool,
        operator: TracedOperator,
        *,
        reads_input: bool,
    ) -> Kernel:
        """Return a rank's share of a kernel; `reads_input`: no product lies before it."""
        growth = self.outside if split is NOT_SPLIT else self.growth
        gradient = backward and not of.on_weight
        new = grown(kernel, growth, self.weights, backward=gradient, role=of.role)
        if split is NOT_SPLIT:
            return new
        role = None
        if isinstance(kernel, Gemm):
            role = product_role(kernel, self.weights, gradient, self.growth.tokens)
        if (
            split.kind == "gathered"
            and reads_input
            and isinstance(kernel, Elementwise)
            and kernel.bytes in _copies(operator)
        ):
            return new  # the input is whole
        if split.kind == "column" and gradient and sums_input_gradient(kernel, operator):
            return new
        return split_kernel(new, split, role, backward, of.role, self.tp)

    def _of_weights(self, kernel: Kernel) -> bool:
        """Whether a kernel of the backward pass computes gradients of weights."""
        if isinstance(kernel, Convolution):
            return kernel.direction == "weight"
        if isinstance(kernel, GroupedGemm):
            return kernel.weight
        return (
            isinstance(kernel, Gemm)
            and product_role(kernel, self.weights, True, self.growth.tokens) == "k"
        )


def _element(each: TracedOperator, shape: tuple[int, int]) -> int:
    """Bytes of an element of a weight that is not trained, which is among the inputs."""
    own = [one for one in each.inputs if one.shape in (shape, shape[::-1])]
    return element_bytes(own[-1].dtype) if own else FP32


def _additions(element: int, parameters: tuple[Parameter, ...]) -> Iterator[Task]:
    """Yield kernels that add gradients to those of micro-batches before, a kernel a parameter."""
    for one in parameters:
        kernel = Elementwise(3 * element * max(1, one.size))
        yield Compute("gradient accumulation", kernel, weight=True)


def passed_on(operators: Iterable[TracedOperator]) -> int:
    """Operators of a layer → bytes of the activation that the layer before passes to them.

    Parameters
    ----------
    operators : iterable of TracedOperator
        In the order of the forward pass.

    Returns
    -------
    int
        Bytes of the largest input of the first operator that has inputs; 0 if none has.
    """
    for each in operators:
        if each.inputs:
            return max(map(_bytes, each.inputs))
    return 0


def _first_product(kernels: Sequence[Kernel]) -> int:
    """Return how many kernels of an operator come before its product; all if it has none.

    Those behind it, as the one that adds a bias, work on its output, even where that is as large
    as its input.
    """
    products = (i for i, each in enumerate(kernels) if isinstance(each, Convolution | Gemm))
    return next(products, len(kernels))


def _copies(operator: TracedOperator) -> tuple[int, ...]:
    """Return the bytes of kernels that read an operator's input, or copy it."""
    if not operator.inputs:
        return ()
    size = max(map(_bytes, operator.inputs))
    return size, 2 * size


def _bytes(spec: TensorSpec) -> int:
    return element_bytes(spec.dtype) * spec.elements
