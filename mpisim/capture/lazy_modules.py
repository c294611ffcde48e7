"""Parameters of lazy modules (`torch.nn.LazyLinear`), whose shape the first forward pass tells.

PyTorch keeps their device and type in an empty tensor on that device, which a tensor without values
cannot stand for. Here that tensor stays on the CPU, and device and type are kept beside it until
the parameter gets its shape.
"""

from __future__ import annotations

from typing import Any

from .storages import swap

__all__ = ["install"]


def install() -> None:
    """Put stand-ins in the place of how such parameters are made, moved and given a shape."""
    import torch
    from torch.nn import parameter

    anything: Any = parameter
    for kind in (anything.UninitializedParameter, anything.UninitializedBuffer):
        kind.__new__ = _maker(kind.__new__)
    mixin: Any = anything.UninitializedTensorMixin
    materialize = mixin.materialize

    def shaped(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        device, dtype = device or self.kept_device, dtype or self.kept_dtype
        del self.kept_device, self.kept_dtype
        if torch.device(device).type != "cuda":
            materialize(self, shape, device, dtype)
            return
        value = torch.empty(shape, device=device, dtype=dtype)
        if isinstance(self, anything.UninitializedParameter):
            value = torch.nn.Parameter(value, requires_grad=self.requires_grad)
        noted = dict(vars(self))
        swap(self, value)
        vars(self).update(noted)

    mixin.materialize = shaped
    module: Any = torch.nn.Module
    apply = module._apply

    def moved(self: Any, change: Any, *args: Any, **kwargs: Any) -> Any:
        lazy = [
            (holder, name, each)
            for holder in (self._parameters, self._buffers)
            for name, each in holder.items()
            if parameter.is_lazy(each)
        ]
        for holder, name, each in lazy:
            probe = change(torch.empty(0, device=each.kept_device, dtype=each.kept_dtype))
            each.kept_device, each.kept_dtype = probe.device, probe.dtype
            holder[name] = None
        out = apply(self, change, *args, **kwargs)
        for holder, name, each in lazy:
            holder[name] = each
        return out

    module._apply = moved


def _maker(original: Any) -> Any:
    """Return how a parameter without a shape is made: on the CPU, wherever it is to be."""
    import torch

    def make(
        cls: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None, **kwargs: Any
    ) -> Any:
        kwargs["requires_grad"] = requires_grad and cls.cls_to_become is torch.nn.Parameter
        out = original(cls, device=torch.device("cpu"), dtype=dtype, **kwargs)
        out.kept_device = torch.device(device or torch.get_default_device())
        out.kept_dtype = dtype or torch.get_default_dtype()
        return out

    return make
