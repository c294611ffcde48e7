"""GPU → the parameters of the kernel formulas: plain numbers in SI units.

Datasheet numbers are in :mod:`.gpu`. Added here are the numbers that all GPUs of an architecture
have in common (``data/calibration/architectures.toml``) and the clock that the board's power
allows: a board throttles until its power fits, P = static + dynamic × f V², down to the least
voltage along a power law, f ∝ (power above static)^(1 / 2.8), and below it in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged, table_names

from .gpu import FILE, Gpu, find_gpu
from .numbers import number
from .scaled import rated_gpu

__all__ = ["GpuParameters", "gpu_parameters"]

ARCHITECTURES = "calibration/architectures.toml"

NVFP4_OVER_FP8 = number("nvfp4_over_fp8")
STATIC_POWER_SHARE = number("static_power_share")
POWER_EXPONENT = number("power_exponent")
LEAST_VOLTAGE = number("least_voltage")

EXPONENTIALS_PER_CLOCK = number("exponentials_per_clock")

MIN_LANES_SHARED_ISSUE = 100
"""Lanes of a multiprocessor that tell 128 from 64: with 128 a scheduler feeds 32."""

MIN_PAIRS_FULL_RATE = 400
"""Products of 16-bit numbers a clock and multiprocessor that tell 512, the least that matrix units
are made for (T4, A40, L40S, RTX PRO 6000), from 256, what GeForce boards, A10G and L40 do when they
accumulate in fp32 (tables of NVIDIA's Ampere GA102, Ada and RTX Blackwell whitepapers)."""

HALF_RATE_FAMILIES = frozenset(("turing", "ampere", "ada", "blackwell-rtx"))
"""Architectures with boards of both kinds."""

MIN_POWER_SHARE = 0.01
"""Of the power above static power, so that a board of few watts is slow, not still."""


@frozen
class GpuParameters:
    """Parameters of one GPU.

    Attributes
    ----------
    name : str
        Of the preset, or the title of a GPU from a user's file.
    family : str
        Architecture.
    peaks : mapping of str to float
        FLOP/s by number format, from the datasheet; in tf32, fp16 and bf16 times
        `Gpu.product_rate`, in NVFP4 at most what products were measured to reach over those in fp8.
    bandwidth : float
        B/s of its memory.
    pcie : float
        B/s to the host, one direction.
    sms : int
        Multiprocessors.
    clock : float
        Boost clock, Hz.
    l2 : float
        Bytes of the cache that all multiprocessors share.
    l2_bandwidth : float
        B/s that all multiprocessors together read from it: the GPU's own figure, or the
        architecture's per multiprocessor and clock.
    shared_memory : float
        Bytes a multiprocessor.
    sm_threads : int
        Threads that a multiprocessor holds.
    warp_size : int
        Threads of a warp.
    exponentials : float
        A clock and multiprocessor.
    fp32_on_cores : bool
        Whether convolutions in fp32 run on the cores, not on matrix units.
    sustained : float
        Share of the clock that the board's power allows under full matrix load, relative to the
        reference GPU of its architecture: 1 where it has as many watts a FLOP/s. What the
        reference does with kernels measured by themselves is part of the fitted efficiencies.
    sustained_products : float, optional
        The same of products and convolutions on matrix units, where it is another.
    steady : float
        The same share where kernels follow one another without pause, as in a training step: below
        1 also on the reference, where its short kernels run at a clock that its power does not
        sustain.
    steady_products : float, optional
        As `sustained_products`.
    power_share : float
        Of the board's watts a FLOP/s, relative to the reference; 1 where it has as many or more.
    missing : int
        How many of `sms`, `clock` and `l2` another GPU's stand for.
    rated_peaks : mapping of str to float, optional
    rated_bandwidth : float, optional
        Of the board as it is, where `peaks` and `bandwidth` are of one that is faster or slower
        (:mod:`.scaled`).
    """

    name: str
    family: str
    peaks: Mapping[str, float]
    bandwidth: float
    pcie: float
    sms: int
    clock: float
    l2: float
    l2_bandwidth: float
    shared_memory: float
    sm_threads: int
    warp_size: int
    exponentials: float = EXPONENTIALS_PER_CLOCK
    fp32_on_cores: bool = True
    sustained: float = 1.0
    sustained_products: float | None = None
    steady: float = 1.0
    steady_products: float | None = None
    power_share: float = 1.0
    missing: int = 0
    rated_peaks: Mapping[str, float] | None = None
    rated_bandwidth: float | None = None

    def at_steady_clock(self) -> GpuParameters:
        """Return the GPU as it runs in a training step, at the clock that its power sustains."""
        return replace(self, sustained=self.steady, sustained_products=self.steady_products)

    @property
    def product_clock(self) -> float:
        """Share of the clock that the power allows products and convolutions on matrix units."""
        products = self.sustained_products
        return self.sustained if products is None else products

    @property
    def chip(self) -> tuple[object, ...]:
        """Key of boards with the same chip, which differ in memory and power."""
        peaks = tuple(sorted(self.chip_peaks.items()))
        return self.family, self.sms, self.clock, self.l2, peaks

    @property
    def board(self) -> tuple[object, ...]:
        """Key of boards that no formula tells apart: chip, memory and clocks, but not links."""
        memory = self.rated_bandwidth or self.bandwidth, self.l2_bandwidth, self.shared_memory
        clocks = self.steady, self.steady_products, self.power_share
        return *self.chip, *memory, *clocks, self.exponentials, self.missing

    def rescaled(self, gpu: Gpu) -> GpuParameters:
        """Return these parameters with the numbers of the same GPU, scaled (:mod:`.scaled`)."""
        return replace(
            self,
            peaks=_peaks(gpu),
            bandwidth=gpu.bandwidth.si,
            pcie=gpu.pcie.si,
            rated_peaks=self.chip_peaks,
            rated_bandwidth=self.rated_bandwidth or self.bandwidth,
        )

    @property
    def design(self) -> tuple[str, bool]:
        """Architecture, and whether a multiprocessor has more than 100 lanes.

        An architecture's multiprocessors with 64 lanes and with 128 (A100 and A40, P100 and P4)
        differ as much as those of two architectures do.
        """
        lanes = self.chip_peaks.get("fp32", 0.0) / (2 * self.sms * self.clock)
        return self.family, lanes > MIN_LANES_SHARED_ISSUE

    @property
    def half_rate(self) -> bool:
        """Whether matrix units accumulate in fp32 at half of the rate that they are made for."""
        pairs = self.chip_peaks.get("fp16", 0.0) / (2 * self.sms * self.clock)
        return self.family in HALF_RATE_FAMILIES and pairs < MIN_PAIRS_FULL_RATE

    @property
    def chip_peaks(self) -> Mapping[str, float]:
        """FLOP/s by number format that tell which chip it is."""
        return self.peaks if self.rated_peaks is None else self.rated_peaks

    @classmethod
    def of(cls, gpu: Gpu) -> GpuParameters:
        """Return the parameters of a GPU.

        What is not known of it (`sms`, `clock`, `l2`) is taken from the GPU of its architecture
        whose peak rate is nearest.

        Raises
        ------
        InputError
            If no GPU of its architecture has these numbers.
        """
        rated = rated_gpu(gpu)
        if rated is not gpu:
            return cls.of(rated).rescaled(gpu)
        architecture = packaged(ARCHITECTURES)[gpu.family]
        complete = gpu if gpu.sms and gpu.clock and gpu.l2 else _nearest_complete(gpu)
        sms = gpu.sms or complete.sms
        clock, l2 = gpu.clock or complete.clock, gpu.l2 or complete.l2
        assert sms is not None
        assert clock is not None
        assert l2 is not None
        power_share = _power_share(gpu, architecture)
        sustained = _power_limited_clock(gpu, power_share)
        steady = sustained * architecture.get("steady", 1.0)
        if gpu.steady is not None:
            steady = gpu.steady.si
        products = gpu.steady_products
        l2_rate = architecture["l2_bytes_per_clock"] * sms * clock.si
        return cls(
            name=_names_by_title().get(gpu.title, gpu.title),
            family=gpu.family,
            peaks=_peaks(gpu),
            bandwidth=gpu.bandwidth.si,
            pcie=gpu.pcie.si,
            sms=sms,
            clock=clock.si,
            l2=l2.si,
            l2_bandwidth=gpu.l2_bandwidth.si if gpu.l2_bandwidth else l2_rate,
            shared_memory=architecture["shared_memory"],
            sm_threads=round(gpu.sm_threads.si),
            warp_size=round(gpu.warp_size.si),
            exponentials=gpu.exponentials.si if gpu.exponentials else EXPONENTIALS_PER_CLOCK,
            fp32_on_cores=architecture["fp32_units"] == "cores",
            sustained=min(1.0, sustained),
            steady=min(1.0, steady),
            steady_products=None if products is None else min(1.0, products.si),
            power_share=min(1.0, power_share),
            missing=sum(each is None for each in (gpu.sms, gpu.clock, gpu.l2)),
        )


@cache
def gpu_parameters(name: str) -> GpuParameters:
    """Name of a GPU preset → its parameters."""
    return GpuParameters.of(find_gpu(name))


@cache
def _names_by_title() -> dict[str, str]:
    """Return the names of the presets by title."""
    return {table["title"]: name for name, table in packaged(FILE).items()}


def _peaks(gpu: Gpu) -> dict[str, float]:
    """Return FLOP/s by number format that rates of products are shares of."""
    rate = gpu.product_rate.si if gpu.product_rate else 1.0
    rates = dict.fromkeys(("tf32", "fp16", "bf16"), rate)
    peaks = {each: gpu.peak(each).si * rates.get(each, 1.0) for each in gpu.formats}
    if "nvfp4" in peaks and "fp8" in peaks:
        peaks["nvfp4"] = min(peaks["nvfp4"], NVFP4_OVER_FP8 * peaks["fp8"])
    return peaks


def _fastest_format(gpu: Gpu) -> tuple[str, float]:
    """Return the format of 16 bits, or the fastest there is, and its rate."""
    dtype = "fp16" if "fp16" in gpu.formats else gpu.formats[-1]
    return dtype, gpu.peak(dtype).si


def _nearest_complete(gpu: Gpu) -> Gpu:
    """Return the GPU of the same architecture with all numbers and the nearest peak rate."""
    dtype, rate = _fastest_format(gpu)
    known = [
        find_gpu(name) for name in table_names(FILE) if packaged(FILE)[name]["family"] == gpu.family
    ]
    complete = [each for each in known if each.sms and each.clock and each.l2]
    complete = [each for each in complete if dtype in each.formats] or complete
    if not complete:
        raise InputError(f"{gpu.title}: give sms, clock and l2; no {gpu.family} GPU has them all")
    return min(complete, key=lambda each: abs(_fastest_format(each)[1] / rate - 1))


def _power_limited_clock(gpu: Gpu, share: float) -> float:
    """Return the clock that the power allows, relative to the reference GPU's; may be above 1.

    Below the clock of the least voltage power falls no faster than the clock. No board runs below
    its base clock.

    Parameters
    ----------
    gpu : Gpu
    share : float
        Its power, relative to what the same work draws at the reference's clock.
    """
    dynamic = max(MIN_POWER_SHARE, (share - STATIC_POWER_SHARE) / (1 - STATIC_POWER_SHARE))
    clock = dynamic ** (1 / POWER_EXPONENT)
    if clock < 1:
        clock = min(clock, dynamic / LEAST_VOLTAGE**2)
    if gpu.base_clock and gpu.clock:
        clock = max(clock, gpu.base_clock.si / gpu.clock.si)
    return float(clock)


def _power_share(gpu: Gpu, architecture: Mapping[str, Any]) -> float:
    """Return a board's watts a FLOP/s relative to its architecture's reference; 1 if not known.

    At one clock, power (static power, too) is in proportion to the size of the chip, hence to its
    peak: watts a FLOP/s compare boards of different chips.
    """
    reference = find_gpu(architecture["reference"])
    dtype = architecture["power_format"]
    if gpu.power is None or reference.power is None or dtype not in gpu.formats:
        return 1.0
    watts = gpu.power.si / gpu.peak(dtype).si
    return float(watts / (reference.power.si / reference.peak(dtype).si))
