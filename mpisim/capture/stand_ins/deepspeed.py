"""DeepSpeed's own kernels: what its builders of operators would compile on the first use.

DeepSpeed is Python but for these (deepspeed/ops/op_builder, version 0.19): where its builders are
imported, those of fused optimizers give functions that record their kernels, and those of
optimizers on the CPU functions that record what it reads and writes; the copies to and from the CPU
are DeepSpeed's own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ...base.errors import InputError
from ...workloads.offloaded_optimizer import CPU_OPTIMIZER
from ..host_work import bytes_of
from .library import Launcher
from .multi_tensor import MultiTensor

__all__ = ["BUILDERS", "NAME", "record_operators"]

NAME = "deepspeed"
BUILDERS = "deepspeed.ops.op_builder.builder"
"""The module of its builders."""

ON_CPU = ("cpu_adam", "cpu_adagrad", "cpu_lion")

launch = Launcher(
    NAME, "0.19", "DeepSpeed's fused optimizers: not built, their kernels are recorded"
)
kernels = MultiTensor(launch)


def record_operators(builders: Any) -> None:
    """Module of DeepSpeed's builders → its CUDA operators are recorded instead of compiled.

    Loading one that has no stand-in raises `InputError`.

    Parameters
    ----------
    builders : module
        `BUILDERS`; changed in place.
    """
    load: Callable[..., Any] = builders.OpBuilder.load
    compiled = builders.CUDAOpBuilder

    def loaded(builder: Any, verbose: bool = False) -> Any:
        made = _recorded(builder.name)
        if made is not None:
            return made
        if isinstance(builder, compiled):
            raise InputError(
                f"{launch.recorder.user_line()}: DeepSpeed's operator {builder.name!r} is not part "
                "of what stands in for its kernels in captures (docs/capture.md says what is)"
            )
        return load(builder, verbose)

    builders.OpBuilder.load = loaded


def _recorded(name: str) -> Any:
    """Name of an operator → a module of functions; None for those that are not stood in for."""
    if name in ON_CPU:
        return _OnCpu(name)
    if name not in ("fused_adam", "fused_lion"):
        return None
    short = name.removeprefix("fused_")
    return SimpleNamespace(**{f"multi_tensor_{short}": kernels.step(short)})


class _OnCpu:
    """Functions of an optimizer on the CPU: each step is one vectorised kernel.

    A step has parameters, their gradients and states among its arguments (csrc/adam/cpu_adam.cpp,
    csrc/adagrad/cpu_adagrad.cpp, csrc/lion/cpu_lion.cpp). Gradients, the second of them, are read;
    all others are read and written.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._step if name.endswith("_update") else lambda *args: 0

    def _step(self, *args: Any) -> int:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        size = sum(bytes_of(each) for each in tensors)
        launch.recorder.host_work(2 * size - bytes_of(tensors[1]), CPU_OPTIMIZER)
        return 0
