"""Norms of Apex, Transformer Engine and FlashAttention: one kernel forward, one backward.

A name of the table goes with each library: Apex's kernels go through a row twice, those of the
others once.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .library import Launcher

__all__ = ["Norms"]


class Norms:
    """Layer and RMS norms that are recorded as one library's.

    Parameters
    ----------
    launcher : Launcher
    namespace : str
        Of the operators ``layernorm_fwd``, ``rmsnorm_fwd``, ``layernorm_bwd`` and ``rmsnorm_bwd``.
    """

    def __init__(self, launcher: Launcher, namespace: str) -> None:
        self._launch, self._namespace = launcher, namespace

    def forward(self, kind: str, x: Any, weight: Any, bias: Any, dtype: Any = None) -> Any:
        """Record the kernel, and return its result, and means and deviations of rows.

        Parameters
        ----------
        kind : {"layer", "rms"}
        x, weight, bias : torch.Tensor
            The two last or None: the input is normalised over as many dimensions as they have.
        dtype : torch.dtype, optional
            Of the result.
        """
        columns = x.shape[-1] if weight is None else math.prod(weight.shape)
        rows = x.numel() // max(1, columns)
        out = self._launch.like(x, dtype)
        sums = self._launch.empty((rows * (2 if kind == "layer" else 1),), torch.float32, x.device)
        shape = list(x.shape[-1:] if weight is None else weight.shape)
        self._launch(f"{self._namespace}::{kind}norm_fwd", [x, shape, weight, bias], [out, sums])
        return out, sums

    def backward(self, kind: str, grad: Any, x: Any, weight: Any, sums: Any, bias: Any) -> Any:
        """Record the kernel, and return gradients of input, weight and bias."""
        grad = grad.contiguous()
        shape = list(x.shape[-1:] if weight is None else weight.shape)
        grads = [None if each is None else self._launch.like(each) for each in (x, weight, bias)]
        self._launch(
            f"{self._namespace}::{kind}norm_bwd",
            [x, shape, grad, weight, sums],
            [each for each in grads if each is not None],
        )
        return grads

    def apply(self, kind: str, x: Any, weight: Any = None, bias: Any = None, dtype: Any = None,
              memory_efficient: bool = False) -> Any:  # fmt: skip
        """Return a norm that has a gradient."""
        return _Norm.apply(self, kind, x, weight, bias, dtype, memory_efficient)


class _Norm(torch.autograd.Function):
    """A norm, by the kernels of one library."""

    @staticmethod
    def forward(ctx: Any, norms: Norms, kind: str, x: Any, weight: Any, bias: Any, dtype: Any,
                small: bool) -> Any:  # fmt: skip
        x = x.contiguous()
        out, sums = norms.forward(kind, x, weight, bias, dtype)
        ctx.save_for_backward(out if small else x, weight, bias, sums)
        ctx.norms, ctx.kind = norms, kind
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, bias, sums = ctx.saved_tensors
        found = ctx.norms.backward(ctx.kind, grad, x, weight, sums, bias)
        return None, None, *found, None, None
