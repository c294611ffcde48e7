"""`Gpu`: rates, bandwidths and latencies of a GPU, with error bars and sources.

A GPU's own numbers are in ``data/gpus.toml``. Those that have not been measured on it come from its
architecture family, ``data/gpu_families.toml``, with wider error bars.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from mpisim.base.errors import InputError, nearest
from mpisim.base.frozen import frozen
from mpisim.base.presets import SUFFIX, find_table, packaged, table_names
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits, build

__all__ = ["Gpu", "find_gpu", "gpu_name", "gpu_names"]

FILE = "gpus.toml"
FAMILIES = "gpu_families.toml"

PEAK = "peak_"
"""Prefix of the names of the attributes that hold peak rates; the format follows."""


@frozen
class Gpu:
    """One kind of GPU with the software that runs on it.

    Attributes
    ----------
    title : str
        Its full name.
    family : str
        Architecture: a table of ``data/gpu_families.toml``, which fills in what is not given.
    memory : Quantity
        Capacity.
    bandwidth : Quantity
        Of its memory, read and write together.
    pcie : Quantity
        Bandwidth to the host's memory, one direction (PCIe, or NVLink-C2C on Grace).
    sm_threads : Quantity
        Threads that a multiprocessor or compute unit holds at once.
    warp_size : Quantity
        Threads of a warp, or of AMD's wavefront.
    gemm_fraction : Quantity
        Share of the peak that large matrix products in tf32, fp16 and bf16 reach.
    fp32_fraction, fp8_fraction : Quantity
        The same for products in fp32, and in fp8 and narrower formats.
    grouped_gemm_factor : Quantity
        Rate of a grouped product relative to one product of the same size.
    attention_fraction : Quantity
        Share of the peak that fused attention reaches, counting the work a causal mask leaves.
    convolution_fraction, fp32_convolution_fraction : Quantity
        Share of the peak that convolutions reach on matrix units, and in fp32, counting the work of
        a direct convolution: Winograd's algorithm does less and can exceed 1.
    memory_fraction : Quantity
        Share of `bandwidth` of kernels that stream: elementwise, optimizer, copies, operands.
    reduction_fraction : Quantity
        The same of kernels that reduce rows: norms, softmax, cross-entropy.
    embedding_fraction : Quantity
        The same of lookups in a table.
    pcie_fraction : Quantity
        Share of `pcie` that copies reach.
    gemm_floor, memory_floor, copy_floor : Quantity
        Time of a kernel besides its work: starting, filling and draining the machine. The one of
        matrix products also serves attention and convolutions; the last, copies from or to the
        host.
    launch_call : Quantity
        CPU time of the call that launches a kernel.
    launch_latency : Quantity
        From the start of that call to the start of the kernel on an idle GPU.
    host_gap : Quantity
        CPU time the framework spends between two launches.
    loop_gap : Quantity, optional
        The same where a loop in compiled code launches them, such as products of experts; by
        default `host_gap`.
    kernel_gap : Quantity
        From the end of a kernel to the start of the next one of its stream that was launched long
        before: no part of any kernel's time as profilers give it.
    graph_gap : Quantity
        The same inside a CUDA graph.
    peak_fp32 : Quantity, optional
        Dense rate of matrix products in fp32: of the CUDA cores on NVIDIA's GPUs, of the matrix
        units on AMD's.
    peak_tf32, peak_fp16, peak_bf16, peak_fp8, peak_nvfp4 : Quantity, optional
        Dense rates of the matrix units, accumulating in fp32; missing where the GPU lacks the
        format.
    sms : int, optional
        Streaming multiprocessors, or AMD's compute units.
    clock : Quantity, optional
        Boost clock.
    base_clock : Quantity, optional
        What the maker warrants under load at the board's power.
    l2 : Quantity, optional
        Size of the cache that all multiprocessors share.
    l2_bandwidth : Quantity, optional
        Of that cache, where the architecture's rate a multiprocessor and clock does not hold.
    exponentials : Quantity, optional
        A clock and multiprocessor, where not 16.
    product_rate : Quantity, optional
        Rate of the fastest products in tf32, fp16 and bf16, relative to that at the datasheet's
        clock, where it is known to differ: GeForce cards multiply at half the rate that the chip
        has elsewhere, and their power sustains that above the boost clock.
    steady : Quantity, optional
        Share of the clock of kernels measured by themselves that it sustains when kernels follow
        one another, where that was measured; else what its power leaves of the architecture's.
    steady_products : Quantity, optional
        The same of products and convolutions on matrix units, where these were measured to sustain
        another clock than attention does. In fp32 on CUDA cores they have the clock of all others.
    nvlink : Quantity, optional
        Bandwidth of all links to other GPUs (NVLink, xGMI) together, one direction.
    power : Quantity, optional
        Limit of the board.
    confidence : str
        Of the datasheet numbers: ``"cross-checked"`` where two sources, or a number and the
        arithmetic from others, agree; else ``"one source"``.
    aliases : tuple of str
        Other names.
    """

    title: str
    family: str
    memory: Quantity
    bandwidth: Quantity
    pcie: Quantity
    sm_threads: Quantity
    warp_size: Quantity

    gemm_fraction: Quantity
    fp32_fraction: Quantity
    fp8_fraction: Quantity
    grouped_gemm_factor: Quantity
    attention_fraction: Quantity
    convolution_fraction: Quantity
    fp32_convolution_fraction: Quantity
    memory_fraction: Quantity
    reduction_fraction: Quantity
    embedding_fraction: Quantity
    pcie_fraction: Quantity
    gemm_floor: Quantity
    memory_floor: Quantity
    copy_floor: Quantity

    launch_call: Quantity
    launch_latency: Quantity
    host_gap: Quantity
    kernel_gap: Quantity
    graph_gap: Quantity

    loop_gap: Quantity | None = None
    peak_fp32: Quantity | None = None
    peak_tf32: Quantity | None = None
    peak_fp16: Quantity | None = None
    peak_bf16: Quantity | None = None
    peak_fp8: Quantity | None = None
    peak_nvfp4: Quantity | None = None

    sms: Annotated[int, Limits(least=1)] | None = None
    clock: Quantity | None = None
    base_clock: Quantity | None = None
    l2: Quantity | None = None
    l2_bandwidth: Quantity | None = None
    exponentials: Quantity | None = None
    product_rate: Quantity | None = None
    steady: Quantity | None = None
    steady_products: Quantity | None = None
    nvlink: Quantity | None = None
    power: Quantity | None = None
    confidence: Literal["cross-checked", "one source"] = "one source"
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.formats:
            keys = ", ".join(each.name for each in fields(self) if each.name.startswith(PEAK))
            raise InputError(f"no peak rate is given: at least one of {keys}")
        for each in fields(self):
            number = getattr(self, each.name)
            if each.name not in _MAY_BE_ZERO and isinstance(number, Quantity) and not number.value:
                raise InputError(f"{each.name!r} is 0; it must be above 0")

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats of matrix products that it has."""
        return tuple(each for each in _FORMATS if getattr(self, PEAK + each) is not None)

    def peak(self, dtype: str) -> Quantity:
        """Return the dense rate of matrix products in a format.

        Raises
        ------
        InputError
            If the GPU has no such format, naming those it has.
        """
        if dtype not in self.formats:
            raise InputError(f"{self.title} has no {dtype}; it has {', '.join(self.formats)}")
        found: Quantity = getattr(self, PEAK + dtype)
        return found


_FORMATS = tuple(each.name.removeprefix(PEAK) for each in fields(Gpu) if each.name.startswith(PEAK))
"""Once: kernels are asked for by the thousand, and each asks for the formats."""

_MAY_BE_ZERO = frozenset(
    (
        "gemm_floor",
        "memory_floor",
        "copy_floor",
        "launch_call",
        "launch_latency",
        "host_gap",
        "loop_gap",
        "kernel_gap",
        "graph_gap",
    )
)
"""Times: a GPU without overhead is a valid input. Rates divide, and must not be 0."""


def gpu_name(name: str) -> str:
    """Return the name of a GPU in ``data/gpus.toml``; of a file the path itself.

    Examples
    --------
    >>> gpu_name("H100")
    'h100-sxm'
    """
    return name if name.endswith(SUFFIX) else find_table(name, FILE, "GPU").name


def find_gpu(name: str | Path) -> Gpu:
    """Return a GPU by name, or from a file.

    Parameters
    ----------
    name : str or Path
        A name or alias of ``data/gpus.toml``, in any case of letters, or the path of a ``.toml``
        file with one table of the same form. It must give title, family, memory, bandwidth and one
        of the peak rates; all else may come from the family.

    Raises
    ------
    InputError
        If there is none of that name, or the file is not a GPU's.

    Examples
    --------
    >>> find_gpu("h100-sxm").title
    'NVIDIA H100 SXM5 80 GB (700 W)'
    >>> find_gpu("V100-SXM2-16GB").peak("fp16").si
    125000000000000.0
    """
    if str(name).endswith(SUFFIX):
        return _build(name)
    return _packaged_gpu(str(name))


@cache
def _packaged_gpu(name: str) -> Gpu:
    """Return a GPU of the data file, which does not change."""
    return _build(name)


def _build(name: str | Path) -> Gpu:
    preset = find_table(name, FILE, "GPU")
    families = packaged(FAMILIES)
    family = preset.table.get("family")
    if family not in families:
        found = "missing" if family is None else f"{family!r}{nearest(str(family), families)}"
        raise InputError(
            f"{preset.source}: key '{preset.name}.family' is {found}; "
            f"allowed: {', '.join(families)}"
        )
    return build(Gpu, families[family] | preset.table, preset.source, preset.name)


def gpu_names() -> list[str]:
    """Return the names of the GPUs of ``data/gpus.toml``."""
    return table_names(FILE)
