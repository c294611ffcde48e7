"""What the ways between all pairs of many ports of a grid have in common.

Ways go along one dimension after another. In dimension i a message is on the line that its target
(dimensions before i) and its sender (those after) decide, and goes from the sender's coordinate to
the target's: how many do can be told from how many ports there are with some coordinates, without
looking at pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["Crowd", "upwards"]

Ints = NDArray[np.int64]

_MOST = 1 << 24
"""Entries of a table of sums along lines."""

_PAIRS = 1 << 18
"""Pairs at a time."""


def upwards(start: Ints, delta: Ints, size: int) -> NDArray[np.bool_]:
    """Whether the shorter way round a ring is upwards, from `start` and 0 <= `delta` < `size`.

    Where both are equally long it is from even places up and from odd ones down, so that neither
    direction has more to carry.
    """
    return (2 * delta < size) | ((2 * delta == size) & (start % 2 == 0))


@dataclass(frozen=True, eq=False)
class Crowd:
    """All pairs of ports.

    Attributes
    ----------
    dims : sequence of int
    wraps : sequence of bool
    router : int64, shape (n_ports,)
        Of each port.
    up, down : int64, shape (n_ports,)
        Links to the router and from it.
    steps : int64, shape (d, 2, n_routers)
        Links from each router upwards and downwards, -1 where there are none.
    n_links : int
    """

    dims: Sequence[int]
    wraps: Sequence[bool]
    router: Ints
    up: Ints
    down: Ints
    steps: Ints
    n_links: int

    def crossings(self, gpus: Ints) -> Ints | None:
        """Count the ordered pairs whose way leads over each link, shape (n_links,)."""
        found = np.zeros(self.n_links, np.int64)
        for port in (self.up[gpus], self.down[gpus]):
            found[port] += len(gpus) - 1
        there = np.bincount(self.router[gpus], minlength=prod(self.dims)).reshape(self.dims)
        d = len(self.dims)
        for axis, size in enumerate(self.dims):
            # Senders by coordinates from this dimension on, targets by those up to it.
            senders = there.sum(axis=tuple(range(axis))).reshape(size, -1).T  # (after, size)
            targets = there.sum(axis=tuple(range(axis + 1, d))).reshape(-1, size)  # (before, size)
            counts = _on_line(senders[None, :, :], targets[:, None, :], self.wraps[axis])
            for links, count in zip(self.steps[axis], counts, strict=True):
                flat = np.moveaxis(count, 2, 1).reshape(-1)  # before, this, after
                used = (links >= 0) & (flat > 0)
                found[links[used]] += flat[used]
        return found

    def longest(self, gpus: Ints, value: Ints) -> int | None:
        """Return the largest sum of values of links, shape (n_links,), over the ways of pairs."""
        total = prod(self.dims)
        if total * max(self.dims) > _MOST or len(gpus) < 2:
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
        step = max(1, _PAIRS // len(gpus))
        for low in range(0, len(gpus), step):
            part = slice(low, low + step)
            sums = ends[0][part, None] + ends[1][None, :]
            for table, sources, targets in zip(tables, source_keys, target_keys, strict=True):
                sums += table[sources[part, None] + targets[None, :]]
            rows = np.arange(len(sums))
            sums[rows, low + rows] = np.iinfo(np.int64).min  # nobody sends to itself
            most = max(most, int(sums.max()))
        return most

    def _sums(self, axis: int, value: Ints) -> Ints:
        """Return sums of values along lines, shape (before, after, size, size): from, to."""
        size = self.dims[axis]
        padded = np.append(value, 0)  # the entry of -1
        along = []
        for links in self.steps[axis]:
            each = padded[links].reshape(prod(self.dims[:axis]), size, -1)
            twice = np.concatenate([np.moveaxis(each, 1, 2)] * 2, axis=2)
            zero = np.zeros((*twice.shape[:2], 1), np.int64)
            along.append(np.concatenate([zero, np.cumsum(twice, axis=2)], axis=2))
        start, end = np.indices((size, size))
        if self.wraps[axis]:
            rising = upwards(start, (end - start) % size, size)
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


def _on_line(senders: Ints, targets: Ints, ring: bool) -> tuple[Ints, Ints]:
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
        rising = upwards(place, np.full(n, delta), n)
        for count, rises, length, way in ((up, True, delta, 1), (down, False, n - delta, -1)):
            some = np.where(rising == rises, pairs, 0)
            if some.any():
                count += _window(some, length, way)
    return up, down


def _window(values: Ints, length: int, way: int) -> Ints:
    """Sum up, at each place of a ring, what began there or up to `length` - 1 places before it."""
    turned = values if way > 0 else values[..., ::-1]
    n = turned.shape[-1]
    sums = np.cumsum(np.concatenate([turned, turned], axis=-1), axis=-1)
    sums = np.concatenate([np.zeros((*sums.shape[:-1], 1), np.int64), sums], axis=-1)
    ends = np.arange(n) + n + 1
    found = sums[..., ends] - sums[..., ends - length]
    return found if way > 0 else found[..., ::-1]
