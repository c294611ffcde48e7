"""DeepEP's low-latency kernels: a copy of a token for each of its experts, written by RDMA.

After ``low_latency_dispatch`` and ``low_latency_combine`` of ``csrc/deep_ep.cpp`` and
``csrc/kernels/internode_ll.cu`` of version 1.2. A kernel casts tokens and starts to send; one puts
what has arrived where the experts find it, or adds it up. Both run on a stream of the buffer; with
``return_recv_hook`` on the caller's, the second one when the hook is called, and what is sent in
between takes no multiprocessors. No number of tokens reaches the CPU: results have room for all.

What is sent is recorded as an all-to-all of as many bytes. Every expert gets as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ...base.kinds import Operation
from .deep_ep_streams import EventHandle, EventOverlap, OwnStream, launch

__all__ = ["LowLatency"]

ELEMENTS_PER_SCALE = 128
"""Elements that share a scale of fp8 (``kNumPerChannels``)."""

HEADER_BYTES = 16
"""Bytes that say where a token is from (``sizeof(int4)``)."""


class LowLatencyHandle(NamedTuple):
    """What a dispatch leaves for its way back."""

    src_info: Any
    layout_range: Any
    most_tokens: int
    hidden: int
    experts: int


def size_hint(most_tokens: int, hidden: int, ranks: int, experts: int) -> int:
    """Bytes of the buffer that other ranks write to (``LowLatencyLayout`` of csrc/config.hpp).

    Parameters
    ----------
    most_tokens : int
        Tokens of a rank at most.
    hidden : int
    ranks, experts : int
        In all; the first makes no difference.
    """
    scales = hidden // ELEMENTS_PER_SCALE
    sent = HEADER_BYTES + max(2 * hidden, hidden + 4 * scales)
    returned = 4 * scales + 2 * hidden
    sending = max(most_tokens * sent, experts * most_tokens * returned)
    receiving = experts * most_tokens * max(sent, returned)
    signals = -(-4 * experts // 128) * 128
    return (2 * (sending + receiving + signals) + 128) // 128 * 128


class LowLatency(OwnStream):
    """The low-latency kernels of a buffer."""

    get_low_latency_rdma_size_hint = staticmethod(size_hint)

    def clean_low_latency_buffer(self, most_tokens: int, hidden: int, experts: int) -> None:
        """Set counts to zero."""
        signals = launch.empty((2, experts), torch.int32, self._device())
        launch("deep_ep::clean_low_latency_buffer", [], [signals])

    def get_next_low_latency_combine_buffer(self, given: Any) -> Any:
        """Return the memory that experts may write their results to."""
        rows = self.group_size * given.most_tokens
        shape = (given.experts // self.group_size, rows, given.hidden)
        return launch.empty(shape, torch.bfloat16, self._device())

    def low_latency_dispatch(
        self, x: Any, topk_idx: Any, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None, use_fp8: bool = True,
        round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> Any:  # fmt: skip
        """Send tokens to their experts."""
        own, hidden = num_experts // self.group_size, x.shape[1]
        rows = self.group_size * num_max_dispatch_tokens_per_rank

        def made(*shape: int, dtype: Any = torch.int32) -> Any:
            return launch.empty(shape, dtype, x.device)

        kind = torch.float8_e4m3fn if use_fp8 else x.dtype
        received = made(own, rows, hidden, dtype=kind)
        scales: Any = None
        if use_fp8:
            scales = made(own, hidden // ELEMENTS_PER_SCALE, rows, dtype=torch.float32)
        counts, info = made(own), made(own, rows)
        ranges = made(own, self.group_size, dtype=torch.int64)
        kept = [each for each in (received, scales, counts, info, ranges) if each is not None]
        launch.keep(kept)
        size = kind.itemsize * hidden + (4 * (hidden // ELEMENTS_PER_SCALE) if use_fp8 else 0)
        copies = topk_idx.numel()
        arrived = launch.empty((copies, size), torch.uint8, x.device)
        first = ("deep_ep::low_latency_dispatch", [x, topk_idx], [arrived])
        second = ("deep_ep::low_latency_receive", [arrived], [arrived, info, counts])
        after, hook = self._in_two_phases(
            "dispatch",
            first,
            copies * (HEADER_BYTES + size),
            second,
            async_finish,
            return_recv_hook,
        )
        found = (received, scales.transpose(1, 2)) if use_fp8 else received
        given = LowLatencyHandle(
            info, ranges, num_max_dispatch_tokens_per_rank, hidden, num_experts
        )
        return found, counts, given, after, hook

    def low_latency_combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: Any, use_logfmt: bool = False,
        zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False,
        out: Any = None, combine_wait_recv_cost_stats: Any = None,
    ) -> Any:  # fmt: skip
        """Send results back, and add up those of a token by its weights."""
        if use_logfmt:
            raise launch.refuse("Buffer.low_latency_combine(use_logfmt=True)")
        tokens, copies = topk_idx.shape[0], topk_idx.numel()
        if out is None:
            out = launch.empty((tokens, x.shape[-1]), x.dtype, x.device)
            launch.keep([out])
        sent = launch.empty((copies, x.shape[-1]), x.dtype, x.device)
        first = (
            "deep_ep::low_latency_combine",
            [handle.src_info] if zero_copy else [sent, handle.src_info],
            [] if zero_copy else [sent],
        )
        second = ("deep_ep::low_latency_reduce", [sent, topk_idx, topk_weights], [out])
        size = copies * x.shape[-1] * x.element_size()
        after, hook = self._in_two_phases(
            "combine", first, size, second, async_finish, return_recv_hook
        )
        return out, after, hook

    def _device(self) -> Any:
        return torch.device("cuda", torch.cuda.current_device())

    def _in_two_phases(
        self, way: str, first: Any, size: int, second: Any, asynchronous: bool, hooked: bool
    ) -> tuple[Any, Callable[[], None] | None]:
        """Record what sends, what is sent, and what takes it in, now or in a hook."""
        launch.note()
        caller, network = launch.recorder.stream, self._stream
        if not hooked:
            launch.recorder.wait(network, launch.recorder.place(caller))
        with self._on(caller if hooked else network):
            launch(*first)
        if hooked:
            launch.recorder.wait(network, launch.recorder.place(caller))
        with self._on(network):
            launch.collectives.issue(
                Operation.ALL_TO_ALL, self.group, first[1], asynchronous=False,
                bytes=size, name=f"DeepEP's low-latency {way}",
            )  # fmt: skip
        sent = launch.recorder.place(network)

        def receive() -> None:
            launch.recorder.wait(launch.recorder.stream, sent)
            launch(*second)

        if hooked:
            return EventOverlap(), receive
        with self._on(network):
            launch(*second)
        event = EventHandle()
        event.place = launch.recorder.place(network)
        if asynchronous:
            return EventOverlap(event), None
        launch.recorder.wait(caller, event.place)
        return EventOverlap(), None
