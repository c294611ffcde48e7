"""Transformers as operators in the shapes of one rank.

``transformer_network(model, plan, grid)``
    What one rank does for one micro-batch, as Megatron-LM with Transformer Engine would issue it.
"""

from .network import transformer_network

__all__ = ["transformer_network"]
