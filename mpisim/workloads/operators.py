"""What one rank does for a model, as the framework would issue it: operators made of steps.

    Network = layers in order;  Layer = operators;  Operator = steps forward, steps backward

A step is a kernel, a communication or a wait of the CPU, already in the shapes that one rank of the
plan sees: a tensor-parallel matrix has its share of the columns, a sequence-parallel norm its share
of the tokens. All ranks with the same part of the pipeline do the same steps.

Order and waiting
-----------------
Kernels run one after another on the compute stream. A communication starts when the kernel before
it has ended, and the kernel after it waits for it. Where a framework overlaps the two, the
communication carries a `token`: then only the steps that name the token in `after` wait for it, and
whatever follows the operator; if it is `carried`, operators that follow in the same pass may go on
beside it, up to the step that names it. A communication with an `after` of its own waits for those
tokens alone, not for the kernel before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from mpisim.kernels.operations import Kernel

from ..program import Operation

__all__ = [
    "Await",
    "Communicate",
    "Compute",
    "Layer",
    "Network",
    "Operator",
    "Parameter",
    "Step",
]


@dataclass(frozen=True, slots=True)
class Compute:
    """A kernel on the compute stream.

    Attributes
    ----------
    name : str
    kernel : Kernel
        What it computes.
    weight : bool
        Backward only: it makes gradients of weights, not of inputs; schedules may put it off.
    after : tuple of str
        Tokens of communications to wait for: of the same operator, or carried from one before.
    launches : int
        Operations of the framework that it stands for, each of which costs the CPU a launch: more
        than 1 where a loop launches parts of it, 0 where it is captured in a CUDA graph with the
        kernel before.
    """

    name: str
    kernel: Kernel
    weight: bool = False
    after: tuple[str, ...] = ()
    launches: int = 1


@dataclass(frozen=True, slots=True)
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
        member the step is left out.
    bytes : int
        Of the whole buffer: all-gather the gathered one, reduce-scatter the one before, all-to-all
        what one rank sends to all, itself included; SEND_RECV what one rank sends.
    weight : bool
        As in `Compute`.
    token : str
        Makes it run beside the kernels that follow, see above.
    after : tuple of str, optional
        Wait for these tokens alone, not for the kernel before.
    carried : bool
        Whether the token outlives the operator.
    """

    name: str
    operation: Operation
    group: str
    bytes: int
    weight: bool = False
    token: str = ""
    after: tuple[str, ...] | None = None
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Await:
    """The CPU waits for a kernel, and launches nothing further before: it needs what was computed.

    Left out where launches are captured (``plan.cuda_graphs``), which is possible only if the CPU
    needs nothing.

    Attributes
    ----------
    name : str
    kernel : str
        Name of an earlier kernel of the same operator.
    """

    name: str
    kernel: str
    weight: ClassVar[bool] = False


Step = Compute | Communicate | Await


@dataclass(frozen=True, slots=True)
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
        Whether this rank alone holds it and updates it within its backward pass, as embedding
        tables of recommendation models are: nothing to reduce, and nothing for the optimizer.
    """

    name: str
    size: int
    expert: bool = False
    replicated: bool = False
    partial: bool = False
    tied: bool = False
    local: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the framework: what autograd sees as one node.

    Attributes
    ----------
    name : str
    forward, backward : tuple of Step
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
    """

    name: str
    forward: tuple[Step, ...]
    backward: tuple[Step, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    saved: int = 0
    selective: bool = False
    statistics: int = 0

    def backward_part(self, part: str) -> tuple[Step, ...]:
        """Return the backward: all, or what makes the gradients of ``"input"`` or ``"weight"``."""
        if part == "all":
            return self.backward
        return tuple(step for step in self.backward if step.weight == (part == "weight"))


@dataclass(frozen=True)
class Layer:
    """What recomputation, FSDP and pipeline parallelism take as a unit.

    Attributes
    ----------
    name : str
    operators : tuple of Operator
    role : {"embedding", "block", "head"}
        Pipelines spread the blocks; embeddings come before the first and heads after the last.
    output : int
        Bytes that one rank hands to the next layer; what a pipeline sends.
    checkpoint : int
        Bytes kept instead of `saved` where the whole layer is computed again: its input.
    """

    name: str
    operators: tuple[Operator, ...]
    role: Literal["embedding", "block", "head"]
    output: int
    checkpoint: int

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of all operators, in the order of registration."""
        return tuple(p for operator in self.operators for p in operator.parameters)

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
            for step in (*operator.forward, *operator.backward):
                if isinstance(step, Compute):
                    yield step


@dataclass(frozen=True)
class Network:
    """A whole model in the shapes of one rank.

    Attributes
    ----------
    layers : tuple of Layer
        In order of execution.
    flops : int
        Model FLOPs of one micro-batch, forward and backward, on all ranks that share it: what the
        mathematics needs, without recomputation. Utilisation counts these.
    tokens : int
        Tokens (images, samples) of one micro-batch.
    """

    layers: tuple[Layer, ...]
    flops: int
    tokens: int

    def of_role(self, role: str) -> tuple[Layer, ...]:
        """Return the layers of one role."""
        return tuple(layer for layer in self.layers if layer.role == role)


def total(parameters: Iterable[Parameter]) -> int:
    """Return the elements of parameters together."""
    return sum(parameter.size for parameter in parameters)
