"""Process groups of ``torch.distributed`` → those of a job whose other ranks are not there.

Whatever backend a script asks for, a process group is PyTorch's fake one, of as many ranks as the
job is to have. Its methods record their communications (`Collectives.issue`); Python's objects go
the way of :mod:`.objects`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..base.errors import InputError
from ..base.kinds import Operation
from . import objects
from .distributed import Collectives, Handle, Later, bytes_of_tensors
from .recording import ItemKind

__all__ = ["install"]


def install(collectives: Collectives) -> None:
    """Put stand-ins in the place of process groups and of what makes them.

    Parameters
    ----------
    collectives : Collectives
        What records their communications.
    """
    from torch._C._distributed_c10d import ProcessGroup

    _install_groups(collectives)
    of_group: Any = ProcessGroup
    for name, stand in _METHODS.items():
        setattr(of_group, name, _bound(stand, collectives))
    _install_functions(collectives)
    futures: Any = torch.futures
    futures.collect_all, futures.wait_all = Later.collect_all, Later.wait_all


def _install_groups(collectives: Collectives) -> None:
    """Let every process group be a fake one whose ranks the recorder knows."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    recorder = collectives.recorder
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
        collectives.new_group(str(name), members)
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


def _install_functions(collectives: Collectives) -> None:
    """Replace functions that send Python's objects, or talk to other ranks by themselves."""

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
        **objects.stand_ins(collectives),
        "batch_isend_irecv": batch_isend_irecv,
        "monitored_barrier": monitored_barrier,
    }.items():
        setattr(c10d, name, stand)
        setattr(dist, name, stand)


# --- methods of process groups --------------------------------------------------------------------


def _bound(method: Callable[..., Any], collectives: Collectives) -> Callable[..., Any]:
    """Function of the collectives, a group and arguments → a method of groups."""

    def bound(group: Any, *args: Any, **kwargs: Any) -> Any:
        return method(collectives, group, *args, **kwargs)

    return bound


def _options(args: Any, kwargs: Any) -> Any:
    """Arguments of a method → its options, which come last."""
    return kwargs.get("opts", args[-1] if args else None)


def _is_asynchronous(args: Any, kwargs: Any) -> bool:
    return bool(getattr(_options(args, kwargs), "asyncOp", True))


_OUT_OF_PLACE = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
"""Operations whose methods take what is written, then what is given."""


def _symmetric(operation: Operation, which: int) -> Callable[..., Handle]:
    """Operation, and which of its arguments is the largest buffer → the method."""

    def method(collectives: Collectives, group: Any, *args: Any, **kwargs: Any) -> Handle:
        options = _options(args, kwargs)
        given = args[1] if operation in _OUT_OF_PLACE else args[0]
        sums = getattr(options, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM
        collectives.follow(operation, group, args[0], given, sums)
        waits = _is_asynchronous(args, kwargs)
        return collectives.issue(operation, group, args[which], asynchronous=waits)

    return method


def _broadcast(
    collectives: Collectives, group: Any, tensors: Any, *args: Any, **kwargs: Any
) -> Handle:
    root = int(getattr(_options(args, kwargs), "rootRank", 0))
    collectives.follow_rank_0(group, tensors, root)
    waits = _is_asynchronous(args, kwargs)
    return collectives.issue(Operation.BROADCAST, group, tensors, asynchronous=waits)


def _single_all_to_all(
    collectives: Collectives, group: Any, output: Any, tensor: Any, *args: Any, **kwargs: Any
) -> Handle:
    larger = max((output, tensor), key=bytes_of_tensors)
    if not any(map(len, args[:2])):  # with splits of their own, values are those of others
        collectives.follow(Operation.ALL_TO_ALL, group, output, tensor)
    waits = _is_asynchronous(args, kwargs)
    return collectives.issue(Operation.ALL_TO_ALL, group, larger, asynchronous=waits)


def _list_all_to_all(
    collectives: Collectives, group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any
) -> Handle:
    larger = max((output, tensors), key=bytes_of_tensors)
    return collectives.issue(Operation.ALL_TO_ALL, group, larger, asynchronous=True)


def _gather(
    collectives: Collectives, group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any
) -> Handle:
    size = group.size() * bytes_of_tensors(tensors)
    return collectives.issue(Operation.GATHER, group, tensors, asynchronous=True, bytes=size)


def _scatter(
    collectives: Collectives, group: Any, output: Any, tensors: Any, *args: Any, **kwargs: Any
) -> Handle:
    size = group.size() * bytes_of_tensors(output)
    return collectives.issue(Operation.SCATTER, group, output, asynchronous=True, bytes=size)


def _pair(kind: ItemKind) -> Callable[..., Handle]:
    """Send or receive → the method."""

    def method(
        collectives: Collectives, group: Any, tensors: Any, peer: int, tag: int = 0
    ) -> Handle:
        how: dict[str, Any] = {"kind": kind, "peer": peer}
        return collectives.issue(Operation.SEND_RECV, group, tensors, asynchronous=True, **how)

    return method


def _barrier(collectives: Collectives, group: Any, *args: Any, **kwargs: Any) -> Handle:
    handle = collectives.issue(Operation.BARRIER, group, (), asynchronous=True, bytes=4)
    collectives.recorder.host_wait([handle._place], "barrier")
    return handle


def _start_coalescing(collectives: Collectives, group: Any, device: Any) -> None:
    collectives.begin_batch()


def _end_coalescing(collectives: Collectives, group: Any, device: Any) -> Handle:
    return collectives.end_batch(group)


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
