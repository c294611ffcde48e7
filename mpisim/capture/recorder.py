"""The recorder: streams, places on them, waits, launches and communications → items.

All stand-ins (`cuda`, `distributed`, `data_parallel`, `dispatch`) write into one recorder. It knows
nothing of how PyTorch calls them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..base.kinds import Operation, Phase
from ..operators import OperatorCall
from .recording import Allocation, Item, ItemKind, Recording, Wait

__all__ = ["Ended", "Recorder"]

_OWN = (str(Path(__file__).parent), "/torch/", "<frozen", "<string>")
"""Parts of paths of files that are not the user's."""


class Ended(BaseException):
    """All steps are recorded: the rest of the script is not run.

    No `Exception`, so that a script's own handlers let it pass.
    """


@dataclass
class _Memory:
    """Bytes of the device that are taken."""

    now: int = 0
    peak: int = 0


class Recorder:
    """Collect what one rank issues.

    Parameters
    ----------
    rank, world : int
    steps : int
        To be recorded after one step to warm up.
    values : mapping of str to float
        Place in the user's code (``train.py:42``) → what is read there.

    Attributes
    ----------
    stream : int
        The current one.
    phase : int
        A `Phase`.
    memory : _Memory
        Of the device, as the script may ask.
    holders : dict of int to str
        What holds a storage, where something says it better than the place it was taken at.
    """

    def __init__(self, rank: int, world: int, steps: int, values: dict[str, float]) -> None:
        self.rank, self.world, self.wanted, self.given = rank, world, steps, values
        self.stream = 0
        self.phase = int(Phase.NONE)
        self.module: list[str] = []
        self.memory = _Memory()
        self.groups: list[tuple[int, ...]] = [tuple(range(world))]
        self.values: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()
        self.allocations: list[Allocation] = []
        self.holders: dict[int, str] = {}
        self._labels: dict[str, int] = {}
        self.backwards = 0
        self.ends: list[int] = []
        self.used_values: set[str] = set()
        self._items: list[Item] = []
        self._calls: dict[OperatorCall, int] = {}
        self._streams = 1
        self._last: dict[int, Wait] = {}
        self._pending: dict[int, list[Wait]] = {}
        self._stepper: int | None = None

    # --- streams ----------------------------------------------------------------------------------

    def new_stream(self) -> int:
        """Return the number of a new stream."""
        self._streams += 1
        return self._streams - 1

    def place(self, stream: int) -> Wait | None:
        """Return the end of what a stream has so far; None: nothing yet."""
        return self._last.get(stream)

    def all_places(self) -> list[Wait | None]:
        """Return the ends of all streams."""
        return list(self._last.values())

    def wait(self, stream: int, place: Wait | None) -> None:
        """Have what is issued to a stream from here on wait for a place on another.

        Parameters
        ----------
        stream : int
        place : Wait or None
            None waits for nothing.
        """
        if place is not None and place.stream != stream:
            pending = self._pending.setdefault(stream, [])
            pending[:] = [each for each in pending if each.stream != place.stream]
            pending.append(place)

    def host_wait(self, places: Iterable[Wait | None], name: str) -> None:
        """Record that the CPU waits for places.

        Parameters
        ----------
        places : iterable of Wait or None
        name : str
            Of the call.
        """
        waits = tuple(sorted({place for place in places if place is not None}))
        if waits:
            self._append(ItemKind.HOST_WAIT, -1, -1, waits, name=name)

    # --- what is issued ---------------------------------------------------------------------------

    def call(self, call: OperatorCall, layer: int, name: str) -> None:
        """Record an operator on the current stream.

        Parameters
        ----------
        call : OperatorCall
        layer : int
            -1: none.
        name : str
            Of its kernels, for reports.
        """
        number = self._calls.setdefault(call, len(self._calls))
        self._issue(ItemKind.CALL, number, self.stream, layer=layer, name=name)

    def copy(self, bytes: int, name: str, *, blocking: bool) -> None:
        """Record a copy between host and device on the current stream.

        Parameters
        ----------
        bytes : int
        name : str
        blocking : bool
            Whether the CPU waits for its end.
        """
        self._issue(ItemKind.COPY, -1, self.stream, bytes=bytes, name=name)
        if blocking:
            self.host_wait([self.place(self.stream)], "cudaStreamSynchronize")

    def communicate(
        self,
        operation: Operation,
        group: int,
        bytes: int,
        stream: int,
        *,
        kind: ItemKind = ItemKind.COLLECTIVE,
        peer: int = -1,
        joined: bool = False,
        name: str = "",
    ) -> Wait:
        """Record a communication, and return its place.

        Parameters
        ----------
        operation : Operation
        group : int
        bytes : int
            Of the largest buffer.
        stream : int
        kind : ItemKind
            COLLECTIVE, SEND or RECV.
        peer : int
            Of a send or receive: position of the partner.
        joined : bool
            Launched together with the one before.
        name : str
        """
        if stream != self.stream and not joined:
            self.wait(stream, self.place(self.stream))
        self._issue(
            kind,
            int(operation),
            stream,
            bytes=bytes,
            group=group,
            peer=peer,
            joined=joined,
            name=name or operation.name.lower(),
        )
        return self._last[stream]

    def _issue(self, kind: ItemKind, number: int, stream: int, **rest: Any) -> None:
        waits = () if rest.get("joined") else tuple(self._pending.pop(stream, ()))
        self._append(kind, number, stream, waits, **rest)
        self._last[stream] = Wait(stream, len(self._items) - 1)

    def _append(
        self,
        kind: ItemKind,
        number: int,
        stream: int,
        waits: tuple[Wait, ...],
        *,
        bytes: int = -1,
        group: int = -1,
        peer: int = -1,
        joined: bool = False,
        layer: int = -1,
        name: str = "",
    ) -> None:
        self._items.append(
            Item(
                kind, number, stream, waits, bytes, group, peer, joined, self.phase, layer, name, 0
            )
        )

    # --- memory -----------------------------------------------------------------------------------

    def allocate(self, storage: int, bytes: int, holder: str = "") -> None:
        """Record that a storage of the device was taken on the current stream, or given back.

        Parameters
        ----------
        storage : int
        bytes : int
            0: given back.
        holder : str
            What took it.
        """
        number = self._labels.setdefault(holder, len(self._labels))
        self.allocations.append(
            Allocation(storage, bytes, self.stream, len(self._items), number, self.phase)
        )

    # --- values -----------------------------------------------------------------------------------

    def unknown(self, what: str, likely: Any) -> Any:
        """Return what is taken for a value that no tensor has, and list it.

        Parameters
        ----------
        what : str
            For people.
        likely : bool, int or float
            Taken unless the user gives another for the place that asks.
        """
        where = self.user_line()
        value = likely
        if where in self.given:
            self.used_values.add(where)
            value = type(likely)(self.given[where])
        self.values[f"{where}: {what} taken as {value}"] += 1
        return value

    def user_line(self) -> str:
        """Return file and line of the user's code that is being executed."""
        frame: Any = sys._getframe(1)
        outer = "the script"
        while frame is not None:
            file = frame.f_code.co_filename
            if not any(part in file for part in _OWN):
                if "site-packages" not in file and "/lib/python" not in file:
                    return f"{Path(file).name}:{frame.f_lineno}"
                outer = f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back
        return outer

    # --- steps ------------------------------------------------------------------------------------

    def step_ended(self, optimizer: object) -> None:
        """An optimizer has made a step: raise `Ended` if it was the last that is wanted.

        Parameters
        ----------
        optimizer : object
            The first that ends one tells the steps.
        """
        if self._stepper is None:
            self._stepper = id(optimizer)
        if id(optimizer) != self._stepper:
            return
        self.ends.append(len(self._items))
        if len(self.ends) > self.wanted:
            raise Ended

    def recording(self, torch: str) -> Recording:
        """Return what was recorded: the wanted steps after the first, or the first if it is alone.

        Parameters
        ----------
        torch : str
            Version of PyTorch.
        """
        warm_up = len(self.ends) > 1
        bounds = self.ends if warm_up else [0, *self.ends]
        first = bounds[0]
        items = []
        for step, (begin, end) in enumerate(pairwise(bounds)):
            for item in self._items[begin:end]:
                waits = tuple(
                    Wait(each.stream, each.item - first)
                    for each in item.waits
                    if each.item >= first
                )
                items.append(item._replace(step=step, waits=waits))
        return Recording(
            rank=self.rank,
            world=self.world,
            calls=list(self._calls),
            items=items,
            groups=self.groups,
            steps=len(bounds) - 1,
            warm_up=warm_up,
            allocations=[each._replace(item=each.item - first) for each in self.allocations],
            labels=list(self._labels),
            holders=self.holders,
            values=self.values,
            replaced=self.replaced,
            torch=torch,
        )

    def group_number(self, ranks: Sequence[int]) -> int:
        """Add a process group and return its number.

        Parameters
        ----------
        ranks : sequence of int
            Global ranks in order.
        """
        self.groups.append(tuple(ranks))
        return len(self.groups) - 1
