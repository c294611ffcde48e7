"""Interface of network models: communication → its price, and the links it loads.

The engine knows networks by these protocols alone. `Network` prices communications; a
`SharedNetwork` also has links, over which communications that run at the same time share bandwidth;
an `ExplainedNetwork` says what limits a communication.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation
from mpisim.base.quantity import PICOSECONDS, Quantity

__all__ = [
    "RATE_BITS",
    "WEIGHT_ONE",
    "ExplainedNetwork",
    "Network",
    "Price",
    "SharedNetwork",
    "bus_factor",
    "class_of",
    "integer_rates",
    "rate_of",
]

RATE_BITS = 40
"""Rates are integers, in units of 2**-40 bytes per ps (0.9 B/s): what has been moved is then exact,
however often it is summed up."""

MOST_RATE = 2.0**62
"""Of links, in these units: 4e18 bytes per second, which trunks of absurd leaves would exceed."""

WEIGHT_ONE = 1 << 20
"""The weight of a link that carries one byte per byte of payload."""


class Price(NamedTuple):
    """Cost of one communication that has the network to itself.

    Attributes
    ----------
    latency : int
        ps from the arrival of the last member until bytes flow.
    volume : int
        Bytes of payload that then flow.
    rate : int
        The highest rate of the payload, in 2**-40 bytes per ps; 0 only where nothing flows.
    pattern : hashable
        Which links it loads, and how heavily: see `SharedNetwork.loads`. None if there are none
        that others could use at the same time.
    """

    latency: int
    volume: int = 0
    rate: int = 0
    pattern: Hashable = None

    @property
    def duration(self) -> int:
        """ps from the arrival of the last member to the end, rounded up."""
        return self.latency + (-((-self.volume << RATE_BITS) // self.rate) if self.volume else 0)

    def longer(self, by: int) -> Price:
        """Return the price if it takes some ps longer, or the least more: its bytes flow slower.

        One without bytes has more latency.

        Examples
        --------
        >>> Price(latency=5, volume=1000, rate=rate_of(1e9)).longer(1_000_000).duration
        2000006
        """
        if not by:
            return self
        if not self.volume:
            return self._replace(latency=self.latency + by)
        flowing = self.duration - self.latency + by
        return self._replace(rate=max(1, (self.volume << RATE_BITS) // flowing))


def rate_of(bytes_per_second: float) -> int:
    """Bytes per second → integer rate, at least 1.

    Raises
    ------
    InputError
        If it is not above 0 and finite.

    Examples
    --------
    >>> Price(latency=5, volume=1000, rate=rate_of(1e9)).duration  # a microsecond
    1000005
    """
    if not 0 < bytes_per_second < float("inf"):
        raise InputError(f"bandwidth is {bytes_per_second} bytes/s; it must be above 0")
    return max(1, round(bytes_per_second * (1 << RATE_BITS) / PICOSECONDS))


def integer_rates(bandwidth: NDArray[np.float64]) -> NDArray[np.int64]:
    """Bandwidths, bytes per second → integer rates, 1 to `MOST_RATE`; see `rate_of`."""
    rates = np.rint(bandwidth * ((1 << RATE_BITS) / PICOSECONDS))
    return np.clip(rates, 1, MOST_RATE).astype(np.int64)


@runtime_checkable
class Network(Protocol):
    """Network model: prices communications. Local."""

    def group_classes(
        self,
        index: NDArray[np.int64],
        members: NDArray[np.int32],
        operations: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], Sequence[Hashable]]:
        """Sort communicators into classes; all of one class cost the same.

        Parameters
        ----------
        index : int64, shape (n + 1,)
            Communicator c has the members ``members[index[c]:index[c + 1]]``.
        members : int32
            Global ranks, in each communicator's order.
        operations : int64, shape (n,), optional
            What will be priced on each: the sum of 1 << `Operation`. By default anything.

        Returns
        -------
        label : int64, shape (n,)
            The entry of each communicator in `classes`.
        classes : sequence of hashable
        """
        ...

    def price(self, operation: Operation, bytes: int, group: Any) -> Price:
        """Return the price of a communication.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Size of the full buffer: what a rank ends up with (all-gather), starts from
            (reduce-scatter), or both (all-reduce); in an all-to-all what one rank sends to all,
            itself included.
        group : hashable
            A class from `group_classes`.

        Raises
        ------
        InputError
            If the model does not know the operation.
        """
        ...

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """The numbers that prices depend on, each with its error bar."""
        ...

    def shares(self, operation: Operation, bytes: int, group: Any) -> dict[str, float]:
        """Return the share of a communication's duration that depends on each number.

        A relative error e of the number changes the duration by share × e. Empty if the
        communication costs nothing.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Size of the full buffer, as in `price`.
        group : hashable
            A class from `group_classes`.

        Returns
        -------
        dict of str to float
            By the names of `numbers`.
        """
        ...


@runtime_checkable
class SharedNetwork(Network, Protocol):
    """A network with links that communications may use at the same time."""

    @property
    def capacity(self) -> NDArray[np.int64]:
        """Bandwidth of each link, shape (n_links,), in 2**-40 bytes per ps."""
        ...

    def loads(
        self, index: NDArray[np.int64], members: NDArray[np.int32], pattern: Hashable
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the links that communications of one pattern load.

        Parameters
        ----------
        index : int64, shape (n + 1,)
            Communicator c has the members ``members[index[c]:index[c + 1]]``.
        members : int32
            Global ranks, in each communicator's order.
        pattern : hashable
            From prices.

        Returns
        -------
        index : int64, shape (n + 1,)
            Communicator c loads the links ``links[index[c]:index[c + 1]]``.
        links : int64, shape (m,)
            Of each communicator ascending, without repetition.
        weights : int64, shape (m,)
            Bytes over the link per byte of payload, in units of 2**-20, rounded up.
        """
        ...

    def link_name(self, link: int) -> str:
        """Return the name of a link, for reports."""
        ...


@runtime_checkable
class ExplainedNetwork(Protocol):
    """A network model that names the bottleneck of a communication."""

    def limit_of(self, operation: Operation, bytes: int, group: Any) -> str:
        """Return the bottleneck of a communication that has the network to itself.

        For people: ``"latency"``, ``"NIC"``, a link; empty if it costs nothing.

        Parameters
        ----------
        operation : Operation
        bytes : int
            Size of the full buffer (`Network.price`).
        group : hashable
            A class from `Network.group_classes`.
        """
        ...


def class_of(
    network: Network, members: Sequence[int], operation: Operation | None = None
) -> Hashable:
    """Communicator → its class, for one operation or for any.

    Parameters
    ----------
    network : Network
    members : sequence of int
        Global ranks, in the communicator's order.
    operation : Operation, optional
        What will be priced; by default anything.

    Returns
    -------
    hashable
        What `Network.price` takes as `group`.
    """
    label, classes = network.group_classes(
        np.array([0, len(members)], np.int64),
        np.array(members, np.int32),
        None if operation is None else np.array([1 << operation]),
    )
    return classes[int(label[0])]


def bus_factor(operation: Operation, ranks: int) -> float:
    """Operation, ranks → bytes each rank sends over its link, per byte of the full buffer.

    Ring all-reduce sends 2 (n - 1) / n, its two halves (reduce-scatter, all-gather) one half each;
    pipelined broadcast and reduce send everything once; all-to-all keeps 1 / n at home. Size over
    time, times this, is the "bus bandwidth" of nccl-tests (doc/PERFORMANCE.md).

    Parameters
    ----------
    operation : Operation
    ranks : int
        Members of the group, 1 or more.

    Raises
    ------
    InputError
        For an operation without bytes of its own.

    Examples
    --------
    >>> bus_factor(Operation.ALL_REDUCE, 4)
    1.5
    """
    share = (ranks - 1) / ranks
    factors = {
        Operation.ALL_REDUCE: 2 * share,
        Operation.ALL_GATHER: share,
        Operation.REDUCE_SCATTER: share,
        Operation.ALL_TO_ALL: share,
        Operation.GATHER: share,
        Operation.SCATTER: share,
        Operation.BROADCAST: 1.0,
        Operation.REDUCE: 1.0,
        Operation.SEND_RECV: 1.0,
        Operation.BARRIER: 0.0,
    }
    if operation not in factors:
        raise InputError(
            f"no cost is known for a communication of kind {operation.name}; known are "
            f"{', '.join(o.name for o in factors)}"
        )
    return factors[operation]
