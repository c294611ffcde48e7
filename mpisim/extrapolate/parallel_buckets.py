"""A job's program and a number of replicas → the program with Megatron-LM's buckets for so many.

Megatron-LM closes a bucket with the parameter with which it has `bucket_size` of them: 40 million,
or a million for each replica if that is more (``DistributedDataParallel``,
megatron/core/distributed/distributed_data_parallel.py; ``_ParamAndGradBuffer``,
megatron/core/distributed/param_and_grad_buffer.py). From 40 replicas on a job has fewer, larger
buckets. A recording shows no parameters, but its buckets, of which neighbours are merged: a larger
bucket ends with the recorded one that reaches the size. It is reduced where the last of them was.
Its parameters are gathered, beside the first forward, as the bucket before it is needed first:
there the second of that one's recorded buckets was gathered. Behind the reductions they are
gathered where the first of them was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..kernels.operations import BYTES
from ..program import COLUMNS, UNPRICED, Kind, Operation, Program, Table, check_matching
from ..workloads.data_parallel.frameworks import frameworks
from .parallel_axes import bulk_rows
from .parallel_structure import ParallelStructure

__all__ = ["ALREADY_MEGATRON", "with_megatron_buckets"]

ALREADY_MEGATRON = (
    "gradients are reduced in the recorded buckets, none of which Megatron-LM would merge for so "
    "many replicas"
)
"""What is assumed where no buckets are merged."""

_REDUCES = (Operation.REDUCE_SCATTER, Operation.ALL_REDUCE)


def with_megatron_buckets(
    program: Program, structure: ParallelStructure, replicas: int, precision: str
) -> tuple[Program, str]:
    """Merge the buckets of a job as Megatron-LM cuts them for so many replicas. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    replicas : int
        New size of the axis ``dp``.
    precision : str
        Format in which gradients are reduced: ``fp32`` or ``bf16``.

    Returns
    -------
    Program
        The same object if no buckets are merged.
    str
        What was assumed.

    Raises
    ------
    InputError
        If the recorded buckets are not those that Megatron-LM cuts for the recorded replicas.
    """
    along = structure.axis("dp")
    if along is None:
        raise InputError(f"--megatron-buckets: the grid {structure.text} has no replicas")
    if any(axis.name == "shard" for axis in structure.axes):
        raise InputError(
            f"--megatron-buckets: gradients of {structure.text} are reduced along two axes; "
            "allowed is one"
        )
    kept = ("tp", "cp", "pp")
    before = math.prod(axis.size for axis in structure.axes if axis.name not in kept)
    after = before // structure.axes[along].size * replicas
    pp = structure.axis("pp")
    changed: list[Table] = []
    most = 0, 0
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        if pp is None or structure.place[rank, pp] == 0:  # further stages have one bucket
            limits = _limit(before), _limit(after)
            merging = _Merging(program, structure, rank, limits, BYTES[precision])
            table, counts = merging.merged()
            most = max(most, counts)
        changed.append(table)
    if most[0] == most[1]:
        return program, ALREADY_MEGATRON
    found = program.replace(tables=tuple(changed), table=np.arange(program.n_ranks, dtype=np.int32))
    check_matching(found)
    return found, (
        f"gradients are reduced in Megatron-LM's buckets for {after:,} replicas, of "
        f"{_limit(after):,} parameters or more: {most[0]} recorded buckets become {most[1]}, which "
        "end where recorded ones end"
    )


def _limit(replicas: int) -> int:
    """Parameters with which Megatron-LM closes a bucket."""
    megatron = frameworks().megatron
    return int(max(megatron.bucket.si, replicas * megatron.bucket_per_rank.si))


class _Merging:
    """Which buckets of one rank are merged.

    Parameters
    ----------
    program : Program
    structure : ParallelStructure
    rank : int
        Of the first stage.
    limits : tuple of int
        Parameters with which buckets are closed, as recorded and now.
    width : int
        Bytes of a gradient.
    """

    def __init__(
        self,
        program: Program,
        structure: ParallelStructure,
        rank: int,
        limits: tuple[int, int],
        width: int,
    ) -> None:
        self.table, self.width = program.table_of(rank), width
        self.before, self.after = limits
        self.said = f"rank {structure.ranks[rank]}"
        along, pp = structure.axis("dp"), structure.axis("pp")
        own = program.slots_of(rank).tolist()
        self.slots = [slot for slot, c in enumerate(own) if structure.spans[c, along]]
        ends = [s for s, c in enumerate(own) if pp is not None and structure.spans[c, pp]]
        between = np.isin(self.table.slot, ends)
        self.messages = np.flatnonzero(between & (self.table.kind != Kind.COLLECTIVE))
        reduced = between & (self.table.operation == Operation.ALL_REDUCE)
        self.tied = int(self.table.bytes[reduced].max(initial=0))
        """Bytes of the embedding's gradients that first and last stage add up."""
        self.carries: dict[int, list[int]] = {}
        """Row that stays → the recorded buckets that it carries."""
        self.instead: dict[int, int] = {}
        """Recorded bucket → the row that carries it."""

    def merged(self) -> tuple[Table, tuple[int, int]]:
        """Return the rank's table, and the buckets of a step that it had and has, the most.

        Buckets of steps and groups in which some are merged: 0 and 0 where none are.
        """
        most = 0, 0
        for slot in self.slots:
            rows = self.table.rows_on(slot)
            for step in np.unique(self.table.step[rows]).tolist():
                had, has = self._merge(rows[self.table.step[rows] == step])
                if has < had:
                    most = max(most, (had, has))
        return self._table(), most

    def _merge(self, rows: NDArray[np.intp]) -> tuple[int, int]:
        """Communications of a step on one slot → how many buckets there were, and are."""
        kinds = self.table.operation[rows]
        reduces = bulk_rows(self.table, rows[np.isin(kinds, _REDUCES)]).tolist()
        gathers = bulk_rows(self.table, rows[kinds == Operation.ALL_GATHER]).tolist()
        n = len(reduces)
        if n < 2:
            return n, n
        groups = self._groups(reduces)
        if gathers and len(gathers) != n:
            raise InputError(
                f"--megatron-buckets: {self.said} reduces {n} buckets and gathers {len(gathers)} "
                "in a step; Megatron-LM gathers as many as it reduces"
            )
        for group in groups:
            self._carry(reduces[group[-1]], [reduces[i] for i in group])
        if gathers and gathers[0] < reduces[0]:  # in the order of the forward
            order = [[n - 1 - i for i in reversed(group)] for group in reversed(groups)]
            at = 0
            for group in order:
                self._carry(gathers[at], [gathers[i] for i in group])
                at = group[0] + 1
        elif gathers:
            for group in groups:
                self._carry(gathers[group[0]], [gathers[i] for i in group])
        return n, len(groups)

    def _groups(self, reduces: list[int]) -> list[list[int]]:
        """Reductions of a step → which of them are one bucket now."""
        if ((self.messages > reduces[0]) & (self.messages < reduces[-1])).any():
            raise InputError(
                f"--megatron-buckets: {self.said} exchanges messages with other stages between its "
                "reductions, as interleaved schedules do; their chunks cannot be told apart "
                "(--layout names the axes of a job without a pipeline)"
            )
        sizes = (self.table.bytes[reduces] // self.width).tolist()
        n = len(sizes)
        # With a sharded optimizer the tied embedding has a bucket of its own, and ends the one
        # before; its padding is less than a part of it.
        last = int(self.table.bytes[reduces[-1]])
        sharded = self.table.operation[reduces[-1]] == Operation.REDUCE_SCATTER
        own = bool(sharded and self.tied and self.tied <= last <= 1.01 * self.tied)
        for i, size in enumerate(sizes[: n - 1 - own]):
            if size < self.before:
                raise InputError(
                    f"--megatron-buckets: bucket {i + 1} of {n} of {self.said} has {size:,} "
                    f"parameters of {self.width} bytes; Megatron-LM closes none before it has "
                    f"{self.before:,}"
                )
        groups: list[list[int]] = [[]]
        total = 0
        for i, size in enumerate(sizes):
            if groups[-1] and (total >= self.after or (own and i == n - 1)):
                groups.append([])
                total = 0
            groups[-1].append(i)
            total += size
        return groups

    def _carry(self, row: int, buckets: list[int]) -> None:
        self.carries[row] = buckets
        self.instead.update(dict.fromkeys(buckets, row))

    def _table(self) -> Table:
        """Rank's table with recorded gradient buckets → with Megatron's larger ones.

        The CPU's time before a launch that is left out is spent before the next.
        """
        table, n = self.table, len(self.table)
        if all(buckets == [row] for row, buckets in self.carries.items()):
            return table
        gone = np.zeros(n, bool)
        gone[list(self.instead)] = True
        gone[list(self.carries)] = False
        columns: dict[str, Any] = {name: getattr(table, name).copy() for name in COLUMNS}
        further: dict[int, list[int]] = defaultdict(list)
        for row, buckets in self.carries.items():
            if buckets != [row]:
                columns["bytes"][row] = table.bytes[buckets].sum()
                columns["duration"][row] = UNPRICED
            further[row] = [wait for each in buckets for wait in self._waits(each) if each < row]
        for row in np.flatnonzero(gone[:-1]).tolist():
            columns["host"][row + 1] += columns["host"][row]
        number = np.cumsum(~gone) - 1
        waits: list[list[int]] = []
        for row in np.flatnonzero(~gone).tolist():
            wanted = {self.instead.get(w, w) for w in (*self._waits(row), *further[row])}
            waits.append(sorted(int(number[w]) for w in wanted if w < row))
        return Table(
            **{name: values[~gone] for name, values in columns.items()},
            wait_index=np.cumsum([0, *map(len, waits)]).astype(np.int64),
            wait_row=np.array([w for own in waits for w in own], np.int32),
            queue_depth=table.queue_depth,
            label=table.label,
        )

    def _waits(self, row: int) -> list[int]:
        """Rows that a recorded row waits for."""
        index = self.table.wait_index
        return self.table.wait_row[index[row] : index[row + 1]].tolist()
