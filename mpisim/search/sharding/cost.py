"""Cost of a placement of tables, without simulating it, by the simulator's own prices.

A step waits for the slowest rank twice: its lookups end before rows can be exchanged, and its
updates end the step. So of the step's time only this depends on the placement,

    max over ranks Σ lookup  +  max over ranks Σ update
    + what of the all-to-all of the widest rank, forward and backward, outlasts the bottom layers
    + reduce-scatter and all-gather of tables divided by rows
    + all-reduce of tables that are copied

Lookups and updates are those of the kernel model, one table at a time and without the floor of a
kernel, of which a rank has one for all of its tables; communications are the network's prices of
the whole group. They are sums over tables, so a moved table changes them by a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...base.kinds import Operation
from ...experiment import Dlrm
from ...kernels.operations import EmbeddingTables
from ...prediction.prepared import PreparedExperiment
from ...workloads.dlrm import EmbeddingTable, Shard, TablePlacement, rank_shards
from ...workloads.dlrm.dlrm_operators import DlrmOperators
from ...workloads.eager_modules import FP32
from ...workloads.operators import Compute, Operator

__all__ = ["LOADS", "PlacementCost"]

Floats = NDArray[np.float64]

LOADS = ("lookup", "update", "sent", "memory")
"""What a table adds to a rank: seconds of its lookup and of its update, elements sent for a sample,
elements in the GPU's memory."""

SIZES = 1 << np.arange(8, 37, dtype=np.int64)
"""Bytes at which communications are priced; between two of them in proportion."""

CROWDED = 1e3
"""Seconds where a rank has no room, and for each share of the room that ranks hold too much: no
placement with room costs as much, and of two without the less crowded costs less."""


class PlacementCost:
    """Cost of placements of an experiment's tables.

    Parameters
    ----------
    prepared : PreparedExperiment
        With any placement.
    tables : sequence of EmbeddingTable
    room : float
        Elements of tables that a rank can hold.
    """

    def __init__(
        self, prepared: PreparedExperiment, tables: Sequence[EmbeddingTable], room: float
    ) -> None:
        layout = prepared.workload.layout
        self.ranks, self.tables, self.room = layout.grid.dp, tables, room
        self.plan, self.grid = layout.experiment.plan, layout.grid
        assert isinstance(layout.experiment.model, Dlrm)
        self._model = layout.experiment.model
        self._kernels = prepared.workload.pricings[0].model
        self._batch = self.grid.dp * self.plan.micro_batch
        self._network = prepared.network
        self._loads: dict[tuple[int, TablePlacement], Floats] = {}
        self._empty = self._kernels.estimate(_nothing(False)).duration * 1e-12
        self._empty_update = self._kernels.estimate(_nothing(True)).duration * 1e-12
        bottom = next(each for each in layout.networks[0].layers if each.name == "bottom")
        self._beside = self._seconds_each_way(bottom.operators)

    def _seconds_each_way(self, operators: Sequence[Operator]) -> tuple[float, float]:
        """Operators → seconds of their kernels, forward and backward."""
        passes = (
            (task for each in operators for task in each.forward),
            (task for each in operators for task in each.backward),
        )
        forward, backward = (
            1e-12
            * sum(
                self._kernels.estimate(task.kernel).duration
                for task in tasks
                if isinstance(task, Compute)
            )
            for tasks in passes
        )
        return forward, backward

    # --- one table ------------------------------------------------------------------------------

    def load(self, number: int, placement: TablePlacement) -> Floats:
        """Table → load that it adds to each rank.

        Parameters
        ----------
        number : int
            Of the table.
        placement : TablePlacement

        Returns
        -------
        float64, shape (4, ranks)
            Rows as of `LOADS`.
        """
        found = self._loads.get((number, placement))
        if found is None:
            found = np.zeros((len(LOADS), self.ranks))
            for rank, shards in enumerate(
                rank_shards([self.tables[number]], [placement], self.ranks)
            ):
                for shard in shards:
                    found[:, rank] += self._of_shard(shard)
            self._loads[number, placement] = found
        return found

    def _of_shard(self, shard: Shard) -> tuple[float, float, float, float]:
        sent = [(shard.width,) if shard.exchanged else ()] * self.ranks
        operators = DlrmOperators(self._model, self.plan, self.grid, (shard,), sent)
        lookup, update = self._seconds_each_way(tuple(operators.tables()))
        return (
            max(0.0, lookup - self._empty),
            max(0.0, update - self._empty_update),
            float(shard.width if shard.exchanged else 0),
            float(shard.resident),
        )

    def summed(self, number: int, placement: TablePlacement) -> tuple[float, float]:
        """Return elements of a table that ranks add up: for a sample, and of its gradient."""
        table = self.tables[number]
        if placement.sharding == "row_wise":
            return float(table.width), 0.0
        return 0.0, float(table.size if placement.sharding == "data_parallel" else 0)

    # --- communications -------------------------------------------------------------------------

    @cached_property
    def _group(self) -> object:
        index = np.array([0, self.ranks], np.int64)
        label, classes = self._network.group_classes(
            index, np.arange(self.ranks, dtype=np.int32), None
        )
        return classes[int(label[0])]

    @cached_property
    def _curves(self) -> dict[Operation, Floats]:
        operations = (
            Operation.ALL_TO_ALL,
            Operation.REDUCE_SCATTER,
            Operation.ALL_GATHER,
            Operation.ALL_REDUCE,
        )
        return {
            each: np.array(
                [self._network.price(each, int(size), self._group).duration for size in SIZES]
            )
            * 1e-12
            for each in operations
        }

    def _time(self, operation: Operation, elements: Floats) -> Floats:
        """Return the time of communications of so many fp32 elements; 0 of none."""
        if self.ranks == 1:
            return np.zeros_like(elements)
        found = np.interp(FP32 * elements, SIZES, self._curves[operation])
        return np.where(elements > 0, found, 0.0)

    # --- all tables -----------------------------------------------------------------------------

    def total(self, loads: Floats, summed: Floats) -> Floats:
        """Return the cost of placements.

        Parameters
        ----------
        loads : float64, shape (placements, 4, ranks)
        summed : float64, shape (placements, 2)

        Returns
        -------
        float64, shape (placements,)
            Seconds; above `CROWDED` where a rank has no room.
        """
        lookup, update, sent, _ = loads.max(axis=2).T
        exchange = self._time(Operation.ALL_TO_ALL, self._batch * sent)
        forward, backward = (np.maximum(exchange - beside, 0.0) for beside in self._beside)
        rows, gradient = summed.T
        more = np.maximum(loads[:, 3] / self.room - 1, 0.0).sum(axis=1)
        return (
            lookup
            + update
            + forward
            + backward
            + self._time(Operation.REDUCE_SCATTER, self._batch * rows)
            + self._time(Operation.ALL_GATHER, self._batch * rows)
            + self._time(Operation.ALL_REDUCE, gradient)
            + np.where(more > 0, CROWDED * (1 + more), 0.0)
        )

    def loads(self, placed: Sequence[TablePlacement]) -> tuple[Floats, Floats]:
        """Return the load of each rank, shape (4, ranks), and what is summed, shape (2,)."""
        loads = np.zeros((len(LOADS), self.ranks))
        summed = np.zeros(2)
        for number, each in enumerate(placed):
            loads += self.load(number, each)
            summed += self.summed(number, each)
        return loads, summed

    def of(self, placed: Sequence[TablePlacement]) -> float:
        """Return the cost of one placement, in seconds."""
        loads, summed = self.loads(placed)
        return float(self.total(loads[None], summed[None])[0])


def _nothing(backward: bool) -> EmbeddingTables:
    """The smallest lookup: the floor of a kernel."""
    return EmbeddingTables(1, 4, 4, 4, (4,) * 8, backward)
