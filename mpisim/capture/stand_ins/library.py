"""A library of kernels that is stood in for: its modules and version, and records of its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...base.errors import InputError
from ...base.frozen import frozen
from ..recorder import Recorder

if TYPE_CHECKING:
    from ..dispatch import Dispatch
    from ..distributed import Collectives

__all__ = ["Finder", "Launcher", "Library", "lacking"]

Contents = Mapping[str, Mapping[str, Any]]
"""Name of a module → what is in it, by name."""


class Launcher:
    """The kernels of one library: its calls → operators of the recording, and results of a shape.

    A process captures one rank, so every module that stands in for a library has its launcher as a
    constant; all of them write to the one `dispatch` of the process.

    Parameters
    ----------
    distribution, version : str
        As package managers know the library; the version is that whose API the stand-in has.
    line : str, optional
        What reports say once a kernel was recorded.

    Attributes
    ----------
    dispatch : Dispatch
        What operators are written to; set before any library is imported.
    """

    dispatch: ClassVar[Dispatch]

    def __init__(self, distribution: str, version: str, line: str = "") -> None:
        self.distribution, self.version = distribution, version
        self._line = line or (
            f"{self.title}: stood in for, its kernels are recorded as that version has them"
        )

    @property
    def title(self) -> str:
        """The library with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def recorder(self) -> Recorder:
        """The recorder that calls are written to."""
        return self.dispatch.recorder

    @property
    def collectives(self) -> Collectives:
        """The recorder of collectives and of sends and receives."""
        found: Collectives = self.dispatch.collectives
        return found

    def __call__(self, name: str, inputs: Sequence[Any], results: Sequence[Any] = ()) -> None:
        """Record a call.

        Parameters
        ----------
        name : str
            Of an operator in `mpisim.operators.table`.
        inputs : sequence
            Tensors, lists of tensors, numbers and names.
        results : sequence of torch.Tensor
            Made by `empty`.
        """
        self.note()
        self.dispatch.launch(name, inputs, results)

    def note(self) -> None:
        """Have reports say that a stand-in was used."""
        self.recorder.replaced[self._line] = 1

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: Any) -> Any:
        """Shape and type → a tensor for a result, of which nothing is recorded yet."""
        with self.dispatch.unrecorded():
            return torch.empty(tuple(shape), dtype=dtype, device=device)

    def like(self, tensor: Any, dtype: torch.dtype | None = None) -> Any:
        """Tensor → a dense one of the same shape, for a result."""
        return self.empty(tensor.shape, dtype or tensor.dtype, tensor.device)

    def keep(self, tensors: Iterable[Any]) -> None:
        """Record that tensors made by `empty` take memory, on the current stream."""
        self.dispatch.memory.keep(tensors)

    def evenly(self, what: str, chosen: Any, share: float) -> None:
        """Have reports say that tokens are taken as balanced, and follow the experts' numbers.

        Parameters
        ----------
        what : str
            What is balanced, for people.
        chosen : torch.Tensor
            Numbers of experts, -1 for none.
        share : float
            Of the numbers that are not -1.
        """
        self.recorder.values.evenly(what)
        self.dispatch.values.chosen(chosen, share)

    def refuse(self, what: str) -> InputError:
        """What a program asks for → the error that the stand-in does not have it."""
        return InputError(
            f"{self.recorder.user_line()}: {what} is not part of what stands in for {self.title} "
            "in captures (docs/capture.md says what is)"
        )


@frozen
class Library:
    """A library that is stood in for.

    Attributes
    ----------
    name : str
        Of its package, as it is imported.
    launch : Launcher
        Of its kernels.
    modules : callable
        Returns its modules, once a program imports one of them.
    absent : mapping of str to sequence of str
        What the library has besides, by module: names that are there, and cannot be used; ``*``
        stands for all. A module without names is one of which nothing is there.
    others : tuple of str
        Further packages that come with it.
    """

    name: str
    launch: Launcher
    modules: Callable[[], Contents]
    absent: Mapping[str, Sequence[str]] = field(default_factory=dict)
    others: tuple[str, ...] = ()


class _Lacking(type):
    """Type of names that a library has and its stand-in lacks: any use of them is an error."""

    refuse: Callable[[], InputError]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise cls.refuse()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # of Python itself, and of what looks at signatures
            raise AttributeError(name)
        raise cls.refuse()


def lacking(what: str, launch: Launcher) -> Any:
    """Name of what a library has and its stand-in lacks → what programs find there.

    It can be imported and be a base class, as programs do without ever using it.

    Parameters
    ----------
    what : str
        With its module.
    launch : Launcher
    """
    refuse = staticmethod(lambda: launch.refuse(what))
    return _Lacking(what.rpartition(".")[2], (), {"refuse": refuse})


class _Metadata(Distribution):
    """What package managers say of a library."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def read_text(self, filename: str) -> str | None:
        """Return a file of the metadata; None for those that are not there."""
        if filename == "METADATA":
            launch = self._library.launch
            return (
                f"Metadata-Version: 2.1\nName: {launch.distribution}\nVersion: {launch.version}\n"
            )
        if filename == "top_level.txt":
            return "\n".join((self._library.name, *self._library.others))
        return None

    def locate_file(self, path: Any) -> Any:
        """Return where a file would be."""
        return Path(self._library.name) / path


class Finder(MetaPathFinder, Loader):
    """Finds stand-ins where programs import the libraries.

    A package of the user's own that has such a name, beside the script, comes first.

    Parameters
    ----------
    libraries : iterable of Library
    own : str
        Folder of the script.
    """

    def __init__(self, libraries: Iterable[Library], own: str) -> None:
        self._libraries = {
            name: each
            for each in libraries
            for name in (each.name, *each.others)
            if not _is_there(name, own)
        }
        self._contents: dict[str, Contents] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how a module is loaded; None for those of no library."""
        library = self._libraries.get(fullname.partition(".")[0])
        if library is None:
            return None
        if fullname in self._built(library) or fullname in library.absent:
            return ModuleSpec(fullname, self, origin="mpisim", is_package=True)
        # Programs that can do without catch it; it says more than that there is no such module.
        refused = library.launch.refuse(fullname)
        raise ModuleNotFoundError(str(refused).partition(": ")[2], name=fullname)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        name = module.__name__
        library = self._libraries[name.partition(".")[0]]
        found = self._built(library).get(name, {})
        absent = library.absent.get(name, ())

        def missing(attribute: str) -> Any:
            inner = f"{name}.{attribute}"
            if inner in self._built(library) or inner in library.absent:
                return import_module(inner)
            whole = "*" in absent or not (absent or found)
            if attribute in absent or (whole and attribute[:2] != "__"):
                return lacking(f"{name}.{attribute}", library.launch)
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

        vars(module).update(found)
        if name == library.name:
            vars(module)["__version__"] = library.launch.version
        vars(module)["__getattr__"] = missing

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        """Return what package managers say of the libraries."""
        wanted = getattr(context, "name", None)
        return [
            _Metadata(each)
            for name, each in self._libraries.items()
            if name == each.name
            and (wanted is None or _plain(wanted) == _plain(each.launch.distribution))
        ]

    def _built(self, library: Library) -> Contents:
        if library.name not in self._contents:
            self._contents[library.name] = library.modules()
        return self._contents[library.name]

    def install(self) -> None:
        """Come before all others that find modules."""
        sys.meta_path.insert(0, self)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _is_there(name: str, folder: str) -> bool:
    """Whether a folder has a module of that name."""
    found = PathFinder.find_spec(name, [folder])
    return found is not None and found.origin is not None
