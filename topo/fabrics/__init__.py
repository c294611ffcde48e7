"""What joins nodes.

``Fabric``
    The table ``[fabric]`` of a cluster.
"""

from .fabric import Fabric

__all__ = ["Fabric"]
