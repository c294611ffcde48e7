"""``plan.tables.placement`` or a sharder → the shards of embedding tables on every rank.

"table_wise 3"                    whole, on rank 3
"column_wise 0 1"                 half of the columns on rank 0, half on rank 1
"row_wise"                        a share of the rows on each rank
"data_parallel"                   a copy on each rank
"table_wise 3 fused_uvm_caching"  in host memory, with a cache on rank 3
"table_wise"                      on the rank that the sharder gives
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...base.errors import InputError, nearest
from ...base.frozen import frozen
from ...experiment.plan import Plan
from .sharding import sharded
from .tables import KERNELS, SHARDING, EmbeddingKernel, EmbeddingTable, Shard, Sharding

__all__ = ["TablePlacement", "placements", "rank_shards"]

MIN_COLUMNS = 4
"""Elements of the narrowest slice of columns: FBGEMM loads vectors of four."""


@frozen
class TablePlacement:
    """Placement of an embedding table: kind of sharding, ranks, memory.

    Attributes
    ----------
    sharding : Sharding
    ranks : tuple of int
        One for a whole table; one for each slice of columns; empty for others, on all ranks.
    kernel : EmbeddingKernel
    """

    sharding: Sharding
    ranks: tuple[int, ...] = ()
    kernel: EmbeddingKernel = "fused"

    def __str__(self) -> str:
        kernel = () if self.kernel == "fused" else (self.kernel,)
        return " ".join((self.sharding, *map(str, self.ranks), *kernel))


def placements(plan: Plan, tables: Sequence[EmbeddingTable], ranks: int) -> list[TablePlacement]:
    """Plan, tables → placement of each table.

    Parameters
    ----------
    plan : Plan
    tables : sequence of EmbeddingTable
    ranks : int

    Raises
    ------
    InputError
        If ``plan.tables.placement`` has what tables or ranks do not allow; the message names the
        entry.
    """
    texts = plan.tables.placement
    if len(texts) not in (0, 1, len(tables)):
        raise InputError(
            f"plan.tables.placement has {len(texts)} entries; one, or one for each of the "
            f"{len(tables)} tables"
        )
    found = [
        _read(texts[i if len(texts) > 1 else 0], i, table, ranks) if texts else None
        for i, table in enumerate(tables)
    ]
    # The sharder sees the tables that are left to it alone.
    left = [i for i, each in enumerate(found) if each is None or _is_open(each)]
    given = dict(
        zip(left, sharded(plan.tables.sharder, [tables[i] for i in left], ranks), strict=True)
    )
    return [
        TablePlacement("table_wise", (given[i],), "fused" if each is None else each.kernel)
        if i in given
        else cast(TablePlacement, each)
        for i, each in enumerate(found)
    ]


def _is_open(placement: TablePlacement) -> bool:
    return placement.sharding == "table_wise" and not placement.ranks


def _read(text: str, number: int, table: EmbeddingTable, ranks: int) -> TablePlacement:
    """Return the placement that an entry of ``plan.tables.placement`` states."""
    where = f"plan.tables.placement[{number}] is {text!r}"
    kind, *rest = text.split() or [""]
    if kind not in SHARDING:
        raise InputError(f"{where}{nearest(kind, SHARDING)}; it begins with {', '.join(SHARDING)}")
    kernel = "fused"
    if rest and not rest[-1].isdecimal():
        kernel = rest.pop()
        if kernel not in KERNELS:
            raise InputError(
                f"{where}{nearest(kernel, KERNELS)}; it ends with {', '.join(KERNELS)}"
            )
    if not all(each.isdecimal() and int(each) < ranks for each in rest):
        raise InputError(f"{where}; ranks are numbers from 0 to {ranks - 1}")
    found = TablePlacement(kind, tuple(map(int, rest)), cast(EmbeddingKernel, kernel))
    if kind == "table_wise" and len(rest) > 1:
        raise InputError(f"{where}; a whole table is on one rank")
    if kind in ("row_wise", "data_parallel") and rest:
        raise InputError(f"{where}; {kind} is on all ranks, and names none")
    if kind == "data_parallel" and kernel != "fused":
        raise InputError(f"{where}; copies on all ranks are 'fused', in their memory")
    uneven = not rest or table.width % len(rest) or table.width // len(rest) < MIN_COLUMNS
    if kind == "column_wise" and uneven:
        raise InputError(
            f"{where}; it names the rank of each slice, and the table's {table.width} columns must "
            f"divide into slices of {MIN_COLUMNS} or more"
        )
    return found


def rank_shards(
    tables: Sequence[EmbeddingTable], placed: Sequence[TablePlacement], ranks: int
) -> list[tuple[Shard, ...]]:
    """Tables, their placements → the shards of each rank, in the order of the tables.

    Parameters
    ----------
    tables : sequence of EmbeddingTable
    placed : sequence of TablePlacement
    ranks : int
    """
    found: list[list[Shard]] = [[] for _ in range(ranks)]
    for table, each in zip(tables, placed, strict=True):
        if each.ranks:
            shard = Shard(table, each.sharding, table.width // len(each.ranks), kernel=each.kernel)
            for rank in each.ranks:
                found[rank].append(shard)
        else:
            shard = Shard(table, each.sharding, table.width, ranks, each.kernel)
            for rank in range(ranks):
                found[rank].append(shard)
    return [tuple(each) for each in found]
