"""Tori, meshes and wafers: a router a node, joined to its neighbours along each dimension.

Routes are dimension-ordered: a message goes along the first dimension, then the second, and so on.
`DimensionOrderRoutes` answers questions about the routes between all pairs of many ports without
looking at pairs: in dimension i a message is on the line that its target (dimensions before i) and
its sender (those after) determine, and goes from the sender's coordinate to the target's. How many
messages pass a link follows from how many ports there are with some coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

from ..topology import MeshCoordinates
from .fabric import Fabric
from .fabric_graph import FabricGraph, Ports

__all__ = ["grid", "grid_tour"]

MAX_PLACES = 1 << 20
"""Of a torus, a mesh or one wafer: a topology has no more GPUs."""


def grid(fabric: Fabric, ports: Ports) -> FabricGraph:
    """Build a grid; a message goes along the first dimension, then the second, and so on.

    Neighbouring nodes are neighbours in the last dimension. On a torus it goes the shorter way
    round; where both are the same from even places up and from odd ones down, so that both
    directions carry as much. Two nodes round a ring are joined once. Wafers stand in a row along
    the first dimension.

    Parameters
    ----------
    fabric : Fabric
        Of kind ``"torus"``, ``"mesh"`` or ``"wafer"``, with `dims` and `link_bandwidth`.
    ports : Ports
        What is to be joined; all ports of a node are on one router.

    Raises
    ------
    InputError
        If there are more nodes than places, or no whole number of wafers.
    """
    places, link = fabric.places, fabric.link_bandwidth
    assert places is not None
    assert link is not None
    dims = list(fabric.dims)
    if places > MAX_PLACES:
        raise InputError(f"dims = {dims} has {places:,} places; allowed are {MAX_PLACES:,} at most")
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

    graph = FabricGraph(ports)
    axes = np.indices(dims).reshape(len(dims), -1)
    names = ["router" + "-".join(map(str, each)) for each in axes.T.tolist()]
    routers = graph.add_switches(names)
    up, down = graph.connect_ports(routers[np.arange(ports.count) // ports.each])
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
            steps[d, direction, here] = graph.add_links(
                routers[here], routers[there], bandwidth, ports.hop
            )

    def hops(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        at, goal = a // ports.each, b // ports.each
        columns = [up[a]]
        for d, (size, stride) in enumerate(zip(dims, strides, strict=True)):
            delta = axes[d][goal] - axes[d][at]
            if wraps[d]:
                delta %= size
                delta = np.where(goes_up(axes[d][at], delta, size), delta, delta - size)
            direction = (delta < 0).astype(int)
            for _ in range(int(np.abs(delta).max(initial=0))):
                columns.append(np.where(delta != 0, steps[d, direction, at], -1))
                moved = axes[d][at] + np.sign(delta)
                at = at + (moved % size - axes[d][at]) * stride
                delta = delta - np.sign(delta)
        columns.append(down[b])
        return np.stack(columns, axis=1)

    graph.hops = hops
    router = np.arange(ports.count) // ports.each
    graph.grid = MeshCoordinates(axes.T[router], tuple(dims), tuple(wraps))
    trip = np.argsort(grid_tour(dims, wraps))
    graph.tour = trip[router] * ports.each + np.arange(ports.count) % ports.each
    graph.all_pairs = DimensionOrderRoutes(dims, wraps, router, up, down, steps, graph.n_links)
    return graph


def grid_tour(dims: Sequence[int], wraps: Sequence[bool]) -> NDArray[np.int64]:
    """Sizes of a grid → routers in the order of a tour that passes each link at most once.

    A comb: along the first row, back and forth through all others but for their first places, and
    home through these. A row lies along all dimensions but one, as a ring or back and forth itself.
    Where a dimension is even, or rows are rings, every hop is to a neighbour; of a mesh whose
    dimensions are all odd one hop leads from the end of a row to its beginning.

    Parameters
    ----------
    dims : sequence of int
        Routers along each dimension; they are numbered with the last dimension fastest.
    wraps : sequence of bool
        Whether a dimension closes to a ring.

    Returns
    -------
    int64, shape (prod(dims),)

    Examples
    --------
    >>> grid_tour([2, 3], [False, False]).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    return np.ravel_multi_index(tuple(_tour(list(dims), list(wraps))[0].T), tuple(dims))


def _tour(dims: list[int], wraps: list[bool]) -> tuple[NDArray[np.int64], bool]:
    """Return router coordinates in visiting order, shape (n, d), and whether it is a cycle."""
    d = len(dims)
    wide = [axis for axis in range(d) if dims[axis] > 1]
    if len(wide) <= 1:
        size = max(dims, default=1)
        found = np.zeros((size, d), np.int64)
        if wide:
            found[:, wide[0]] = np.arange(size)
        return found, size <= 2 or wraps[wide[0]]
    # Rows lie along all dimensions but one; of an even number of them the way ends near the start.
    even = [axis for axis in wide if dims[axis] % 2 == 0]
    down = (even or wide)[0]
    others = [axis for axis in range(d) if axis != down]
    row, ring = _tour([dims[axis] for axis in others], [wraps[axis] for axis in others])
    if not ring:
        row = _snake([dims[axis] for axis in others])
    rows, length = dims[down], len(row)
    places = [(0, at) for at in range(length)]
    for i in range(1, rows):
        step = range(1, length) if i % 2 == 0 else range(length - 1, 0, -1)
        places += [(i, at) for at in step]
    places += [(i, 0) for i in range(rows - 1, 0, -1)]
    order = np.array(places, np.int64)
    found = np.empty((len(order), d), np.int64)
    found[:, down] = order[:, 0]
    found[:, others] = row[order[:, 1]]
    return found, rows % 2 == 0 or ring


def _snake(dims: list[int]) -> NDArray[np.int64]:
    """Return coordinates along a boustrophedon path, from neighbour to neighbour."""
    found = np.zeros((1, 0), np.int64)
    for size in reversed(dims):
        rows = [found[:: 1 if i % 2 == 0 else -1] for i in range(size)]
        found = np.concatenate(
            [np.column_stack([np.full(len(row), i), row]) for i, row in enumerate(rows)]
        )
    return found


Ints = NDArray[np.int64]

MAX_TABLE_ENTRIES = 1 << 24
"""Entries of a table of sums along lines."""

PAIRS_PER_BATCH = 1 << 18
"""Pairs at a time."""


def goes_up(start: Ints, delta: Ints, size: int) -> NDArray[np.bool_]:
    """Whether the shorter way round a ring is upwards, from `start` and 0 <= `delta` < `size`.

    Where both are equally long it is from even places up and from odd ones down, so that neither
    direction has more to carry.

    Parameters
    ----------
    start : int64
        Places on the ring, 0 to size - 1.
    delta : int64
        Steps upwards from there to the target, 0 to size - 1; of a shape that broadcasts.
    size : int
        Places of the ring.

    Returns
    -------
    bool, of the shape of both
    """
    return (2 * delta < size) | ((2 * delta == size) & (start % 2 == 0))


@frozen(eq=False)
class DimensionOrderRoutes:
    """Routes between all pairs of ports, in closed form: `AllPairsRoutes`.

    Attributes
    ----------
    dims : sequence of int
    wraps : sequence of bool
    router : int64, shape (n_ports,)
        Of each port.
    up, down : int64, shape (n_ports,)
        Links to the router and from it.
    neighbour_links : int64, shape (d, 2, n_routers)
        Links from each router upwards and downwards, -1 where there are none.
    n_links : int
    """

    dims: Sequence[int]
    wraps: Sequence[bool]
    router: Ints
    up: Ints
    down: Ints
    neighbour_links: Ints
    n_links: int

    def pairs_per_link(self, gpus: Ints) -> Ints | None:
        """Count the ordered pairs whose route uses each link, shape (n_links,)."""
        found = np.zeros(self.n_links, np.int64)
        for port in (self.up[gpus], self.down[gpus]):
            found[port] += len(gpus) - 1
        there = np.bincount(self.router[gpus], minlength=prod(self.dims)).reshape(self.dims)
        d = len(self.dims)
        for axis, size in enumerate(self.dims):
            # Senders by coordinates from this dimension on, targets by those up to it.
            senders = there.sum(axis=tuple(range(axis))).reshape(size, -1).T  # (after, size)
            targets = there.sum(axis=tuple(range(axis + 1, d))).reshape(-1, size)  # (before, size)
            counts = _pairs_over_line(senders[None, :, :], targets[:, None, :], self.wraps[axis])
            for links, count in zip(self.neighbour_links[axis], counts, strict=True):
                flat = np.moveaxis(count, 2, 1).reshape(-1)  # before, this, after
                used = (links >= 0) & (flat > 0)
                found[links[used]] += flat[used]
        return found

    def max_route_sum(self, gpus: Ints, value: Ints) -> int | None:
        """See `AllPairsRoutes.max_route_sum`.

        None if there is no pair, or if a table of sums along lines would have more than
        `MAX_TABLE_ENTRIES`.
        """
        total = prod(self.dims)
        if total * max(self.dims) > MAX_TABLE_ENTRIES or len(gpus) < 2:
            return None
        router = self.router[gpus]
        tables, source_keys, target_keys = [], [], []
        for axis, size in enumerate(self.dims):
            after = prod(self.dims[axis + 1 :])
            tables.append(self._sums(axis, value).reshape(-1))
            # Entry ((before × after + after's) × size + from) × size + to.
            place = router // after % size
            source_keys.append((router % after * size + place) * size)
            target_keys.append(router // (after * size) * (after * size * size) + place)
        ends = value[self.up[gpus]], value[self.down[gpus]]
        most = np.iinfo(np.int64).min
        step = max(1, PAIRS_PER_BATCH // len(gpus))
        for low in range(0, len(gpus), step):
            part = slice(low, low + step)
            sums = ends[0][part, None] + ends[1][None, :]
            for table, sources, targets in zip(tables, source_keys, target_keys, strict=True):
                sums += table[sources[part, None] + targets[None, :]]
            rows = np.arange(len(sums))
            sums[rows, low + rows] = np.iinfo(np.int64).min  # no GPU sends to itself
            most = max(most, int(sums.max()))
        return most

    def _sums(self, axis: int, value: Ints) -> Ints:
        """Return sums of values along lines, shape (before, after, size, size): from, to."""
        size = self.dims[axis]
        padded = np.append(value, 0)  # the entry of -1
        along = []
        for links in self.neighbour_links[axis]:
            each = padded[links].reshape(prod(self.dims[:axis]), size, -1)
            twice = np.concatenate([np.moveaxis(each, 1, 2)] * 2, axis=2)
            zero = np.zeros((*twice.shape[:2], 1), np.int64)
            along.append(np.concatenate([zero, np.cumsum(twice, axis=2)], axis=2))
        start, end = np.indices((size, size))
        if self.wraps[axis]:
            rising = goes_up(start, (end - start) % size, size)
        else:
            rising = end >= start
        up_end = start + (end - start) % size
        # Downwards from a to b are the links that begin at b + 1 to a.
        down_start = start + size - (start - end) % size
        return np.where(
            rising,
            along[0][..., up_end] - along[0][..., start],
            along[1][..., start + size + 1] - along[1][..., down_start + 1],
        )


def _pairs_over_line(senders: Ints, targets: Ints, ring: bool) -> tuple[Ints, Ints]:
    """Count pairs over the links of lines that begin at each place, upwards and downwards.

    Parameters
    ----------
    senders, targets : int64, shape (..., n)
        How many are at each place; any sender sends to any target.
    """
    senders, targets = np.broadcast_arrays(senders, targets)
    n = senders.shape[-1]
    if not ring:
        sent, got = np.cumsum(senders, axis=-1), np.cumsum(targets, axis=-1)
        up = sent * (got[..., -1:] - got)
        below = got - targets
        return up, (sent[..., -1:] - sent + senders) * below
    place = np.arange(n)
    up, down = np.zeros(senders.shape, np.int64), np.zeros(senders.shape, np.int64)
    for delta in range(1, n):
        # Senders at each place whose target is `delta` further up.
        pairs = senders * np.roll(targets, -delta, axis=-1)
        rising = goes_up(place, np.full(n, delta), n)
        for count, rises, length, way in ((up, True, delta, 1), (down, False, n - delta, -1)):
            some = np.where(rising == rises, pairs, 0)
            if some.any():
                count += _ring_window_sums(some, length, way)
    return up, down


def _ring_window_sums(values: Ints, length: int, way: int) -> Ints:
    """Sum up, at each place of a ring, what began there or up to `length` - 1 places before it."""
    oriented = values if way > 0 else values[..., ::-1]
    n = oriented.shape[-1]
    sums = np.cumsum(np.concatenate([oriented, oriented], axis=-1), axis=-1)
    sums = np.concatenate([np.zeros((*sums.shape[:-1], 1), np.int64), sums], axis=-1)
    ends = np.arange(n) + n + 1
    found = sums[..., ends] - sums[..., ends - length]
    return found if way > 0 else found[..., ::-1]
