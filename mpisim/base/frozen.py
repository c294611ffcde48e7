"""Frozen dataclasses that are quick to make: `frozen` is ``dataclass(frozen=True)`` but for that.

The standard library writes each method of a dataclass as text and compiles it: 0.4 ms a class. A
run needs almost two hundred, which was a quarter of the CPU time of a small one, in every process.
Here ``__init__`` alone is written so. The other methods take an object's values by
`operator.attrgetter`; to compare or to hash costs 0.1 to 0.2 µs more.

A class made so is a dataclass: `dataclasses.fields`, `replace`, `asdict`, defaults, factories,
inheritance and ``__post_init__`` work as ever, and methods that the class writes itself stay. What
it cannot have is ``InitVar``, ``field(init=False)`` or an order: such a class is made by
`dataclasses.dataclass`. The two kinds cannot inherit from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

__all__ = ["frozen"]

T = TypeVar("T")


@overload
def frozen(cls: type[T]) -> type[T]: ...


@overload
def frozen(*, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def frozen(cls: type[T] | None = None, *, eq: bool = True, slots: bool = False) -> Any:
    """Class with annotations → the same class, a frozen dataclass.

    Parameters
    ----------
    cls : type
    eq : bool
        Whether objects are compared and hashed by value, not by identity.
    slots : bool
        Whether objects have slots for their fields and no dictionary.

    Raises
    ------
    TypeError
        For what `dataclasses.dataclass` refuses, and for ``InitVar``.

    Examples
    --------
    >>> @frozen
    ... class Link:
    ...     name: str
    ...     rate: float = 1.0
    >>> Link("NVLink"), Link("NVLink") == Link("NVLink", 1.0)
    (Link(name='NVLink', rate=1.0), True)
    """
    if cls is None:
        return lambda given: _frozen(given, eq, slots)
    return _frozen(cls, eq, slots)


def _frozen(cls: type[T], eq: bool, slots: bool) -> type[T]:
    own = set(vars(cls))
    cls = dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    every = fields(cls)  # type: ignore[arg-type]
    arguments = tuple(each.name for each in every if not each.kw_only)
    if cls.__match_args__ != arguments:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__qualname__}: InitVar and field(init=False) need dataclass()")

    methods: dict[str, Any] = {"__setattr__": _set, "__delattr__": _delete}
    if "__init__" not in own:
        methods["__init__"] = _init(cls, every)
    if slots:
        methods["__setstate__"] = _fill
    if "__repr__" not in own:
        methods["__repr__"] = _repr([each.name for each in every if each.repr])
    if eq:
        values = _values([each.name for each in every if each.compare])
        if "__eq__" not in own:
            methods["__eq__"] = _eq(values)
        if vars(cls).get("__hash__") is None:  # Python's own, where a class writes __eq__
            methods["__hash__"] = _hash(values)
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _fill(self: object, state: tuple[None, dict[str, Any]]) -> None:
    """Take over what was pickled of an object with slots, which Python's own way would assign."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


def _init(cls: type, every: Sequence[Field[Any]]) -> Callable[..., None]:
    """Write ``__init__`` and compile it: one parameter a field, in their order."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    positional, named, lines = ["self"], ["*"], []
    for each in every:
        name = parameter = value = each.name
        if each.default_factory is not MISSING:
            known[f"_made_{name}"] = each.default_factory
            parameter = f"{name}=_missing"
            value = f"_made_{name}() if {name} is _missing else {name}"
        elif each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            parameter = f"{name}=_default_{name}"
        (named if each.kw_only else positional).append(parameter)
        lines.append(f"  _set(self,{name!r},{value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()\n")
    parameters = ",".join(positional + (named if len(named) > 1 else []))
    exec(f"def __init__({parameters}):\n{''.join(lines) or '  pass'}", known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"  # which messages about arguments name
    return init


def _values(names: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return the function that takes the values of fields from an object."""
    if len(names) > 1:
        return attrgetter(*names)
    # Of one name it returns the value alone; and two that are not equal to themselves, as NaN,
    # are equal in tuples.
    return lambda self: tuple(getattr(self, name) for name in names)


def _eq(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object, object], bool]:
    def equal(self: object, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _hash(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object], int]:
    return lambda self: hash(values(self))


def _repr(names: Sequence[str]) -> Callable[[object], str]:
    @recursive_repr()
    def shown(self: object) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({', '.join(values)})"

    return shown
