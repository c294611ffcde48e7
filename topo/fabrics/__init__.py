"""What joins nodes.

``Fabric``
    The table ``[fabric]`` of a cluster.
``build_fabric(fabric, ports)``
    Its switches and links, and the way from port to port.
"""

from .build import build_fabric
from .cables import Cables, Ports
from .fabric import Fabric

__all__ = ["Cables", "Fabric", "Ports", "build_fabric"]
