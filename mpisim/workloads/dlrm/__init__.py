"""Deep learning recommendation models with tables on some ranks and matrices on all.

``dlrm_networks(model, plan, grid)``
    The layers of a DLRM in each rank's shapes.
``placements(plan, tables, ranks)``, ``assign_tables(sharder, tables, ranks)``
    Where each embedding table is; which rank holds which tables.
``reuse_factors(lookups)``, `Reuse`
    How often a batch looks up rows, and what caches miss of that.

Read `tables` (tables and shards), `reuse` (lookups of a batch), `sharding` (tables to ranks),
`placement` (shards of all ranks), `table_operators` and `dlrm_operators` (what each rank launches),
`network` (in which order). A further sharder is a function and an entry in `sharding.SHARDERS`, and
its name in ``plan.tables.sharder``.
"""

from .network import dlrm_networks
from .placement import TablePlacement, placements, rank_shards
from .reuse import Reuse, reuse_factors, zipf_lookups
from .sharding import COSTS, RULES, SHARDERS, assign_tables
from .tables import EmbeddingTable, Shard, model_tables

__all__ = [
    "COSTS",
    "RULES",
    "SHARDERS",
    "EmbeddingTable",
    "Reuse",
    "Shard",
    "TablePlacement",
    "assign_tables",
    "dlrm_networks",
    "model_tables",
    "placements",
    "rank_shards",
    "reuse_factors",
    "zipf_lookups",
]
