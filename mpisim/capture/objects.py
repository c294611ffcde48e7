"""Objects of ``broadcast_object_list`` and its like → rank 0's, else the captured rank's own.

Rank 0 is captured first: what it broadcasts or scatters (a configuration, a list of files) the
others get, as far as it can be pickled. What others would send is taken to be what this rank has.
A rank that is not in the group returns at once, as PyTorch has it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from ..base.errors import InputError
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

    def all_gather(
        self, found: list[Any], own: Any, group: Any = None, weights_only: bool = False
    ) -> None:
        if not c10d._rank_not_in_group(group):
            self._note_own_taken("all_gather_object")
            found[:] = [own] * len(found)

    def gather(
        self,
        own: Any,
        found: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
        weights_only: bool = False,
    ) -> None:
        if c10d._rank_not_in_group(group):
            return
        self._note_own_taken("gather_object")
        if found is not None:
            found[:] = [own] * len(found)

    def broadcast(
        self,
        objects: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        weights_only: bool = False,
    ) -> None:
        if c10d._rank_not_in_group(group):
            return
        sent = self._sent_by_rank_0(objects, src, group, group_src)
        if sent is None:
            self._note_own_taken("broadcast_object_list")
            return
        if len(sent) != len(objects):
            raise InputError(
                f"{self._recorder.user_line()}: broadcast_object_list: rank 0 sends {len(sent)} "
                f"objects, the list of rank {self._recorder.rank} has {len(objects)}"
            )
        objects[:] = sent

    def scatter(
        self,
        found: list[Any],
        objects: Sequence[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
        weights_only: bool = False,
    ) -> None:
        if c10d._rank_not_in_group(group):
            return
        sent = self._sent_by_rank_0(objects, src, group, group_src)
        if sent is None:
            self._note_own_taken("scatter_object_list")
            if objects:
                found[0] = objects[0]
            return
        size = c10d.get_world_size(group)
        if len(sent) != size:
            raise InputError(
                f"{self._recorder.user_line()}: scatter_object_list: rank 0 gives {len(sent)} "
                f"objects to a group of {size} ranks; it must give one to each"
            )
        found[0] = sent[c10d.get_rank(group)]

    def _sent_by_rank_0(
        self, own: Sequence[Any] | None, src: int | None, group: Any, group_src: int | None
    ) -> list[Any] | None:
        """Objects of a rank of the group → those rank 0 sends; None where they are not known."""
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

    def _note_own_taken(self, name: str) -> None:
        """Note, for people, that a function takes this rank's objects for those of the others."""
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
