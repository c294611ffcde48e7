"""Launches of the script's own Triton kernels → recorded kernels; nothing is compiled or run.

`triton.jit` makes a function that is compiled when it is launched, ``kernel[grid](…)``, for which
Triton asks for the device; tuned ones are timed first. Here a launch records a kernel by its name
and tensors, ``triton::NAME``, which is priced by their bytes, or by your own times of it.
Operators made of such kernels by `torch.library.triton_op` are run, so that their kernels, and what
they allocate, are recorded one by one; what `torch.compile` traces is left to PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..operators import OperatorCall
from .dispatch import Dispatch, spec_of
from .stand_ins.after_import import AfterImport

__all__ = ["install"]


def install(dispatch: Dispatch) -> None:
    """Put stand-ins in the place of launches, once Triton is imported.

    Parameters
    ----------
    dispatch : Dispatch
        Gets kernels that are launched.
    """

    def run(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        if warmup:
            return
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        name = kernel.fn.__name__
        call = OperatorCall(f"triton::{name}", tuple(map(spec_of, tensors)))
        dispatch.launched(call, name)

    def without_compiling(jit: Any) -> None:
        jit.JITFunction.run = run

    def without_tuning(module: Any) -> None:
        for tuner in (module.Autotuner, module.Heuristics):
            tuner.run = lambda self, *args, **kwargs: self.fn.run(*args, **kwargs)

    changes = {"triton.runtime.jit": without_compiling, "triton.runtime.autotuner": without_tuning}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, AfterImport(name, change))
    library: Any = torch.library
    library.wrap_triton = _launching(library.wrap_triton)
    library.triton_op = _run_inside(library.triton_op)


def _launching(original: Callable[..., Any]) -> Callable[..., Any]:
    """`wrap_triton` → one that gives the kernel itself where nothing is traced."""

    def wrap_triton(kernel: Any) -> Any:
        return original(kernel) if _is_traced() else kernel

    return wrap_triton


def _is_traced() -> bool:
    """Whether `torch.compile` or `torch.export` follows what is run."""
    keys = torch._C._TorchDispatchModeKey
    modes = (torch._C._get_dispatch_mode(each) for each in (keys.FUNCTIONAL, keys.PROXY))
    return torch.compiler.is_compiling() or any(each is not None for each in modes)


def _run_inside(original: Callable[..., Any]) -> Callable[..., Any]:
    """`triton_op` → one whose operators run their function, and so launch their kernels."""

    def triton_op(name: str, fn: Any = None, /, **how: Any) -> Any:
        def made(function: Any) -> Any:
            operator = original(name, function, **how)

            def inside(
                mode: TorchDispatchMode, func: Any, types: Any, args: Any, kwargs: Any
            ) -> Any:
                with mode:
                    return function(*args, **(kwargs or {}))

            operator.register_torch_dispatch(Dispatch, inside)
            return operator

        return made if fn is None else made(fn)

    return triton_op
