"""Cache of routes, rank classes and tiles that the runs of several programs share.

Plans that are compared differ in kernels, sizes and order, but many have the same communicators,
tables on the same ranks, and communications of the same algorithms on them. Then they have the same
routes (`mpisim.engine.contention`), the same classes of ranks (`mpisim.engine.fold`), which take
long to find where there are many ranks, and the same tiles (`mpisim.engine.tiling`). All are
functions of a few arrays, a digest of which is their key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from ..base.array_keys import size_of
from ..base.lru_cache import LruCache
from ..topo import Network

__all__ = ["SetupCache"]

MAX_BYTES = 1 << 25
"""Bytes of each kind of what is kept."""

Value = TypeVar("Value")


class SetupCache:
    """Routes, classes and tiles of the programs that were set up last, on one network.

    A caller that runs several programs on one network makes one and passes it down. A request for
    another network drops all entries.
    """

    def __init__(self) -> None:
        self._network: Network | None = None
        self._known: dict[str, LruCache[Any]] = {}

    def get(
        self, what: str, network: Network | None, key: Hashable, compute: Callable[[], Value]
    ) -> Value:
        """Network, key → the cached value; computed if it is not there.

        Parameters
        ----------
        what : str
            Kind of value; each kind has keys of its own.
        network : Network or None
        key : hashable
            All that the value depends on besides.
        compute : callable
            Gives the value: an object whose attributes are arrays or such objects, or None.
        """
        if network is not self._network:
            self._network, self._known = network, {}
        known = self._known.setdefault(what, LruCache(MAX_BYTES, _bytes_of))
        found: Value = known.get(key, compute)
        return found


def _bytes_of(value: Any) -> int:
    """Return the bytes of the arrays of an object, and of the objects that it keeps alive."""
    parts = [] if value is None else list(vars(value).values())
    return size_of(parts) + sum(_bytes_of(part) for part in parts if hasattr(part, "__dict__"))
