"""`Factors`: measured over nominal bandwidths and latencies of a platform.

A factor acts on the time to *expect* alone, never on what NCCL believes: it does not change which
algorithm is chosen. Each is 1, but for `latency_bulk`, where nobody has measured the platform.

>>> measured = Factors(bandwidth_across=1.1)
>>> measured.cap(1), measured.cap(2)  # of what NVIDIA measured as highest, on one node and on two
(1.0, 1.1)
>>> Factors(bandwidth_inside=0)
Traceback (most recent call last):
mpisim.base.errors.InputError: factor bandwidth_inside is 0; it must be above 0
"""

from __future__ import annotations

from dataclasses import fields, replace

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from .link_bandwidths import LinkBandwidths
from .system import System

__all__ = ["Factors"]

_MAY_BE_ZERO = ("latency_bulk", "latency")


@frozen
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
    latency : float
        Of all latencies, those that the other factors make: a network that answers sooner or later.
    """

    bandwidth_inside: float = 1.0
    bandwidth_across: float = 1.0
    latency_inside: float = 1.0
    latency_across: float = 1.0
    latency_bulk: float = 0.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (0 < value < float("inf") or (value == 0 and field.name in _MAY_BE_ZERO)):
                raise InputError(f"factor {field.name} is {value}; it must be above 0")

    def of(self, found: LinkBandwidths, system: System) -> LinkBandwidths:
        """Return the payload bandwidth of links; NICs no more than their line rate.

        Parameters
        ----------
        found : LinkBandwidths
            In bytes per second, before the factors.
        system : System
            Whose NICs they are: it has the share of the line rate that payload reaches.
        """
        return replace(
            found,
            inside=found.inside * self.bandwidth_inside,
            # No more than the line rate.
            across=found.across * min(system.nic_efficiency * self.bandwidth_across, 1.0),
        )

    def cap(self, nodes: int) -> float:
        """Return the factor of NVIDIA's highest measured bandwidth, on 1 or several nodes."""
        return self.bandwidth_inside if nodes == 1 else self.bandwidth_across
