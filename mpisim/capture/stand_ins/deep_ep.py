"""DeepEP: tokens to the ranks of their experts, and sums of results back, by kernels of its own.

After ``deep_ep/buffer.py`` and ``csrc/deep_ep.cpp`` of version 1.2. A dispatch sends a token once
to each rank that has any of its experts; across nodes once to each node, from where NVLink takes it
to ranks. All kernels run on a stream of the buffer: it waits for the event that the caller gives,
else for the caller's stream, which waits for it in turn unless ``async_finish`` is asked for. The
CPU waits until it knows how many tokens arrive.

Which experts a token has depends on values. Here every expert gets as many, those of a token are
any: so many ranks and nodes as `expected_destinations` says have one of them. What is sent is
recorded as an all-to-all of these tokens, across nodes of those that cross the network. Its bytes
are those for which NCCL's takes as long as DeepEP does on the cluster's links and as many
multiprocessors as the script gives it, as in generated programs
(`mpisim.workloads.transformer.exchange_rates`).
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import torch

from ...base.kinds import Operation
from .deep_ep_low_latency import LowLatency
from .deep_ep_streams import EventHandle, EventOverlap, launch
from .library import Contents, Library

__all__ = ["LIBRARY"]

MAX_NVLINK_RANKS = 8
"""Ranks that one kernel reaches by NVLink (``NUM_MAX_NVL_PEERS``)."""

MOST_CHOICES = MOST_SCALES = 128
"""Experts of a token, and scales, that a slot of a buffer has room for (``kNumMaxTopK``)."""

SOURCE_BYTES = 8
"""Of what is sent with a token to say where it is from (``get_source_meta_bytes``)."""

SLOT_BYTES = SOURCE_BYTES + MOST_CHOICES * (8 + 4) + MOST_SCALES * 4
"""Of a slot of a buffer besides the token."""

DISPATCH = {2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128), 16: (36, 288, 20, 128),
            24: (32, 288, 8, 128), 32: (32, 288, 8, 128), 48: (32, 288, 8, 128),
            64: (32, 288, 8, 128), 96: (20, 480, 12, 128), 128: (20, 560, 12, 128),
            144: (32, 720, 12, 128), 160: (28, 720, 12, 128)}  # fmt: skip
COMBINE = {2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128), 16: (4, 288, 12, 128),
           24: (1, 288, 8, 128), 32: (1, 288, 8, 128), 48: (1, 288, 8, 128), 64: (1, 288, 8, 128),
           96: (1, 480, 8, 128), 128: (1, 560, 8, 128), 144: (2, 720, 8, 128),
           160: (2, 720, 8, 128)}  # fmt: skip
"""Tokens of a chunk that are sent and received by NVLink and RDMA, by ranks."""


WITHOUT_RATE = (
    "DeepEP: without latency and multiprocessors of its kernels: the cluster has no link_bandwidth"
)
"""What is said where nothing tells how fast links are."""


class Handle(NamedTuple):
    """What a dispatch leaves for its way back: tensors, as the library has them, and its tokens."""

    is_token_in_rank: Any
    send_head: Any
    prefixes: tuple[Any, ...]
    recv_src_idx: Any
    experts: int
    choices: int


class Config:
    """How many multiprocessors and slots of a buffer kernels use."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256,
                 num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256) -> None:  # fmt: skip
        self.num_sms = num_sms
        self.slots = num_max_nvl_chunked_recv_tokens
        chunk = num_max_rdma_chunked_send_tokens
        self.far_slots = -(-num_max_rdma_chunked_recv_tokens // chunk) * chunk

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffer that NVLink's peers write to."""
        near, nodes = min(num_ranks, MAX_NVLINK_RANKS), max(num_ranks // MAX_NVLINK_RANKS, 1)
        lanes = self.num_sms // 2 * near
        size = lanes * ((2 * nodes + 3) * 4 + self.slots * (hidden_bytes + SLOT_BYTES))
        return -(-size // 128) * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffer that other nodes write to."""
        if num_ranks <= MAX_NVLINK_RANKS:
            return 0
        lanes = self.num_sms // 2 * (num_ranks // MAX_NVLINK_RANKS) * 2
        slots = self.far_slots * (hidden_bytes + SLOT_BYTES + 16)
        size = lanes * ((MAX_NVLINK_RANKS * 2 + 2) * 4 + slots) + (1 << 20)
        return -(-size // 128) * 128


class Buffer(LowLatency):
    """Buffers of a group of ranks, and the kernels that use them."""

    num_sms = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
                 low_latency_mode: bool = False, num_qps_per_rank: int = 24,
                 allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, **rest: Any) -> None:  # fmt: skip
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self._stream = launch.recorder.new_stream()
        members = launch.recorder.groups[launch.collectives.group_of(group)]
        node = int(os.environ["LOCAL_WORLD_SIZE"])
        self._nodes = len({rank // node for rank in members})

    # --- what configures it -----------------------------------------------------------------------

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        assert new_num_sms % 2 == 0, "The SM count must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def capture() -> Any:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in DISPATCH, f"Unsupported number of EP ranks: {num_ranks}"
        return Config(Buffer.num_sms, *DISPATCH[num_ranks])

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        assert num_ranks in COMBINE, f"Unsupported number of EP ranks: {num_ranks}"
        return Config(Buffer.num_sms, *COMBINE[num_ranks])

    def get_comm_stream(self) -> Any:
        return torch.cuda.Stream(stream_id=self._stream)

    def destroy(self) -> None:
        """Free the buffers."""

    # --- kernels ----------------------------------------------------------------------------------

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, previous_event: Any = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False
                            ) -> Any:  # fmt: skip
        """Which ranks each token goes to, and how many go to each rank, node and expert."""
        assert topk_idx.dim() == 2, "topk_idx is [tokens, experts of each]"

        def count(*shape: int, dtype: Any = torch.int32) -> Any:
            return launch.empty(shape, dtype, topk_idx.device)

        to_nodes = (
            count(self.group_size // MAX_NVLINK_RANKS)
            if self.group_size > MAX_NVLINK_RANKS
            else None
        )
        ranks, experts = count(self.group_size), count(num_experts)
        inside = count(topk_idx.shape[0], self.group_size, dtype=torch.bool)
        made = [each for each in (ranks, to_nodes, experts, inside) if each is not None]
        with self._on_own_stream(previous_event, made, allocate_on_comm_stream):
            launch("deep_ep::get_dispatch_layout", [topk_idx], made)
        return ranks, to_nodes, experts, inside, self._after(async_finish)

    def dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: Any = None,
                 num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None,
                 num_tokens_per_expert: Any = None, topk_idx: Any = None,
                 topk_weights: Any = None, expert_alignment: int = 1,
                 num_worst_tokens: int = 0, config: Any = None, previous_event: Any = None,
                 async_finish: bool = False, allocate_on_comm_stream: bool = False
                 ) -> Any:  # fmt: skip
        """Send tokens to the ranks of their experts; by a handle, as they were sent before."""
        sent = x if isinstance(x, tuple) else (x,)
        tokens, device = sent[0].shape[0], sent[0].device
        if handle is None:
            assert topk_idx is not None, "a dispatch without a handle needs topk_idx"
            assert is_token_in_rank is not None, "... and what get_dispatch_layout gives"
            experts, choices = num_tokens_per_expert.shape[0], topk_idx.shape[1]
            arrived = num_worst_tokens or self._tokens(tokens, experts, choices)[0]
        else:
            experts, choices = handle.experts, handle.choices
            arrived = handle.recv_src_idx.shape[0]

        def made(*shape: int, dtype: Any = torch.int32) -> Any:
            return launch.empty(shape, dtype, device)

        found = tuple(made(arrived, *each.shape[1:], dtype=each.dtype) for each in sent)
        kept, ids, weights = [*found], None, None
        if handle is None:
            ids = made(arrived, choices, dtype=topk_idx.dtype)
            kept.append(ids)
            if topk_weights is not None:
                weights = made(arrived, choices, dtype=topk_weights.dtype)
                kept.append(weights)
            lanes = Buffer.num_sms // 2 if config is None else config.num_sms // 2
            prefixes = (
                made(self.group_size, self.group_size),
                made(self.group_size, lanes),
                made(self.group_size, lanes),
            )
            heads = made(tokens, self.group_size)
            handle = Handle(is_token_in_rank, heads, prefixes, made(arrived), experts, choices)
            kept += [*prefixes, heads, handle.recv_src_idx]
            notify = [num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank]
            new = True
        else:
            notify, new = [*handle.prefixes[:1]], False
        with self._on_own_stream(previous_event, kept, allocate_on_comm_stream):
            launch(f"deep_ep::{'' if new else 'cached_'}notify_dispatch", notify)
            if new and not num_worst_tokens:  # the CPU reads what the kernel writes
                launch.recorder.host_wait(
                    [launch.recorder.place(self._stream)], "DeepEP's counts of tokens"
                )
            self._send("dispatch", sent, tokens, experts, choices, config)
        after = self._after(async_finish)
        out = found if isinstance(x, tuple) else found[0]
        if not new:
            return out, None, None, None, None, after
        launch.evenly("tokens that DeepEP sends to each expert", ids, tokens / arrived)
        own = experts // self.group_size
        each, more = divmod(tokens * choices, own)
        counts = [each + (i < more) for i in range(own)]
        counts = [-(-n // expert_alignment) * expert_alignment for n in counts]
        return out, ids, weights, [] if num_worst_tokens else counts, handle, after

    def combine(self, x: Any, handle: Any, topk_weights: Any = None, bias: Any = None,
                config: Any = None, previous_event: Any = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> Any:  # fmt: skip
        """Return the sums of what a dispatch's ranks have for each token."""
        tokens = handle.send_head.shape[0]
        out = launch.empty((tokens, *x.shape[1:]), x.dtype, x.device)
        weights = None
        if topk_weights is not None:
            shape = (tokens, *topk_weights.shape[1:])
            weights = launch.empty(shape, topk_weights.dtype, x.device)
        made = [each for each in (out, weights) if each is not None]
        with self._on_own_stream(previous_event, made, allocate_on_comm_stream):
            launch("deep_ep::cached_notify_combine", [handle.send_head])
            self._send("combine", (x,), tokens, handle.experts, handle.choices, config)
        return out, weights, self._after(async_finish)

    # --- what they do -----------------------------------------------------------------------------

    def _tokens(self, tokens: int, experts: int, choices: int) -> tuple[int, int]:
        """Tokens of a rank → those that arrive at one, and those that it sends and receives."""
        from ...workloads.transformer.destinations import expected_destinations

        def of(parts: int) -> int:
            return math.ceil(tokens * expected_destinations(experts, choices, parts))

        arrived = of(self.group_size)
        return arrived, of(self._nodes) if self._nodes > 1 else arrived

    def _send(self, way: Any, sent: tuple[Any, ...], tokens: int, experts: int,
              choices: int, config: Any) -> None:  # fmt: skip
        """Record an all-to-all of tokens with what they consist of."""
        from ...workloads.transformer.exchange_rates import ExchangeGroup, priced_bytes

        multiprocessors = Buffer.num_sms if config is None else config.num_sms
        assert multiprocessors > 0, f"DeepEP's kernels run on {multiprocessors} SMs"
        arrived, exchanged = self._tokens(tokens, experts, choices)
        row = sum(math.prod(each.shape[1:]) * each.element_size() for each in sent)
        inside, across = launch.recorder.rates or (None, None)
        rate = inside if self._nodes == 1 else across
        if rate is None and self.group_size > 1:
            launch.recorder.replaced[WITHOUT_RATE] = 1
        group = ExchangeGroup(self.group_size, self._nodes, rate)
        launch.collectives.issue(
            Operation.ALL_TO_ALL, self.group, list(sent), asynchronous=False,
            bytes=priced_bytes("flex", way, group, row * exchanged, arrived, row, multiprocessors),
            name=f"DeepEP's {way}",
        )  # fmt: skip


def _modules() -> Contents:
    events = {"EventOverlap": EventOverlap, "EventHandle": EventHandle}
    classes = {"Buffer": Buffer, "Config": Config, "topk_idx_t": torch.int64}
    return {
        "deep_ep": {**classes, "EventOverlap": EventOverlap},
        "deep_ep.buffer": {**classes, **events},
        "deep_ep.utils": {**events, "check_nvlink_connections": lambda group: None},
        "deep_ep_cpp": {"Config": Config, "EventHandle": EventHandle, "topk_idx_t": torch.int64},
    }


LIBRARY = Library("deep_ep", launch, _modules, others=("deep_ep_cpp",))
"""The library."""
