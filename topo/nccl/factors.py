"""What a platform reaches beside NCCL's constants: a few factors, calibrated on measurements."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from mpisim.base.errors import InputError

from .graph import Links
from .system import System

__all__ = ["Factors"]


@dataclass(frozen=True)
class Factors:
    """Multipliers; 1: as NCCL's constants and the links' numbers say.

    Attributes
    ----------
    bandwidth_inside, bandwidth_across : float
        Of links inside nodes, and of NICs.
    latency_inside, latency_across : float
        Of starting and of steps inside nodes, and of steps between nodes, with LL. What a platform
        adds there it adds to the other protocols of rings and trees as well: it is its software's
        and its wires', while the protocols' differences are NCCL's.
    latency_bulk : float
        Added to `latency_across` for messages too large for the network to send at once: it first
        asks the receiver. 0: as NCCL's constants say.
    """

    bandwidth_inside: float = 1.0
    bandwidth_across: float = 1.0
    latency_inside: float = 1.0
    latency_across: float = 1.0
    latency_bulk: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (0 < value < float("inf") or (value == 0 and field.name == "latency_bulk")):
                raise InputError(f"factor {field.name} is {value}; it must be above 0")

    def of(self, found: Links, system: System) -> Links:
        """Return what links carry of payload; NICs no more than their line rate."""
        return replace(
            found,
            inside=found.inside * self.bandwidth_inside,
            # No more than the line rate.
            across=found.across * min(system.nic_efficiency * self.bandwidth_across, 1.0),
        )

    def cap(self, nodes: int) -> float:
        """Return the factor of what NVIDIA measured as highest, on 1 or several nodes."""
        return self.bandwidth_inside if nodes == 1 else self.bandwidth_across
