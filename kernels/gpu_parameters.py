"""GPU → the parameters of the kernel formulas: plain numbers in SI units.

What datasheets say of a GPU is in :mod:`.gpu`. Added here are what all GPUs of an architecture have
in common (``data/calibration/architectures.toml``) and the clock that the board's power allows: a
board throttles until the power above idle fits, f ∝ power^(1 / 2.5) for the same silicon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged, table_names

from .gpu import FILE, PEAK, Gpu, find_gpu
from .numbers import number
from .scaled import rated_gpu

__all__ = ["GpuParameters", "gpu_parameters"]

ARCHITECTURES = "calibration/architectures.toml"

IDLE_POWER_SHARE = number("idle_power_share")
POWER_EXPONENT = number("power_exponent")

MIN_POWER_SHARE = 0.01
"""Of the power above idle, so that a board of few watts is slow, not still."""


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
        FLOP/s by number format, from the datasheet.
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
        B/s that all multiprocessors together read from it: the architecture's figure per
        multiprocessor and clock.
    shared_memory : float
        Bytes a multiprocessor.
    sustained : float
        Share of the clock that the board's power allows under full matrix load, relative to the
        reference GPU of its architecture: 1 where it has as many watts a FLOP/s. What the
        reference does with kernels measured by themselves is part of the fitted efficiencies.
    steady : float
        The same share where kernels follow one another without pause, as in a training step: below
        1 also on the reference, where its short kernels run at a clock that its power does not
        sustain.
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
    sustained: float = 1.0
    steady: float = 1.0
    rated_peaks: Mapping[str, float] | None = None
    rated_bandwidth: float | None = None

    def at_steady_clock(self) -> GpuParameters:
        """Return the GPU as it runs in a training step, at the clock that its power sustains."""
        return replace(self, sustained=self.steady)

    @property
    def chip(self) -> tuple[object, ...]:
        """What boards with the same chip share; memory and power differ among them."""
        peaks = tuple(sorted(self.chip_peaks.items()))
        return self.family, self.sms, self.clock, self.l2, peaks

    def rescaled(self, gpu: Gpu) -> GpuParameters:
        """Return these parameters with the numbers of the same GPU, scaled (:mod:`.scaled`)."""
        return replace(
            self,
            peaks={each: getattr(gpu, PEAK + each).si for each in self.peaks},
            bandwidth=gpu.bandwidth.si,
            pcie=gpu.pcie.si,
            rated_peaks=self.chip_peaks,
            rated_bandwidth=self.rated_bandwidth or self.bandwidth,
        )

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
        clock_share = _power_limited_clock(gpu, architecture)
        return cls(
            name=_names_by_title().get(gpu.title, gpu.title),
            family=gpu.family,
            peaks={each: gpu.peak(each).si for each in gpu.formats},
            bandwidth=gpu.bandwidth.si,
            pcie=gpu.pcie.si,
            sms=sms,
            clock=clock.si,
            l2=l2.si,
            l2_bandwidth=architecture["l2_bytes_per_clock"] * sms * clock.si,
            shared_memory=architecture["shared_memory"],
            sustained=min(1.0, clock_share),
            steady=min(1.0, clock_share * architecture.get("steady", 1.0)),
        )


@cache
def gpu_parameters(name: str) -> GpuParameters:
    """Name of a GPU preset → its parameters."""
    return GpuParameters.of(find_gpu(name))


@cache
def _names_by_title() -> dict[str, str]:
    """Return the names of the presets by title."""
    return {table["title"]: name for name, table in packaged(FILE).items()}


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


def _power_limited_clock(gpu: Gpu, architecture: Mapping[str, Any]) -> float:
    """Return the clock that the power allows, relative to the reference GPU's; may be above 1.

    At one clock, power (idle power, too) is in proportion to the size of the chip, hence to its
    peak: watts a FLOP/s compare boards of different chips.
    """
    reference = find_gpu(architecture["reference"])
    if gpu.power is None or reference.power is None:
        return 1.0
    dtype = architecture["power_format"]
    if dtype not in gpu.formats:
        return 1.0
    watts = gpu.power.si / gpu.peak(dtype).si
    enough = reference.power.si / reference.peak(dtype).si
    above_idle = (watts / enough - IDLE_POWER_SHARE) / (1 - IDLE_POWER_SHARE)
    return float(max(MIN_POWER_SHARE, above_idle) ** (1 / POWER_EXPONENT))
