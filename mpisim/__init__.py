"""MPI-parallel simulator of distributed deep-learning training.

The names below are the library. Importing this package loads none of them, so that a command line
that only prints its help starts at once.

``errors``
    The errors a user can mend: :class:`MpisimError` and its subclasses.
``open_results``
    Read the result of a run (an HDF5 file) as numpy arrays.
``Program``
    What every rank does: tables, bindings and communicators.
``record``
    Record a training job on real GPUs, for replay.
``sensitivity``
    How the step of an experiment answers to its hardware.
``simulate``
    Run a program and return its result.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from mpisim.base import errors
from mpisim.base.version import __version__

if TYPE_CHECKING:
    from mpisim.program import Program
    from mpisim.record import record
    from mpisim.results import open_results
    from mpisim.sensitivity import sensitivity
    from mpisim.simulate import simulate

__all__ = ["Program", "__version__", "errors", "open_results", "record", "sensitivity", "simulate"]

_HOME = {
    "Program": "mpisim.program",
    "open_results": "mpisim.results",
    "record": "mpisim.record",
    "sensitivity": "mpisim.sensitivity",
    "simulate": "mpisim.simulate",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keep ``mpisim.simulate``, ``mpisim.record`` and ``mpisim.sensitivity`` the functions.

    Importing the submodule of such a name anywhere would bind the module to it.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
