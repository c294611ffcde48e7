"""What a GPU can do: the numbers that the kernel models need, with their error bars."""

from __future__ import annotations

from dataclasses import dataclass

from mpisim.data import text
from mpisim.errors import InputError, nearest
from mpisim.quantity import Quantity
from mpisim.schema import build, parse

__all__ = ["Gpu", "find_gpu"]

FILE = "gpus.toml"


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU with the software that runs on it.

    Attributes
    ----------
    title : str
        Its full name.
    peak : Quantity
        Dense bf16 rate of its matrix units.
    bandwidth : Quantity
        Of its memory, read and write together.
    gemm_fraction : Quantity
        Share of `peak` that large matrix products reach.
    attention_fraction : Quantity
        Share of `peak` that fused attention reaches, counting the work a causal mask leaves.
    memory_fraction : Quantity
        Share of `bandwidth` that elementwise kernels reach.
    gemm_floor, memory_floor : Quantity
        Time of a kernel besides its work: starting, filling and draining the machine. The one of
        matrix products also serves attention.
    launch_call : Quantity
        CPU time of the call that launches a kernel.
    launch_latency : Quantity
        From the start of that call to the start of the kernel on an idle GPU.
    host_gap : Quantity
        CPU time the framework spends between two launches.
    """

    title: str
    peak: Quantity
    bandwidth: Quantity
    gemm_fraction: Quantity
    attention_fraction: Quantity
    memory_fraction: Quantity
    gemm_floor: Quantity
    memory_floor: Quantity
    launch_call: Quantity
    launch_latency: Quantity
    host_gap: Quantity


def find_gpu(name: str) -> Gpu:
    """Return a GPU of ``data/gpus.toml`` by name.

    Raises
    ------
    InputError
        If there is none of that name.

    Examples
    --------
    >>> find_gpu("h100-sxm").title
    'NVIDIA H100 SXM5 80 GB (700 W)'
    """
    presets = parse(text(FILE), FILE)
    if name not in presets:
        raise InputError(
            f"unknown GPU {name!r}{nearest(name, presets)}; there are {', '.join(presets)}"
        )
    return build(Gpu, presets[name], FILE, name)
