"""Modules of ``torch.nn`` that need values or memory to run → stand-ins without either.

Batch norms over several ranks (`torch.nn.SyncBatchNorm`)
    The forward pass gathers means, deviations and counts of all ranks, and leaves out the ranks
    whose batch was empty, by a mask that the CPU waits for three times. Here every rank has
    samples, as this one has.
Lazy modules (`torch.nn.LazyLinear`)
    The first forward pass tells the shape of their parameters. PyTorch keeps device and type of
    these in an empty tensor on that device, which a tensor without values cannot stand for. Here
    that tensor stays on the CPU, and device and type are kept beside it until the parameter gets
    its shape.
"""

from __future__ import annotations

from typing import Any

from .storages import swap

__all__ = ["install"]


def install(dispatch: Any) -> None:
    """Put the stand-ins in the place of PyTorch's functions.

    Parameters
    ----------
    dispatch : Dispatch
    """
    _install_batch_norms(dispatch)
    _install_lazy_modules()


def _install_batch_norms(dispatch: Any) -> None:
    """Have masks of ranks with samples hold for every rank."""
    from torch.nn.modules import _functions as functions

    anything: Any = functions.SyncBatchNorm
    forward = anything.forward

    def of_all_ranks(ctx: Any, *args: Any) -> Any:
        with dispatch.data_dependent.masks_hold():
            return forward(ctx, *args)

    anything.forward = staticmethod(of_all_ranks)


def _install_lazy_modules() -> None:
    """Replace how parameters without a shape are made, moved and given one."""
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
