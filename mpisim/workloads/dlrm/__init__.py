"""Deep learning recommendation models with tables on some ranks and matrices on all.

``dlrm_networks(model, plan, grid)``
    The layers of a DLRM in each rank's shapes.
``assign_tables(sharder, tables, ranks)``
    Which rank holds which embedding tables.

Read `sharding` (tables to ranks), `dlrm_operators` (what each rank launches), `network` (in which
order). A further sharder is a function and an entry in `sharding.SHARDERS`, and its name in
``plan.sharder``.
"""

from .network import dlrm_networks
from .sharding import SHARDERS, EmbeddingTable, assign_tables

__all__ = ["SHARDERS", "EmbeddingTable", "assign_tables", "dlrm_networks"]
