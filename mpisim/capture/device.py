"""The GPU that a captured script sees: name, capability and sizes, as ``torch.cuda`` tells them."""

from __future__ import annotations

from ..base.frozen import frozen
from ..base.presets import packaged
from ..kernels import Gpu

__all__ = ["FILE", "Device", "device_of"]

FILE = "capture.toml"


@frozen
class Device:
    """What `torch.cuda.get_device_properties` says, and how fast its links are.

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
    rates : tuple of float, optional
        Bytes per second that it sends to others of its node, and over the network.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_memory: int
    cache: int
    rates: tuple[float, float] | None = None


def device_of(gpu: Gpu, rates: tuple[float, float] | None = None) -> Device:
    """GPU of the simulator → what a script is told of it.

    Parameters
    ----------
    gpu : Gpu
    rates : tuple of float, optional
        Of its links, as `Device` has them.
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
        rates=rates,
    )
