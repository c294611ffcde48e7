"""Modules of libraries that are run as they are installed, and changed once they are imported."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["AfterImport"]


class AfterImport(MetaPathFinder, Loader):
    """Finds one module where it is installed, runs it, and changes what it has defined.

    Parameters
    ----------
    name : str
        The module, with its packages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    @abstractmethod
    def change(self, module: Any) -> None:
        """Exchange what is in the module, which has been run."""

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
        self.change(module)

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """Return nothing: the library itself is installed."""
        return ()
