"""A traced step of one GPU: what it ran, for which layer, in which pass, and for how long.

    TracedStep = operators in the order of the forward pass, then the optimizer's tasks

Readers of traces (`.kineto_step`, `.triosim_step`) make it; `.network` turns it into a model that
the workload generator knows: there a traced step is a network like any other.

The backward pass of autograd goes through the nodes that the forward pass has made in strictly
descending order of their numbers, and a gradient is accumulated as soon as it is complete
(torch/csrc/autograd/engine.cpp, ``ReadyQueue``). So tasks of the backward pass are kept with the
forward operator whose node they belong to, and reading the operators backwards gives them in the
order in which they ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from ..base.errors import TraceError
from ..base.frozen import frozen
from ..base.text import percentage
from ..kernels.operations import Embedding, Gemm, Kernel
from ..operators import OperatorCall, TensorSpec

__all__ = [
    "Role",
    "TracedKernel",
    "TracedOperator",
    "TracedParameter",
    "TracedStep",
    "TracedTask",
    "TracedWait",
    "taken_as_one_stream",
]

MAX_OTHER_STREAM_SHARE = 0.01
"""Share of the device's time that may be on other streams than the busiest."""


Role = Literal["", "weights", "scores"]


@frozen
class TracedKernel:
    """A kernel, or a copy, as it was measured, or captured without being measured.

    Attributes
    ----------
    name : str
    operator : str
        The call that launched it.
    call : int
        Number of that call: kernels of one call are described together.
    duration : int
        In ps.
    kernels : tuple of Kernel
        What the call computes, by its shapes; empty where nothing is known of it.
    known : bool
        Whether a rule of its operator says so; otherwise bytes do.
    role : {"", "weights", "scores"}
        What its call works on besides activations: weights alone, or scores of attention.
    host, launch, launch_cost, gap : int
        Of its row, in ps: see `mpisim.program.Table`.
    loading : int
        Of `host`, what the CPU is in a data loader: at samples, or waiting for its workers.
    priced : bool
        Whether it was not measured: `duration` is what the kernel model says, and the rest of its
        row is the GPU's.
    launches : int
        Launches of one that is priced: 0 in a CUDA graph.
    on_weight : bool
        Whether its call is known to work on a parameter: a product is no weight's gradient then.
    lists : OperatorCall, optional
        Its call, if that goes through lists of tensors.
    kept : str
        What a later `TracedWait` calls it; empty: none waits for it alone.
    """

    name: str
    operator: str
    call: int
    duration: int
    kernels: tuple[Kernel, ...] = ()
    known: bool = True
    role: Role = ""
    host: int = 0
    launch: int = 0
    launch_cost: int = 0
    gap: int = 0
    loading: int = 0
    priced: bool = False
    launches: int = 1
    on_weight: bool = False
    lists: OperatorCall | None = None
    kept: str = ""


@frozen
class TracedWait:
    """The CPU waits for the kernels launched so far, or up to one of them.

    Attributes
    ----------
    name : str
    host : int
        CPU time before, in ps.
    tail : int
        CPU time after the last of them has ended, in ps.
    kept : str
        What the kernel is called that it waits for; empty: the latest.
    """

    name: str
    host: int
    tail: int
    kept: str = ""


TracedTask = TracedKernel | TracedWait
"""What the CPU issues: a kernel, or a wait."""


@frozen
class TracedParameter:
    """A trained parameter, known by its gradient.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As PyTorch writes it.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return TensorSpec(self.dtype, self.shape).elements


@frozen
class TracedOperator:
    """An operator of the forward pass, with what the backward pass does for it.

    Attributes
    ----------
    name : str
    layer : str
        Layer it belongs to: a module's path, or a name made of its place; equal for neighbours.
    forward, backward : tuple of TracedTask
    parameters : tuple of TracedParameter
        In the order of registration: the reverse of that in which gradients become complete.
    inputs : tuple of TensorSpec
        Its tensors that are no parameters.
    output : TensorSpec or None
        Where it is known.
    statistics : int
        Channels whose running statistics it updates (batch normalisation).
    tied : tuple of int or None
        Shape of a weight that it shares with another operator.
    """

    name: str
    layer: str
    forward: tuple[TracedTask, ...]
    backward: tuple[TracedTask, ...] = ()
    parameters: tuple[TracedParameter, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    output: TensorSpec | None = None
    statistics: int = 0
    tied: tuple[int, ...] | None = None

    @property
    def duration(self) -> int:
        """Of its kernels in both passes, in ps."""
        tasks = (*self.forward, *self.backward)
        return sum(each.duration for each in tasks if isinstance(each, TracedKernel))

    @property
    def cpu(self) -> int:
        """Of the CPU for its launches in both passes, but for loading samples, in ps."""
        tasks = (*self.forward, *self.backward)
        launches = [each for each in tasks if isinstance(each, TracedKernel)]
        return sum(each.host - each.loading + each.launch_cost for each in launches)

    @property
    def launches(self) -> int:
        """Of kernels, in both passes."""
        tasks = (*self.forward, *self.backward)
        return sum(each.launches for each in tasks if isinstance(each, TracedKernel))

    def products(self) -> Iterator[Kernel]:
        """Go through the kernels of its forward pass, each call once."""
        seen: set[int] = set()
        for each in self.forward:
            if isinstance(each, TracedKernel) and each.call not in seen:
                seen.add(each.call)
                yield from each.kernels

    def frozen_weight(self, trained: Collection[tuple[int, ...]]) -> tuple[int, int] | None:
        """Shape of its weight, if that is not trained, as beside adapters.

        Without a gradient of its own, the backward pass of a matrix has the product for the
        gradient of its input alone, and that of a lookup has nothing.

        Parameters
        ----------
        trained : collection of tuple of int
            Shapes of all trained parameters: a table of such a shape is one that shows elsewhere.
        """
        if self.tied is not None or any(len(one.shape) > 1 for one in self.parameters):
            return None
        tasks = [each for each in self.backward if isinstance(each, TracedKernel)]
        gradients = [one for each in tasks for one in each.kernels if isinstance(one, Gemm)]
        for kernel in self.products():
            if isinstance(kernel, Gemm) and kernel.batch == 1 and len(gradients) == 1:
                return kernel.n, kernel.k
            if isinstance(kernel, Embedding) and not tasks:
                table = (kernel.entries, kernel.width)
                return None if table in trained else table
        return None


@frozen
class TracedStep:
    """One training step of one GPU.

    Attributes
    ----------
    source : str
        The file or folder, for messages.
    gpu : str
        Name of the GPU, one of ``mpisim list gpus``.
    batch : int
        Samples of the step.
    operators : tuple of TracedOperator
    optimizer : tuple of TracedTask
        What comes behind the backward pass.
    zeroing : tuple of TracedTask
        What the optimizer does before it: gradients are set to zero.
    zeroing_at : int
        Operators of the forward pass that come before `zeroing`.
    accumulates : bool
        Whether gradients are added to those before, as traced; otherwise they take their place, as
        those of a first micro-batch do.
    measured : int
        How long the step took, in ps.
    sequence : int or None
        Tokens of a sample, where the first operator is an embedding.
    embedding, head : tuple of str
        Layers before the first block, and behind the last; all others are blocks.
    notes : tuple of str
        How the trace was read; lines for people.
    priced : bool
        Whether its kernels are priced by the kernel model: of a captured job, which nobody has run.
    loader : {"", "process", "workers"}
        Where the data loader that the trace shows fetches samples: in the process itself, one by
        one, or in workers that it waits for; empty where the trace shows none.
    """

    source: str
    gpu: str
    batch: int
    operators: tuple[TracedOperator, ...]
    optimizer: tuple[TracedTask, ...]
    measured: int
    zeroing: tuple[TracedTask, ...] = ()
    zeroing_at: int = 0
    accumulates: bool = False
    sequence: int | None = None
    embedding: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    priced: bool = False
    loader: Literal["", "process", "workers"] = ""

    @property
    def loading(self) -> int:
        """Of the CPU in the data loader, before kernels of the first operator, in ps."""
        tasks = self.operators[0].forward
        return sum(each.loading for each in tasks if isinstance(each, TracedKernel))

    @property
    def before(self) -> int:
        """Of the CPU before the first kernel, in ps."""
        first = next((each for one in self.operators for each in one.forward), None)
        return 0 if first is None else first.host

    @property
    def parameters(self) -> tuple[TracedParameter, ...]:
        """All parameters, in the order of registration."""
        return tuple(each for operator in self.operators for each in operator.parameters)

    @property
    def format(self) -> str:
        """The format of most parameters: ``fp32``, ``bf16``, ``fp16``."""
        counts: dict[str, int] = {}
        for each in self.parameters:
            counts[each.dtype] = counts.get(each.dtype, 0) + each.elements
        most = max(counts, key=lambda name: counts[name], default="float32")
        return {"bfloat16": "bf16", "float16": "fp16"}.get(most, "fp32")

    @property
    def kernel_time(self) -> int:
        """Of all kernels, in ps."""
        tasks = [each for one in self.operators for each in (*one.forward, *one.backward)]
        tasks += [*self.optimizer, *self.zeroing]
        return sum(each.duration for each in tasks if isinstance(each, TracedKernel))

    def layers(self) -> list[tuple[str, list[TracedOperator]]]:
        """Return the operators of each layer, in order."""
        found: list[tuple[str, list[TracedOperator]]] = []
        for each in self.operators:
            if not found or found[-1][0] != each.layer:
                found.append((each.layer, []))
            found[-1][1].append(each)
        return found


def taken_as_one_stream(times: Sequence[float], source: str) -> list[str]:
    """Kernel time of each stream → what a report says of those that are taken as one.

    Parameters
    ----------
    times : sequence of float
        In any unit.
    source : str
        The file, for messages.

    Raises
    ------
    TraceError
        If kernels run side by side for more than `MAX_OTHER_STREAM_SHARE` of the time.
    """
    total = sum(times)
    other = 1 - max(times) / total if total else 0.0
    if other > MAX_OTHER_STREAM_SHARE:
        raise TraceError(
            f"{source}: {percentage(other)} of the device's time is on other streams than the "
            "busiest; how kernels share the GPU at other sizes is not known"
        )
    if not other:
        return []
    return [f"{percentage(other, 2)} of the device's time is on other streams, taken as one"]
