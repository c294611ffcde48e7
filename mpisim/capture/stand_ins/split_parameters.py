"""Transformer Engine's linear layers whose matrix is several parameters, one behind the other.

As ``fuse_qkv_params=False`` of ``MultiheadAttention`` has them: ``noop_cat`` of
``transformer_engine/pytorch/module/_common.py``, version 2.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .linears import LayerNormLinear, Linear

__all__ = ["INPUT_PRODUCTS"]


class _Joined(torch.autograd.Function):
    """Parameters → one tensor that they lie in, or are copied to where they do not."""

    @staticmethod
    def forward(ctx: Any, *parts: Any) -> Any:
        ctx.rows = [each.shape[0] for each in parts]
        first, end = parts[0], parts[0].storage_offset()
        for each in parts:
            storage = each.untyped_storage()._cdata
            if storage != first.untyped_storage()._cdata or each.storage_offset() != end:
                return torch.cat(parts)
            end += each.numel()
        shape = (sum(ctx.rows), *first.shape[1:])
        return first.detach().as_strided(shape, first.stride(), first.storage_offset())

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.split(grad, ctx.rows)


class _Split(torch.nn.Module):
    """Before ``Linear`` or ``LayerNormLinear``: has the matrix as several parameters.

    They lie one behind the other. `sizes` are their rows over all ranks, by name.
    """

    def __init__(self, *args: Any, sizes: Mapping[str, int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__["joined"] = {}
        for kind in ("weight", "bias"):
            whole = self._parameters.pop(kind, None)
            if whole is None:
                continue
            begin, names = 0, []
            for name, rows in sizes.items():
                part = rows * whole.shape[0] // sum(sizes.values())
                own = torch.nn.Parameter(whole.detach().narrow(0, begin, part))
                own.__dict__.update(whole.__dict__)
                self.register_parameter(f"{name}_{kind}", own)
                names.append(f"{name}_{kind}")
                begin += part
            self.joined[kind] = names

    def _whole(self, kind: str) -> Any:
        names = self.__dict__.get("joined", {}).get(kind)
        if names is None:
            raise AttributeError(kind)  # as modules find their parameters and buffers
        return _Joined.apply(*(getattr(self, name) for name in names))

    @property
    def weight(self) -> Any:
        """Return the matrix."""
        return self._whole("weight")

    @property
    def bias(self) -> Any:
        """Return the bias."""
        return self._whole("bias")


class _SplitLinear(_Split, Linear):
    """``Linear`` of several parameters."""


class _SplitLayerNormLinear(_Split, LayerNormLinear):
    """``LayerNormLinear`` of several parameters."""


_SplitLinear.__name__ = "Linear"  # as recordings name modules
_SplitLayerNormLinear.__name__ = "LayerNormLinear"

INPUT_PRODUCTS: dict[tuple[bool, bool], Any] = {
    (False, True): Linear,
    (False, False): _SplitLinear,
    (True, True): LayerNormLinear,
    (True, False): _SplitLayerNormLinear,
}
"""Norm before it, weights in one parameter → Transformer Engine's linear of q, k and v."""
