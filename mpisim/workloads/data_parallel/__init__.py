"""How data-parallel ranks share gradients, optimizer states and parameters.

``Strategy``
    What a framework hooks into the forward and backward passes; this one does nothing.
``strategy(plan, chunks, groups)``
    The one of a plan.
"""

from .strategy import Strategy, strategy

__all__ = ["Strategy", "strategy"]
