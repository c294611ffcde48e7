"""What must hold of a topology that someone wrote or changed."""

from __future__ import annotations

import numpy as np

from mpisim.base.errors import InputError

from .topology import Topology

__all__ = ["check_connected"]


def check_connected(topology: Topology) -> None:
    """Check that every GPU can reach every other.

    Raises
    ------
    InputError
        Naming two that cannot.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = topology.n_nodes
    matrix = csr_array(
        (np.ones(topology.n_links), (topology.source, topology.target)), shape=(n, n)
    )
    _, label = connected_components(matrix, connection="strong")
    of_gpus = label[topology.gpu]
    apart = np.flatnonzero(of_gpus != of_gpus[0]) if len(of_gpus) else of_gpus
    if not len(apart):
        return
    from scipy.sparse.csgraph import breadth_first_order

    first, other = 0, int(apart[0])
    reached = breadth_first_order(matrix, int(topology.gpu[first]), return_predecessors=False)
    if topology.gpu[other] in reached:  # one direction is missing
        first, other = other, first
    names = [topology.names[topology.gpu[each]] for each in (first, other)]
    raise InputError(
        f"{topology.title}: GPU {first} ({names[0]}) cannot reach GPU {other} ({names[1]}): no "
        "path of links leads there"
    )
