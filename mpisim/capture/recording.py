"""What one rank would have issued: launches, communications and waits of the CPU, in host order.

The file that a captured process writes and the simulator reads; no tensor has values here.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..operators import OperatorCall, TensorSpec

__all__ = ["ACCUMULATES", "GATHERED", "GRADIENTS", "NO_ORIGIN", "OUTSIDE", "STATES", "WEIGHTS",
           "Allocation", "Completed", "HostWork", "Item", "ItemKind", "Origin", "Recording",
           "Wait", "lasting"]  # fmt: skip

WEIGHTS, GRADIENTS, STATES = "weights", "gradients", "optimizer's states"
"""What an optimizer holds, in tables of what holds memory."""

GATHERED = "gathered parameters"
"""Storages that get another size: FSDP's, which hold gathered parameters for a while."""


class ItemKind(IntEnum):
    """What an item is."""

    CALL = 0
    """An operator on the device: `number` is its call."""
    COPY = 1
    """A copy between the memories of host and device: `bytes`."""
    COLLECTIVE = 2
    """A collective: `number` is its `Operation`."""
    SEND = 3
    RECV = 4
    HOST_WAIT = 5
    """The CPU waits for the device."""
    HOST_WORK = 6
    """The CPU works through its memory: `bytes` that it reads and writes; `number` is how."""


class HostWork(IntEnum):
    """How the CPU works through its memory."""

    KERNEL = 0
    """All in one vectorised kernel."""
    LOOP = 1
    """An operation after the other; bytes are those that one kernel would read and write."""


class Wait(NamedTuple):
    """All that was issued to one stream before an item."""

    stream: int
    item: int


OUTSIDE, ACCUMULATES = -1, -2
"""In the place of a node's number: not in a backward pass; gradients are accumulated."""


class Origin(NamedTuple):
    """Where an item is from.

    Attributes
    ----------
    node : int
        Outside of backward passes the number that autograd's next node gets; inside, the number of
        the node at work, or `ACCUMULATES`. `OUTSIDE`: not recorded.
    engine : bool
        Whether it is inside a backward pass.
    module : int
        The modules around it: a number of `Recording.modules`.
    parameters : tuple of int
        Whose storages it works on, except in the optimizer: numbers of `Recording.parameters`.
    """

    node: int = OUTSIDE
    engine: bool = False
    module: int = 0
    parameters: tuple[int, ...] = ()


NO_ORIGIN = Origin()


class Completed(NamedTuple):
    """The moment at which the gradient of a parameter was complete, in a backward pass."""

    item: int
    """How many items had been recorded."""

    parameter: int


class Item(NamedTuple):
    """One thing that the host did.

    Attributes
    ----------
    kind : ItemKind
    number : int
        Of the call or the operation; of the CPU's work a `HostWork`; -1 for others.
    stream : int
        -1 for a wait of the CPU and for its work.
    waits : tuple of Wait
        Besides the order of the stream.
    bytes : int
        Of a communication, its largest buffer; of a copy; of the CPU's work. -1: none.
    group : int
        Of a communication: number of its group in `Recording.groups`.
    peer : int
        Of a send or receive: position of the partner in the group.
    joined : bool
        Of a communication: launched together with the one before it.
    phase : int
        A `Phase`.
    layer : int
        Number in the path of the module, -1 outside numbered layers.
    name : str
        What reports call it.
    step : int
        Of the recorded steps, from 0.
    graph : bool
        Launched by a CUDA graph, together with the item before it.
    origin : Origin
        Ranks that do the same may differ in it.
    by_reducer : bool
        A copy for one tensor that compiled code of data parallelism launches.
    """

    kind: ItemKind
    number: int
    stream: int
    waits: tuple[Wait, ...]
    bytes: int
    group: int
    peer: int
    joined: bool
    phase: int
    layer: int
    name: str
    step: int
    graph: bool = False
    origin: Origin = NO_ORIGIN
    by_reducer: bool = False


class Allocation(NamedTuple):
    """Memory of the device that was taken (`bytes` > 0) or given back (0), in host order."""

    storage: int
    bytes: int
    stream: int
    item: int
    """How many items had been recorded; negative before the recorded steps."""

    label: int
    """What took it, as a number of `Recording.labels`."""

    phase: int
    """A `Phase`."""


Broadcasts = dict[tuple[int, int], tuple[bool, list[float]]]

Objects = dict[tuple[int, int], bytes]

StageOutputs = tuple[tuple[TensorSpec, bool], ...]
"""What a stage of a pipeline gives the next: tensors, and whether they have gradients."""


class FromRank0(NamedTuple):
    """What rank 0, which is captured first, tells the others."""

    broadcasts: Broadcasts
    """As of its `Recording`."""

    objects: Objects
    """As of its `Recording`."""

    stage_outputs: StageOutputs = ()
    """As of its `Recording`."""


@dataclass
class Recording:
    """Everything one captured rank left behind.

    Attributes
    ----------
    rank, world : int
    calls : list of OperatorCall
        Each distinct one once.
    items : list of Item
    groups : list of tuple of int
        Global ranks of every process group, in the order of their creation, those without this
        rank included.
    steps : int
        Recorded.
    warm_up : bool
        Whether one step was run before them.
    allocations : list of Allocation
        From the first line of the script on.
    labels : list of str
        What takes memory: modules and passes, lines of the script; empty for what is given back.
    holders : dict of int to str
        Storages that are weights, gradients or states of an optimizer, which is more telling.
    values : Counter of str
        Reads of values that no tensor has, and what was taken in their place: lines for people.
    replaced : Counter of str
        What was left out or done otherwise: lines for people.
    broadcasts : dict of (int, int) to (bool, list of numbers)
        By group and number of the broadcast in it: small tensors that this rank sent, whether
        their values are more than likely, and the values.
    objects : dict of (int, int) to bytes
        By group and number of the call in it: Python's objects that this rank broadcast or
        scattered, pickled.
    stage_outputs : tuple of (TensorSpec, bool)
        What the first stage of a pipeline without examples gives the next.
    devices : tuple of int
        Numbers of the devices, in their node, whose tensors it communicates.
    torch : str
        Version of PyTorch.
    modules : list of tuple of str
        Modules around items, the outermost first: class and number, as ``Bottleneck_3``. The first
        is empty.
    parameters : list of TensorSpec
        Those that require gradients.
    completed : list of Completed
        Gradients of a job of one rank, in the order in which they were complete.
    """

    rank: int
    world: int
    calls: list[OperatorCall] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    steps: int = 0
    warm_up: bool = True
    allocations: list[Allocation] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    holders: dict[int, str] = field(default_factory=dict)
    values: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    broadcasts: Broadcasts = field(default_factory=dict)
    objects: Objects = field(default_factory=dict)
    stage_outputs: StageOutputs = ()
    devices: tuple[int, ...] = ()
    torch: str = ""
    modules: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    parameters: list[TensorSpec] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_bytes(pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file that a process of one's own has written.

        Parameters
        ----------
        path : Path

        Raises
        ------
        InputError
            If it is damaged.
        """
        try:
            found: Any = pickle.loads(path.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise InputError(f"{path}: the captured process left no whole recording") from error
        assert isinstance(found, cls)
        return found

    def for_others(self) -> FromRank0:
        """Return what the other ranks are told, if this is of rank 0."""
        return FromRank0(self.broadcasts, self.objects, self.stage_outputs)

    def own_groups(self) -> list[int]:
        """Return the numbers of the groups that this rank belongs to, in order."""
        return [n for n, ranks in enumerate(self.groups) if self.rank in ranks]

    def digest(self) -> str:
        """Return a digest of what was issued, the same for ranks that do the same.

        Groups count by their place among those of the rank and by their size.
        """
        place = {number: i for i, number in enumerate(self.own_groups())}
        sizes = [len(self.groups[number]) for number in place]
        found = hashlib.sha256(repr(sizes).encode())
        names = [repr(call) for call in self.calls]
        for item in self.items:
            what = names[item.number] if item.kind is ItemKind.CALL else str(item.number)
            found.update(
                repr((*item[:1], what, *item[2:5], place.get(item.group, -1), *item[6:-1])).encode()
            )
        return found.hexdigest()[:32]


def lasting(found: Sequence[Allocation], item: int) -> list[Allocation]:
    """Allocations → those of storages that stay, or were there before, as of one item.

    Parameters
    ----------
    found : sequence of Allocation
        In their order.
    item : int
        Behind which they come.
    """
    given_back = {each.storage for each in found if not each.bytes}
    passing = {each.storage for each in found if each.bytes} & given_back
    return [each._replace(item=item) for each in found if each.storage not in passing]
