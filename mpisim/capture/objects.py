"""Python's objects that ranks exchange → rank 0's where it sends them, else this rank's own.

Rank 0 is captured first: what it broadcasts or scatters (a configuration, a list of files) the
others get, as far as it can be pickled. What others would send is taken to be what this rank has.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from .distributed import Collectives

__all__ = ["stand_ins"]

MOST_BYTES = 2**24
"""Of the objects of one call that others get; what is larger holds tensors."""


def stand_ins(collectives: Collectives) -> dict[str, Callable[..., None]]:
    """Communications of a rank → functions of ``torch.distributed`` for objects, by their names.

    Parameters
    ----------
    collectives : Collectives
    """
    exchange = _Exchange(collectives)
    return {
        "all_gather_object": exchange.all_gather,
        "gather_object": exchange.gather,
        "broadcast_object_list": exchange.broadcast,
        "scatter_object_list": exchange.scatter,
    }


class _Exchange:
    """Objects that a rank gives and gets."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives, self._recorder = collectives, collectives.recorder
        self._calls: Counter[int] = Counter()

    def all_gather(self, found: list[Any], own: Any, group: Any = None) -> None:
        self._noted("all_gather_object")
        found[:] = [own] * len(found)

    def gather(self, own: Any, found: Any = None, *args: Any, **kwargs: Any) -> None:
        self._noted("gather_object")
        if found is not None:
            found[:] = [own] * len(found)

    def broadcast(
        self,
        objects: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        given = self._of_rank_0(objects, src, group, group_src)
        if given is None:
            self._noted("broadcast_object_list")
        else:
            objects[:] = given

    def scatter(
        self,
        found: list[Any],
        objects: Sequence[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        given = self._of_rank_0(objects, src, group, group_src)
        if given is None:
            self._noted("scatter_object_list")
            if objects:
                found[0] = objects[0]
        else:
            found[0] = given[c10d.get_rank(group)]

    def _of_rank_0(
        self, own: Sequence[Any] | None, src: int | None, group: Any, group_src: int | None
    ) -> list[Any] | None:
        """Objects of this rank → those that rank 0 sends; None where it is not told them."""
        number = self._collectives.group_of(group or c10d._get_default_group())
        ranks = self._recorder.groups[number]
        root = ranks[group_src] if group_src is not None else src or 0
        if root != 0:
            return None
        key = number, self._calls[number]
        self._calls[number] += 1
        with _disable_current_modes():
            if self._recorder.rank != 0:
                return _read(self._collectives.received.objects.get(key, b""))
            written = _written(own or ())
            if _read(written) is None:
                return None
        self._recorder.objects[key] = written
        return list(own or ())

    def _noted(self, name: str) -> None:
        said = f"{name}: this rank's objects are taken for those of the others"
        self._recorder.replaced[said] += 1


def _written(objects: Sequence[Any]) -> bytes:
    """Objects → their bytes; none where they are too many, or cannot be pickled."""
    try:
        found = pickle.dumps(list(objects))
    except Exception:  # whatever objects of a script raise, as those without values
        return b""
    return found if len(found) <= MOST_BYTES else b""


def _read(written: bytes) -> list[Any] | None:
    """Bytes → the objects; None where there are none, or no such class is there."""
    try:
        return list(pickle.loads(written)) if written else None
    except Exception:
        return None
