"""Kernel model or network, factors → the same with its times multiplied by them.

The factors are mostly step constants (:mod:`.step_constants`), fitted to measured steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import Quantity
from ..kernels import Estimate, Gpu, KernelModel
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm, Kernel
from ..program import Operation
from ..topo.network import Price
from ..topo.topology import LinkKind
from ..topo.traffic.groups import shapes_of
from .step_constants import AppliedConstants

if TYPE_CHECKING:
    from ..topo.nccl import Nccl
    from ..topo.nccl_network import NcclNetwork, Pattern, Placement

__all__ = ["CalibratedKernels", "CalibratedNetwork", "MultipliedNetwork"]

Ints = NDArray[np.int64]


class CalibratedKernels:
    """A kernel model whose kernel and launch times are multiplied by step constants.

    Parameters
    ----------
    model : KernelModel
    constants : AppliedConstants
    """

    def __init__(self, model: KernelModel, constants: AppliedConstants) -> None:
        self._model, self._constants = model, constants
        self._prices: dict[Kernel, Estimate] = {}
        name, host = constants.number("host", constants.framework)
        self._numbers: dict[str, Quantity] = {name: host}
        gpu = model.gpu
        self._gpu = replace(
            gpu,
            **{
                name: replace(time, value=time.value * host.value)
                for name in ("host_gap", "loop_gap", "launch_call")
                if (time := getattr(gpu, name)) is not None
            },
        )

    @property
    def gpu(self) -> Gpu:
        """The GPU, with its launches as they are on this framework."""
        return self._gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that times depend on, by name: the kernel model's and the step constants."""
        return {**self._model.numbers, **self._numbers}

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel; errors are those of the model."""
        found = self._prices.get(kernel)
        if found is None:
            constant = self._constant(kernel)
            name, number = self._constants.number(*constant)
            self._numbers[name] = number
            plain = self._model.estimate(kernel)
            shares = {} if self._constants.covers(*constant) else plain.shares
            found = self._prices[kernel] = plain._replace(
                duration=round(plain.duration * number.value), shares={**shares, name: 1.0}
            )
        return found

    def scaled(self, factors: Mapping[str, float]) -> CalibratedKernels:
        """Return the model of a GPU whose numbers are multiplied, with the same constants.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        return CalibratedKernels(self._model.scaled(factors), self._constants)

    def _constant(self, kernel: Kernel) -> tuple[str, str]:
        gpu = self._constants.gpu
        if isinstance(kernel, (Gemm, GroupedGemm, Convolution)):
            return "products", f"{gpu} {kernel.dtype}"
        return ("attention" if isinstance(kernel, Attention) else "memory"), gpu


class MultipliedNetwork(ABC):
    """NCCL's network and a factor for each communication → a network with these times.

    A communication that takes f times as long moves its bytes at 1 / f of the rate. Subclasses
    define `factor`, and override `loads` where links carry something else than without factors.

    Parameters
    ----------
    network : NcclNetwork
        The network with the prices to multiply; its topology and NCCL's choices stay.
    """

    def __init__(self, network: NcclNetwork) -> None:
        self._network = network
        self.topology = network.topology

    @abstractmethod
    def factor(self, operation: Operation, bytes: int, group: Placement) -> float:
        """Communication → factor of its time; parameters as of `Network.price`."""

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Links and protocol constants that prices depend on, with error bars, by name."""
        return self._network.numbers

    @property
    def nccl(self) -> Nccl | None:
        """NCCL's choices of algorithm and protocol, which factors do not change."""
        return self._network.nccl

    def group_classes(
        self, index: Ints, members: NDArray[np.int32], operations: Ints | None = None
    ) -> tuple[Ints, list[Placement]]:
        """Return classes of groups, as the network without the calibration does."""
        return self._network.group_classes(index, members, operations)

    def price(self, operation: Operation, bytes: int, group: Placement) -> Price:
        """NCCL's price, its latency times and its rate divided by the factor, as links allow it.

        Parameters as of `Network.price`; `group` is one of the classes of `group_classes`.
        """
        factor = self.factor(operation, bytes, group)
        return self._network.limited(self._multiplied(operation, bytes, group), group, factor)

    def _multiplied(self, operation: Operation, bytes: int, group: Placement) -> Price:
        found = self._network.nccl_price(operation, bytes, group)
        factor = self.factor(operation, bytes, group)
        if factor == 1:
            return found
        rate = max(1, round(found.rate / factor)) if found.rate else 0
        return Price(round(found.latency * factor), found.volume, rate, found.pattern)

    def limit_of(self, operation: Operation, bytes: int, group: Placement) -> str:
        """Communication → its bottleneck, as the network names it; empty if it takes no time.

        Parameters as of `Network.price`.
        """
        return self._network.limit_named(
            operation,
            bytes,
            group,
            self._multiplied(operation, bytes, group),
            self.price(operation, bytes, group),
        )

    def shares(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """The network's shares; parameters and result as of `Network.shares`."""
        return self._network.shares(operation, bytes, group)

    def elasticities(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Elasticities of a price where factors stay; see `NcclNetwork.elasticities`."""
        return self._network.elasticities_of(
            operation,
            bytes,
            group,
            self._multiplied(operation, bytes, group),
            self.price(operation, bytes, group),
        )

    def scales_of_link(self, link: int) -> tuple[str, ...]:
        """Return the factors of `mpisim.topo.scaled` that the bandwidth of a link goes with."""
        return self._network.scales_of_link(link)

    @property
    def capacity(self) -> Ints:
        """Bandwidth of each link."""
        return self._network.capacity

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return self._network.link_name(link)

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the weights of groups on links; parameters as of `SharedNetwork.loads`."""
        return self._network.loads(index, members, pattern)


class CalibratedNetwork(MultipliedNetwork):
    """NCCL's network and constants fitted to measured steps → a network with calibrated times.

    There are two constants, for groups inside a node and across nodes. A communication that takes
    f times as long still loads PCIe, NVLink and NICs as fully as before (its weights there are
    multiplied by f), so that communications beside it find no more room. Links between switches
    carry what they carried: what was measured is nodes and NICs, no fabric.

    Parameters
    ----------
    network : NcclNetwork
    constants : AppliedConstants
        Those of the platform, each with its error bar.
    """

    def __init__(self, network: NcclNetwork, constants: AppliedConstants) -> None:
        super().__init__(network)
        self._constants = constants
        self._by_kind = {
            kind: constants.number(kind, constants.platform) for kind in ("inside", "across")
        }

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that prices depend on, by name: the network's and the step constants."""
        return {**self._network.numbers, **dict(self._by_kind.values())}

    @property
    def uncalibrated(self) -> NcclNetwork:
        """The network without the constants, which do not change NCCL's choices."""
        return self._network

    def _constant(self, nodes: int) -> tuple[str, Quantity]:
        return self._by_kind[_kind(nodes)]

    def factor(self, operation: Operation, bytes: int, group: Placement) -> float:
        """Return the constant of a group: inside a node, or across; see `MultipliedNetwork`."""
        return self._constant(group.nodes)[1].value

    def shares(self, operation: Operation, bytes: int, group: Placement) -> dict[str, float]:
        """Return the share of a price that is proportional to each number; to the constant, all.

        Of the network's own numbers none counts where the constant's error bar covers theirs. See
        `MultipliedNetwork.shares`.
        """
        found = self._network.shares(operation, bytes, group)
        if not self._network.price(operation, bytes, group).duration:
            return found
        if self._constants.covers(_kind(group.nodes), self._constants.platform):
            found = {}
        return {**found, self._constant(group.nodes)[0]: 1.0}

    def loads(
        self, index: Ints, members: NDArray[np.int32], pattern: Pattern
    ) -> tuple[Ints, Ints, Ints]:
        """Return the weights of groups on links; inside nodes and at NICs, times the constant."""
        first, links, weights = self._network.loads(index, members, pattern)
        label, shapes = shapes_of(index, members, self._network.library.system)
        factors = np.array([self._constant(shape.nodes)[1].value for shape in shapes])
        if (factors == 1).all():
            return first, links, weights
        of_link = np.repeat(factors[label], np.diff(first))
        of_link[self.topology.kind[links] == LinkKind.FABRIC] = 1.0
        return first, links, np.maximum(1, np.floor(weights * of_link)).astype(np.int64)


def _kind(nodes: int) -> str:
    return "inside" if nodes == 1 else "across"
