"""The builder of each kind of fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .cables import Cables, Ports
from .dragonfly import dragonfly
from .fabric import Fabric
from .fat_tree import fat_tree
from .grid import grid
from .switch import switch

__all__ = ["build_fabric"]

BUILDERS: Mapping[str, Callable[[Fabric, Ports], Cables]] = {
    "switch": switch,
    "fat-tree": fat_tree,
    "rail-fat-tree": fat_tree,
    "hpn": fat_tree,
    "dragonfly": dragonfly,
    "torus": grid,
    "mesh": grid,
    "wafer": grid,
}


def build_fabric(fabric: Fabric, ports: Ports) -> Cables:
    """Wire a fabric.

    Raises
    ------
    InputError
        If it has no room for so many ports.
    """
    return BUILDERS[fabric.kind](fabric, ports)
