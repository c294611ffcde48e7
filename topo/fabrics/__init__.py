"""Fabrics, the networks between nodes: table ``[fabric]`` and ports → links and routes.

``fabric``
    `Fabric`: the table ``[fabric]`` of a cluster, with the keys of each kind.
``fabric_graph``
    `FabricGraph`: switches, links and routes from port to port; what a builder returns. It can do
    without `period`, `tour`, `grid` and `all_pairs`, which make large fabrics fast or rings short.
``fat_tree``, ``dragonfly`` (and dragonfly+), ``grid``, ``circuit``
    The builders.

A new fabric is one module with a builder, one line of `BUILDERS`, and in ``fabric`` its name in
`Kind`, its line of `KEYS` and new keys as fields of `Fabric`; both tables of ``[fabric]`` in
docs/topologies.md get its rows. ``tests/test_fabrics.py`` says what was forgotten, and counts its
switches and links; `FABRICS` of ``tests/test_network_truth.py`` compares what it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .circuit import circuit
from .dragonfly import dragonfly, dragonfly_plus
from .fabric import MAX_SPINES, Fabric, Kind
from .fabric_graph import FabricGraph, Ports
from .fat_tree import fat_tree, switch
from .grid import grid

__all__ = ["BUILDERS", "MAX_SPINES", "Fabric", "FabricGraph", "Ports", "build_fabric"]

BUILDERS: Mapping[Kind, Callable[[Fabric, Ports], FabricGraph]] = {
    "switch": switch,
    "fat-tree": fat_tree,
    "rail-fat-tree": fat_tree,
    "hpn": fat_tree,
    "dragonfly": dragonfly,
    "dragonfly+": dragonfly_plus,
    "torus": grid,
    "mesh": grid,
    "wafer": grid,
    "circuit": circuit,
}
"""The builder of each kind of fabric."""


def build_fabric(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Fabric table and ports of nodes → switches, links and routes.

    Parameters
    ----------
    fabric : Fabric
        Its `kind` decides on the builder.
    ports : Ports
        What is to be joined; the graph keeps it.

    Raises
    ------
    InputError
        If the fabric has no room for so many ports.
    """
    return BUILDERS[fabric.kind](fabric, ports)
