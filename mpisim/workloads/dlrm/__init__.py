"""Deep learning recommendation models with tables on some ranks and matrices on all.

``dlrm_networks(model, plan, grid)``
    The layers of a DLRM in each rank's shapes.
``place(sharder, tables, ranks)``
    Which rank holds which embedding tables.
"""

from .network import dlrm_networks
from .sharding import SHARDERS, Table, place

__all__ = ["SHARDERS", "Table", "dlrm_networks", "place"]
