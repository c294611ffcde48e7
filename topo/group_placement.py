"""Groups of ranks → classes whose communications cost the same: shape and limits of links.

Two groups of one shape (so many ranks on so many nodes) have one price of the library. What links
allow them may differ: one pair of nodes shares a leaf switch, another goes over a spine. A
`Placement` is a shape together with what the links allow it for each pattern it may use; groups
with equal placements are one class, and are priced once.

Groups that are shifts of each other (an *arrangement*, :mod:`.traffic.groups`) are looked at
together, as arrays: a job of 10,000 GPUs has thousands of groups, few arrangements, and fewer
classes.

Invariants
----------
1. Classes depend on the groups and the operations alone, not on the order of questions.
2. What does not limit is left out (`_limits_at`), so that equal prices have equal placements.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpisim.base.distinct import numbered

from .algorithm_patterns import AlgorithmPatterns
from .traffic.groups import arrangements, group_equal_rows, shapes_of
from .traffic.link_limits import IMPOSSIBLE, UNLIMITED, LimitArrays, LinkLimit, Placement
from .traffic.link_model import LinkModel
from .traffic.patterns import Pattern

__all__ = ["place_groups"]

Ints = NDArray[np.int64]


def place_groups(
    index: Ints,
    members: NDArray[np.int32],
    operations: Ints,
    links: LinkModel,
    patterns: AlgorithmPatterns,
) -> tuple[Ints, list[Placement]]:
    """Sort groups by shape and link limits; see `Network.group_classes`.

    Parameters
    ----------
    index, members, operations
        As there; an entry of `operations` may be -1, for anything.
    links : LinkModel
    patterns : AlgorithmPatterns
        Of the library, whose system says how many GPUs a node has.
    """
    system = patterns.library.system
    arranged = arrangements(index, members, system.gpus_per_node)
    label, shapes = shapes_of(index, members, system, arranged)
    if links.neutral:
        return label, [Placement(shape) for shape in shapes]
    known: dict[Placement, int] = {}
    found = np.empty(len(index) - 1, np.int64)
    for each in arranged:
        # Groups that are on other GPUs of their nodes may be next to fewer NICs.
        for which in _split(label[each.groups], operations[each.groups]):
            groups = each.groups[which]
            shape = shapes[label[groups[0]]]
            usable = patterns.of_operations(int(operations[groups[0]]), shape)
            limits, number = links.limits(each.members, each.base[which], usable)
            first, kind = _unlike_rows(limits, int(number.max()) + 1)
            numbers = []
            for row in first.tolist():
                placement = Placement(shape, _limits_at(usable, limits, row))
                numbers.append(known.setdefault(placement, len(known)))
            found[groups] = np.array(numbers)[kind][number]
    return found, list(known)


def _split(label: Ints, operations: Ints) -> list[NDArray[np.intp]]:
    """Return the groups, by place, of each shape and operations."""
    if (label == label[0]).all() and (operations == operations[0]).all():  # as a rule
        return [np.arange(len(label))]
    return group_equal_rows(np.stack([label, operations], axis=1))


def _unlike_rows(limits: list[LimitArrays], n: int) -> tuple[Ints, Ints]:
    """Return the first of each kind of `n` rows of limits, and the kind of each row."""
    columns = [
        column for limit in limits for column in (limit.node_rate, limit.fabric_rate, limit.latency)
    ]
    differing = [] if n == 1 else [each for each in columns if (each != each[0]).any()]
    if not differing:  # as a rule: all groups have links alike
        return np.zeros(1, np.int64), np.zeros(n, np.int64)
    if len(differing) == 1:
        _, first, which = numbered(differing[0])
        return first, which
    order = np.lexsort(differing[::-1])
    rows = np.stack(differing)[:, order]
    new = np.concatenate([[True], (rows[:, 1:] != rows[:, :-1]).any(axis=0)])
    which = np.empty(n, np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def _limits_at(
    patterns: list[Pattern], limits: list[LimitArrays], row: int
) -> tuple[LinkLimit, ...]:
    """Return the link limits of one group, by pattern, where there are any."""
    found = []
    for pattern, limit in zip(patterns, limits, strict=True):
        node, fabric, link, latency = (int(column[row]) for column in limit)
        if fabric != IMPOSSIBLE and (latency or min(node, fabric) < UNLIMITED):
            found.append(LinkLimit(pattern, node, fabric, latency, link))
    return tuple(found)
