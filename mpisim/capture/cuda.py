"""``torch.cuda`` without a GPU: streams, events and figures of the device that is simulated.

`install` puts recording stand-ins into `torch.cuda` and `torch.accelerator`. Streams are numbers,
0 the default one; an event is a place on a stream. `torch.cuda` is one for a process, which
captures one rank: so are its stand-ins, and what they share is `_process`.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .graphs import CapturedGraph

if TYPE_CHECKING:
    from .device import Device
    from .recorder import Recorder

__all__ = ["install"]


class _Process:
    """What the stand-ins share; all but the last two are set by `install`.

    Attributes
    ----------
    recorder : Recorder
    gpu : Device
        The GPU that the script is to see.
    properties : SimpleNamespace
        Its figures, as `torch.cuda` has them.
    local_rank, per_node : int
        Rank within the node, and number of devices there.
    device : int
        Number of the one that is current.
    streams : dict of int to Stream
        Those that were asked for by their number.
    """

    recorder: Recorder
    gpu: Device
    properties: Any
    local_rank: int
    per_node: int

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Any] = {}


_process = _Process()


# --- devices --------------------------------------------------------------------------------------


def _index_of(device: Any = None) -> int:
    """Device, given in any way or not at all → its number."""
    if device is None:
        return _process.device
    if isinstance(device, int):
        return device
    found = torch.device(device)
    return _process.device if found.index is None else found.index


def set_device(device: Any) -> None:
    """Make a device current."""
    number = _index_of(device)
    if number >= _process.per_node:
        raise RuntimeError(
            f"device cuda:{number} does not exist: a node has {_process.per_node} (rank "
            f"{_process.recorder.rank} has LOCAL_RANK {_process.local_rank})"
        )
    if number >= 0:
        _process.device = number


def _exchanged(number: int) -> int:
    """Make a device current, and return the one before."""
    before = _process.device
    if number >= 0:
        _process.device = number
    return before


class Guard:
    """A block on another device."""

    def __init__(self, which: Any) -> None:
        self.idx = _index_of(which) if which is not None else -1

    def __enter__(self) -> None:
        self._before = _process.device
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        _process.device = self._before


def _properties_of(gpu: Device) -> Any:
    """GPU that is simulated → what `torch.cuda.get_device_properties` says of it."""
    return types.SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory,
        multi_processor_count=gpu.multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        is_integrated=False,
        is_multi_gpu_board=False,
        shared_memory_per_block_optin=gpu.shared_memory,
        shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=gpu.shared_memory + 1024,
        L2_cache_size=gpu.cache,
        gcnArchName="",
        uuid="GPU-0",
    )


# --- streams, events and graphs -------------------------------------------------------------------


class Stream:
    """A stream: a number."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        number = kwargs.get("stream_id")
        self.stream_id = _process.recorder.new_stream() if number is None else int(number)
        self.device_index = _index_of(device)
        self.priority = priority

    @property
    def device(self) -> Any:
        return torch.device("cuda", self.device_index)

    @property
    def device_type(self) -> int:
        return 1

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_event(self, event: Any) -> None:
        _process.recorder.wait(self.stream_id, event.place)

    def wait_stream(self, stream: Any) -> None:
        _process.recorder.wait(self.stream_id, _process.recorder.place(stream.stream_id))

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        recorder = _process.recorder
        recorder.host_wait([recorder.place(self.stream_id)], "cudaStreamSynchronize")

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Any:
        self._before = _process.recorder.stream
        _process.recorder.stream = self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        _process.recorder.stream = self._before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """Stand-in of ``torch.cuda.Event``: records its position in a stream, to be waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.place: Any = None

    def record(self, stream: Any = None) -> None:
        number = _process.recorder.stream if stream is None else stream.stream_id
        self.place = _process.recorder.place(number)

    def wait(self, stream: Any = None) -> None:
        number = _process.recorder.stream if stream is None else stream.stream_id
        _process.recorder.wait(number, self.place)

    def synchronize(self) -> None:
        _process.recorder.host_wait([self.place], "cudaEventSynchronize")

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return _process.recorder.values.unknown("elapsed time of an event in ms", 1.0)


def _stream_of(number: int) -> Any:
    """Number → its stream."""
    if number not in _process.streams:
        _process.streams[number] = Stream(stream_id=number)
    return _process.streams[number]


@contextlib.contextmanager
def stream(chosen: Any) -> Iterator[None]:
    """Have a stream be current in this block."""
    before = _process.recorder.stream
    if chosen is not None:
        _process.recorder.stream = chosen.stream_id
    try:
        yield
    finally:
        _process.recorder.stream = before


def set_stream(chosen: Any) -> None:
    """Make a stream current."""
    if chosen is not None:
        _process.recorder.stream = chosen.stream_id


def synchronize(device: Any = None) -> None:
    """Wait for all streams of the device."""
    _process.recorder.host_wait(_process.recorder.all_places(), "cudaDeviceSynchronize")


class Graph:
    """A CUDA graph: what is issued while it is captured, as often as it is replayed."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = CapturedGraph()

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        _process.recorder.graph_begins()

    def capture_end(self) -> None:
        self._graph = _process.recorder.graph_ends(kept=True)

    def replay(self) -> None:
        _process.recorder.launch_graph(self._graph)

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def instantiate(self) -> None:
        """Nothing."""

    reset = enable_debug_mode = instantiate

    def debug_dump(self, path: str) -> None:
        """Nothing."""


@contextlib.contextmanager
def graph(
    captured: Any, pool: Any = None, stream: Any = None, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Capture a CUDA graph in this block."""
    side = Stream() if stream is None else stream
    before, _process.recorder.stream = _process.recorder.stream, side.stream_id
    captured.capture_begin()
    try:
        yield
    finally:
        captured.capture_end()
        _process.recorder.stream = before


class MemoryPool:
    """Stand-in of ``torch.cuda.MemPool``: a name for memory that the allocator keeps apart."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.id = (0, 1)

    def use_count(self) -> int:
        return 1

    def snapshot(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


def use_memory_pool(pool: Any, device: Any = None) -> Any:
    """`torch.cuda.use_mem_pool`: allocations of the block are simulated as any others."""
    return contextlib.nullcontext()


class Generator(torch._C.Generator):
    """Stand-in of ``torch.Generator``, one of the CPU, that says which device it was made for."""

    _named: Any

    def __new__(cls, device: Any = "cpu") -> Any:
        made = super().__new__(cls, device="cpu")
        made._named = torch.device(device)
        return made

    @property
    def device(self) -> Any:
        return self._named


# --- memory and tensors ---------------------------------------------------------------------------


def statistics(device: Any = None) -> dict[str, int]:
    """What `torch.cuda.memory_stats` says of what is allocated now, and was at most."""
    keys = ("allocated_bytes", "reserved_bytes", "active_bytes")
    now, most = _process.recorder.memory.now, _process.recorder.memory.peak
    found = {f"{key}.all.current": now for key in keys}
    found |= {f"{key}.all.peak": most for key in keys}
    return found | {"num_alloc_retries": 0, "num_ooms": 0}


def to_device(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`torch.Tensor.cuda`."""
    return self.to(torch.device("cuda", _index_of(device)), non_blocking=non_blocking)


# --- all of them, in place ------------------------------------------------------------------------

_LEFT_OUT = (
    "empty_cache",
    "init",
    "_lazy_init",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "set_per_process_memory_fraction",
    "set_sync_debug_mode",
    "_check_capability",
    "_check_cubins",
    "_record_memory_history",
    "_dump_snapshot",
)
"""Functions of `torch.cuda` that issue nothing to the device."""

_DEVICES: dict[str, Any] = {
    "device": Guard,
    "_DeviceGuard": Guard,
    "device_of": lambda tensor: Guard(tensor.device if tensor.is_cuda else None),
    "set_device": set_device,
    "_exchange_device": lambda number: _exchanged(number),
    "_maybe_exchange_device": lambda number: _exchanged(number),
    "current_device": lambda: _process.device,
    "device_count": lambda: _process.per_node,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_is_in_bad_fork": lambda: False,
    "_lazy_call": lambda call, **kwargs: None,
    "is_bf16_supported": lambda including_emulation=True: _process.gpu.capability[0] >= 8,
    "is_tf32_supported": lambda: _process.gpu.capability[0] >= 8,
    "get_device_properties": lambda device=None: _process.properties,
    "_get_device_properties": lambda device: _process.properties,  # of who has kept the one above
    "get_device_name": lambda device=None: _process.gpu.name,
    "get_device_capability": lambda device=None: _process.gpu.capability,
    "get_arch_list": lambda: ["sm_{}{}".format(*_process.gpu.capability)],
    "can_device_access_peer": lambda one, other: True,
    "utilization": lambda device=None: 0,
    "power_draw": lambda device=None: 0,
    "temperature": lambda device=None: 0,
}
_STREAMS: dict[str, Any] = {
    "Stream": Stream,
    "Event": Event,
    "stream": stream,
    "CUDAGraph": Graph,
    "graph": graph,
    "graph_pool_handle": lambda: (0, 1),
    "ExternalStream": lambda pointer, device=None, **kwargs: Stream(device, stream_id=pointer),
    "MemPool": MemoryPool,
    "use_mem_pool": use_memory_pool,
    "set_stream": set_stream,
    "current_stream": lambda device=None: _stream_of(_process.recorder.stream),
    "default_stream": lambda device=None: _stream_of(0),
    "is_current_stream_capturing": lambda: False,
    "synchronize": synchronize,
}
_MEMORY: dict[str, Any] = {
    "mem_get_info": lambda device=None: (
        _process.gpu.memory - _process.recorder.memory.now,
        _process.gpu.memory,
    ),
    "memory_allocated": lambda device=None: _process.recorder.memory.now,
    "max_memory_allocated": lambda device=None: _process.recorder.memory.peak,
    "memory_reserved": lambda device=None: _process.recorder.memory.now,
    "max_memory_reserved": lambda device=None: _process.recorder.memory.peak,
    "memory_stats": statistics,
    "memory_summary": lambda device=None, abbreviated=False: "",
}
_RANDOM: dict[str, Any] = {
    "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
    "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)] * _process.per_node,
    "initial_seed": lambda: 0,
}
"""Stand-ins by their names in `torch.cuda`: each its own function, by which Dynamo knows it."""

_ACCELERATOR: dict[str, Any] = {
    "is_available": lambda: True,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "device_count": lambda: _process.per_node,
    "current_device_index": lambda: _process.device,
    "current_device_idx": lambda: _process.device,
    "set_device_index": set_device,
    "set_device_idx": set_device,
    "current_stream": _STREAMS["current_stream"],
    "set_stream": set_stream,
    "synchronize": synchronize,
    "empty_cache": lambda: None,
    "memory_allocated": _MEMORY["memory_allocated"],
    "max_memory_allocated": _MEMORY["max_memory_allocated"],
}
"""The same of `torch.accelerator`."""


def install(recorder: Recorder, gpu: Device, local_rank: int, per_node: int) -> None:
    """Put stand-ins in the place of the functions and classes of `torch.cuda`.

    Parameters
    ----------
    recorder : Recorder
    gpu : Device
        The GPU that the script is to see.
    local_rank : int
        The device that is current at first is 0, as in a new process.
    per_node : int
        Number of devices.
    """
    _process.recorder, _process.gpu = recorder, gpu
    _process.properties = _properties_of(gpu)
    _process.local_rank, _process.per_node = local_rank, per_node
    cuda: Any = torch.cuda
    for name in _LEFT_OUT:
        setattr(cuda, name, lambda *args, **kwargs: None)
    stands = _DEVICES | _STREAMS | _MEMORY | _RANDOM
    for name, stand in stands.items():
        setattr(cuda, name, stand)
    for module in (cuda.memory, cuda.random, cuda.streams, cuda.graphs):
        for name in (*_LEFT_OUT, *stands):
            if hasattr(module, name):
                setattr(module, name, getattr(cuda, name))
    cuda.nvtx = types.SimpleNamespace(
        range_push=lambda text: 0,
        range_pop=lambda: 0,
        mark=lambda text: None,
        range=lambda *args, **kwargs: contextlib.nullcontext(),
    )
    accelerator: Any = torch.accelerator
    for name, stand in _ACCELERATOR.items():
        # Each an object of its own: Dynamo knows functions by their identity.
        setattr(accelerator, name, functools.partial(stand))
    c: Any = torch._C
    c._get_accelerator = lambda check=None: torch.device("cuda")
    c._cuda_getDevice = lambda: _process.device
    c._cuda_setDevice = functools.partial(set_device)
    c._cuda_getDeviceCount = lambda: _process.per_node
    c._cuda_isCurrentStreamCapturing = lambda: False
    c._cuda_getCurrentStream = lambda which: (_process.recorder.stream, _process.device, 1)
    anything: Any = torch
    anything.Generator = Generator
    tensor: Any = torch.Tensor
    tensor.cuda = to_device
    tensor.record_stream = lambda self, stream: None
    tensor.pin_memory = lambda self, device=None: self
    tensor.is_pinned = lambda self, device=None: False
