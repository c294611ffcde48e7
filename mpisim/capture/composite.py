"""Operators that are made of others → the kernel of PyTorch that calls these.

Autograd takes most of them apart before a program's operators are recorded. In inference mode, and
below autograd, they come whole; and some have a formula of their gradient, so that they always do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..operators.table import rule_of

__all__ = ["composite_key"]

_TAKEN_APART = {"aten::linear", "aten::matmul", "aten::reshape", "aten::contiguous"}
"""Those that traces are priced by, and whose parts a capture knows better."""

_WITH_OWN_GRADIENT = {
    "aten::_euclidean_dist",
    "aten::_trilinear",
    "aten::affine_grid_generator",
    "aten::block_diag",
    "aten::dist",
    "aten::linalg_pinv",
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
