"""Communication → its bottleneck: the hardware part whose speed limits it.

NCCL's choice (algorithm, protocol, channels) is held: `Nccl` is evaluated once more for hardware of
which one number is higher by a hundredth, where NCCL still sees the old one.
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.base.kinds import Operation

from .constants import AMD
from .model import Nccl
from .shape import Shape

__all__ = [
    "BOTTLENECKS",
    "LATENCY",
    "NIC",
    "PCIE",
    "PORT",
    "PROTOCOL",
    "bottleneck_of",
]

LATENCY = "latency"

PORT = "GPU port (NVLink)"

XGMI_PORT = "GPU port (xGMI)"

PCIE = "PCIe"

NIC = "NIC"

SOCKETS = "CPU sockets"

PROTOCOL = "protocol"

BOTTLENECKS = (LATENCY, PORT, XGMI_PORT, PCIE, NIC, SOCKETS, PROTOCOL)
"""All that `bottleneck_of` may answer. A GPU's port is that of its fast links, xGMI with AMD's."""

_PART_OF = {
    "link_bandwidth": PORT,
    "pcie_bandwidth": PCIE,
    "nic_bandwidth": NIC,
    "socket_bandwidth": SOCKETS,
}

RELATIVE_CHANGE = 0.01
"""Relative change of a number of the hardware."""

MIN_EFFECT = 0.1
"""Share of what flowing bytes take that a number must rule: below, it is not what limits them."""


def bottleneck_of(nccl: Nccl, operation: Operation, bytes: int, shape: Shape) -> str:
    """Communication → its bottleneck, with NCCL's choice held.

    Parameters
    ----------
    nccl : Nccl
    operation : Operation
    bytes : int
        As `Nccl.choose` has it.
    shape : Shape

    Returns
    -------
    str
        Of `BOTTLENECKS`: ``"latency"`` where more than half of the time is due to latencies; else
        the part of the hardware that shortens it most if it is faster, or, where two are as fast as
        each other, lengthens it most if it is slower; ``"protocol"`` where none does, but what LL,
        LL128, channels, connections or chunks allow.

    Examples
    --------
    >>> from .system import System
    >>> h200 = Nccl(System("hopper", 8, "nvswitch", link_bandwidth=370.8e9))
    >>> node = Shape.regular(1, 8, h200.system)
    >>> [bottleneck_of(h200, Operation.ALL_REDUCE, 4**i, node) for i in (5, 16)]
    ['latency', 'GPU port (NVLink)']
    """
    time = nccl.seconds(operation, bytes, shape)
    flowing = time - nccl.due_to_latency(operation, bytes, shape)
    if flowing <= 0.5 * time:
        return LATENCY
    for factor in (1 + RELATIVE_CHANGE, 1 / (1 + RELATIVE_CHANGE)):
        changes = {}
        for name, part in _PART_OF.items():
            value = getattr(nccl.hardware, name)
            if value:
                hardware = replace(nccl.hardware, **{name: value * factor})
                other = Nccl(nccl.system, nccl.settings, nccl.factors, hardware)
                changes[part] = abs(other.seconds(operation, bytes, shape) - time)
        part = max(changes, key=changes.__getitem__)
        if changes[part] > MIN_EFFECT * RELATIVE_CHANGE * flowing:
            return XGMI_PORT if part == PORT and nccl.system.arch == AMD else part
    return PROTOCOL
