"""Embedding tables, and the shards of them that ranks hold."""

from __future__ import annotations

from typing import Literal

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import build
from ...experiment.models import Dlrm
from .reuse import Reuse, fitted_skew, missed_of_cache

__all__ = [
    "KERNELS",
    "SHARDING",
    "EmbeddingKernel",
    "EmbeddingTable",
    "Shard",
    "Sharding",
    "model_tables",
]

Sharding = Literal["table_wise", "column_wise", "row_wise", "data_parallel"]
"""How a table is divided among ranks, in the words of TorchRec (`ShardingType`): not at all, by
columns, by rows over all ranks, or not but with a copy on every rank."""

SHARDING: tuple[Sharding, ...] = ("table_wise", "column_wise", "row_wise", "data_parallel")

EmbeddingKernel = Literal["fused", "fused_uvm", "fused_uvm_caching"]
"""Where a table is kept, in the words of TorchRec (`EmbeddingComputeKernel`): in the GPU's memory,
in the host's, in the host's with a cache on the GPU."""

KERNELS: tuple[EmbeddingKernel, ...] = ("fused", "fused_uvm", "fused_uvm_caching")

FILE = "sharding.toml"


def cache_load_factor() -> float:
    """Share of the rows of a table in host memory that the cache on the GPU holds."""
    return build(Quantity, packaged(FILE)["cache_load_factor"], FILE, "cache_load_factor").si


@frozen
class EmbeddingTable:
    """An embedding table.

    Attributes
    ----------
    entries : int
        Rows.
    width : int
        Elements of a row.
    pooling : int
        Rows that one sample looks up.
    skew : float
        Exponent of the Zipf distribution that rows are looked up with.
    reuse : tuple of float
        Reuse factors in place of it; empty if not known.
    """

    entries: int
    width: int
    pooling: int
    skew: float = 0.0
    reuse: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Elements."""
        return self.entries * self.width


def model_tables(model: Dlrm) -> list[EmbeddingTable]:
    """Return the tables of a model, in its order."""
    return [
        EmbeddingTable(
            entries,
            model.widths[i],
            model.lookups(i),
            model.skew_of(i),
            model.reuse[i] if model.reuse else (),
        )
        for i, entries in enumerate(model.table_entries)
    ]


@frozen
class Shard:
    """The part of an embedding table that one rank holds.

    Attributes
    ----------
    table : EmbeddingTable
        The whole table.
    sharding : Sharding
    width : int
        Elements of a row here.
    ranks : int
        Ranks that its rows, or the samples it is looked up for, are divided among; 1 of a table or
        of columns.
    kernel : EmbeddingKernel
    """

    table: EmbeddingTable
    sharding: Sharding
    width: int
    ranks: int = 1
    kernel: EmbeddingKernel = "fused"

    @property
    def entries(self) -> int:
        """Rows here."""
        return -(-self.table.entries // self.ranks) if self.by_rows else self.table.entries

    @property
    def by_rows(self) -> bool:
        """Whether it is a share of the rows."""
        return self.sharding == "row_wise"

    @property
    def exchanged(self) -> bool:
        """Whether it is looked up for the samples of all ranks, and pooled rows sent to these."""
        return self.sharding in ("table_wise", "column_wise")

    @property
    def size(self) -> int:
        """Elements."""
        return self.entries * self.width

    @property
    def resident(self) -> int:
        """Elements in the GPU's memory."""
        if self.kernel == "fused":
            return self.size
        if self.kernel == "fused_uvm":
            return 0
        return int(cache_load_factor() * self.entries) * self.width

    def samples(self, global_batch: int) -> int:
        """Samples of a batch of all ranks that are looked up, or pooled in part, here."""
        return global_batch // self.ranks if self.sharding == "data_parallel" else global_batch

    def lookups(self, global_batch: int) -> int:
        """Lookups of a batch of all ranks here; rows of shards are taken to be as popular."""
        total = self.samples(global_batch) * self.table.pooling
        return -(-total // self.ranks) if self.by_rows else total

    def reuse(self, global_batch: int) -> Reuse:
        """Reuse of the shard's rows in a batch of all ranks."""
        table = self.table
        if not table.reuse:
            return Reuse.of_skew(self.entries, float(self.lookups(global_batch)), table.skew)
        whole = Reuse.of_factors(table.reuse, global_batch * table.pooling, table.entries)
        if self.by_rows:
            return whole.of_rows(1 / self.ranks)
        return whole.of_samples(1 / self.ranks) if self.ranks > 1 else whole

    def fetched(self, global_batch: int) -> float:
        """Rows of a batch that are not in the cache on the GPU, of a table in host memory."""
        held = float(int(cache_load_factor() * self.entries))
        lookups, skew = float(self.lookups(global_batch)), self.table.skew
        if self.table.reuse:
            skew = fitted_skew(self.entries, lookups, self.reuse(global_batch).distinct)
        return missed_of_cache(self.entries, lookups, skew, held)
