"""How many ranks, or nodes, have one of the experts of a token.

That of a router without preference, which first chooses groups of experts where the model has them
(node-limited routing of DeepSeek-V3); or of a gate that a benchmark puts in its place, which takes
one expert after the other (``framework.moe_balance``).
"""

from __future__ import annotations

import math
from functools import cache

__all__ = ["expected_destinations", "round_robin_destinations"]


def expected_destinations(
    experts: int, topk: int, parts: int, groups: int = 1, chosen: int = 1
) -> float:
    """Experts in `parts` equal parts, chosen freely → mean number of parts that one token needs.

    A part is avoided if all `topk` experts, taken without repetition, lie in the others; they come
    from `chosen` of `groups` equal groups of experts that follow each other.

    Parameters
    ----------
    experts, topk : int
        Experts of a layer, and those of one token.
    parts : int
        Ranks or nodes that the experts are spread over.
    groups, chosen : int
        Groups of experts, and those that one token may choose from.

    Examples
    --------
    >>> expected_destinations(8, 1, 4)
    1.0
    >>> expected_destinations(8, 8, 4)
    4.0
    >>> expected_destinations(8, 4, 4, groups=4, chosen=2)
    2.0
    """
    group, part = experts // groups, experts // parts
    within = max(part // group, 1)  # groups that a part has, or is one's share of
    eligible = chosen * group

    def avoided(own: int) -> float:
        others = eligible - own
        return math.prod((others - i) / (eligible - i) for i in range(topk))

    return parts * sum(
        math.comb(within, k)
        * math.comb(groups - within, chosen - k)
        / math.comb(groups, chosen)
        * (1 - avoided(k * min(part, group)))
        for k in range(max(0, chosen - groups + within), min(within, chosen) + 1)
    )


@cache
def round_robin_destinations(experts: int, topk: int, parts: int) -> float:
    """Experts in `parts` equal parts, taken in turn → mean number of parts that one token needs.

    The i-th token has the experts i × topk to i × topk + topk - 1, counted around
    (github:NVIDIA-NeMo/Automodel ``nemo_automodel/components/moe/layers.py``, FakeBalancedGate:
    ``arange(tokens * topk).view(-1, topk) % experts``).

    Parameters
    ----------
    experts, topk, parts : int
        As for `expected_destinations`.

    Examples
    --------
    >>> round_robin_destinations(128, 8, 8)
    1.0
    >>> round_robin_destinations(24, 8, 2)  # experts 0 to 7, 8 to 15, of both parts, 16 to 23
    1.3333333333333333
    """
    part = experts // parts
    turns = experts // math.gcd(experts, topk)
    needed = [
        len({(first * topk + i) % experts // part for i in range(topk)}) for first in range(turns)
    ]
    return sum(needed) / turns
