"""How many tokens each rank routes, sends and multiplies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .shapes import Shapes

__all__ = ["Routing"]


@dataclass(frozen=True)
class Routing:
    """Rows of the tensors between router and experts.

    Attributes
    ----------
    tokens : int
        That this rank routes.
    copies : int
        Of tokens, one for each expert of each.
    received : int
        By the busiest rank.
    rows : int
        That the experts of the busiest rank multiply: what its etp group received.
    experts : int
        Of this rank.
    """

    tokens: int
    copies: int
    received: int
    rows: int
    experts: int

    @classmethod
    def of(cls, s: Shapes) -> Routing:
        """Return the numbers of rows of a rank's shapes."""
        copies = s.shared * s.model.topk
        # All experts on one rank: it gets every copy, however unevenly they are spread.
        busiest = s.plan.moe_imbalance if s.grid.ep > 1 else 1.0
        received = math.ceil(copies * busiest)
        return cls(s.shared, copies, received, received * s.grid.etp, s.model.experts // s.grid.ep)
