"""Row → arguments of its event: its place in the step, and how a communication was carried out.

The names of arguments are for people who look at a slice; Kineto's own are written by
`mpisim.traces.export_communications`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from ..base.kinds import Operation
from ..engine.rows import Rows
from ..prediction.calibrated import CalibratedNetwork
from ..program import Flag, Phase, Program, Table
from ..topo import Network
from ..topo.nccl import Choice
from ..topo.nccl_network import NcclNetwork
from ..topo.network import ExplainedNetwork, SharedNetwork, bus_factor

__all__ = ["Communications", "RowArguments"]

SHOWN_LINKS = 4
"""Names of links that are written out."""

UNPRICED = (Operation.NONE, Operation.UNKNOWN)

PHASES = {phase: phase.name.lower() for phase in Phase}


class _How(NamedTuple):
    """How the network carries out a communication."""

    choice: Choice | None
    limit: str
    links: str


class Communications:
    """How a network carries out the communications of a program. Local.

    Parameters
    ----------
    program : Program
    network : Network or None
        None: communications have durations of their own, and nothing is known of them.
    """

    def __init__(self, program: Program, network: Network | None) -> None:
        self._program, self._network = program, network
        self._known: dict[tuple[int, int, int], _How] = {}
        self._label: list[int] = []
        self._classes: Any = ()
        if network is not None:
            groups = program.communicators
            label, self._classes = network.group_classes(
                groups.index, groups.members, program.operation_bits
            )
            self._label = label.tolist()

    def how(self, communicator: int, operation: Operation, size: int) -> _How | None:
        """Return how a communication is carried out; None if no network priced it.

        Parameters
        ----------
        communicator : int
        operation : Operation
        size : int
            Bytes of the full buffer; -1 unknown.
        """
        if self._network is None or size < 0 or operation in UNPRICED:
            return None
        key = communicator, int(operation), size
        if key not in self._known:
            self._known[key] = self._found(communicator, operation, size)
        return self._known[key]

    def _found(self, communicator: int, operation: Operation, size: int) -> _How:
        group = self._classes[self._label[communicator]]
        explained: object = self._network
        return _How(
            self._choice(operation, size, group),
            explained.limit_of(operation, size, group)
            if isinstance(explained, ExplainedNetwork)
            else "",
            self._links(communicator, operation, size, group),
        )

    def _choice(self, operation: Operation, size: int, group: Any) -> Choice | None:
        """Return the library's choice; None by latency and bandwidth alone, and of one rank."""
        network = self._network
        if isinstance(network, CalibratedNetwork):
            network = network.uncalibrated
        if not isinstance(network, NcclNetwork) or group.shape.ranks == 1:
            return None
        done = Operation.ALL_REDUCE if operation is Operation.BARRIER else operation
        return network.choices(done, size, group)[0][0]

    def _links(self, communicator: int, operation: Operation, size: int, group: Hashable) -> str:
        """Name the links that carry most of a communication."""
        network = self._network
        if not isinstance(network, SharedNetwork):
            return ""
        pattern = network.price(operation, size, group).pattern
        if pattern is None:
            return ""
        members = np.array(self._program.communicators.group(communicator), np.int32)
        _, links, weights = network.loads(np.array([0, len(members)]), members, pattern)
        if not len(links):
            return ""
        most = links[np.lexsort((links, -weights))][:SHOWN_LINKS]
        names = ", ".join(network.link_name(link) for link in most.tolist())
        return names if len(links) <= SHOWN_LINKS else f"{names} and {len(links) - len(most)} more"


class RowArguments:
    """Arguments of the operations of one rank, by row.

    Parameters
    ----------
    program : Program
    rank : int
    rows : Rows
        Of this rank.
    communications : Communications
    """

    def __init__(
        self, program: Program, rank: int, rows: Rows, communications: Communications
    ) -> None:
        self._table: Table = program.table_of(rank)
        self._rows, self._communications = rows, communications
        self._slots = program.slots_of(rank).tolist()
        self._sizes = program.communicators.sizes
        joined = (self._table.flags & Flag.JOINED) != 0
        self._alone = ~joined & ~np.append(joined[1:], False)

    def __call__(self, row: int) -> dict[str, Any]:
        """Return the arguments of the launch whose first row this is."""
        table = self._table
        found: dict[str, Any] = {"Row": row}
        if table.phase[row]:
            found["Phase"] = PHASES[Phase(int(table.phase[row]))]
        for name, column in (("Layer", table.layer), ("Micro-batch", table.micro_batch)):
            if column[row] >= 0:
                found[name] = int(column[row])
        if table.is_communication[row]:
            found |= self.communication(row)
        return found

    def communication(self, row: int) -> dict[str, Any]:
        """Return what is said of a communication row: times, bandwidths, algorithm and links."""
        table, rows = self._table, self._rows
        begin, wire, end = (int(each[row]) for each in (rows.begin, rows.wire, rows.end))
        found: dict[str, Any] = {"Waiting (us)": (wire - begin) / 1e6}
        if not self._alone[row]:
            return found
        operation, size = Operation(int(table.operation[row])), int(table.bytes[row])
        communicator = self._slots[int(table.slot[row])]
        if size >= 0:
            found["Message bytes"] = size
        if size > 0 and end > wire:
            bandwidth = size / (end - wire) * 1e3  # GB/s of bytes/ps
            found["Bandwidth (GB/s)"] = round(bandwidth, 3)
            if operation not in UNPRICED:
                factor = bus_factor(operation, int(self._sizes[communicator]))
                found["Bus bandwidth (GB/s)"] = round(bandwidth * factor, 3)
        how = self._communications.how(communicator, operation, size)
        if how is not None:
            if how.choice is not None:
                found |= {
                    "Algorithm": how.choice.algorithm,
                    "Protocol": how.choice.protocol,
                    "Channels": how.choice.channels,
                }
            found |= {
                name: text
                for name, text in (("Limited by", how.limit), ("Links", how.links))
                if text
            }
        return found
