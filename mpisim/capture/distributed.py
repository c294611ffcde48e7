"""``torch.distributed`` without other ranks: every communication is recorded and returns at once.

Whatever backend a script asks for, the process group is PyTorch's fake one, of as many ranks as the
job is to have. Communications go the way NCCL's do: asynchronous ones on a stream of their group,
others on the current stream.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ..base.errors import InputError
from ..base.kinds import Operation, Phase
from .autograd import set_phase
from .recorder import Recorder
from .recording import Broadcasts, ItemKind, Wait
from .values import MAX_KEPT_NUMBERS

if TYPE_CHECKING:
    from .values import Values

__all__ = ["Collectives"]

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


def _bytes(tensors: Any) -> int:
    """Bytes of the tensors in nested lists."""
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
    """Stand-ins of process groups.

    Parameters
    ----------
    recorder : Recorder
    received : dict
        What rank 0 broadcasts, as in its `Recording`.

    Attributes
    ----------
    installed : Collectives
        Those of this process, which captures one rank.
    values : Values or None
        What is known of the values of tensors; set when operators are followed.
    """

    installed: ClassVar[Collectives]

    def __init__(self, recorder: Recorder, received: Broadcasts) -> None:
        self.recorder, self._received = recorder, received
        self.values: Values | None = None
        self._broadcasts: Counter[int] = Counter()
        self._groups: dict[str, int] = {}
        self._streams: dict[tuple[int, ...], int] = {}
        self._produced: dict[int, Wait] = {}
        self._batch: list[bool] | None = None

    # --- what is issued ---------------------------------------------------------------------------

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
        size = _bytes(tensors) if bytes is None else bytes
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
        larger = args[0] if _bytes(args[0]) >= _bytes(out) else out
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
            elif len(self._received.get(key, (False, []))[1]) == tensor.numel():
                sure, sent = self._received[key]
                real = _tensor(sent, dtype=tensor.dtype).reshape(tuple(tensor.shape))
                if isinstance(tensor, FakeTensor):
                    self.values.assign(tensor, real, sure)
                else:
                    tensor.copy_(real)

    # --- stand-ins --------------------------------------------------------------------------------

    def install(self) -> None:
        """Put stand-ins in the place of process groups and of what makes them."""
        from torch._C._distributed_c10d import ProcessGroup

        self._install_groups()
        Collectives.installed = self
        of_group: Any = ProcessGroup
        for name, stand in _METHODS.items():
            setattr(of_group, name, stand)
        self._install_objects()

    def _install_groups(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        recorder, numbers = self.recorder, self._groups
        original_new = c10d._new_process_group_helper
        module: Any = c10d

        def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
            asked = (("rank", rank, recorder.rank), ("world_size", world_size, recorder.world))
            for name, value, own in asked:
                if value not in (-1, own):
                    raise InputError(
                        f"{recorder.user_line()}: init_process_group has {name}={value}, but this "
                        f"is rank {recorder.rank} of {recorder.world} (--world-size); two "
                        "processes would be the same rank, or one would be missing"
                    )
            yield FakeStore(), recorder.rank, recorder.world

        def new_helper(
            size: int, rank: Any, members: list[int], backend: Any, store: Any, name: Any,
            *args: Any, **kwargs: Any,
        ) -> Any:  # fmt: skip
            kwargs["backend_options"] = None
            kwargs["device_id"] = None
            numbers[str(name)] = recorder.group_number(members) if members else 0
            return original_new(size, rank, members, "fake", store, name, **kwargs)

        module.rendezvous = rendezvous
        module._new_process_group_helper = new_helper
        named: Any = dist
        named.is_nccl_available = lambda: True
        module.is_nccl_available = named.is_nccl_available
        named.is_torchelastic_launched = lambda: True

        original_tag = c10d._new_group_with_tag

        def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any,
                      **kwargs: Any) -> Any:  # fmt: skip
            return original_tag(ranks, timeout, None, *args, **kwargs)

        module._new_group_with_tag = new_group

    def _install_objects(self) -> None:
        """Stand-ins of what sends Python's objects: each rank takes its own for that of others."""
        replaced = self.recorder.replaced

        def noted(name: str) -> None:
            replaced[f"{name}: this rank's objects are taken for those of the others"] += 1

        def all_gather_object(found: list[Any], own: Any, group: Any = None) -> None:
            noted("all_gather_object")
            found[:] = [own] * len(found)

        def gather_object(own: Any, found: Any = None, *args: Any, **kwargs: Any) -> None:
            noted("gather_object")
            if found is not None:
                found[:] = [own] * len(found)

        def broadcast_object_list(objects: Sequence[Any], *args: Any, **kwargs: Any) -> None:
            noted("broadcast_object_list")

        def scatter_object_list(found: list[Any], objects: Any, *args: Any, **kwargs: Any) -> None:
            noted("scatter_object_list")
            if objects:
                found[0] = objects[0]

        def batch_isend_irecv(operations: Sequence[Any]) -> list[Any]:
            group = operations[0].group or c10d._get_default_group()
            device = operations[0].tensor.device
            group._start_coalescing(device)
            for each in operations:
                key = "group_dst" if each.op is c10d.isend else "group_src"
                each.op(each.tensor, group=each.group, tag=each.tag, **{key: each.group_peer})
            return [group._end_coalescing(device)]

        def monitored_barrier(*args: Any, **kwargs: Any) -> None:
            dist.barrier()

        for name, stand in {
            "all_gather_object": all_gather_object,
            "gather_object": gather_object,
            "broadcast_object_list": broadcast_object_list,
            "scatter_object_list": scatter_object_list,
            "batch_isend_irecv": batch_isend_irecv,
            "monitored_barrier": monitored_barrier,
        }.items():
            setattr(c10d, name, stand)
            setattr(dist, name, stand)


# --- methods of process groups --------------------------------------------------------------------


def _issue(operation: Operation, group: Any, tensors: Any, **how: Any) -> Handle:
    return Collectives.installed.issue(operation, group, tensors, **how)


def _options(args: Any, kwargs: Any) -> Any:
    """Arguments of a method → its options, which come last."""
    return kwargs.get("opts", args[-1] if args else None)


def _is_asynchronous(args: Any, kwargs: Any) -> bool:
    return bool(getattr(_options(args, kwargs), "asyncOp", True))


_OUT_OF_PLACE = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
"""Operations whose methods take what is written, then what is given."""


def _symmetric(operation: Operation, which: int) -> Callable[..., Handle]:
    """Operation, and which of its arguments is the largest buffer → the method."""

    def method(group: Any, *args: Any, **kwargs: Any) -> Handle:
        options = _options(args, kwargs)
        given = args[1] if operation in _OUT_OF_PLACE else args[0]
        sums = getattr(options, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM
        Collectives.installed.follow(operation, group, args[0], given, sums)
        waits = _is_asynchronous(args, kwargs)
        return _issue(operation, group, args[which], asynchronous=waits)

    return method


def _followed(operation: Operation, which: int) -> Callable[..., Handle]:
    """As `_symmetric`, of an operation whose results have values if what ranks give has."""
    issue = _symmetric(operation, which)

    def method(group: Any, *args: Any, **kwargs: Any) -> Handle:
        out = args[0]
        given = args[0] if operation is Operation.ALL_REDUCE else args[1]
        Collectives.installed.follow(operation, group, out, given, _options(args, kwargs))
        return issue(group, *args, **kwargs)

    return method


def _broadcast(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
    root = int(getattr(_options(args, kwargs), "rootRank", 0))
    Collectives.installed.follow_rank_0(group, tensors, root)
    waits = _is_asynchronous(args, kwargs)
    return _issue(Operation.BROADCAST, group, tensors, asynchronous=waits)


def _single_all_to_all(group: Any, output: Any, tensor: Any, *args: Any, **kwargs: Any) -> Handle:
    larger = max((output, tensor), key=_bytes)
    if not any(map(len, args[:2])):  # with splits of their own, values are those of others
        Collectives.installed.follow(Operation.ALL_TO_ALL, group, output, tensor)
    waits = _is_asynchronous(args, kwargs)
    return _issue(Operation.ALL_TO_ALL, group, larger, asynchronous=waits)


def _list_all_to_all(group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
    larger = max((output, tensors), key=_bytes)
    return _issue(Operation.ALL_TO_ALL, group, larger, asynchronous=True)


def _gather(group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
    size = group.size() * _bytes(tensors)
    return _issue(Operation.GATHER, group, tensors, asynchronous=True, bytes=size)


def _scatter(group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any) -> Handle:
    size = group.size() * _bytes(output)
    return _issue(Operation.SCATTER, group, output, asynchronous=True, bytes=size)


def _pair(kind: ItemKind) -> Callable[..., Handle]:
    """Send or receive → the method."""

    def method(group: Any, tensors: Any, peer: int, tag: int = 0) -> Handle:
        how: dict[str, Any] = {"kind": kind, "peer": peer}
        return _issue(Operation.SEND_RECV, group, tensors, asynchronous=True, **how)

    return method


def _barrier(group: Any, *args: Any, **kwargs: Any) -> Handle:
    handle = _issue(Operation.BARRIER, group, (), asynchronous=True, bytes=4)
    Collectives.installed.recorder.host_wait([handle._place], "barrier")
    return handle


def _start_coalescing(group: Any, device: Any) -> None:
    Collectives.installed.begin_batch()


def _end_coalescing(group: Any, device: Any) -> Handle:
    return Collectives.installed.end_batch(group)


_all_gather = _symmetric(Operation.ALL_GATHER, 0)
_reduce_scatter = _symmetric(Operation.REDUCE_SCATTER, 1)
_METHODS: dict[str, Callable[..., Any]] = {
    "allreduce": _symmetric(Operation.ALL_REDUCE, 0),
    "allreduce_coalesced": _symmetric(Operation.ALL_REDUCE, 0),
    "broadcast": _broadcast,
    "reduce": _symmetric(Operation.REDUCE, 0),
    "allgather": _all_gather,
    "_allgather_base": _all_gather,
    "all_gather_single": _all_gather,
    "allgather_coalesced": _all_gather,
    "all_gather_single_coalesced": _all_gather,
    "allgather_into_tensor_coalesced": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter_single_coalesced": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter,
    "alltoall_base": _single_all_to_all,
    "all_to_all_single": _single_all_to_all,
    "alltoall": _list_all_to_all,
    "gather": _gather,
    "gather_single": _gather,
    "scatter": _scatter,
    "send": _pair(ItemKind.SEND),
    "recv": _pair(ItemKind.RECV),
    "barrier": _barrier,
    "_start_coalescing": _start_coalescing,
    "_end_coalescing": _end_coalescing,
}
"""Those that issue communications, by their names in `torch.distributed.ProcessGroup`."""
