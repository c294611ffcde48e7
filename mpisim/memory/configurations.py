"""Allocations, allocator settings, GPU → whether they fit, and settings that make them fit.

Beside PyTorch's allocator a GPU holds CUDA's context and the buffers of NCCL, whose constants are
those of the memory model (``data/memory.toml``). What the allocator reserves is simulated; the
error bar is that of these constants.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import UsageError
from ..base.frozen import frozen
from ..base.quantity import GIB
from .allocations import Allocations, Usage, replay
from .allocator_settings import parse_settings
from .communicators import Connections
from .constants import constants

__all__ = ["CHOICES", "AllocatorUsage", "Room", "outcome", "remedies"]

CHOICES = (
    "expandable_segments:True",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
"""Settings that PyTorch's documentation proposes against fragmentation."""


@frozen
class Room:
    """Memory of a GPU that is left to PyTorch's allocator.

    Attributes
    ----------
    gpu : str
        Its name, or what was said of it.
    memory : int
        Bytes that a program can have.
    context, communicators : int
        Bytes of CUDA's context, and of NCCL's buffers.
    error : float
        One standard deviation of these two, in bytes.
    """

    gpu: str
    memory: int
    context: int
    communicators: int
    error: float

    @classmethod
    def of(cls, gpu: str, memory: int, communicators: int = 0) -> Room:
        """GPU, its memory and its NCCL communicators → memory that is left to the allocator.

        Parameters
        ----------
        gpu : str
            Name for messages.
        memory : int
            Bytes of the GPU.
        communicators : int
            NCCL communicators that carry out collectives; each holds buffers.

        Raises
        ------
        UsageError
            If CUDA's context and the communicators take all of it.
        """
        known = constants()
        buffers = Connections(communicators, 0, 0)
        error = (known.context.si * known.context.error) ** 2 + buffers.error(known) ** 2
        found = cls(gpu, memory, round(known.context.si), buffers.bytes(known), error**0.5)
        if found.left <= 0:
            raise UsageError(
                f"{memory / GIB:.2f} GiB of memory are less than CUDA's context and "
                f"{communicators} communicators take: {(memory - found.left) / GIB:.2f} GiB"
            )
        return found

    @property
    def left(self) -> int:
        """Bytes that the allocator can have."""
        return self.memory - self.context - self.communicators


@frozen
class AllocatorUsage:
    """Usage of memory under one configuration of the allocator, and whether it fits.

    Attributes
    ----------
    settings : str
        As PYTORCH_CUDA_ALLOC_CONF; empty: the defaults.
    usage : Usage
        Without a bound of the memory.
    bounded : Usage or None
        On the GPU; None where none is named, or the bound does not matter.
    room : Room or None
    certain : bool
        Whether two standard deviations of the room would not change the answer.
    """

    settings: str
    usage: Usage
    bounded: Usage | None = None
    room: Room | None = None
    certain: bool = True

    @property
    def fits(self) -> bool:
        """Whether memory is enough, possibly after cached segments are given back."""
        return self.bounded is None or self.bounded.failure is None

    @property
    def retries(self) -> int:
        """Times that all cached memory is given back so that an allocation succeeds."""
        return 0 if self.bounded is None else self.bounded.retries

    def sentence(self) -> str:
        """Return the verdict in one line."""
        room = self.room
        assert room is not None
        needs = self.usage.peak_reserved + room.context + room.communicators
        what = "fits" if self.fits else "does not fit" if self.certain else "may not fit"
        takes = f"{needs / GIB:,.1f} GiB ± {room.error / GIB:,.1f}"
        has = f"{room.memory / GIB:,.1f} GiB"
        text = f"{what} into {room.gpu}: the allocator, CUDA's context and NCCL "
        if self.bounded is None:
            text += f"take {takes} of {has}, {(room.memory - needs) / GIB:,.1f} GiB free"
        elif (failure := self.bounded.failure) is None:
            times = "once" if self.retries == 1 else f"{self.retries:,} times"
            text += f"would take {takes} where there is room; in {has} " + (
                f"all cached memory is given back {times}, and each time the GPU is waited for"
                if self.retries
                else "cached memory is given back before it is short"
            )
        else:
            unused = failure.reserved - failure.allocated
            text += (
                f"would take {takes}, there are {has}; {failure.size / GIB:,.2f} GiB are asked for "
                f"when {failure.free / GIB:,.2f} are free, and {unused / GIB:,.2f} reserved and "
                "not allocated"
            )
        return text + ("" if self.certain else "; too close to call")

    @property
    def easy(self) -> bool:
        """Whether it fits with certainty, and without giving back cached memory."""
        return self.fits and self.certain and not self.retries

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, for JSON; bytes are integers."""
        usage = self.usage
        figures: dict[str, Any] = {
            "settings": self.settings,
            "peak_allocated": usage.peak_allocated,
            "peak_requested": usage.peak_requested,
            "peak_reserved": usage.peak_reserved,
            "fragmentation": usage.fragmentation,
            "segments": usage.segments,
            "driver_calls": usage.driver_calls,
        }
        if self.room is not None:
            figures |= {
                "gpu": self.room.gpu,
                "memory": self.room.memory,
                "context": self.room.context,
                "communicators": self.room.communicators,
                "error": round(self.room.error),
                "fits": self.fits,
                "certain": self.certain,
                "retries": self.retries,
            }
        return figures


def outcome(allocations: Allocations, text: str = "", room: Room | None = None) -> AllocatorUsage:
    """Allocations, PYTORCH_CUDA_ALLOC_CONF, room on a GPU → whether they fit.

    Parameters
    ----------
    allocations : Allocations
    text : str
        The settings.
    room : Room, optional
        Where it has to fit.
    """
    settings = parse_settings(text)
    usage = replay(allocations, settings)
    shares = settings.memory_fraction is not None
    if room is None or (not shares and usage.peak_reserved + 2 * room.error <= room.left):
        return AllocatorUsage(text, usage, room=room)

    def on(left: int) -> Usage:
        return replay(allocations, settings, left, room.memory)

    bounded = on(room.left)
    margin = round(2 * room.error)
    if bounded.failure is None:
        certain = room.left > margin and on(room.left - margin).failure is None
    else:
        certain = on(room.left + margin).failure is not None
    within = bounded.failure is None and usage.peak_reserved <= room.left and not shares
    return AllocatorUsage(text, usage, None if within else bounded, room, certain)


def remedies(allocations: Allocations, text: str, room: Room | None = None) -> list[AllocatorUsage]:
    """Return the outcomes of the settings in `CHOICES` that change the reserved memory.

    Parameters
    ----------
    allocations : Allocations
    text : str
        The settings now.
    room : Room, optional
        Where it has to fit.
    """
    now = parse_settings(text)
    others = [choice for choice in ("", *CHOICES) if parse_settings(choice) != now]
    return [outcome(allocations, choice, room) for choice in others]
