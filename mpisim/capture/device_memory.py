"""Storages of the device → what the script asks of PyTorch's allocator, in host order.

A storage is allocated with the first operator that has it as a result, and given back when Python
and autograd let go of it. What holds it is told by the module that runs, or by the line of the
user's; parameters, gradients and states by the optimizer that holds them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..operators.temporaries import temporary_bytes
from .recorder import Recorder
from .recording import GATHERED, GRADIENTS, STATES, WEIGHTS

__all__ = ["DeviceMemory", "has_storage"]


class DeviceMemory:
    """The storages of the device that are there.

    Parameters
    ----------
    recorder : Recorder
    holder : callable
        Returns what to call the holder of storages that come now.
    """

    def __init__(self, recorder: Recorder, holder: Callable[[], str]) -> None:
        self.recorder, self._holder = recorder, holder
        self._known: dict[int, tuple[int, int]] = {}
        self._count = 0

    def keep(self, tensors: Iterable[Any]) -> None:
        """Record storages that are new, and later that they are given back.

        Parameters
        ----------
        tensors : iterable of torch.Tensor
        """
        for each in tensors:
            if not has_storage(each):
                continue
            storage = each.untyped_storage()
            key = storage._cdata
            if key in self._known:
                continue
            number, size = self._count, storage.nbytes()
            self._count += 1
            self._known[key] = (number, size)
            weakref.finalize(storage, self._freed, key)
            if size:
                self._changed(number, size, size, self._holder())

    def inside(self, call: Any) -> None:
        """Record what an operator allocates for itself and gives back.

        Parameters
        ----------
        call : OperatorCall
        """
        size = temporary_bytes(call)
        if size:
            number = self._count
            self._count += 1
            self._changed(number, size, size, self._holder())
            self._changed(number, 0, -size)

    def resized(self, storage: Any, size: int) -> None:
        """Record that a storage got another size, as FSDP's do.

        Parameters
        ----------
        storage : torch.UntypedStorage
        size : int
            Bytes.
        """
        found = self._known.get(storage._cdata)
        if found is None or found[1] == size:
            return
        self._known[storage._cdata] = (found[0], size)
        self._changed(found[0], size, size - found[1], GATHERED)

    def name_states(self, optimizer: Any) -> None:
        """Note which storages are an optimizer's weights, their gradients, and its states.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
        """
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._name(parameter, WEIGHTS)
                if parameter.grad is not None:
                    self._name(parameter.grad, GRADIENTS)
        for states in optimizer.state.values():
            for state in states.values() if isinstance(states, dict) else ():
                if isinstance(state, torch.Tensor):
                    self._name(state, STATES)

    def _name(self, tensor: Any, name: str) -> None:
        for part in _plain(tensor):
            if has_storage(part):
                found = self._known.get(part.untyped_storage()._cdata)
                if found is not None:
                    self.recorder.holders.setdefault(found[0], name)

    def _freed(self, key: int) -> None:
        number, size = self._known.pop(key)
        if size:
            self._changed(number, 0, -size)

    def _changed(self, number: int, size: int, more: int, holder: str = "") -> None:
        memory = self.recorder.memory
        memory.now += more
        memory.peak = max(memory.peak, memory.now)
        self.recorder.allocate(number, size, holder)


def has_storage(tensor: Any) -> bool:
    """Tensor → whether it has a storage of its own on the device.

    Parameters
    ----------
    tensor : torch.Tensor

    Returns
    -------
    bool
        False on the host, and for sparse tensors, which hold other tensors.
    """
    return tensor.device.type == "cuda" and tensor.layout is torch.strided


def _plain(tensor: Any) -> Iterator[Any]:
    """Tensor → itself, or those that it is made of, as a DTensor is."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):
                yield from _plain(part)
    else:
        yield tensor
