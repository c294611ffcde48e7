"""Operators that are made of others → the kernel that calls these, PyTorch's or a program's.

Autograd takes most of them apart before a program's operators are recorded. In inference mode, and
below autograd, they come whole; and some have a formula of their gradient, so that they always do.
An operator that a program registers (`torch.library.custom_op`) has a function of Python for a
kernel, which calls PyTorch's operators or launches kernels of Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from ..operators.table import rule_of

__all__ = ["composite_key", "registered_kernel"]

_TAKEN_APART = {"aten::linear", "aten::matmul", "aten::reshape", "aten::contiguous"}
"""Those that traces are priced by, and whose parts a capture knows better."""

_WITH_OWN_GRADIENT = {
    "aten::_euclidean_dist",
    "aten::_trilinear",
    "aten::affine_grid_generator",
    "aten::binary_cross_entropy_with_logits",
    "aten::block_diag",
    "aten::dist",
    "aten::linalg_pinv",
    "aten::soft_margin_loss",
    "aten::soft_margin_loss_backward",
}


@lru_cache(maxsize=4096)
def composite_key(func: Any) -> Any:
    """Operator → the dispatch key of its kernel that calls others; None: it has no such kernel.

    None, too, for what the table of operators knows as a whole.

    Parameters
    ----------
    func : torch._ops.OpOverload

    Returns
    -------
    torch._C.DispatchKey or None
        As ``func._op_dk`` takes it.
    """
    keys, name = torch._C.DispatchKey, func._schema.name
    if name in _WITH_OWN_GRADIENT:
        tried = [keys.CompositeExplicitAutograd, keys.CompositeExplicitAutogradNonFunctional]
    elif rule_of(name) is None or name in _TAKEN_APART:
        tried = [keys.CompositeImplicitAutograd]
    else:
        return None
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return next((key for key in tried if has(func.name(), key.name)), None)


def registered_kernel(func: Any) -> Callable[..., Any] | None:
    """Operator → the function that a program has registered for its kernel on the device.

    Parameters
    ----------
    func : torch._ops.OpOverload

    Returns
    -------
    callable or None
        None for operators of PyTorch, and for what the table of operators knows as a whole.
    """
    name = func._schema.name
    definition = OPDEFS.get(name)
    if definition is None or rule_of(name) is not None:
        return None
    kernels = definition._backend_fns
    found: Callable[..., Any] | None = kernels.get("cuda", kernels.get(None))
    return found
