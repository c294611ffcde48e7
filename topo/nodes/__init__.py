"""What stands in a node.

``Node``
    The table ``[node]`` of a cluster.
``build_box(node, gpus)``
    Its graph and the ways through it.
"""

from .box import Box, build_box, hop_latency
from .node import Node

__all__ = ["Box", "Node", "build_box", "hop_latency"]
