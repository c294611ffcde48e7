"""``DistributedDataParallel`` as PyTorch's reducer does it, which reads memory and cannot be run.

Gradients are collected in buckets: the first of 1 MiB, so that communication starts early, the
others of `bucket_cap_mb`; in the first step in the reverse order of registration, after it in the
order in which gradients were ready (``torch/csrc/distributed/c10d/reducer.cpp``). A bucket whose
last gradient is ready is all-reduced beside the rest of the backward pass. Compiled code launches a
copy for each gradient, and for each buffer that comes by broadcast (``c10d/comm.cpp``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from .recorder import Recorder

__all__ = ["DistributedDataParallel"]

FIRST_BUCKET = 1 << 20
"""Bytes: ``kDefaultFirstBucketBytes`` of reducer.hpp."""

MEBIBYTE = 1 << 20


MOST_COALESCED = 250 * MEBIBYTE
"""``_broadcast_bucket_size`` of distributed.py."""


EARLIEST_POWER_SGD = 2
"""Steps before PowerSGD at least: DDP builds its buckets anew after the first (PowerSGDState of
torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py)."""


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.views: dict[int, Any] = {}
        first = parameters[0]
        with torch.no_grad():
            self.buffer = torch.zeros(
                sum(each.numel() for each in parameters), dtype=first.dtype, device=first.device
            )
            at = 0
            for each in parameters:
                self.views[id(each)] = self.buffer[at : at + each.numel()].view(each.shape)
                at += each.numel()
        self.missing = {id(each) for each in parameters}
        self.work: Any = None


class _GivenBucket:
    """A bucket as hooks of communication see it (``GradBucket`` of PyTorch)."""

    def __init__(self, bucket: _Bucket, index: int, last: bool) -> None:
        self._bucket, self._index, self._last = bucket, index, last
        self._buffer = bucket.buffer

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> Any:
        return self._buffer

    def set_buffer(self, buffer: Any) -> None:
        self._buffer = buffer

    def parameters(self) -> list[Any]:
        return self._bucket.parameters

    def gradients(self) -> list[Any]:
        return list(self._bucket.views.values())


class DistributedDataParallel(torch.nn.Module, Joinable):
    """Wrap a module as `torch.nn.parallel.DistributedDataParallel` does; see there."""

    _active_ddp_module: ClassVar[Any] = None
    """The one whose forward pass runs: Dynamo cuts graphs where its buckets end."""

    _recorder: ClassVar[Recorder]
    """Of the rank that this process captures."""

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        mesh = options.get("device_mesh")
        if process_group is None and mesh is not None:
            process_group = mesh.get_group(0)
        self.module = module
        self.process_group = process_group or dist.group.WORLD
        self.broadcast_buffers = broadcast_buffers
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.find_unused_parameters = find_unused_parameters
        self.device_ids, self.output_device, self.dim = device_ids, output_device, dim
        self.static_graph = static_graph
        self.bucket_bytes_cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * MEBIBYTE)
        self.require_backward_grad_sync = True
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._reduced = [
            each
            for name, each in module.named_parameters()
            if each.requires_grad and name not in ignored
        ]
        if not self._reduced:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameters "
                "that require a gradient."
            )
        self._order: list[int] = []
        self._rebuilt = False
        self._queued = False
        self._hook: Any = None
        if init_sync:
            self._broadcast([*module.parameters(), *module.buffers()])
        self._build(list(reversed(self._reduced)))
        for each in self._reduced:
            each.register_post_accumulate_grad_hook(self._ready)

    def _broadcast(self, tensors: list[Any]) -> None:
        """Broadcast what lies on the device as ``broadcast_coalesced`` (c10d/comm.cpp) does.

        Tensors of one type go together, up to 250 MiB, and are copied out of what has come.
        """
        with torch.no_grad():
            of_type: dict[Any, list[list[Any]]] = {}
            for each in (tensor.detach() for tensor in tensors if tensor.is_cuda):
                batches = of_type.setdefault(each.dtype, [[]])
                size = sum(part.numel() * part.element_size() for part in batches[-1])
                if batches[-1] and size + each.numel() * each.element_size() > MOST_COALESCED:
                    batches.append([])
                batches[-1].append(each)
            for batch in (batch for batches in of_type.values() for batch in batches):
                flat = torch.cat([part.reshape(-1) for part in batch])
                dist.broadcast(flat, group_src=0, group=self.process_group)
                at = 0
                with self._recorder.reducer():
                    for part in batch:
                        part.copy_(flat[at : at + part.numel()].view(part.shape))
                        at += part.numel()

    def _build(self, parameters: list[Any]) -> None:
        """Make buckets of parameters in this order; each has gradients of one type."""
        self._bucket_of: dict[int, _Bucket] = {}
        self._buckets: list[_Bucket] = []
        found: dict[Any, list[Any]] = {}
        limits: dict[Any, int] = {}
        order = []
        for each in parameters:
            key = (each.dtype, each.device)
            held = found.setdefault(key, [])
            limits.setdefault(key, FIRST_BUCKET)
            held.append(each)
            if sum(part.numel() * part.element_size() for part in held) >= limits[key]:
                order.append(found.pop(key))
                limits[key] = self.bucket_bytes_cap
        order += found.values()
        for held in order:
            bucket = _Bucket(held)
            self._buckets.append(bucket)
            self._bucket_of |= {id(each): bucket for each in held}

    def _ready(self, parameter: Any) -> None:
        """A gradient is complete: copy it into its bucket, and reduce that if it was the last."""
        if not self.require_backward_grad_sync:
            return
        if not self._queued:
            self._queued = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
        if not self._rebuilt:
            self._order.append(id(parameter))
        bucket = self._bucket_of[id(parameter)]
        if id(parameter) not in bucket.missing:
            raise RuntimeError(
                "Expected to mark a variable ready only once: a parameter is used in two backward "
                "passes or twice in checkpoints"
            )
        with torch.no_grad(), self._recorder.reducer():
            view = bucket.views[id(parameter)]
            size = self.process_group.size()
            if parameter.grad is not view:
                if self._hook is None:
                    torch.mul(parameter.grad, 1.0 / size, out=view)
                else:  # which divides by itself
                    view.copy_(parameter.grad)
                if self.gradient_as_bucket_view:
                    parameter.grad = view
            elif self._hook is None:
                view.div_(size)
        bucket.missing.discard(id(parameter))
        while True:  # in order, as NCCL needs it
            following = next((each for each in self._buckets if each.work is None), None)
            if following is None or following.missing:
                return
            following.work = self._reduce(following)

    def _reduce(self, bucket: _Bucket) -> Any:
        """Begin to reduce a bucket, as the hook does if there is one."""
        if self._hook is None:
            return dist.all_reduce(bucket.buffer, group=self.process_group, async_op=True)
        state, hook = self._hook
        index = self._buckets.index(bucket)
        with torch.no_grad():
            return hook(state, _GivenBucket(bucket, index, index == len(self._buckets) - 1))

    def _finish(self) -> None:
        """Wait for all buckets at the end of the backward pass."""
        self._queued = False
        with torch.no_grad():
            for bucket in self._buckets:
                if bucket.work is None:  # gradients of parameters that were not used stay as is
                    bucket.work = self._reduce(bucket)
                reduced = bucket.work.wait()
                if self._hook is not None:
                    reduced = reduced[0] if isinstance(reduced, list) else reduced
                    if reduced is not bucket.buffer:
                        with self._recorder.reducer():
                            bucket.buffer.copy_(reduced)
                if not self.gradient_as_bucket_view:
                    with self._recorder.reducer():
                        for each in bucket.parameters:
                            if each.grad is not None:
                                each.grad.copy_(bucket.views[id(each)])
                bucket.work = None
                bucket.missing = {id(each) for each in bucket.parameters}
        if not self._rebuilt and not self.find_unused_parameters:
            self._rebuilt = True
            by_id = {id(each): each for each in self._reduced}
            ready = [by_id[key] for key in self._order]
            self._build([*ready, *(each for each in self._reduced if id(each) not in self._order)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Broadcast buffers, and run the module."""
        Join.notify_join_context(self)
        buffers = [each for each in self.module.buffers() if each.is_cuda]
        if self.broadcast_buffers and buffers and self.require_backward_grad_sync:
            self._broadcast(buffers)
        if self._join_config.enable:  # ranks without inputs ask whether gradients are reduced
            asked = torch.ones(1, device=self.join_device)
            dist.all_reduce(asked, group=self.process_group, async_op=True)
        this: Any = DistributedDataParallel
        this._active_ddp_module = self
        try:
            return self.module(*args, **kwargs)
        finally:
            this._active_ddp_module = None

    @classmethod
    def _get_active_ddp_module(cls) -> Any:
        return cls._active_ddp_module

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in this block, without communication."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Return the context in which ranks without inputs follow the others: here none is."""
        return Join([self], enable, throw_on_early_termination)

    def join_hook(self, **options: Any) -> JoinHook:
        """Return what a rank without inputs does: nothing, since all have as many."""
        return JoinHook()

    @property
    def join_device(self) -> Any:
        """The device of the parameters."""
        return self._reduced[0].device

    @property
    def join_process_group(self) -> Any:
        """The ranks that have inputs."""
        return self.process_group

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Have a hook reduce buckets: it gets one, and gives the future of its sums.

        Of PowerSGD, which begins behind a number of steps, those that compress are recorded: it
        begins as early as PyTorch allows, when buckets are rebuilt.
        """
        self._hook = state, hook
        begins: Any = getattr(state, "start_powerSGD_iter", None)
        if begins is not None:
            first, named = min(begins, EARLIEST_POWER_SGD), cast(Any, state)
            if begins > first:
                said = f"PowerSGD begins in step {first + 1}, in place of step {begins + 1}"
                self._recorder.replaced[said] += 1
            named.start_powerSGD_iter = first
            self._recorder.steps.warm_up_at_least(first + 1)

    def _set_static_graph(self) -> None:
        self.static_graph = True

    def get_ddp_logging_data(self) -> dict[str, Any]:
        """Return what is known of the buckets."""
        return {"bucket_cap_bytes": self.bucket_bytes_cap}

    _get_ddp_logging_data = get_ddp_logging_data

    def _set_ddp_runtime_logging_sample_rate(self, steps: int) -> None:
        """Nothing: no times are taken."""
