"""Strict reading of TOML into frozen dataclasses; `mpisim.base.toml` writes it.

The dataclass is the schema: its fields are the keys, their types the values allowed, fields without
a default are required. Numbers get `Limits`, and texts an `Example`, by ``Annotated``; what spans
several keys is checked by the dataclass itself, in ``__post_init__``, which raises
:class:`~mpisim.base.errors.InputError`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from .errors import InputError, one_of
from .frozen import frozen
from .text import shortened

__all__ = [
    "Example",
    "Limits",
    "build",
    "check_value",
    "defaults",
    "field_of",
    "number_of",
    "parse",
]

T = TypeVar("T")

SUFFIXES: Mapping[str, int] = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Of numbers that are counted: thousands, millions, billions, trillions."""

_NUMBER = re.compile(
    r"\s*((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?)\s*([KMBTkmbt]?)\s*"
)
"""A number, whose thousands may be marked, and one of `SUFFIXES`."""

_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a text in quotes",
    bool: "true or false",
}


@frozen
class Limits:
    """The values a number may have: from `least` to `most`.

    A number that is `counted` may be a text with one of `SUFFIXES`: tokens, as ``"1.5T"``.

    Examples
    --------
    >>> Share = Annotated[float, Limits(least=0, most=1)]
    >>> Limits(least=0, most=1).hold(0.5)
    True
    >>> str(Limits(least=1))
    ', 1 or more'
    """

    least: float
    most: float = math.inf
    counted: bool = False

    def __str__(self) -> str:
        allowed = f", {self.least} or more"
        if self.most != math.inf:
            allowed = f" from {self.least} to {self.most}"
        return f'{allowed}, as 2e6 or "2M" ({", ".join(SUFFIXES)})' if self.counted else allowed

    def hold(self, value: float) -> bool:
        """Whether a value is within the limits."""
        return self.least <= value <= self.most


@frozen
class Example:
    """Example of a text in a fixed form, for messages: ``Annotated[str, Example(…)]``.

    Examples
    --------
    >>> str(Example("400 Gb/s"))
    ', as "400 Gb/s"'
    """

    text: str

    def __str__(self) -> str:
        return f', as "{self.text}"'


def number_of(text: str) -> float | None:
    """Text as ``"1.5T"`` → the number; None of what is no number with at most one of `SUFFIXES`.

    Parameters
    ----------
    text : str

    Examples
    --------
    >>> number_of("1.5T"), number_of("300 b"), number_of("12 apples")
    (1500000000000.0, 300000000000.0, None)
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    from decimal import Decimal  # 1.1T is 1100000000000, to the last digit

    number = Decimal(found[1].replace("_", "").replace(",", ""))
    return float(number * SUFFIXES[found[2].upper()] if found[2] else number)


def parse(text: str, source: str) -> dict[str, Any]:
    """Parse TOML.

    Parameters
    ----------
    text : str
    source : str
        The name of the file, for messages.

    Raises
    ------
    InputError
        If it is not TOML, naming the line.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InputError(f"{source}: not valid TOML: {error}{_line_of(error, text)}") from error


def _line_of(error: Exception, text: str) -> str:
    """Return the line that an error of TOML is about."""
    found = re.search(r"at line (\d+)", str(error))
    line = text.split("\n")[int(found[1]) - 1].strip() if found else ""
    return f", which reads {shortened(line, 60)!r}" if line else ""


def build(
    cls: type[T],
    values: Mapping[str, Any],
    source: str,
    path: str = "",
    listed: str = "",
    built: Mapping[str, Any] | None = None,
) -> T:
    """Build a dataclass from a parsed TOML table.

    Parameters
    ----------
    cls : type
        A dataclass, of which messages show the ``EXAMPLE``, if it has one. Its fields have the
        types int, float, str or bool, one of these with `Limits` or an `Example` (``Annotated``),
        a choice of texts (``Literal``), ``tuple[T, ...]``, ``T | tuple[T, ...]``,
        ``dict[str, T]``, such a dataclass, or any of these ``| None`` (whose default is None: TOML
        has no null).
    values : mapping
        The table.
    source : str
        The name of the file, for messages.
    path : str
        Where in the file the table stands (``"model"``), for messages.
    listed : str
        Where a user finds all keys, for messages.
    built : mapping, optional
        Fields that are not in the table, as they are.

    Returns
    -------
    object
        An instance of `cls`.

    Raises
    ------
    InputError
        For an unknown key (with the nearest valid one), a missing key, a wrong type, a value
        outside its limits, or a combination that the dataclass refuses. The message names the
        file and the key.
    """
    fields = _fields(cls)  # type: ignore[arg-type]
    where = f"in [{path}]" if path else "at the top level"
    for key in values:
        if key not in fields:
            raise InputError(f"{source}: unknown key {key!r} {where}{one_of(key, fields, listed)}")
    arguments = dict(built or {})
    for key, (check, optional) in fields.items():
        full = f"{path}.{key}" if path else key
        if key in values:
            arguments[key] = check(values[key], source, full)
        elif not optional and key not in arguments:
            raise InputError(f"{source}: key {full!r} is missing")
    try:
        return cls(**arguments)
    except InputError as error:
        prefix = f"[{path}] " if path else ""
        raise InputError(f"{source}: {prefix}{error}") from error


def field_of(cls: type, key: str) -> tuple[type, dataclasses.Field[Any]] | None:
    """Dataclass, key → the dataclass that has the field, and the field; None if there is none.

    Parameters
    ----------
    cls : type
        As for `build`.
    key : str
        Of the dataclass, or of a table in it: ``"recompute.layers"``.
    """
    first, _, rest = key.partition(".")
    found = next((each for each in dataclasses.fields(cls) if each.name == first), None)
    if found is None or not rest:
        return None if found is None else (cls, found)
    inner = _without_none(_type_of(*_declared(cls, found)))
    return field_of(inner, rest) if dataclasses.is_dataclass(inner) else None  # type: ignore[arg-type]


def check_value(cls: type, key: str, value: Any, source: str, name: str) -> None:
    """Refuse a value that a field of a dataclass cannot have, whatever others are.

    Parameters
    ----------
    cls : type
        A dataclass, as for `build`.
    key : str
        As for `field_of`; one that there is not has no limits here.
    value : object
        As parsed from TOML.
    source, name : str
        The file, and what to call the key, for messages.

    Raises
    ------
    InputError
        For a wrong type, and for a value outside the field's limits.
    """
    found = field_of(cls, key)
    if found is not None:
        _fields(found[0])[found[1].name][0](value, source, name)


def _optional(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def defaults(cls: type, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the keys that a parsed TOML table leaves to their defaults, with the default values.

    Parameters
    ----------
    cls : type
        A dataclass, as for `build`.
    values : mapping
        A table that `build` has accepted.
    path : str
        Where in the file the table stands.

    Returns
    -------
    dict
        Default values by full key (``"framework.bucket"``).
    """
    found: dict[str, Any] = {}
    for field, expected in _typed_fields(cls):
        key = f"{path}.{field.name}" if path else field.name
        if field.name not in values:
            if dataclasses.is_dataclass(expected):
                found |= defaults(expected, {}, key)  # type: ignore[arg-type]
            elif field.default is dataclasses.MISSING:
                assert field.default_factory is not dataclasses.MISSING
                found[key] = field.default_factory()
            else:
                found[key] = field.default
        elif dataclasses.is_dataclass(expected):
            found |= defaults(expected, values[field.name], key)  # type: ignore[arg-type]
    return found


@cache
def _typed_fields(cls: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass, each with its type, or T where that is ``T | None``."""
    return [
        (field, _without_none(_type_of(*_declared(cls, field))))
        for field in dataclasses.fields(cls)
    ]


Check = Callable[[Any, str, str], Any]
"""(value, file, key) → value of the field's type; refuses others."""


@cache
def _fields(cls: type) -> dict[str, tuple[Check, bool]]:
    """Return of each field of a dataclass how its values are checked, and whether it is optional.

    Kept, since types take long to look into and files have many tables of one kind.
    """
    return {
        field.name: (_check_of(*_declared(cls, field)), _optional(field))
        for field in dataclasses.fields(cls)
    }


def _declared(cls: type, field: dataclasses.Field[Any]) -> tuple[str, str]:
    """Return the module that declares a field, and the text that says its type there."""
    home = next(each for each in cls.__mro__ if field.name in get_annotations(each))
    assert isinstance(field.type, str), "modules import annotations from __future__"
    return home.__module__, field.type


@cache
def _check_of(module: str, text: str) -> Check:
    """Return the function that checks values of a type."""
    return _check(_type_of(module, text))


@cache
def _type_of(module: str, text: str) -> Any:
    """Return the type that a text means in a module.

    Kept: `typing.get_type_hints` compiles the text of each field anew, and few differ.
    """
    return eval(text, vars(sys.modules[module]))


def _without_none(expected: Any) -> Any:
    """Return T of ``T | None``."""
    if get_origin(expected) in (Union, UnionType):
        kinds = [each for each in get_args(expected) if each is not NoneType]
        if len(kinds) == 1:
            return kinds[0]
    return expected


def _check(expected: Any) -> Check:
    """Return the function that checks values of a type."""
    expected = _without_none(expected)
    if get_origin(expected) in (Union, UnionType):  # one, or a list of them
        one, several = map(_check, get_args(expected))
        return partial(_one_or_list, one, several)
    if dataclasses.is_dataclass(expected):
        return partial(_table, expected)
    limits = None
    if get_origin(expected) is Annotated:
        expected, limits = get_args(expected)
    if get_origin(expected) is Literal:
        return partial(_choice, get_args(expected))
    if get_origin(expected) is tuple:
        return partial(_list, _check(get_args(expected)[0]))
    if get_origin(expected) is dict:
        return partial(_tables, _check(get_args(expected)[1]))
    return partial(_single, expected, limits)


def _table(expected: Any, found: Any, source: str, key: str) -> Any:
    if not isinstance(found, dict):
        example = getattr(expected, "EXAMPLE", f"[{key}]")
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, {example}")
    return build(expected, found, source, key)


def _choice(choices: tuple[str, ...], found: Any, source: str, key: str) -> Any:
    if not isinstance(found, str) or found not in choices:
        choice = one_of(found if isinstance(found, str) else "", choices)
        raise InputError(f"{source}: key {key!r} is {found!r}{choice}")
    return found


def _list(check: Check, found: Any, source: str, key: str) -> Any:
    if not isinstance(found, list):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a list in brackets")
    return tuple(check(each, source, f"{key}[{i}]") for i, each in enumerate(found))


def _one_or_list(one: Check, several: Check, found: Any, source: str, key: str) -> Any:
    return (several if isinstance(found, list) else one)(found, source, key)


def _tables(check: Check, found: Any, source: str, key: str) -> Any:
    if not isinstance(found, dict):
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    return {name: check(each, source, f"{key}.{name}") for name, each in found.items()}


def _single(
    expected: Any, limits: Limits | Example | None, found: Any, source: str, key: str
) -> Any:
    if isinstance(limits, Example):
        if not isinstance(found, str):
            raise InputError(
                f"{source}: key {key!r} is {found!r}; it must be {_WORDS[str]}{limits}"
                f"{_quoted_key(key, found)}"
            )
        return found
    if isinstance(found, str) and limits is not None and limits.counted:
        value = number_of(found)
        found = found if value is None else value
        whole = isinstance(found, float) and found.is_integer()
        found = int(found) if expected is int and whole else found
    # A bool is an int to Python, but no integer here; an integer is accepted for a float.
    accepted = type(found) is expected or (expected is float and type(found) is int)
    if accepted and expected is float:
        accepted = math.isfinite(found)
    if not accepted or (limits is not None and not limits.hold(found)):
        words = _WORDS[expected] + str(limits or "") + _meant(expected, limits, found)
        raise InputError(f"{source}: key {key!r} is {found!r}; it must be {words}")
    return expected(found)


def _quoted_key(key: str, found: Any) -> str:
    """Say how to write a name that holds points, which TOML took for tables in each other."""
    table, _, name = key.rpartition(".")
    if not table or not isinstance(found, dict):
        return ""
    while isinstance(found, dict) and len(found) == 1:
        inner, found = next(iter(found.items()))
        name = f"{name}.{inner}"
    return f"; a name with points stands in quotes: {table}.{json.dumps(name)}"


def _meant(expected: Any, limits: Limits | None, found: Any) -> str:
    """Say how to write what was probably meant by a value that is refused; or nothing."""
    if expected not in (int, float) or isinstance(found, bool):
        return ""
    value = number_of(found) if isinstance(found, str) else found
    if isinstance(found, str) and found.strip().endswith("%") and expected is float:
        percent = number_of(found.strip().rstrip("%"))
        value = None if percent is None else percent / 100
    if not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    whole = expected is float or value == int(value)
    if not whole or not (limits is None or limits.hold(value)):
        return ""
    wanted = f"{value:.15g}" if expected is float else f"{int(value)}"
    suffix = found.strip()[-1:].upper() if isinstance(found, str) else ""
    if suffix in SUFFIXES and value % 1000 == 0 and expected is int:
        power = round(math.log(SUFFIXES[suffix], 1000))
        return f"; write {wanted}, or {int(value * 1.024**power)}"
    return f"; write {wanted}"
