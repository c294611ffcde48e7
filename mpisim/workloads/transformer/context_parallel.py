"""Core attention over a sequence that is spread over the ranks of a context (cp).

Each rank holds two of 2 cp chunks, the i-th and the i-th from the end, so that all have the same
work under a causal mask. What is issued is what Transformer Engine issues
(``transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py``).

ring (arXiv:2310.01889; `AttnFuncWithCPAndKVP2P`)
    Keys and values go round, cp - 1 exchanges, each beside the attention with those at hand.
    Causal: the own chunks are the diagonal; of every other rank's half is masked, either half of
    the keys or half of the queries: the first is taken, both are the same work. Backward they go
    round again in the other order, followed by their gradients one step later.
all-gather (Llama 3, arXiv:2407.21783, section 3.3.2; `AttnFuncWithCPAndKVAllGather`)
    Keys and values are gathered, and put in the order of the sequence; backward again, and their
    gradients are reduce-scattered.
pytorch (`_templated_ring_attention` of torch/distributed/tensor/experimental/_attention.py)
    Keys and values of all are gathered once, beside the attention with the own ones, and then taken
    rank by rank as in a ring, with the same halves masked; what each gives is merged in fp32.
    Backward the same, and the gradients of keys and values go round after each rank's attention,
    in fp32 (``convert_to_f32``), wherever they are from: one exchange more than in a ring.
all-to-all (DeepSpeed-Ulysses, arXiv:2309.14509; `AttnFuncWithCPAndQKVOA2A`)
    Ranks exchange tokens of all heads for all tokens of some heads, of queries, keys and values
    apart, attend to whole sequences, and exchange back what comes out; backward the same of
    gradients. Copies before and after bring what goes to a rank, or is from it, together. Where
    there are fewer heads of keys and values than ranks, each is sent to several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mpisim.kernels.operations import BYTES, Elementwise

from ...base.frozen import frozen
from ...program import Operation
from ..operators import Communicate, Compute, Task
from .attention_shape import AttentionShape
from .pointwise import elementwise

__all__ = ["CONTEXT_PARALLEL", "SpreadAttention"]

FP32 = BYTES["fp32"]

Passes = tuple[tuple[Task, ...], tuple[Task, ...]]


@frozen
class SpreadAttention:
    """Attention of one rank over a context that is spread over several.

    Attributes
    ----------
    name : str
    cp : int
        Ranks of the context.
    batch : int
        Sequences of a micro-batch.
    element_size : int
        Bytes of an element of queries, keys and values.
    shape : AttentionShape
        `queries` are those of this rank, `keys` those of all.
    kernels : callable
        Queries, keys, whether they are masked, whether backward, ranks that share the heads → the
        kernels of a part of it.
    fused : bool
        Whether what pieces are merged by is compiled to one kernel.
    """

    name: str
    cp: int
    batch: int
    element_size: int
    shape: AttentionShape
    kernels: Callable[[int, int, bool, bool, int], tuple[Compute, ...]]
    fused: bool

    def attend(self, keys: int, *, causal: bool, backward: bool, after: str = "") -> list[Task]:
        """Keys of every sequence → the kernels of their attention with this rank's queries.

        Parameters
        ----------
        keys : int
        causal : bool
            Whether they are masked against the queries.
        backward : bool
        after : str
            Token of the communication that brought them.
        """
        first, *rest = self.kernels(self.shape.queries, keys, causal, backward, 1)
        if after:
            first = replace(first, after=(*first.after, after))
        return [first, *rest]


def ring_attention(one: SpreadAttention) -> Passes:
    """Local queries, keys and values → their mixture; keys and values go round a ring.

    Parameters
    ----------
    one : SpreadAttention

    Returns
    -------
    tuple of tuple of Task
        Forward and backward.
    """
    name, cp, e, shape = one.name, one.cp, one.element_size, one.shape
    local = shape.queries
    pair = e * one.batch * local * shape.key_value_width
    queries = e * one.batch * local * shape.query_width
    output = e * one.batch * local * shape.output_width

    def attend(step: int, *, backward: bool = False) -> list[Task]:
        # Going round the other way backward, the own keys and values come last.
        own = step == (cp - 1 if backward else 0)
        keys = local if own or not shape.causal else local // 2
        after = f"ring {step}" if step else ""
        return one.attend(keys, causal=own and shape.causal, backward=backward, after=after)

    def exchange(step: int, size: int, after: tuple[str, ...] | None) -> Communicate:
        return Communicate(
            f"{name} exchange", Operation.SEND_RECV, "cp", size, token=f"ring {step}", after=after
        )

    forward: list[Task] = [elementwise(f"{name} packing", 2 * pair)]
    for step in range(cp):
        if step < cp - 1:
            # What arrived is sent on, whatever is being computed with it.
            forward.append(exchange(step + 1, pair, (f"ring {step}",) if step else None))
        forward += attend(step)
        if step:
            forward.append(elementwise(f"{name} correction", 3 * output))

    # The keys and values kept are those that came last.
    backward: list[Task] = [elementwise(f"{name} packing backward", 2 * pair)]
    for step in range(cp):
        # Keys and values for the next step, and the gradients summed so far for those at hand.
        parts = (step < cp - 1) + (step > 0)
        backward.append(exchange(step + 1, parts * pair, None))
        backward += attend(step, backward=True)
        if step:
            backward.append(elementwise(f"{name} queries gradient sum", 3 * queries))
            backward.append(
                Compute(
                    f"{name} keys gradient sum",
                    Elementwise(3 * pair),
                    after=(f"ring {step + 1}",),
                )
            )
        else:
            backward.append(elementwise(f"{name} keys gradient copy", 2 * pair))
    return tuple(forward), tuple(backward)


def all_gather_attention(one: SpreadAttention) -> Passes:
    """As `ring_attention`, with the keys and values of all ranks gathered before.

    Parameters
    ----------
    one : SpreadAttention
    """
    name, shape = one.name, one.shape
    elements = one.element_size * one.batch * shape.keys * shape.kv_heads
    sizes = {"keys": elements * shape.head_size, "values": elements * shape.value_size}

    def gather() -> list[Task]:
        return [
            *(
                Communicate(f"{name} {what} all-gather", Operation.ALL_GATHER, "cp", size)
                for what, size in sizes.items()
            ),
            *(elementwise(f"{name} {what} reordering", 2 * size) for what, size in sizes.items()),
        ]

    def attend(*, backward: bool = False) -> list[Task]:
        return one.attend(shape.keys, causal=shape.causal, backward=backward)

    backward = gather()
    backward += attend(backward=True)
    for what, size in sizes.items():
        backward.append(elementwise(f"{name} {what} gradient reordering", 2 * size))
        backward.append(
            Communicate(f"{name} {what} reduce-scatter", Operation.REDUCE_SCATTER, "cp", size)
        )
    return (*gather(), *attend()), tuple(backward)


def pytorch_ring_attention(one: SpreadAttention) -> Passes:
    """As `ring_attention`, by PyTorch's ring, whose keys and values are gathered at once.

    Parameters
    ----------
    one : SpreadAttention
    """
    name, cp, e, shape, fused = one.name, one.cp, one.element_size, one.shape, one.fused
    local = shape.queries
    pair = one.batch * local * shape.key_value_width
    queries, output = one.batch * local * shape.query_width, one.batch * local * shape.output_width

    def attend(step: int, *, backward: bool = False) -> list[Task]:
        own = step == 0
        keys = local if own or not shape.causal else local // 2
        after = "" if own else "gathered"
        return one.attend(keys, causal=own and shape.causal, backward=backward, after=after)

    def gathered() -> list[Task]:
        return [
            elementwise(f"{name} contiguous keys", 2 * e * pair),
            elementwise(f"{name} packing", 2 * e * pair),
            Communicate(
                f"{name} all-gather", Operation.ALL_GATHER, "cp", cp * e * pair, token="gathered"
            ),
        ]

    def merged() -> list[Task]:
        # out - sigmoid(...) · (out - block), the block cast before, in fp32.
        if fused:
            return [elementwise(f"{name} merge", (e + 2 * FP32) * output)]
        return [
            elementwise(f"{name} merge cast", (e + FP32) * output),
            elementwise(f"{name} merge difference", 3 * FP32 * output),
            elementwise(f"{name} merge product", 2 * FP32 * output),
            elementwise(f"{name} merge", 3 * FP32 * output),
        ]

    forward: list[Task] = gathered()
    for step in range(cp):
        forward += attend(step)
        if step:
            forward += merged()
    forward.append(elementwise(f"{name} round", (FP32 + e) * output))

    backward: list[Task] = gathered()
    backward.append(elementwise(f"{name} gradients fill", FP32 * (queries + pair)))
    for step in range(cp):
        backward += attend(step, backward=True)
        arrived = (f"gradients {step}",) if step else ()
        added = Elementwise((e + 2 * FP32) * pair)
        backward.append(Compute(f"{name} keys gradient sum", added, after=arrived))
        if not fused:
            backward.append(elementwise(f"{name} gradients packing", 2 * FP32 * pair))
        backward.append(
            Communicate(
                f"{name} gradients exchange",
                Operation.SEND_RECV,
                "cp",
                FP32 * pair,
                token=f"gradients {step + 1}",
            )
        )
        backward.append(elementwise(f"{name} queries gradient sum", (e + 2 * FP32) * queries))
    backward.append(elementwise(f"{name} queries gradient round", (FP32 + e) * queries))
    rounded = Elementwise((FP32 + e) * pair)
    backward.append(Compute(f"{name} keys gradient round", rounded, after=(f"gradients {cp}",)))
    return tuple(forward), tuple(backward)


def all_to_all_attention(one: SpreadAttention) -> Passes:
    """As `ring_attention`, but ranks split heads, not tokens.

    Parameters
    ----------
    one : SpreadAttention
    """
    name, cp, shape = one.name, one.cp, one.shape
    tokens = one.element_size * one.batch * shape.queries
    kv_heads = max(shape.kv_heads, cp)
    sizes = {
        "queries": tokens * shape.query_width,
        "keys": tokens * kv_heads * shape.head_size,
        "values": tokens * kv_heads * shape.value_size,
    }

    def exchange(what: str, size: int) -> list[Task]:
        return [
            elementwise(f"{name} {what} exchange copy", 2 * size),
            Communicate(f"{name} {what} all-to-all", Operation.ALL_TO_ALL, "cp", size),
            elementwise(f"{name} {what} exchange order", 2 * size),
        ]

    def attend(*, backward: bool = False) -> tuple[Compute, ...]:
        return one.kernels(shape.keys, shape.keys, shape.causal, backward, cp)

    output = tokens * shape.output_width
    forward = [task for what, size in sizes.items() for task in exchange(what, size)]
    forward += attend()
    forward += exchange("output", output)
    backward = exchange("output gradient", output)
    backward += attend(backward=True)
    for what, size in sizes.items():
        backward += exchange(f"{what} gradient", size)
    return tuple(forward), tuple(backward)


CONTEXT_PARALLEL: Mapping[str, Callable[[SpreadAttention], Passes]] = {
    "ring": ring_attention,
    "all-gather": all_gather_attention,
    "pytorch": pytorch_ring_attention,
    "all-to-all": all_to_all_attention,
}
"""Attention over a context that is spread over ranks, by ``framework.cp_style``."""
