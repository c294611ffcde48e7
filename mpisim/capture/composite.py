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
from torch.utils._pytree import tree_flatten

from ..base.errors import InputError, MpisimError
from ..operators.table import rule_of
from .recorder import Recorder

__all__ = ["NoShapesError", "RegisteredKernels", "composite_key"]

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


class NoShapesError(InputError):
    """Raised where PyTorch cannot tell the shapes that an operator returns without a GPU."""


class RegisteredKernels:
    """Run operators of a program as the functions of Python that it has registered for them.

    Parameters
    ----------
    recorder : Recorder
    mode : TorchDispatchMode
        Records what the functions call.
    """

    def __init__(self, recorder: Recorder, mode: Any) -> None:
        self._recorder, self._mode = recorder, mode
        self._whole: set[tuple[Any, ...]] = set()

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Operator and its arguments → what its function gives, whose operators are recorded.

        A function that reads memory, as an extension does, ends with an error. Then nothing of it
        stays recorded, and operators with arguments of these types and sizes are whole ones from
        there on: ``recorder.replaced`` says so once for each.

        Parameters
        ----------
        func : torch._ops.OpOverload
        args, kwargs
            Of the call.

        Returns
        -------
        object
            NotImplemented where there is no such function, or it does not run without a device.

        Raises
        ------
        MpisimError
            What a capture refuses, or asks of the user, within the function.
        """
        kernel = _registered(func)
        if kernel is None:
            return NotImplemented
        kinds = func._schema.name, *map(_kind, tree_flatten((args, kwargs))[0])
        if kinds in self._whole:
            return NotImplemented
        try:
            with self._recorder.attempt(), self._mode:
                return kernel(*args, **kwargs)
        except NoShapesError:
            how = "calls an operator of PyTorch that gives no shapes"
        except MpisimError:
            raise
        except Exception as error:  # whatever an extension raises, and mistakes of the script
            how = f"ended with {type(error).__name__}"
        name = func._schema.name
        self._recorder.replaced[f"{name}: its function {how}: priced by its bytes"] += 1
        self._whole.add(kinds)
        return NotImplemented


def _kind(value: Any) -> Any:
    """Argument → what decides which way a function takes, as far as is known: no values."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device.type, tuple(value.shape)
    return value if isinstance(value, bool | str | torch.dtype) else type(value)


def _registered(func: Any) -> Callable[..., Any] | None:
    """Operator → the function that a program has registered for its kernel on the device.

    None for operators of PyTorch, and for what the table of operators knows as a whole.
    """
    name = func._schema.name
    definition = _definitions().get(name)
    if definition is None or rule_of(name) is not None:
        return None
    kernels = getattr(definition, "_backend_fns", {})
    found: Callable[..., Any] | None = kernels.get("cuda", kernels.get(None))
    return found


def _definitions() -> Any:
    """Return registered operators by name: PyTorch's own list, which it may call otherwise."""
    library: Any = getattr(torch, "_library", None)
    return getattr(getattr(library, "custom_ops", None), "OPDEFS", {})
