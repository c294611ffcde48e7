"""Tori, meshes and wafers: a router a node, joined to its neighbours along each dimension."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from ..topology import Grid
from .cables import Cables, Ports
from .crowd import Crowd, upwards
from .fabric import Fabric
from .tour import round_trip

__all__ = ["grid"]


def grid(fabric: Fabric, ports: Ports) -> Cables:
    """Wire a grid; a message goes along the first dimension, then the second, and so on.

    Neighbouring nodes are neighbours in the last dimension. On a torus it goes the shorter way
    round; where both are the same from even places up and from odd ones down, so that both
    directions carry as much. Two nodes round a ring are joined once. Wafers stand in a row along
    the first dimension.

    Raises
    ------
    InputError
        If there are more nodes than places, or no whole number of wafers.
    """
    places, link = fabric.places, fabric.link_bandwidth
    assert places is not None
    assert link is not None
    dims = list(fabric.dims)
    if fabric.kind == "wafer":
        if ports.nodes % places:
            raise InputError(
                f"dims = {dims} has {places} places a wafer, and there are {ports.nodes} nodes: no "
                "whole number of wafers"
            )
        dims[0] *= ports.nodes // places
    elif ports.nodes > places:
        raise InputError(f"dims = {dims} has {places} places, and there are {ports.nodes} nodes")
    wraps = [fabric.kind == "torus" and size > 2 for size in dims]

    cables = Cables(ports)
    axes = np.indices(dims).reshape(len(dims), -1)
    names = ["router" + "-".join(map(str, each)) for each in axes.T.tolist()]
    routers = cables.add(names)
    up, down = cables.plug(routers[np.arange(ports.count) // ports.each])
    strides = [prod(dims[d + 1 :]) for d in range(len(dims))]
    steps = np.full((len(dims), 2, len(routers)), -1)  # by dimension and direction
    for d, (size, stride) in enumerate(zip(dims, strides, strict=True)):
        for direction, step in ((0, 1), (1, -1)):
            to = axes[d] + step
            (here,) = np.nonzero((to >= 0) & (to < size) | wraps[d])
            there = here + (to[here] % size - axes[d][here]) * stride
            bandwidth = np.full(len(here), link.si)
            if d == 0 and fabric.edge_bandwidth is not None:  # a wafer
                low, high = axes[0][here] // fabric.dims[0], axes[0][there] // fabric.dims[0]
                bandwidth[low != high] = fabric.edge_bandwidth.si
            steps[d, direction, here] = cables.lay(
                routers[here], routers[there], bandwidth, ports.hop
            )

    def hops(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        at, goal = a // ports.each, b // ports.each
        columns = [up[a]]
        for d, (size, stride) in enumerate(zip(dims, strides, strict=True)):
            delta = axes[d][goal] - axes[d][at]
            if wraps[d]:
                delta %= size
                delta = np.where(upwards(axes[d][at], delta, size), delta, delta - size)
            direction = (delta < 0).astype(int)
            for _ in range(int(np.abs(delta).max(initial=0))):
                columns.append(np.where(delta != 0, steps[d, direction, at], -1))
                moved = axes[d][at] + np.sign(delta)
                at = at + (moved % size - axes[d][at]) * stride
                delta = delta - np.sign(delta)
        columns.append(down[b])
        return np.stack(columns, axis=1)

    cables.hops = hops
    router = np.arange(ports.count) // ports.each
    cables.grid = Grid(axes.T[router], tuple(dims), tuple(wraps))
    trip = np.argsort(round_trip(dims, wraps))
    cables.tour = trip[router] * ports.each + np.arange(ports.count) % ports.each
    cables.pairs = Crowd(dims, wraps, router, up, down, steps, cables.n_links)
    return cables
