"""DeepSpeed's own kernels: what its builders of operators would compile on the first use.

DeepSpeed is Python but for these (deepspeed/ops/op_builder, version 0.19): where its builders are
imported, those of fused optimizers give functions that record their kernels. Optimizers on the CPU
are run by nobody, and take no time; the copies to and from the CPU are DeepSpeed's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

from ...base.errors import InputError
from .library import Launcher
from .multi_tensor import MultiTensor

__all__ = ["NAME", "Builders"]

NAME = "deepspeed"
MODULE = "deepspeed.ops.op_builder.builder"
LINE = "DeepSpeed's fused optimizers: not built, their kernels are recorded"
ON_CPU = ("cpu_adam", "cpu_adagrad", "cpu_lion")


class Builders(MetaPathFinder, Loader):
    """Finds the module of DeepSpeed's builders, and has them build no more.

    Parameters
    ----------
    launcher : Launcher
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._kernels = MultiTensor(launcher)
        self._spec: ModuleSpec | None = None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how the module is loaded; None for all others."""
        if fullname != MODULE:
            return None
        self._spec = PathFinder.find_spec(fullname, path)
        if self._spec is None:
            return None
        return ModuleSpec(fullname, self, origin=self._spec.origin)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as it is, and exchange what loads compiled operators."""
        assert self._spec is not None
        assert self._spec.loader is not None
        module.__file__ = self._spec.origin
        self._spec.loader.exec_module(module)
        found: Any = module
        load: Callable[..., Any] = found.OpBuilder.load
        compiled, recorded = found.CUDAOpBuilder, self._recorded

        def loaded(builder: Any, verbose: bool = False) -> Any:
            made = recorded(builder.name)
            if made is not None:
                return made
            if isinstance(builder, compiled):
                raise InputError(
                    f"{self._launcher.recorder.user_line()}: DeepSpeed's operator {builder.name!r} "
                    "is not part of what stands in for its kernels in captures (docs/capture.md "
                    "says what is)"
                )
            return load(builder, verbose)

        found.OpBuilder.load = loaded

    def _recorded(self, name: str) -> Any:
        """Name of an operator → a module of functions; None for those that are not stood in for."""
        step, noted = self._kernels.step, self._launcher.recorder.replaced
        if name in ON_CPU:
            noted[f"DeepSpeed's {name}: takes the CPU no time"] = 1
            return _OnCpu()
        if name not in ("fused_adam", "fused_lion"):
            return None
        short = name.removeprefix("fused_")
        return SimpleNamespace(**{f"multi_tensor_{short}": step(short)})

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """Return nothing: DeepSpeed itself is installed."""
        return ()


class _OnCpu:
    """Functions of an optimizer on the CPU, none of which does anything."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args: 0
