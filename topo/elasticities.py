"""Price of a communication → its elasticity to each hardware factor of :mod:`.scaled`.

The library's choice is held: NCCL is evaluated once more for hardware of which one number is better
by a hundredth, where it still sees the old one. Where a link limits the flow, that goes with the
link alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from mpisim.base.kinds import Operation
from mpisim.base.quantity import PICOSECONDS

from .nccl import Nccl, Shape
from .nccl.model import remember
from .network import Price
from .topology import LinkKind, Topology

__all__ = ["PriceElasticities"]

VARIATION = 1.01
"""Factor of a number whose effect is looked for."""

MAX_NEGLIGIBLE_SHARE = 1e-9
"""Part of a time that counts as none."""

_LINK_SCALES: dict[LinkKind, tuple[str, ...]] = {
    LinkKind.NVLINK: ("link_bandwidth",),
    LinkKind.PCIE: ("pcie_bandwidth",),
    LinkKind.HOST: ("pcie_bandwidth",),
    LinkKind.SOCKET: (),
    LinkKind.NIC: ("nic_bandwidth",),
    LinkKind.FABRIC: ("switch_bandwidth",),
}
"""Factors by the links that they are of."""


class PriceElasticities:
    """Elasticities of the prices of one network.

    Parameters
    ----------
    nccl : Nccl, optional
        None of GPUs without NICs: their links alone set the rates.
    topology : Topology
    switches_follow : bool
        Whether links between switches are as wide as NICs need them.
    """

    def __init__(self, nccl: Nccl | None, topology: Topology, switches_follow: bool) -> None:
        self._nccl, self._topology, self._switches_follow = nccl, topology, switches_follow
        self._parts: dict[tuple[Operation, int, Shape], dict[str, tuple[float, float]]] = {}

    def of(
        self,
        operation: Operation,
        bytes: int,
        shape: Shape,
        limiting: int | None,
        nccl: Price,
        price: Price,
    ) -> dict[str, float]:
        """Return the elasticities of a price to the hardware factors.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Of the full buffer; see `Network.price`.
        shape : Shape
            Of the group.
        limiting : int, optional
            The link that sets the rate, if one does.
        nccl : Price
            The library's where no link limits it, perhaps with a longer time.
        price : Price
            The same on these links.

        Returns
        -------
        dict of str to float
            By the names of `mpisim.topo.scaled.LINK_SCALES`: relative change of the time for a
            small relative change of what the name says, -1 for what all of it is inversely
            proportional to. Empty for what takes no time.
        """
        time = price.duration
        if not time:
            return {}
        flowing = time - price.latency
        found = {"latency": float(price.latency - nccl.latency)}
        if self._nccl is None:
            found["latency"] += nccl.latency
        else:
            # Overhead and flow are NCCL's; of a calibrated price both are longer by one factor.
            own, flow = self._latency_and_flow(self._nccl, operation, bytes, shape)
            longer = nccl.latency / own if own else 1.0
            for key, (waits, flows) in self._parts_of(operation, bytes, shape).items():
                part = longer * waits
                if flow and limiting is None:
                    part += flowing * flows / flow
                found[key] = found.get(key, 0.0) + part
        if limiting is not None:
            for key in self.scales_of_link(limiting):
                found[key] = found.get(key, 0.0) - flowing
        return {key: part / time for key, part in found.items() if part}

    def scales_of_link(self, link: int) -> tuple[str, ...]:
        """Return the hardware factors that the bandwidth of a link is proportional to."""
        kind = LinkKind(self._topology.kind[link])
        if kind is LinkKind.FABRIC and self._switches_follow:
            return "switch_bandwidth", "nic_bandwidth"
        if kind is LinkKind.NIC and self._nccl is None:
            return ("link_bandwidth",)
        return _LINK_SCALES[kind]

    def _latency_and_flow(
        self, nccl: Nccl, operation: Operation, bytes: int, shape: Shape
    ) -> tuple[float, float]:
        """Return the ps that NCCL's choice takes until bytes flow, and those in which they do."""
        found = nccl.choose(operation, bytes, shape)
        size = 0 if operation is Operation.BARRIER else bytes
        return found.latency * PICOSECONDS, size / found.bandwidth * PICOSECONDS

    def _parts_of(
        self, operation: Operation, bytes: int, shape: Shape
    ) -> dict[str, tuple[float, float]]:
        """Return what of NCCL's two times goes with each factor, in ps; below 0: with 1 / it."""
        key = (operation, bytes, shape)
        found = self._parts.get(key)
        if found is not None:
            return found
        assert self._nccl is not None
        found = {}
        before = self._latency_and_flow(self._nccl, *key)
        for name, other in self._varied.items():
            if name == "nic_bandwidth" and shape.nodes == 1:
                continue
            change = VARIATION - 1 if name == "latency" else 1 - 1 / VARIATION
            after = self._latency_and_flow(other, *key)
            parts = [(new - old) / change for new, old in zip(after, before, strict=True)]
            if any(abs(part) > MAX_NEGLIGIBLE_SHARE * sum(before) for part in parts):
                found[name] = parts[0], parts[1]
        remember(self._parts, key, found)
        return found

    @cached_property
    def _varied(self) -> dict[str, Nccl]:
        """NCCL on hardware of which one number is better by a hundredth."""
        own = self._nccl
        assert own is not None
        found = {}
        for name in ("link_bandwidth", "nic_bandwidth", "pcie_bandwidth"):
            value = getattr(own.hardware, name)
            if value:
                hardware = replace(own.hardware, **{name: value * VARIATION})
                found[name] = Nccl(own.system, own.settings, own.factors, hardware)
        slower = replace(own.factors, latency=own.factors.latency * VARIATION)
        found["latency"] = Nccl(own.system, own.settings, slower, own.hardware)
        return found
