"""The GPU that a captured script sees: name, capability and sizes, as ``torch.cuda`` tells them."""

from __future__ import annotations

from ..base.frozen import frozen
from ..base.presets import packaged
from ..kernels import Gpu

__all__ = ["FILE", "Device", "device_of"]

FILE = "capture.toml"


@frozen
class Device:
    """What `torch.cuda.get_device_properties` says.

    Attributes
    ----------
    name : str
    capability : tuple of int
        Compute capability, major and minor.
    memory : int
        Bytes.
    multiprocessors : int
    shared_memory : int
        Bytes a block can have at most.
    cache : int
        Bytes of the L2 cache.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory: int
    cache: int


def device_of(gpu: Gpu) -> Device:
    """GPU of the simulator → what a script is told of it.

    Parameters
    ----------
    gpu : Gpu
    """
    told = packaged(FILE)["capabilities"][gpu.family]
    major, minor = told["capability"]
    return Device(
        name=gpu.title,
        capability=(major, minor),
        memory=int(gpu.memory.si),
        multiprocessors=gpu.sms or 1,
        shared_memory=told["shared_memory"],
        cache=0 if gpu.l2 is None else int(gpu.l2.si),
    )
