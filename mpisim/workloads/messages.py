"""Sends and receives between pipeline stages: their batches, order, and waits.

There are two ways. With overlap, every kind of message has a stream of its own: only the pass that
needs the data waits, and nothing waits for a send. The next forward's receive is posted behind the
forward before it, the next backward's behind the backward before it (``send_forward_recv_forward``
and its like with ``overlap_p2p_comm``; megatron/core/pipeline_parallel/schedules.py), and starts
when the kernels launched until then have ended, as every operation of PyTorch's does
(ProcessGroupNCCL.cpp, ``syncStream``). From then on it holds multiprocessors. Without overlap, as
Megatron-LM does where ``overlap_p2p_communication`` is off (megatron/core/pipeline_parallel,
schedules.py): each exchange is one batch on one stream, starts after the kernel before it, and the
next kernel waits for all of it; so does the CPU, which launches nothing before the GPU is done
(``batch_p2p_sync`` of megatron/core/model_parallel_config.py, on by default).

- A stage that holds one chunk sends and receives in one batch between a forward and a backward
  (``send_forward_recv_backward``), in two between two forwards or two backwards.
- A stage that holds several chunks sends and receives in one batch always, and takes a forward and
  the backward behind it together (``send_forward_backward_recv_forward_backward``): what either
  needs is received before both, what either made is sent after both.

Without sequence parallelism all ranks of a tensor-parallel group hold the same activations. Split
(Megatron-LM's ``scatter_gather_tensors_in_pipeline``, arXiv:2104.04473, section 4.1; DeepSpeed's
``pipe_partitioned``), each sends a share, and the group gathers what it received before anything is
computed with it. The copy of the share is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.frozen import frozen
from ..program import Kind, Operation, Phase
from ..schedules import Action, Pipeline
from .block_rows import BEFORE, LAST, PENDING, RowBlock
from .blocks import BlockBuilder
from .layout import Layout
from .operators import Communicate

__all__ = ["PipelineMessages", "messages_of_stage", "streams"]

STREAM = "pipeline"
"""The one stream of all messages that do not overlap."""

Kinds = tuple[tuple[bool, bool, int], ...]
"""Whether each action of a unit is a forward, whether it is for weights, and its chunk: what
messages depend on."""

Batch = tuple[RowBlock, tuple[int, ...]]
"""A block of messages, and the index of the action, before and after, that each belongs to."""


@frozen
class _Message:
    """The sending or the receiving half of a message.

    Attributes
    ----------
    kind : Kind
        SEND or RECV.
    slot : str
    bytes : int
    gathered : int
        Bytes that the tensor-parallel group gathers after receiving; 0 if it is sent whole.
    """

    kind: Kind
    slot: str
    bytes: int
    gathered: int


StageMessages = dict[tuple[bool, int], tuple[_Message | None, _Message | None]]
"""(is forward, chunk) → what the pass sends, and what it receives."""


def messages_of_stage(
    layout: Layout, pipeline: Pipeline, stage: int, network: int = 0
) -> StageMessages:
    """Return the messages of one stage; stages between the first and the last have the same.

    Parameters
    ----------
    layout : Layout
    pipeline : Pipeline
        One of the layout's.
    stage : int
    network : int
        One of the layout's, whose chunks say how much each sends.
    """
    chunks, split = layout.model_chunks[network], layout.experiment.plan.message_shares

    def output(part: int) -> int:
        return chunks[part].layers[-1].output

    found: StageMessages = {}
    for chunk in range(pipeline.chunks):
        part = pipeline.part(stage, chunk)
        ahead, behind = pipeline.next(stage, chunk), pipeline.previous(stage, chunk)
        for forward in (True, False):
            to, source = (ahead, behind) if forward else (behind, ahead)
            sent = received = None
            if to is not None and to[0] != stage:
                slot = _slot(pipeline, forward, stage, to[0])
                sent = _message(Kind.SEND, slot, output(part if forward else part - 1), split)
            if source is not None and source[0] != stage:
                slot = _slot(pipeline, forward, source[0], stage)
                received = _message(Kind.RECV, slot, output(part - 1 if forward else part), split)
            found[forward, chunk] = sent, received
    return found


def _slot(pipeline: Pipeline, forward: bool, source: int, to: int) -> str:
    """Return the kind of message: activation or gradient, to the next stage or back."""
    # Of two stages each is next to the other: both ways are "+", with other pairs of ranks.
    ahead = (to - source) % pipeline.stages == 1
    return f"{'activation' if forward else 'gradient'}{'+' if ahead else '-'}"


def _message(kind: Kind, slot: str, size: int, split: int) -> _Message:
    receives = kind is Kind.RECV
    slot = f"{slot}:{'recv' if receives else 'send'}"
    if split == 1 or size % split:  # what the group cannot divide is sent whole
        return _Message(kind, slot, size, 0)
    return _Message(kind, slot, size // split, size if receives else 0)


class PipelineMessages:
    """Blocks of the messages of one stage, and of others that have the same.

    Parameters
    ----------
    messages : mapping
        Sends and receives of each pass (`messages_of_stage`).
    chunks : int
        Number of model chunks that the stage holds.
    overlap : bool
        Whether messages overlap with kernels (see the module's head).
    synchronous : bool
        Without overlap: whether the CPU waits for each exchange.
    builder : callable
        Returns a new `BlockBuilder`.
    """

    def __init__(
        self,
        messages: StageMessages,
        chunks: int,
        *,
        overlap: bool,
        synchronous: bool,
        builder: Callable[[], BlockBuilder],
    ) -> None:
        self._messages, self.chunks = messages, chunks
        self.overlap, self.synchronous, self._builder = overlap, synchronous, builder
        self._any = any(message for both in messages.values() for message in both)
        self._blocks: dict[tuple[tuple[_Message, ...], int], RowBlock] = {}
        self._batches: dict[tuple[Kinds, Kinds], list[Batch]] = {}

    @property
    def joins_turns(self) -> bool:
        """Whether a forward and the backward behind it may be one unit."""
        return not self.overlap and self.chunks > 1

    def between(self, before: Sequence[Action], after: Sequence[Action]) -> list[Batch]:
        """Return the blocks of messages between two units, with the action of each message.

        Parameters
        ----------
        before, after : sequence of Action
            All actions of each unit; none before the first and after the last.
        """
        if not self._any:
            return []
        kinds = _kinds_of(before), _kinds_of(after)
        batches = self._batches.get(kinds)
        if batches is None:
            batches = self._batches[kinds] = self._batched(before, after)
        return batches

    def _batched(self, before: Sequence[Action], after: Sequence[Action]) -> list[Batch]:
        """Return the messages between units of these phases and chunks, batch by batch."""
        messages = [*map(self._sent, before), *map(self._received, after)]
        actions = (*before, *after)
        found = [(message, i) for i, message in enumerate(messages) if message]
        one_way = len({actions[i].phase for _, i in found}) < 2
        one_each = self.overlap or (one_way and self.chunks == 1)
        batches = [[each] for each in found] if one_each else [found] if found else []
        phases = {action.phase for action in before}
        return [
            (
                self._block(
                    tuple(message for message, _ in batch),
                    LAST if actions[batch[0][1]].phase in phases else BEFORE,
                ),
                tuple(i for _, i in batch),
            )
            for batch in batches
        ]

    def _sent(self, action: Action) -> _Message | None:
        if action.phase is Phase.WEIGHT:
            return None
        return self._messages[action.phase is Phase.FORWARD, action.chunk][0]

    def _received(self, action: Action) -> _Message | None:
        if action.phase is Phase.WEIGHT:
            return None
        return self._messages[action.phase is Phase.FORWARD, action.chunk][1]

    def _block(self, messages: tuple[_Message, ...], posted: int) -> RowBlock:
        """Return the block of a batch; with overlap, receives start after the port `posted`."""
        if (messages, posted) not in self._blocks:
            builder = self._builder()
            for i, message in enumerate(messages):
                receives = message.kind is Kind.RECV
                early = self.overlap and receives
                builder.select_pass(i)
                row = builder.point_to_point(
                    message.kind,
                    message.slot,
                    message.bytes,
                    f"{'receive' if receives else 'send'} {_what(message)}",
                    waits=(posted,) if early else (LAST, PENDING),
                    joined=i > 0,
                )
                if receives or not self.overlap:
                    builder.await_next([row])
            if self.synchronous and not self.overlap:
                builder.host_wait([row], "wait for messages")
            for i, message in enumerate(messages):
                if message.gathered:
                    builder.select_pass(i)
                    builder.communicate(
                        Communicate(
                            f"{_what(message)} all-gather",
                            Operation.ALL_GATHER,
                            "tp",
                            message.gathered,
                        )
                    )
            self._blocks[messages, posted] = builder.done()
        return self._blocks[messages, posted]


def _kinds_of(unit: Sequence[Action]) -> Kinds:
    """Return the properties of a unit's actions that its messages depend on."""
    # No phases: their hashes are slow, and there are thousands of actions.
    return tuple([(each.phase is _FORWARD, each.phase is _WEIGHT, each.chunk) for each in unit])


_FORWARD, _WEIGHT = Phase.FORWARD, Phase.WEIGHT
"""Members of an enumeration are slow to look up, too."""


def _what(message: _Message) -> str:
    """Return the content of a message: activation or gradient."""
    return message.slot.partition(":")[0].rstrip("+-")


def streams(overlap: bool) -> dict[str, str]:
    """Return the slots that share a stream: slot name → stream name."""
    if overlap:
        return {}
    kinds = (f"{what}{way}" for what in ("activation", "gradient") for way in "+-")
    return {f"{kind}:{half}": STREAM for kind in kinds for half in ("send", "recv")}
