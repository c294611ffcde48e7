"""A GPU as plain numbers, in SI units: what the formulas of the operator families compute with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mpisim.base.errors import InputError
from mpisim.base.presets import packaged, table_names

from ..gpu import FILE, Gpu, find_gpu

__all__ = ["Machine"]

ARCHITECTURES = "calibration/architectures.toml"

IDLE = 0.12
"""Share of the reference board's power that is drawn without work: 50 W of an A100's 400 W, 70 to
90 W of an H100's 700 W."""

LEAST = 0.01
"""Of the power above idle, so that a board of few watts is slow, not still."""

POWER_EXPONENT = 2.5
"""Power goes with this power of the clock: 1 where the voltage is at its least, 3 where it is in
proportion to the clock."""


@dataclass(frozen=True)
class Machine:
    """The numbers of one GPU.

    Attributes
    ----------
    name : str
        Of the preset, or the title of a GPU from the user's file.
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
        B/s that all multiprocessors together read from it: a guess, the architecture's figure per
        multiprocessor and clock.
    shared_memory : float
        Bytes a multiprocessor.
    sustained : float
        Share of the clock that the board's power allows under full matrix load, beside the
        reference GPU of its architecture: 1 where it has as many watts a FLOP/s. What the
        reference does with kernels measured by themselves is part of the fitted efficiencies.
    steady : float
        The same share where kernels follow one another without pause, as in a training step: below
        1 also on the reference, where its short kernels run at a clock that its power does not
        sustain.
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

    def in_step(self) -> Machine:
        """Return the GPU as it runs in a training step, at the clock that its power sustains."""
        return replace(self, sustained=self.steady)

    @property
    def chip(self) -> tuple[object, ...]:
        """What boards with one and the same chip share; memory and power differ among them."""
        peaks = tuple(sorted(self.peaks.items()))
        return self.family, self.sms, self.clock, self.l2, peaks

    @classmethod
    def of(cls, gpu: Gpu) -> Machine:
        """Return the numbers of a GPU.

        What is not known of it (`sms`, `clock`, `l2`) is taken from the GPU of its architecture
        whose peak rate is nearest.
        """
        architecture = packaged(ARCHITECTURES)[gpu.family]
        whole = gpu if gpu.sms and gpu.clock and gpu.l2 else _sibling(gpu)
        sms = gpu.sms or whole.sms
        clock, l2 = gpu.clock or whole.clock, gpu.l2 or whole.l2
        assert sms is not None
        assert clock is not None
        assert l2 is not None
        allowed = _allowed(gpu, architecture)
        return cls(
            name=_names().get(gpu.title, gpu.title),
            family=gpu.family,
            peaks={each: gpu.peak(each).si for each in gpu.formats},
            bandwidth=gpu.bandwidth.si,
            pcie=gpu.pcie.si,
            sms=sms,
            clock=clock.si,
            l2=l2.si,
            l2_bandwidth=architecture["l2_bytes_per_clock"] * sms * clock.si,
            shared_memory=architecture["shared_memory"],
            sustained=min(1.0, allowed),
            steady=min(1.0, allowed * architecture.get("steady", 1.0)),
        )


@cache
def _names() -> dict[str, str]:
    """Names of the presets by title."""
    return {table["title"]: name for name, table in packaged(FILE).items()}


def _top(gpu: Gpu) -> tuple[str, float]:
    """Return the format of 16 bits, or the fastest there is, and its rate."""
    dtype = "fp16" if "fp16" in gpu.formats else gpu.formats[-1]
    return dtype, gpu.peak(dtype).si


def _sibling(gpu: Gpu) -> Gpu:
    """Return the GPU of an architecture that has all numbers and the nearest peak rate."""
    dtype, rate = _top(gpu)
    known = [
        find_gpu(name) for name in table_names(FILE) if packaged(FILE)[name]["family"] == gpu.family
    ]
    whole = [each for each in known if each.sms and each.clock and each.l2]
    whole = [each for each in whole if dtype in each.formats] or whole
    if not whole:
        raise InputError(f"{gpu.title}: give sms, clock and l2; no {gpu.family} GPU has them all")
    return min(whole, key=lambda each: abs(_top(each)[1] / rate - 1))


def _allowed(gpu: Gpu, architecture: Mapping[str, Any]) -> float:
    """Return the clock that the power allows, beside the reference GPU's; may be above 1.

    A board throttles until the power above idle fits: f ∝ power^(1 / 2.5) for the same silicon. At
    one clock, power (idle power, too) is in proportion to the size of the chip, hence to its peak.
    """
    reference = find_gpu(architecture["reference"])
    if gpu.power is None or reference.power is None:
        return 1.0
    dtype = architecture["power_format"]
    if dtype not in gpu.formats:
        return 1.0
    watts = gpu.power.si / gpu.peak(dtype).si
    enough = reference.power.si / reference.peak(dtype).si
    return float(max(LEAST, (watts / enough - IDLE) / (1 - IDLE)) ** (1 / POWER_EXPONENT))
