"""A small network whose links communications share, for tests of the contended core."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mpisim.base.quantity import Quantity
from mpisim.program import Operation
from mpisim.topo import Price

__all__ = ["Links", "huge", "narrow_links", "random_links"]

WEIGHT = 1 << 20


@dataclass(frozen=True)
class Links:
    """Links by name with capacities in bytes per ps, and what communications load.

    ``loaded(members, pattern)`` is given by `routes`: for each pattern, the links of every rank
    with their weights; a communication loads those of all its members, or of the first only where
    the pattern says "first".
    """

    capacities: tuple[float, ...]
    routes: Mapping[str, tuple[tuple[tuple[int, float], ...], ...]]
    latency: int = 0
    rate: float = 1.0
    small: int = 0  # bytes up to which a communication has no volume of its own
    by_operation: Mapping[Operation, str] = field(default_factory=dict)
    numbers: Mapping[str, Quantity] = field(default_factory=dict)

    @property
    def capacity(self) -> np.ndarray:
        return np.array([max(1, round(c * 2**40)) for c in self.capacities], np.int64)

    def group_classes(
        self, index: np.ndarray, members: np.ndarray, operations: np.ndarray | None = None
    ) -> tuple[np.ndarray, list[Hashable]]:
        sizes, label = np.unique(np.diff(index), return_inverse=True)
        return label.reshape(-1).astype(np.int64), sizes.tolist()

    def price(self, operation: Operation, bytes: int, group: Hashable) -> Price:
        if group == 1:
            return Price(self.latency)
        pattern = self.by_operation.get(operation, next(iter(self.routes)))
        volume = bytes if bytes > self.small else 0
        rate = round(self.rate * 2**40) if volume else 0
        return Price(self.latency, volume, rate, pattern if volume else None)

    def shares(self, operation: Operation, bytes: int, group: Hashable) -> dict[str, float]:
        return {}

    def loads(
        self, index: np.ndarray, members: np.ndarray, pattern: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts, links, weights = [0], [], []
        for a, b in zip(index[:-1].tolist(), index[1:].tolist()):
            found: dict[int, int] = {}
            for rank in members[a:b].tolist():
                for link, weight in self.routes[pattern][rank % len(self.routes[pattern])]:
                    found[link] = found.get(link, 0) + round(weight * WEIGHT)
            links += sorted(found)
            weights += [found[link] for link in sorted(found)]
            counts.append(len(links))
        return tuple(np.array(x, np.int64) for x in (counts, links, weights))

    def link_name(self, link: int) -> str:
        return f"link {link}"


def random_links(seed: int, n_ranks: int) -> Links:
    """Links for so many ranks, always the same for one seed: NICs, trees, one wire, weights."""
    rng = random.Random(seed)
    n = rng.randint(1, 2 * n_ranks)
    routes = {}
    for pattern in ("a", "b", "c")[: rng.randint(1, 3)]:
        routes[pattern] = tuple(
            tuple(
                (link, rng.choice([1, 1, 1, 0.5, 2, 1 / 3, rng.random() + 0.01]))
                for link in rng.sample(range(n), rng.randint(0, min(3, n)))
            )
            for _ in range(n_ranks)
        )
    return Links(
        capacities=tuple(rng.choice([20, 50, 100, 300, rng.randint(1, 500)]) for _ in range(n)),
        routes=routes,
        latency=rng.choice([0, 0, 1, 5, 40]),
        rate=rng.choice([50, 100, 200]),
        small=rng.choice([0, 100, 1000]),
        by_operation={op: rng.choice(list(routes)) for op in Operation},
    )


def narrow_links(seed: int, n_ranks: int) -> Links:
    """The same, but any communication alone fills each link that it loads."""
    links, rng = random_links(seed, n_ranks), random.Random(seed)
    lightest = min((w for route in links.routes.values() for r in route for _, w in r), default=1)
    widest = 0.9 * lightest * links.rate
    capacities = tuple(min(widest, rng.choice([widest, c])) for c in links.capacities)
    return dataclasses.replace(links, capacities=capacities)


def huge(links: Links) -> Links:
    """The same with links that are never full."""
    return dataclasses.replace(links, capacities=tuple(1e6 for _ in links.capacities))
