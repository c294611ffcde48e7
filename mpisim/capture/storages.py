"""Storages of tensors that have none: addresses, exchanges, sizes.

Frameworks tell tensors apart by their addresses, exchange what parameters stand for
(``parameter.data = …``), and give memory back by resizing storages. Fake tensors do none of that
by themselves.
"""

from __future__ import annotations

import copyreg
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["install", "swap"]

ALLOCATION_MULTIPLE = 512
"""Bytes to whose multiple PyTorch's caching allocator rounds a request (``kMinBlockSize``)."""


def install(recorder: Any, dispatch: Any) -> None:
    """Put stand-ins in the place of what handles storages.

    Parameters
    ----------
    recorder : Recorder
    dispatch : Dispatch
        Told of sizes.
    """
    anything: Any = torch
    anything.utils.swap_tensors = swap
    _install_data()
    _install_addresses()
    original = torch.UntypedStorage.resize_

    def resize(self: Any, size: int) -> Any:
        found = original(self, size)
        dispatch.resized(self, size)
        return found

    anything.UntypedStorage.resize_ = resize


def _install_data() -> None:
    """``tensor.data = other`` for tensors without values, on another device, too."""
    tensor: Any = torch.Tensor
    base: Any = torch._C.TensorBase
    original = base.data

    def read(self: Any) -> Any:
        return original.__get__(self)

    def write(self: Any, value: Any) -> None:
        if isinstance(self, FakeTensor) == isinstance(value, FakeTensor):
            original.__set__(self, value)
            if isinstance(self, FakeTensor):
                self.fake_device = value.fake_device
            return
        made = torch.nn.Parameter(value, requires_grad=self.requires_grad)
        kept = self.__dict__.copy()
        swap(self, made)
        self.__dict__.update(kept)

    tensor.data = property(read, write)


def _install_addresses() -> None:
    """Addresses of fake storages: each has its own, as long as it lives."""
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    original = {kind: kind.data_ptr for kind in (tensor, storage)}
    addresses: dict[int, int] = {}
    state = {"next": 1 << 40}

    def base_of(found: Any) -> int:
        if not found.nbytes():
            return 0
        key = found._cdata
        if key not in addresses:
            addresses[key] = state["next"]
            state["next"] += -(-found.nbytes() // ALLOCATION_MULTIPLE) * ALLOCATION_MULTIPLE
            weakref.finalize(found, addresses.pop, key, None)
        return addresses[key]

    def of_tensor(self: Any) -> int:
        if not isinstance(self, FakeTensor):
            return int(original[tensor](self))
        base = base_of(self.untyped_storage())
        return base + self.storage_offset() * self.element_size() if base else 0

    def of_storage(self: Any) -> int:
        if self.device.type == "meta" or getattr(self, "_fake_device", None) is not None:
            return base_of(self)
        return int(original[storage](self))

    tensor.data_ptr = of_tensor
    storage.data_ptr = of_storage


def swap(one: Any, other: Any) -> None:
    """Exchange two tensors as `torch.utils.swap_tensors` does.

    That one refuses tensors with weak references, which fake ones have.

    Parameters
    ----------
    one, other : torch.Tensor
        Changed in place: each takes the class, attributes, slots and storage of the other.
    """
    copying: Any = copyreg
    slots: list[str] = copying._slotnames(type(one))
    held = [
        {name: getattr(each, name) for name in slots if hasattr(each, name)}
        for each in (one, other)
    ]
    for name in ("__class__", "__dict__"):
        kept = getattr(one, name)
        setattr(one, name, getattr(other, name))
        setattr(other, name, kept)
    for into, values in ((one, held[1]), (other, held[0])):
        for name in slots:
            if name in values:
                setattr(into, name, values[name])
            elif hasattr(into, name):
                delattr(into, name)
    torch._C._swap_tensor_impl(one, other)
