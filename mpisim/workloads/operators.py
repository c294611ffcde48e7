"""Model in the shapes of one rank: network → layers → operators → tasks (kernels, collectives).

    LayerStack = layers in order;  Layer = operators;  Operator = tasks forward, tasks backward

A task is a kernel, a communication or a wait of the CPU, already in the shapes that one rank of the
plan sees: a tensor-parallel matrix has its share of the columns, a sequence-parallel norm its share
of the tokens. All ranks with the same part of the pipeline execute the same tasks.

Order and waiting
-----------------
Kernels run one after another on the compute stream. A communication starts when the kernel before
it has ended, and the kernel after it waits for it. Where a framework overlaps the two, the
communication has a `token`: then only the tasks that name the token in `after` wait for it, and
whatever follows the operator; if it is `carried`, operators that follow in the same pass may run
beside it, up to the task that names it. A communication with an `after` of its own waits for those
tokens alone, not for the kernel before it.

Values
------
Tasks, operators and layers are immutable and compare by value. What is derived from them (rows,
memory) is therefore cached under the operators themselves: equal operators give equal results,
whichever layer or network they stand in. A hash looks at every number of every kernel, so operators
compute theirs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cached_property
from typing import ClassVar, Literal

from mpisim.kernels.operations import Kernel

from ..base.frozen import frozen
from ..program import Operation

__all__ = [
    "Await",
    "BackwardPart",
    "Communicate",
    "Compute",
    "Layer",
    "LayerStack",
    "Operator",
    "Parameter",
    "Task",
]


@frozen(slots=True)
class Compute:
    """A kernel on the compute stream.

    Attributes
    ----------
    name : str
    kernel : Kernel
        Shape, formats and bytes.
    weight : bool
        Backward only: it computes gradients of weights, not of inputs; schedules may delay it.
    after : tuple of str
        Tokens of communications to wait for: of the same operator, or carried from an earlier one.
    launches : int
        Launches that it costs the CPU: more than 1 where a loop launches parts of it, 0 where it is
        captured in a CUDA graph with the kernel before. A gap lies before each part.
    compiled_loop : bool
        Whether that loop is in compiled code, so that the framework's time comes once.
    calls : int
        Small kernels beside it that the same function of compiled code launches, such as one that
        makes a scale of a largest value: each costs a launching call and a gap, and no time of its
        own.
    kept : str
        Name by which a later operator's `Await` waits for it; empty: none does.
    launch_share : float
        CPU time of a launch over that of one from Python; less than 1 where compiled code launches
        it for a single tensor.
    """

    name: str
    kernel: Kernel
    weight: bool = False
    after: tuple[str, ...] = ()
    launches: int = 1
    compiled_loop: bool = False
    calls: int = 0
    kept: str = ""
    launch_share: float = 1.0


@frozen(slots=True)
class Communicate:
    """A collective, or an exchange with both neighbours of a ring.

    Attributes
    ----------
    name : str
    operation : Operation
        SEND_RECV: each rank of the group sends to the next and receives from the one before, in one
        batch.
    group : str
        The group of ranks, an axis of the grid (``"tp"``, ``"cp"``, ``"ep"``, …). Where it has one
        member the task is left out.
    bytes : int
        Of the largest buffer: all-gather its result, reduce-scatter its input, all-to-all what one
        rank sends to all, itself included; SEND_RECV what one rank sends.
    weight : bool
        As in `Compute`.
    token : str
        Name under which later tasks wait for it; lets it run beside the kernels that follow.
    after : tuple of str, optional
        Wait for these tokens alone, not for the kernel before.
    carried : bool
        Whether the token outlives the operator.
    copy_engine : bool
        Whether copy engines move the data of a SEND_RECV, and no kernel.
    """

    name: str
    operation: Operation
    group: str
    bytes: int
    weight: bool = False
    token: str = ""
    after: tuple[str, ...] | None = None
    carried: bool = False
    copy_engine: bool = False


@frozen(slots=True)
class Await:
    """The CPU waits for a kernel whose result it needs before it launches anything further.

    Left out where launches are captured (``framework.cuda_graphs``), which is possible only if the
    CPU needs nothing.

    Attributes
    ----------
    name : str
    kernel : str
        Name of an earlier kernel of the same operator; empty: the latest, whichever it is.
    host, tail : int
        CPU time before it waits, and after the kernel has ended, in ps.
    kept : str
        In place of `kernel`: the `kept` name of a kernel of an earlier operator; the latest kernel
        where that operator is not in the same block.
    """

    name: str
    kernel: str = ""
    host: int = 0
    tail: int = 0
    kept: str = ""
    weight: ClassVar[bool] = False


Task = Compute | Communicate | Await
"""What an operator issues: a kernel, a communication, or a wait of the CPU."""

BackwardPart = Literal["all", "input", "weight"]
"""The whole of a backward pass, or the gradients of inputs or weights alone (zero bubble)."""

OperatorPart = Literal["forward"] | BackwardPart
"""The forward pass of an operator, or a part of its backward."""


@frozen(slots=True)
class Parameter:
    """A parameter tensor, or this rank's share of it.

    Attributes
    ----------
    name : str
    size : int
        Elements this rank holds.
    expert : bool
        Whether it belongs to a routed expert: its gradients are reduced over the ranks that hold
        the same expert.
    replicated : bool
        Whether every tensor-parallel rank holds all of it, but with sequence parallelism saw a
        share of the tokens: its gradient is then added up over the tp group.
    partial : bool
        Of a replicated one: whether its gradient is to be added up in any case, since each rank
        saw a share of the heads, or of the channels behind it.
    tied : bool
        Whether the first and the last stage of a pipeline both hold it.
    local : bool
        Whether no other rank holds it and the backward pass updates it, as embedding tables of
        recommendation models: nothing to reduce, and nothing for the optimizer.
    frozen : bool
        Whether it is not trained: no gradient, and nothing for the optimizer.
    rows : int
        Of its first dimension, which divides `size`; 0 for a vector, and where it does not count.
    """

    name: str
    size: int
    expert: bool = False
    replicated: bool = False
    partial: bool = False
    tied: bool = False
    local: bool = False
    frozen: bool = False
    rows: int = 0


@frozen
class Operator:
    """An operator of the framework, one node of autograd's graph.

    Attributes
    ----------
    name : str
    forward, backward : tuple of Task
        In the order of launching.
    parameters : tuple of Parameter
        In the order in which a module registers them (backward completes them in reverse).
    saved : int
        Bytes kept from the forward to the backward pass, as Korthikanti et al. (arXiv:2205.05198)
        count them: inputs, masks, statistics; nothing that another operator keeps already.
    selective : bool
        Whether selective recomputation (same paper) drops what it keeps and runs it again.
    statistics : int
        Channels whose running mean and variance it updates (batch normalisation). PyTorch's DDP
        sends these, two fp32 numbers each, and one int64 counter an operator, from its first rank
        to the others before the first forward of a step.
    alive : tuple of int
        Bytes that are alive at once in the forward, and in the backward beyond `saved`, where it is
        known; otherwise they follow from the tasks (:mod:`mpisim.memory.activations`).
    """

    name: str
    forward: tuple[Task, ...]
    backward: tuple[Task, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    saved: int = 0
    selective: bool = False
    statistics: int = 0
    alive: tuple[int, int] | None = None

    @cached_property
    def _hash(self) -> int:
        # What two operators mostly differ in; the comparison by value looks at the rest.
        return hash((self.name, self.forward, self.backward, self.saved))

    def __hash__(self) -> int:
        return self._hash

    def backward_part(self, part: BackwardPart) -> tuple[Task, ...]:
        """Return the backward: all, or the tasks for gradients of ``"input"`` or ``"weight"``."""
        if part == "all":
            return self.backward
        return tuple(task for task in self.backward if task.weight == (part == "weight"))

    def tasks(self, part: OperatorPart) -> tuple[Task, ...]:
        """Return the forward, or a part of the backward."""
        return self.forward if part == "forward" else self.backward_part(part)

    @cached_property
    def carries(self) -> bool:
        """Whether it has waits in common with other operators: carried tokens or kept kernels."""
        tasks = self.forward + self.backward
        return any(task.carried if isinstance(task, Communicate) else task.kept for task in tasks)


@frozen
class Layer:
    """The unit of recomputation, FSDP and pipeline parallelism.

    Attributes
    ----------
    name : str
    operators : tuple of Operator
    role : {"embedding", "block", "head"}
        Pipelines spread the blocks; embeddings come before the first and heads after the last.
    output : int
        Bytes that one rank passes to the next layer; what a pipeline sends.
    checkpoint : int
        Bytes kept instead of `saved` where the whole layer is recomputed: its input.
    """

    name: str
    operators: tuple[Operator, ...]
    role: Literal["embedding", "block", "head"]
    output: int
    checkpoint: int

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters of all operators, in the order of registration."""
        return tuple(p for operator in self.operators for p in operator.parameters)

    @cached_property
    def has_experts(self) -> bool:
        """Whether it holds routed experts."""
        return any(parameter.expert for parameter in self.parameters)

    @property
    def saved(self) -> int:
        """Bytes kept for the backward pass without recomputation."""
        return sum(operator.saved for operator in self.operators)

    @property
    def saved_selective(self) -> int:
        """Bytes kept with selective recomputation."""
        return sum(operator.saved for operator in self.operators if not operator.selective)

    def kernels(self) -> Iterator[Compute]:
        """Kernels, forward and backward."""
        for operator in self.operators:
            for task in (*operator.forward, *operator.backward):
                if isinstance(task, Compute):
                    yield task


@frozen
class LayerStack:
    """A model in the shapes of one rank.

    Attributes
    ----------
    layers : tuple of Layer
        In order of execution.
    flops : int
        Model FLOPs of one micro-batch, forward and backward, on all ranks that share it: what the
        mathematics needs, without recomputation. Utilisation counts these.
    tokens : int
        Tokens (images, samples) of one micro-batch.
    optimizer : callable, optional
        Share of the model's parameters → tasks that update these, where a trace has shown how; by
        default the optimizer is that of the plan.
    size : int
        Parameters of the whole model, which `optimizer` takes shares of; 0: every rank updates all.
    """

    layers: tuple[Layer, ...]
    flops: int
    tokens: int
    optimizer: Callable[[float], tuple[Task, ...]] | None = field(default=None, compare=False)
    size: int = 0

    def of_role(self, role: str) -> tuple[Layer, ...]:
        """Return the layers of one role."""
        return tuple(layer for layer in self.layers if layer.role == role)


def total(parameters: Iterable[Parameter]) -> int:
    """Parameters → how many elements all have together."""
    return sum(parameter.size for parameter in parameters)
