"""What stands in a node.

``Node``
    The table ``[node]`` of a cluster.
"""

from .node import Node

__all__ = ["Node"]
