"""How data-parallel ranks share gradients, optimizer states and parameters.

``Strategy``
    What a framework hooks into the forward and backward passes; this one does nothing.
``strategy(plan, chunks, groups)``
    The one of a plan.
"""

from .catalogue import strategy
from .strategy import Strategy

__all__ = ["Strategy", "strategy"]
