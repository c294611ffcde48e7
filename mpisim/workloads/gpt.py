"""One training step of a GPT with tensor and data parallelism.

Rank ``data_index × tensor + tensor_index`` holds a `tensor`-th of every matrix. The first matrix of
a block is split by columns and the second by rows (Megatron-LM, arXiv:1909.08053), so that a block
needs one exchange forward and one backward: an all-reduce, or with sequence parallelism an
all-gather and a reduce-scatter (arXiv:2205.05198). Every rank of the job does the same things, so
the program has one table.

Sizes are bytes of the whole buffer (all-gather: the gathered one; reduce-scatter: the one before).
Communications are unpriced: the engine asks a cost model for their durations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from mpisim.errors import InputError
from mpisim.kernels import Estimate, Gpu, attention, gemm, memory_bound
from mpisim.quantity import PICOSECONDS, picoseconds

from ..experiment import Experiment, Model
from ..program import Operation, Phase, Program, ProgramBuilder

__all__ = ["BF16", "FP32", "Workload", "gpt_step", "local_parameters", "model_flops"]

BF16, FP32 = 2, 4
"""Bytes of an element: activations and weights; gradients and the optimizer's state."""

LONGEST = 2**60
"""Of all kernels of a step together, in ps (13 days): what the engine's clocks can count."""

COMPUTE, TENSOR, DATA = 0, 1, 2
"""Streams: kernels, and one for each kind of communicator, as PyTorch has it."""

OPTIMIZER_BYTES = 4 * FP32 + 3 * FP32 + BF16
"""Adam, for each parameter: reads gradient, weight, two moments; writes the last three and the
weight in bf16."""


@dataclass(frozen=True)
class Workload:
    """A program and what its durations rest on.

    Attributes
    ----------
    program : Program
    shares : mapping of str to mapping
        Of each kernel name, the `Estimate.shares` of its duration.
    host_shares : mapping of str to float
        The same of the CPU time of a launch.
    flops : int
        Work of the step over all GPUs, as `model_flops` counts it.
    tokens : int
        Tokens of the step over all GPUs.
    """

    program: Program
    shares: Mapping[str, Mapping[str, float]]
    host_shares: Mapping[str, float]
    flops: int
    tokens: int


def model_flops(model: Model, tokens: int) -> int:
    """Return the FLOPs of one training step, forward and backward.

    6 for each token and matrix parameter, and those of causal attention: forward 2 × 2 × s/2 × h a
    token and layer, backward twice as many. Nothing computed a second time counts.
    """
    return tokens * 6 * (model.matrix_parameters + model.layers * model.sequence * model.hidden)


def local_parameters(model: Model, tensor: int) -> int:
    """Return the parameters one GPU holds: its share of the matrices, and all of the rest."""
    h = model.hidden
    whole = model.layers * 6 * h + 2 * h + model.sequence * h  # norms, biases after rows, positions
    return (model.parameters - whole) // tensor + whole


def gpt_step(experiment: Experiment, gpu: Gpu) -> Workload:
    """Return the program of one training step.

    Parameters
    ----------
    experiment : Experiment
    gpu : Gpu
        The kind of all GPUs.

    Raises
    ------
    InputError
        If the step takes longer than clocks in int64 picoseconds can hold.
    """
    model, plan = experiment.model, experiment.plan
    programs = ProgramBuilder()
    step = _Step(experiment, gpu, programs)
    step.write()
    table = programs.add_table(step.rows.build())
    for rank in range(plan.gpus):
        data, tensor = divmod(rank, plan.tensor)
        neighbours = range(data * plan.tensor, (data + 1) * plan.tensor)
        copies = range(tensor, plan.gpus, plan.tensor)
        groups = {
            TENSOR: (neighbours, f"tensor group {data}"),
            DATA: (copies, f"data group {tensor}"),
        }
        slots = [programs.communicator(*groups[stream]) for stream in step.slots]
        programs.add_rank(table, slots)
    return Workload(
        program=programs.build({"source": "GPT generator", "title": experiment.title}),
        shares={name: estimate.shares for name, estimate in step.estimates.items()},
        host_shares=step.host_shares,
        flops=model_flops(model, experiment.tokens),
        tokens=experiment.tokens,
    )


class _Launching(TypedDict):
    """What launching a device row takes, in ps."""

    host: int
    launch: int
    launch_cost: int


class _Step:
    """Writes the rows of one rank, in the order in which its CPU launches them."""

    def __init__(self, experiment: Experiment, gpu: Gpu, programs: ProgramBuilder) -> None:
        self.model, self.plan, self.gpu = experiment.model, experiment.plan, gpu
        self.rows = programs.table("training step")
        self.estimates: dict[str, Estimate] = {}

        # Communicators of one rank have no slot: nothing is sent.
        sizes = {TENSOR: self.plan.tensor, DATA: self.plan.data}
        self.slots = {s: i for i, s in enumerate(s for s, size in sizes.items() if size > 1)}

        gap, call = gpu.host_gap.si, gpu.launch_call.si
        self.launching = _Launching(
            host=picoseconds(gap),
            launch=picoseconds(gpu.launch_latency.si),
            launch_cost=picoseconds(call),
        )
        total = (gap + call) or 1.0
        self.host_shares = {"host_gap": gap / total, "launch_call": call / total}

        self.total = 0
        """Duration of all kernels, in ps."""
        self.last = -1
        """The latest kernel of the compute stream."""
        self.buckets: list[int] = []
        """Reductions of gradients over the copies of the model."""
        self.unreduced = 0
        """Parameters whose gradients are complete and in no bucket yet."""

        model, t = self.model, self.plan.tensor
        self.tokens = self.plan.micro_batch * model.sequence
        self.local = local_parameters(model, t)
        self.activations = BF16 * self.tokens * model.hidden
        """Bytes of the activations between two layers."""
        self.shared = self.activations // (t if self.plan.sequence_parallel else 1)
        """Bytes of those one GPU norms and adds: a share of the sequence, or all of it."""

    def write(self) -> None:
        """Write the whole step."""
        model, micro_batches = self.model, self.plan.micro_batches
        self.rows.tags(step=0)
        self.memory("zero gradients", FP32 * self.local)
        for micro_batch in range(micro_batches):
            self.final = micro_batch == micro_batches - 1
            self.rows.tags(micro_batch=micro_batch, phase=Phase.FORWARD)
            self.embedding()
            for layer in range(model.layers):
                self.rows.tags(layer=layer)
                self.layer()
            self.rows.tags(layer=-1)
            self.head()
            self.rows.tags(phase=Phase.BACKWARD)
            self.head_backward()
            for layer in reversed(range(model.layers)):
                self.rows.tags(layer=layer)
                self.layer_backward()
            self.rows.tags(layer=-1)
            self.embedding_backward()
        self.rows.tags(micro_batch=-1, phase=Phase.OPTIMIZER)
        self.optimizer()

    # --- parts of the model -------------------------------------------------------------------

    def embedding(self) -> None:
        # Rows of the table are split over the tensor group: each adds what it has.
        self.memory("embedding", 2 * self.activations)
        self.memory("embedding dropout", 5 * self.shared // 2, self.reduce())

    def embedding_backward(self) -> None:
        self.memory("embedding dropout backward", 5 * self.shared // 2)
        # Reads all gradients, adds its own share of them to the fp32 gradient of the table.
        adds = 2 * FP32 * self.activations // BF16 // self.plan.tensor
        self.memory("embedding backward", self.activations + adds, self.gather())
        model = self.model
        self.complete(model.vocabulary * model.hidden // self.plan.tensor)
        self.complete(model.sequence * model.hidden)
        self.reduce_gradients()

    def layer(self) -> None:
        m, t = self.model, self.plan.tensor
        self.norm()
        self.matrix("qkv", 3 * m.hidden // t, m.hidden, self.gather())
        self.attention()
        self.matrix("attention output", m.hidden, m.hidden // t)
        self.add(self.reduce())
        self.norm()
        self.matrix("feed-forward in", m.feed_forward // t, m.hidden, self.gather())
        self.memory("activation", 2 * BF16 * self.tokens * m.feed_forward // t)
        self.matrix("feed-forward out", m.hidden, m.feed_forward // t)
        self.add(self.reduce())

    def layer_backward(self) -> None:
        m, t = self.model, self.plan.tensor
        self.add_backward()
        self.split_by_rows("feed-forward out", m.hidden, m.feed_forward // t)
        self.memory("activation backward", 3 * BF16 * self.tokens * m.feed_forward // t)
        reduced = self.split_by_columns("feed-forward in", m.feed_forward // t, m.hidden)
        self.norm_backward(reduced)
        self.add_backward()
        self.split_by_rows("attention output", m.hidden, m.hidden // t)
        self.attention(backward=True)
        reduced = self.split_by_columns("qkv", 3 * m.hidden // t, m.hidden)
        self.norm_backward(reduced)

    def head(self) -> None:
        m, t = self.model, self.plan.tensor
        scores = self.tokens * m.vocabulary // t
        per_token = FP32 * self.tokens
        self.norm()
        self.matrix("logits", m.vocabulary // t, m.hidden, self.gather())
        # The softmax over a vocabulary that is split: maximum, then sum and the target's score.
        self.memory("loss maximum", BF16 * scores)
        maximum = self.exchange(Operation.ALL_REDUCE, per_token, name="loss maximum all-reduce")
        self.memory("loss exponentials", (BF16 + FP32) * scores, maximum)
        self.exchange(Operation.ALL_REDUCE, per_token, name="loss target all-reduce")
        sums = self.exchange(Operation.ALL_REDUCE, per_token, name="loss sum all-reduce")
        self.memory("loss", 3 * per_token, sums)

    def head_backward(self) -> None:
        m, t = self.model, self.plan.tensor
        self.memory("loss backward", (FP32 + BF16) * self.tokens * m.vocabulary // t)
        # The matrix is the embedding's, whose gradient is complete only at the very end.
        reduced = self.split_by_columns("logits", m.vocabulary // t, m.hidden, parameters=0)
        self.norm_backward(reduced)

    def optimizer(self) -> None:
        waits = self.buckets
        if self.plan.sequence_parallel:
            # Norms and the biases after rows saw a share of the sequence each.
            size = FP32 * (self.model.layers * 6 + 2) * self.model.hidden
            waits = waits + self.exchange(
                Operation.ALL_REDUCE, size, waits, name="norm gradients all-reduce"
            )
        self.memory("gradient norm", FP32 * self.local, waits)
        norm = self.exchange(Operation.ALL_REDUCE, FP32, name="gradient norm all-reduce")
        # The CPU reads the norm, to clip gradients or to skip the step.
        self.rows.host_wait(norm or [self.last], name="read gradient norm")
        self.memory("adam", OPTIMIZER_BYTES * self.local, norm)

    # --- building blocks ----------------------------------------------------------------------

    def norm(self) -> None:
        self.memory("layer norm", 2 * self.shared)

    def norm_backward(self, waits: Iterable[int]) -> None:
        """Norm, and the addition of the gradient that went round the block."""
        self.memory("layer norm backward", 3 * self.shared, waits)
        self.memory("residual backward", 3 * self.shared)
        self.complete(2 * self.model.hidden)

    def add(self, waits: Iterable[int]) -> None:
        """Bias, dropout (whose mask takes one byte) and residual, in one kernel."""
        self.memory("bias dropout add", 7 * self.shared // 2, waits)

    def add_backward(self) -> None:
        self.memory("bias dropout add backward", 5 * self.shared // 2)
        self.complete(self.model.hidden)

    def split_by_rows(self, name: str, n: int, k: int) -> None:
        """Backward of a matrix split by rows: its gradient arrives as shares of the sequence."""
        self.matrix(f"{name} input gradient", k, n, self.gather())
        self.weight_gradient(name, n, k)
        self.complete(n * k)

    def split_by_columns(
        self, name: str, n: int, k: int, parameters: int | None = None
    ) -> list[int]:
        """Backward of a matrix split by columns; return the exchange to wait for.

        Its input is gathered again while the input's gradient is computed, which in turn is reduced
        while the weights' gradient is.
        """
        gathered = self.gather()
        self.matrix(f"{name} input gradient", k, n)
        reduced = self.reduce()
        self.weight_gradient(name, n, k, gathered)
        self.complete(n * k + n if parameters is None else parameters)
        return reduced

    def matrix(self, name: str, n: int, k: int, waits: Iterable[int] = ()) -> None:
        """All tokens times a matrix (k, n)."""
        self.kernel(name, gemm(self.gpu, self.tokens, n, k), waits)

    def weight_gradient(self, name: str, n: int, k: int, waits: Iterable[int] = ()) -> None:
        """Gradient of a matrix (k, n), added to the fp32 gradient of the micro-batches before."""
        estimate = gemm(self.gpu, n, k, self.tokens, output_bytes=2 * FP32)
        self.kernel(f"{name} weight gradient", estimate, waits)

    def attention(self, *, backward: bool = False) -> None:
        m = self.model
        estimate = attention(
            self.gpu, self.plan.micro_batch, m.heads // self.plan.tensor, m.sequence,
            m.hidden // m.heads, backward=backward,
        )  # fmt: skip
        self.kernel("attention backward" if backward else "attention", estimate)

    def memory(self, name: str, size: int, waits: Iterable[int] = ()) -> None:
        self.kernel(name, memory_bound(self.gpu, size), waits)

    def kernel(self, name: str, estimate: Estimate, waits: Iterable[int] = ()) -> None:
        known = self.estimates.setdefault(name, estimate)
        assert known == estimate, f"two kinds of kernels are called {name!r}"
        self.total += estimate.duration
        if self.total > LONGEST:
            raise InputError(
                f"the kernels of one step take more than {LONGEST / PICOSECONDS:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        self.last = self.rows.kernel(
            name, COMPUTE, estimate.duration, waits=waits, **self.launching
        )

    # --- communication ------------------------------------------------------------------------

    def gather(self) -> list[int]:
        """Gather the sequence; nothing to do where nobody shares it."""
        if not self.plan.sequence_parallel:
            return []
        return self.exchange(Operation.ALL_GATHER, self.activations)

    def reduce(self) -> list[int]:
        """Add up the tensor group's partial results."""
        sequence = self.plan.sequence_parallel
        operation = Operation.REDUCE_SCATTER if sequence else Operation.ALL_REDUCE
        return self.exchange(operation, self.activations)

    def exchange(
        self,
        operation: Operation,
        size: int,
        waits: Iterable[int] = (),
        *,
        stream: int = TENSOR,
        name: str | None = None,
    ) -> list[int]:
        """Communicate once the latest kernel has ended; return what a user must wait for."""
        if stream not in self.slots:
            return []
        if name is None:
            name = f"tensor {operation.name.lower().replace('_', '-')}"
        row = self.rows.collective(
            operation, self.slots[stream], stream, size, name=name, waits=[self.last, *waits],
            **self.launching,
        )  # fmt: skip
        return [row]

    def complete(self, parameters: int) -> None:
        """Note complete gradients; reduce them over the copies when a bucket is full."""
        if not self.final:
            return  # more micro-batches will add to them
        self.unreduced += parameters
        if FP32 * self.unreduced >= self.plan.bucket:
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        """Reduce what is in the bucket over the copies of the model, beside the backward pass."""
        if self.final and self.unreduced:
            size = FP32 * self.unreduced
            self.buckets += self.exchange(
                Operation.ALL_REDUCE, size, stream=DATA, name="gradient all-reduce"
            )
            self.unreduced = 0
