"""Collectives of GPUs that are attached to a fabric directly, without NICs: wafers, meshes, tori.

No library was measured on such machines. This one is what their links allow: it starts as late as a
kernel does, each step takes the latency of its route, and the bytes of an algorithm flow as fast as
the most loaded link carries them. Which algorithm that is depends on where a group is; the
network takes the fastest of all algorithms of the library (:mod:`.nccl_network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from .nccl import Choice, Shape
from .nccl.shape import NodeCounts
from .topology import Topology
from .traffic.steps import collective_steps
from .traffic.transfers import CHAIN_OPERATIONS

if TYPE_CHECKING:
    from .nccl.shape import Regime

__all__ = ["UNMEASURED", "CollectiveLibrary", "LinkLibrary", "check_fabric"]

Floats = NDArray[np.float64]

FILE = "direct.toml"

UNMEASURED = (
    "communications: no library was measured on GPUs that are joined without NICs; they take what "
    "the links allow, by the fastest algorithm, after the launch of a kernel"
)
"""What a prediction says of itself."""

_RING_ALGORITHMS = ("tour", "two-way-ring")
"""Rings in the fabric's order, and in that of ranks."""

_ALGORITHMS = {
    Operation.ALL_REDUCE: ("dimensions", *_RING_ALGORITHMS, "tree"),
    Operation.ALL_GATHER: ("dimensions", *_RING_ALGORITHMS, "pat"),
    Operation.REDUCE_SCATTER: ("dimensions", *_RING_ALGORITHMS, "pat"),
    Operation.BROADCAST: _RING_ALGORITHMS,
    Operation.REDUCE: _RING_ALGORITHMS,
    Operation.ALL_TO_ALL: ("send",),
    Operation.GATHER: ("send",),
    Operation.SCATTER: ("send",),
    Operation.SEND_RECV: ("send",),
}
"""What each operation can be carried out by; of equally fast ones the first is taken."""


class CollectiveLibrary(Protocol):
    """A communication library, as a network asks it.

    Parameters of its methods: `operation`; `bytes`, the size of the full buffer, as in
    `Network.price`; `shape`, how many ranks of the group are on which nodes.
    """

    @property
    def system(self) -> NodeCounts:
        """GPUs and NICs of a node."""
        ...

    def choose(self, operation: Operation, bytes: int, shape: Shape) -> Choice:
        """Return the library's own choice of algorithm."""
        ...

    def candidates(self, operation: Operation, bytes: int, shape: Shape) -> list[Choice]:
        """Return all algorithms that the library may use."""
        ...

    def highest_bandwidths(
        self, operation: Operation, sizes: Sequence[int], shape: Shape
    ) -> dict[str, float]:
        """Return the highest bandwidth of each of these algorithms at some sizes, in bytes/s."""
        ...


@frozen
class _DirectGpus:
    """A machine whose GPUs are attached to the fabric directly, without NICs."""

    gpus_per_node: int
    nics: int = 0


class LinkLibrary:
    """Operation → algorithms that GPUs on a bare fabric can use for it.

    Parameters
    ----------
    topology : Topology
    gpus_per_node : int
    algorithm : {"ring", "dimensions"}, optional
        Where groups can: rings alone, or dimension by dimension. By default whichever is fastest.
    ring_order : {"ranks", "fabric"}, optional
        The order of GPUs in rings. By default whichever is faster.
    buffer : float, optional
        Bytes that a GPU has room for of what comes over one link, on a fabric whose ways are all
        equally long. A larger message goes in parts: each waits until the one before has come, and
        takes the latency of the way. By default there is room for all.

    Raises
    ------
    InputError
        If the fabric has no dimensions, or no order other than that of ranks.
    """

    def __init__(
        self,
        topology: Topology,
        gpus_per_node: int,
        algorithm: str | None = None,
        ring_order: str | None = None,
        buffer: float | None = None,
    ) -> None:
        check_fabric(topology, algorithm, ring_order)
        self._buffer = buffer
        self._messages: dict[tuple[Operation, str, int], tuple[Floats, Floats]] = {}
        self.system: NodeCounts = _DirectGpus(gpus_per_node)
        self.algorithm = algorithm
        table = packaged(FILE)
        self._launch = build(Quantity, table["launch"]["latency"], FILE, "launch").si
        self._factor = build(Quantity, table["time"]["factor"], FILE, "time")
        left_out = set()
        if topology.grid is None or algorithm == "ring":
            left_out.add("dimensions")
        if topology.tour is None or ring_order == "ranks":
            left_out.add("tour")
        elif ring_order == "fabric":
            left_out.add("two-way-ring")
        if algorithm is not None:
            left_out |= {"tree", "pat"}
        self._left_out = left_out
        self._topology = topology

    def factor(self, bytes: float, regime: Regime | None = None) -> Quantity:
        """Return the factor that times depend on: 1 with its error bar, whatever the size.

        Parameters
        ----------
        bytes : float
            Of no account.
        regime : {"inside", "across"}, optional
            Of no account.

        Returns
        -------
        Quantity
            Without unit.
        """
        return self._factor

    def choose(self, operation: Operation, bytes: int, shape: Shape) -> Choice:
        """Return the first of `candidates`.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Of no account.
        shape : Shape
            Only whether it has one rank or several is of account.

        Raises
        ------
        InputError
            For an operation of unknown kind.
        """
        return self.candidates(operation, bytes, shape)[0]

    def candidates(self, operation: Operation, bytes: int, shape: Shape) -> list[Choice]:
        """Return all algorithms for an operation; some do not suit every group.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Only of account where buffers are small.
        shape : Shape

        Returns
        -------
        list of Choice
            Each with the latency of the launch and of waits for buffers, and a bandwidth that no
            links allow.

        Raises
        ------
        InputError
            For an operation of unknown kind.
        """
        if shape.ranks == 1:
            return [Choice("none", "", 0, 0.0, float("inf"))]
        kind = Operation.ALL_REDUCE if operation is Operation.BARRIER else operation
        if kind not in _ALGORITHMS:
            raise InputError(
                f"no cost is known for a communication of kind {operation.name}; known are "
                f"{', '.join(each.name for each in (*_ALGORITHMS, Operation.BARRIER))}"
            )
        return [
            Choice(
                name,
                "",
                0,
                self._launch + self._waits(kind, bytes, name, shape.ranks),
                self._highest_rate,
            )
            for name in _ALGORITHMS[kind]
            if name not in self._left_out
        ]

    def highest_bandwidths(
        self, operation: Operation, sizes: Sequence[int], shape: Shape
    ) -> dict[str, float]:
        """Return the bandwidth of each of `candidates`, which is the same for all sizes."""
        return {each.algorithm: each.bandwidth for each in self.candidates(operation, 0, shape)}

    def _waits(self, operation: Operation, bytes: int, algorithm: str, ranks: int) -> float:
        """Return the seconds that messages take longer since buffers do not hold all of each."""
        if self._buffer is None or not bytes:
            return 0.0
        key = operation, algorithm, ranks
        if key not in self._messages:
            steps = collective_steps(operation, algorithm, range(ranks), 1)
            which, at = np.unique(steps.first, return_inverse=True)
            largest, count = np.zeros((2, len(which)))
            np.maximum.at(largest, at.reshape(-1), steps.bytes)
            np.maximum.at(count, at.reshape(-1), steps.count)
            self._messages[key] = largest, count
        largest, count = self._messages[key]
        more = np.maximum(np.ceil(largest * bytes / self._buffer - 1e-9), 1) - 1
        # A chain passes on the parts of a message one after another, all hops at once.
        times = more.max() if operation in CHAIN_OPERATIONS else (more * count).sum()
        return float(times) * self._route_latency

    @cached_property
    def _route_latency(self) -> float:
        """Latency of a route in seconds; all routes are equally long."""
        topology = self._topology
        return float(topology.latency[topology.route(0, 1)].sum()) if topology.n_gpus > 1 else 0.0

    @cached_property
    def _highest_rate(self) -> float:
        """Bytes per second of payload that no communication exceeds.

        Of two ranks at least, one sends or receives no less than half of the payload by its links.
        """
        found = self._topology
        ends = [
            np.bincount(each, found.bandwidth, found.n_nodes)[found.gpu].max()
            for each in (found.source, found.target)
        ]
        return 2 * float(max(ends))


def check_fabric(topology: Topology, algorithm: str | None, ring_order: str | None) -> None:
    """Check that a fabric supports an algorithm and an order of rings.

    Parameters
    ----------
    topology : Topology
    algorithm : {"ring", "dimensions"}, optional
        None (whichever is fastest) asks nothing of the fabric.
    ring_order : {"ranks", "fabric"}, optional
        None (whichever is faster) asks nothing of the fabric.

    Raises
    ------
    InputError
        If it has no dimensions, or no order other than that of ranks.
    """
    if algorithm == "dimensions" and topology.grid is None:
        raise InputError(
            "network.algorithm is 'dimensions'; it needs a fabric with dimensions: torus, mesh, "
            "wafer"
        )
    if ring_order == "fabric" and topology.tour is None:
        raise InputError(
            "network.ring_order is 'fabric', which on this network is the order of ranks: it has "
            "no effect; leave it out"
        )
