"""Communications of one rank's script → items of its recorder, and the values they leave behind.

There are no other ranks: a communication is recorded and returns at once. Asynchronous ones go on a
stream of their group, as NCCL's do, others on the current stream. The process groups by which a
script asks for them are replaced in :mod:`.process_groups`.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..base.kinds import Operation, Phase
from .autograd import set_phase
from .recorder import Recorder
from .recording import FromRank0, ItemKind, Wait
from .values import MAX_KEPT_NUMBERS

if TYPE_CHECKING:
    from .values import Values

__all__ = ["Collectives", "Handle", "bytes_of_tensors"]

_tensor = torch.tensor  # programs get a function of the capture's there

_FUNCTIONAL = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather_into_tensor": Operation.ALL_GATHER,
    "reduce_scatter_tensor": Operation.REDUCE_SCATTER,
    "all_to_all_single": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "shard_dim_alltoall": Operation.ALL_TO_ALL,
}
"""Functional collectives, without ``_``, ``_out`` and ``_coalesced``."""


def bytes_of_tensors(tensors: Any) -> int:
    """Nested lists of tensors → their bytes.

    Parameters
    ----------
    tensors : nested lists of Tensor
    """
    return sum(
        each.numel() * each.element_size()
        for each in tree_leaves(tensors)
        if isinstance(each, torch.Tensor)
    )


def _on_device(tensors: Any) -> bool:
    return any(
        each.device.type == "cuda"
        for each in tree_leaves(tensors)
        if isinstance(each, torch.Tensor)
    )


def _devices(tensors: Any) -> set[int]:
    """Numbers, in the node, of the devices that tensors are on."""
    found = {
        each.device.index
        for each in tree_leaves(tensors)
        if isinstance(each, torch.Tensor) and each.device.type == "cuda"
    }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # as the script has set it
    if visible is None:
        return found
    numbers = [int(each) for each in visible.split(",") if each.strip().isdigit()]
    return {numbers[each] if each < len(numbers) else each for each in found}


class Later:
    """A future of a communication: what is to follow it is issued where that is waited for.

    PyTorch runs it on a stream of its own as soon as the communication has ended; here it comes
    later, on the stream that waits.

    Parameters
    ----------
    run : callable
        Waits, and gives the result.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._found: list[Any] = []

    def wait(self) -> Any:
        """Return the result."""
        if not self._found:
            self._found.append(self._run())
        return self._found[0]

    value = wait

    def then(self, callback: Callable[[Any], Any]) -> Later:
        """Return the future of what follows."""
        return Later(lambda: callback(self))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Run a function that gives nothing."""
        callback(self)

    def done(self) -> bool:
        """Whether it has ended: so it is taken."""
        return True

    @staticmethod
    def collect_all(futures: Sequence[Any]) -> Later:
        """Return the future of all, as `torch.futures.collect_all`, which takes PyTorch's own."""

        def waited() -> list[Any]:
            for each in futures:
                each.wait()
            return list(futures)

        return Later(waited)

    @staticmethod
    def wait_all(futures: Sequence[Any]) -> list[Any]:
        """Return the results of all, as `torch.futures.wait_all`."""
        return [each.wait() for each in futures]


class Handle(dist.Work):
    """A communication that was issued: waiting for it is a wait of the current stream."""

    def __init__(self, recorder: Recorder, place: Wait | None, result: Any) -> None:
        super().__init__()
        self._recorder, self._place, self._result = recorder, place, result

    def wait(self, timeout: Any = None) -> bool:
        self._recorder.wait(self._recorder.stream, self._place)
        return True

    def block_current_stream(self) -> None:
        self.wait()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Any:
        def waited() -> Any:
            self.wait()
            return self._result

        return Later(waited)


class Collectives:
    """Record the communications of one rank.

    Parameters
    ----------
    recorder : Recorder
    received : FromRank0

    Attributes
    ----------
    received : FromRank0
        What rank 0 has sent: small tensors and objects.
    values : Values or None
        What is known of the values of tensors; set when operators are followed.
    """

    def __init__(self, recorder: Recorder, received: FromRank0) -> None:
        self.recorder, self.received = recorder, received
        self.values: Values | None = None
        self._broadcasts: Counter[int] = Counter()
        self._groups: dict[str, int] = {}
        self._streams: dict[tuple[int, ...], int] = {}
        self._produced: dict[int, Wait] = {}
        self._batch: list[bool] | None = None

    def new_group(self, name: str, members: Sequence[int]) -> None:
        """Give a new process group its number.

        Parameters
        ----------
        name : str
            As PyTorch calls it.
        members : sequence of int
            Its ranks; none: all of the job.
        """
        self._groups[name] = self.recorder.group_number(members) if members else 0

    def group_of(self, group: Any) -> int:
        """Return the number of a process group, given as such or by name."""
        name = group if isinstance(group, str) else group.group_name
        return self._groups[name]

    def _stream_of(self, *key: int) -> int:
        """Return the stream of a group, or of a pair in it: NCCL has one for each."""
        if key not in self._streams:
            self._streams[key] = self.recorder.new_stream()
        return self._streams[key]

    def _rank_in(self, group: int) -> int:
        return self.recorder.groups[group].index(self.recorder.rank)

    def issue(
        self,
        operation: Operation,
        group: Any,
        tensors: Any,
        *,
        asynchronous: bool,
        bytes: int | None = None,
        kind: ItemKind = ItemKind.COLLECTIVE,
        peer: int = -1,
        name: str = "",
    ) -> Handle:
        """Record a communication and return its handle.

        Parameters
        ----------
        operation : Operation
        group : ProcessGroup or str
        tensors : nested lists of Tensor
            The larger of its buffers.
        asynchronous : bool
        bytes : int, optional
            By default those of `tensors`.
        kind : ItemKind
        peer : int
        name : str
            For people; by default that of the operation.
        """
        recorder = self.recorder
        if not _on_device(tensors) and operation is not Operation.BARRIER:
            recorder.replaced["communications of tensors on the CPU are left out"] += 1
            return Handle(recorder, None, tensors)
        number = self.group_of(group)
        size = bytes_of_tensors(tensors) if bytes is None else bytes
        joined = False
        stream = self._stream_of(number) if asynchronous else recorder.stream
        if self._batch is not None:
            stream = self._stream_of(number)
            joined = bool(self._batch)
            self._batch.append(True)
        elif peer >= 0:
            mine = self._rank_in(number)
            stream = self._stream_of(number, min(mine, peer), max(mine, peer))
        devices = _devices(tensors)
        if 0 in devices and recorder.named_devices:  # tensors were sent to another by its number
            devices = devices - {0} | recorder.named_devices
        recorder.devices |= devices
        set_phase(recorder)
        phase = recorder.phase
        if phase == Phase.FORWARD and recorder.between == Phase.OPTIMIZER:
            recorder.phase = int(Phase.OPTIMIZER)  # new parameters, to those who have none
        place = recorder.communicate(
            operation,
            number,
            size,
            stream,
            kind=kind,
            peer=peer,
            joined=joined,
            name=kind.name.lower() if kind is not ItemKind.COLLECTIVE else name,
        )
        recorder.phase = phase
        return Handle(recorder, place, tensors)

    def begin_batch(self) -> None:
        """Join sends and receives to come, as ``ncclGroupStart`` does."""
        self._batch = []

    def end_batch(self, group: Any) -> Handle:
        """Issue what was joined, and return its handle."""
        self._batch = None
        place = self.recorder.place(self._stream_of(self.group_of(group)))
        return Handle(self.recorder, place, [])

    def functional(
        self, func: Any, short: str, args: Any, kwargs: Any, run: Callable[[Any, Any, Any], Any]
    ) -> Any:
        """Record a functional collective, or what waits for one.

        Parameters
        ----------
        func : OpOverload
        short : str
            Its name without namespace.
        args, kwargs
            Of the call.
        run : callable
            Gives its result without values.
        """
        if short == "_wrap_tensor_autograd":  # waits where the tensor is first used
            return AsyncCollectiveTensor(args[0])
        if short in ("wait_tensor", "wait_tensors"):
            for each in tree_leaves(args[0]):
                place = self._produced.pop(each.untyped_storage()._cdata, None)
                self.recorder.wait(self.recorder.stream, place)
            return args[0]
        out = run(func, args, kwargs)
        base = short.removesuffix("_").removesuffix("_out").removesuffix("_coalesced")
        operation = _FUNCTIONAL.get(base)
        if operation is None:
            self.recorder.replaced[f"{func} is left out"] += 1
            return out
        larger = args[0] if bytes_of_tensors(args[0]) >= bytes_of_tensors(out) else out
        group = next(each for each in reversed(args) if isinstance(each, str | dist.ProcessGroup))
        if operation is not Operation.BROADCAST:
            sums = all(each not in ("max", "min", "avg") for each in args if isinstance(each, str))
            self.follow(operation, group, out, args[0], sums)
        handle = self.issue(operation, group, larger, asynchronous=True)
        if handle._place is not None:
            for each in tree_leaves(out):
                storage = each.untyped_storage()
                self._produced[storage._cdata] = handle._place
                # Nobody waited, and the next storage may get its address.
                weakref.finalize(storage, self._produced.pop, storage._cdata, None)
        return out

    def follow(
        self, operation: Operation, group: Any, outputs: Any, inputs: Any, sums: bool = True
    ) -> None:
        """Note which values a communication leaves: other ranks are taken to give what this does.

        Parameters
        ----------
        operation : Operation
        group : ProcessGroup or str
        outputs, inputs : nested lists of Tensor
            What is written, and what this rank gives: one, or one for several outputs.
        sums : bool
            Whether a reduction adds up.
        """
        written, given = tree_leaves(outputs), tree_leaves(inputs)
        if self.values is None or not given:
            return
        number = self.group_of(group)
        size, mine = len(self.recorder.groups[number]), self._rank_in(number)
        if len(given) == 1:
            given = given * len(written)
        for out, own in zip(written, given, strict=False):
            self.values.exchanged(operation, out, own, size, mine, sums)

    def follow_rank_0(self, group: Any, tensors: Any, root: int) -> None:
        """Keep the values that rank 0 broadcasts; other ranks, captured later, get them."""
        number = self.group_of(group)
        if self.values is None or self.recorder.groups[number][root] != 0:
            return
        key = number, self._broadcasts[number]
        self._broadcasts[number] += 1
        found = [each for each in tree_leaves(tensors) if isinstance(each, torch.Tensor)]
        if len(found) != 1 or found[0].numel() > MAX_KEPT_NUMBERS:
            return
        tensor = found[0]
        with _disable_current_modes():
            if self.recorder.rank == 0:
                known = self.values.of(tensor)
                if known is not None:
                    sure = self.values.sure(tensor) is not None
                    self.recorder.broadcasts[key] = sure, known.reshape(-1).tolist()
            elif len(self.received.broadcasts.get(key, (False, []))[1]) == tensor.numel():
                sure, sent = self.received.broadcasts[key]
                real = _tensor(sent, dtype=tensor.dtype).reshape(tuple(tensor.shape))
                if isinstance(tensor, FakeTensor):
                    self.values.assign(tensor, real, sure)
                else:
                    tensor.copy_(real)
