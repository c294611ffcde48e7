"""Modules of libraries that are run as they are installed, and changed once they are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["AfterImport", "takes_no_tensor_for_traced"]


class AfterImport(MetaPathFinder, Loader):
    """Finds one module where it is installed, runs it, and changes what it has defined.

    Parameters
    ----------
    name : str
        The module, with its packages.
    change : callable
        Given the module once it has been run, replaces functions in it.
    """

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change
        self._spec: ModuleSpec | None = None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how the module is loaded; None for all others."""
        if fullname != self._name:
            return None
        self._spec = PathFinder.find_spec(fullname, path)
        if self._spec is None:
            return None
        return ModuleSpec(fullname, self, origin=self._spec.origin)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as it is, and change it."""
        assert self._spec is not None
        assert self._spec.loader is not None
        module.__file__ = self._spec.origin
        self._spec.loader.exec_module(module)
        self._change(module)

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """Return nothing: the library itself is installed."""
        return ()


def takes_no_tensor_for_traced(module: Any) -> None:
    """Have ``transformers.utils.import_utils`` find no fake tensors, where its version looks.

    It takes fake tensors for those of a graph that is traced, whose values nobody may read, and
    then gives attention a mask wherever there might be a packed or padded sequence
    (``transformers/masking_utils.py``): PyTorch has no FlashAttention with a mask. On a GPU it
    reads whether there is one, and a captured tensor answers (:mod:`mpisim.capture.values`).

    Parameters
    ----------
    module : module
        Changed in place.
    """
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda x: False
