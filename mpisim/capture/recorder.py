"""The recorder: streams, places on them, waits, launches and communications → items.

All stand-ins (`cuda`, `distributed`, `data_parallel`, `dispatch`) write into one recorder. It knows
nothing of how PyTorch calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from traceback import clear_frames
from typing import Any

from ..base.kinds import Operation, Phase
from ..operators import OperatorCall, TensorSpec
from .graphs import CapturedGraph, GraphUnderCapture
from .recording import (
    NO_ORIGIN,
    Allocation,
    Broadcasts,
    Completed,
    HostWork,
    Item,
    ItemKind,
    Objects,
    Origin,
    Recording,
    StageOutputs,
    Wait,
    lasting,
)
from .steps import Steps
from .user_values import UserValues

__all__ = ["Recorder"]


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
        To be recorded after the warm-up steps.
    warm_up : int, optional
        Warm-up steps, at least, as `Steps` take them.
    values : dict of str to float
        Place in the user's code (``train.py:42``) → what is read there.

    Attributes
    ----------
    stream : int
        The current one.
    phase : int
        A `Phase`.
    between : int
        What the pass before was, after it has ended and before the next begins: a `Phase`.
    again : int
        How many ``autograd.Function`` run forward in a backward pass, one inside another.
    memory : _Memory
        Of the device, as the script may ask.
    devices, named_devices : set of int
        Numbers of the devices whose tensors are communicated; those that tensors were put on by a
        number other than 0.
    holders : dict of int to str
        What holds a storage, where something says it better than the place it was taken at.
    origin : Origin
        Of the items that come now.
    within : list of tuple of str
        Modules around them, as of a `Recording`.
    parameters : list of TensorSpec
    values : UserValues
        What is taken for values that the script asks for.
    rates : tuple of float, optional
        Of the links of a GPU, as a `Device` has them.
    """

    def __init__(
        self, rank: int, world: int, steps: int, warm_up: int | None, values: dict[str, float]
    ) -> None:
        self.rank, self.world, self.steps = rank, world, Steps(steps, warm_up)
        self.values = UserValues(values)
        self.stream = 0
        self.phase = self.between = int(Phase.NONE)
        self.again = 0
        self.module: list[str] = []
        self.origin: Origin = NO_ORIGIN
        self._in_reducer = False
        self.within: list[tuple[str, ...]] = [()]
        self.parameters: list[TensorSpec] = []
        self._completed: list[Completed] = []
        self.memory = _Memory()
        self.groups: list[tuple[int, ...]] = [tuple(range(world))]
        self.replaced: Counter[str] = Counter()
        self.broadcasts: Broadcasts = {}
        self.objects: Objects = {}
        self.stage_outputs: StageOutputs = ()
        self.devices: set[int] = set()
        self.named_devices: set[int] = set()
        self.allocations: list[Allocation] = []
        self.holders: dict[int, str] = {}
        self._labels: dict[str, int] = {}
        self.backwards = 0
        self.rates: tuple[float, float] | None = None
        self._items: list[Item] = []
        self._calls: dict[OperatorCall, int] = {}
        self._streams = 1
        self._last: dict[int, Wait] = {}
        self._pending: dict[int, list[Wait]] = {}
        self._graph: GraphUnderCapture | None = None

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

    def host_work(self, bytes: int, name: str, how: HostWork = HostWork.KERNEL) -> None:
        """Record that the CPU works through its memory, and does nothing else meanwhile.

        Parameters
        ----------
        bytes : int
            That it reads and writes.
        name : str
        how : HostWork
        """
        self._append(ItemKind.HOST_WORK, int(how), -1, (), bytes=bytes, name=name)

    def count(self, kind: ItemKind) -> int:
        """Kind of item → how many have been recorded since the last step began."""
        begin = self.steps.ends[-1] if self.steps.ends else 0
        return sum(item.kind is kind for item in self._items[begin:])

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
                *(kind, number, stream, waits, bytes, group, peer, joined),
                *(self.phase, layer, name, 0),
                origin=self.origin,
                by_reducer=self._in_reducer,
            )
        )

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Context of which nothing stays recorded if an error ends it."""
        items, calls, last = len(self._items), len(self._calls), dict(self._last)
        pending = {stream: list(waits) for stream, waits in self._pending.items()}
        lists = Counter(self.values.taken), Counter(self.replaced)
        allocations, peak = len(self.allocations), self.memory.peak
        try:
            yield
        except Exception as error:
            clear_frames(error.__traceback__)  # gives back the storages that were taken
            del self._items[items:]
            for call in list(self._calls)[calls:]:
                del self._calls[call]
            self._last, self._pending = last, pending
            self.values.taken, self.replaced = lists
            self.allocations[allocations:] = lasting(self.allocations[allocations:], items)
            self.memory.peak = max(peak, self.memory.now)
            raise

    @contextmanager
    def reducer(self) -> Iterator[None]:
        """Context in which recorded copies count as launched by DDP's reducer, in C++."""
        self._in_reducer = True
        try:
            yield
        finally:
            self._in_reducer = False

    def completed(self, parameter: int) -> None:
        """Record that the gradient of a parameter, by its number, is complete."""
        self._completed.append(Completed(len(self._items), parameter))

    # --- CUDA graphs ------------------------------------------------------------------------------

    def graph_begins(self) -> None:
        """What follows is not executed, but becomes a graph."""
        before = len(self._items), len(self._completed), len(self.allocations)
        self._graph = GraphUnderCapture(*before, dict(self._last), dict(self._pending))
        self._pending = {}

    def graph_ends(self, *, kept: bool = False) -> CapturedGraph:
        """Return what was issued since `graph_begins`.

        Parameters
        ----------
        kept : bool
            It is launched later, as often as the script likes, and not right now.
        """
        made, self._graph = self._graph, None
        if made is None:
            return CapturedGraph()
        graph = made.issued(self._items, self._completed)
        self._last, self._pending = made.last, made.pending
        del self._items[made.items :], self._completed[made.completed :]
        if kept:  # its memory was taken when it was made
            since = self.allocations[made.allocations :]
            self.allocations[made.allocations :] = [e._replace(item=made.items) for e in since]
            if any(item.phase != Phase.NONE for item in graph.items):
                self.steps.graph_captured(made.items)
        return graph

    def launch_graph(self, graph: CapturedGraph) -> None:
        """Record a graph's items, behind what the current stream has and before what it gets.

        Parameters
        ----------
        graph : CapturedGraph
            Of `graph_ends`.
        """
        phases = {item.phase for item in graph.items}
        if Phase.FORWARD in phases:
            self.step_begins()
        if Phase.BACKWARD in phases:
            self.backward_begins()
        begin, before = len(self._items), self.place(self.stream)
        pending = tuple(self._pending.pop(self.stream, ()))
        last: dict[int, Wait] = {}
        for number, item in enumerate(graph.items):
            waits = tuple(Wait(each.stream, each.item + begin) for each in item.waits)
            if item.stream >= 0 and item.stream not in last:
                waits += pending if before is None else (*pending, before)
            self._items.append(item._replace(waits=waits, graph=number > 0))
            if item.stream >= 0:
                last[item.stream] = self._last[item.stream] = Wait(item.stream, begin + number)
        self._completed += [each._replace(item=each.item + begin) for each in graph.completed]
        for place in last.values():
            self.wait(self.stream, place)
        if graph.optimizer is not None:
            self.optimizer_stepped(graph.optimizer)

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

    def user_line(self) -> str:
        """Return file and line of the user's code that is being executed."""
        return self.values.user_line()

    # --- steps ------------------------------------------------------------------------------------

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer has made a step, or one of several that it makes in a step of training.

        Parameters
        ----------
        optimizer : object
        """
        if self._graph is not None:  # each launch of the graph makes one
            self._graph.optimizer = optimizer
            return
        self.steps.stepped(optimizer, len(self._items), side_stream=self.stream != 0)
        self.between = int(Phase.OPTIMIZER)

    def backward_begins(self) -> None:
        """A backward pass begins."""
        self.step_begins()
        self.backwards += 1
        self.values.loop_ends()
        self.steps.backward_begins()

    def backward_ends(self) -> None:
        """A backward pass has ended; frameworks may reduce its gradients after it."""
        self.between = int(Phase.BACKWARD)

    def step_begins(self) -> None:
        """A forward pass begins.

        Raises
        ------
        Ended
            If the step before was the last that is wanted.
        """
        self.between = int(Phase.NONE)
        self.steps.begins()

    def recording(self, torch: str) -> Recording:
        """Return what was recorded of the wanted steps, or of the first if it is alone.

        Parameters
        ----------
        torch : str
            Version of PyTorch.
        """
        bounds, warm_up = self.steps.bounds()
        for name in self.steps.idle():
            self.replaced[
                f"{name}: none of its steps is among those recorded (--warm-up, --steps)"
            ] += 1
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
            values=self.values.taken,
            replaced=self.replaced,
            broadcasts=self.broadcasts,
            objects=self.objects,
            stage_outputs=self.stage_outputs,
            devices=tuple(sorted(self.devices)),
            torch=torch,
            modules=self.within,
            parameters=self.parameters,
            completed=[
                each._replace(item=each.item - first)
                for each in self._completed
                if first <= each.item <= bounds[-1]
            ],
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
