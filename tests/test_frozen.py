"""What `frozen` makes, beside what `dataclasses.dataclass(frozen=True)` makes of the same class."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, InitVar, asdict, dataclass, field, fields, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.frozen import frozen

REPOSITORY = Path(__file__).resolve().parent.parent

Decorator = Callable[[type], type]


def classes(decorator: Decorator) -> tuple[type, ...]:
    """Decorator of classes → classes with all that mpisim's have."""

    @decorator
    class Empty:
        """Nothing."""

    @decorator
    class One:
        """A single field."""

        value: Any

    @decorator
    class Many:
        """Defaults, factories, fields left out, a class variable."""

        shared: ClassVar[int] = 3
        a: int
        b: Any = nan
        made: list[int] = field(default_factory=list)
        unseen: int = field(default=0, repr=False)
        uncompared: int = field(default=0, compare=False)
        named: int = field(default=1, kw_only=True)

        def __post_init__(self) -> None:
            if self.a == 13:
                raise ValueError("thirteen")

    @decorator
    class Child(Many):
        """One more field, and a default replaced."""

        b: Any = 2
        more: str = "more"

    @decorator
    class Written:
        """Methods of its own."""

        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __repr__(self) -> str:
            return "written"

    @decorator
    class Hashed:
        """A hash of its own."""

        value: int

        def __hash__(self) -> int:
            return 7

    return Empty, One, Many, Child, Written, Hashed


OURS, THEIRS = classes(frozen), classes(dataclass(frozen=True))
PAIRS = pytest.mark.parametrize(
    ("ours", "theirs"), [pytest.param(*pair, id=pair[0].__name__) for pair in zip(OURS, THEIRS)]
)
NAMES = ["value", "a", "b", "made", "unseen", "uncompared", "named", "more"]


def outcome(function: Callable[[], Any]) -> Any:
    """Return what a call gives, or the error it raises, in words."""
    try:
        return function()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@PAIRS
@given(data=st.data())
def test_objects_are_like_those_of_a_dataclass(
    ours: type, theirs: type, data: st.DataObject
) -> None:
    values = st.sampled_from([0, 1, 13, nan, "text", (1, 2)])
    arguments = st.tuples(
        st.lists(values, max_size=4), st.dictionaries(st.sampled_from(NAMES), values)
    )
    first, second = data.draw(arguments), data.draw(arguments)

    def described(cls: type) -> Any:
        def made(given: Any) -> Any:
            return outcome(lambda: cls(*given[0], **given[1]))

        one, other = made(first), made(second)
        return (
            repr(one),
            repr(other),
            one == other,
            one == made(first),
            [outcome(lambda each=each: hash(each)) for each in (one, other)],
            None if isinstance(one, str) else (asdict(one), vars(one)),
        )

    assert repr(described(ours)) == repr(described(theirs))


@PAIRS
def test_classes_are_dataclasses(ours: type, theirs: type) -> None:
    kept = ("name", "type", "default", "repr", "compare", "kw_only")
    assert [[getattr(each, key) for key in kept] for each in fields(ours)] == [
        [getattr(each, key) for key in kept] for each in fields(theirs)
    ]
    assert ours.__match_args__ == theirs.__match_args__


def test_values_cannot_be_changed() -> None:
    one = OURS[1](1)
    for change in (
        lambda: setattr(one, "value", 2),
        lambda: setattr(one, "other", 2),
        lambda: delattr(one, "value"),
    ):
        with pytest.raises(FrozenInstanceError, match=r"field .(value|other)."):
            change()


def test_only_objects_of_one_class_are_equal() -> None:
    many, child = OURS[2](1), OURS[3](1)
    assert many != child
    assert many != (1,)


@frozen(eq=False)
class ByIdentity:
    value: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.value


@frozen
class Nested:
    inner: object


@frozen(slots=True)
class Slotted:
    first: int
    second: object = None


def test_objects_without_equality_are_themselves() -> None:
    one = ByIdentity(1)
    assert one == one
    assert one != ByIdentity(1)
    assert len({one, ByIdentity(1)}) == 2
    assert one.twice == 2


def test_objects_are_copied_replaced_and_sent() -> None:
    one = Nested(Nested((1, 2)))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
    assert replace(one, inner=3) == Nested(3)


def test_objects_with_slots_have_nothing_else() -> None:
    one = Slotted(1, Slotted(2))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
    assert replace(one, first=3) == Slotted(3, Slotted(2))
    assert repr(one) == "Slotted(first=1, second=Slotted(first=2, second=None))"
    assert not hasattr(one, "__dict__")
    with pytest.raises(FrozenInstanceError):
        one.first = 2  # type: ignore[misc]


def test_no_frozen_class_is_made_in_another_way() -> None:
    others = [
        f"{path.name}: {node.name}"
        for folder in ("mpisim", "kernels", "topo")
        for path in (REPOSITORY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if re.match(r"(dataclasses\.)?dataclass\(.*frozen=True", ast.unparse(decorator))
    ]
    assert others == ["program.py: Program"]  # whose argument `checked` is no field


def test_what_holds_itself_is_shown() -> None:
    inner: list[object] = []
    one = Nested(inner)
    inner.append(one)
    assert repr(one) == "Nested(inner=[...])"


def test_fields_that_are_no_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="Given: InitVar and field"):

        @frozen
        class Given:
            value: InitVar[int]

    with pytest.raises(TypeError, match="Kept: InitVar and field"):

        @frozen
        class Kept:
            value: int = field(init=False)


def test_the_two_kinds_do_not_mix() -> None:
    with pytest.raises(TypeError, match="cannot inherit frozen dataclass from a non-frozen one"):

        @dataclass(frozen=True)
        class Child(Nested):
            pass

    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @frozen
        class Other(THEIRS[1]):
            pass
