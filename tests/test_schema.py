"""Strict reading of TOML, and quantities with error bars."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity, picoseconds
from mpisim.base.schema import Example, Limits, build, parse


@dataclass(frozen=True)
class Inner:
    count: Annotated[int, Limits(least=1)]
    share: Annotated[float, Limits(least=0, most=1)] = 0.5


@dataclass(frozen=True)
class Outer:
    inner: Inner
    name: str
    fast: bool = False

    def __post_init__(self) -> None:
        if self.fast and self.inner.count > 10:
            raise InputError("fast things are few")


def outer(text: str) -> Outer:
    return build(Outer, parse(text, "f.toml"), "f.toml")


def test_a_table_becomes_a_dataclass_with_its_defaults() -> None:
    assert outer('name = "x"\n[inner]\ncount = 3') == Outer(Inner(3, 0.5), "x", False)


def test_an_integer_is_a_number() -> None:
    share = outer('name = "x"\n[inner]\ncount = 3\nshare = 1').inner.share
    assert share == 1.0
    assert isinstance(share, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"', "f.toml: key 'inner' is missing"),
        ('name = "x"\ninner = 3', "f.toml: key 'inner' is 3; it must be a table, [inner]"),
        ("[inner]\ncount = 1", "f.toml: key 'name' is missing"),
        (
            'name = "x"\n[inner]\ncuont = 1',
            "f.toml: unknown key 'cuont' in [inner] (did you mean 'count'?); allowed: count, share",
        ),
        (
            'nmae = "x"',
            "f.toml: unknown key 'nmae' at the top level (did you mean 'name'?); "
            "allowed: inner, name, fast",
        ),
        (
            'name = "x"\n[inner]\ncount = 0',
            "f.toml: key 'inner.count' is 0; it must be an integer, 1 or more",
        ),
        (
            'name = "x"\n[inner]\ncount = 2.0',
            "f.toml: key 'inner.count' is 2.0; it must be an integer, 1 or more; write 2",
        ),
        (
            'name = "x"\n[inner]\ncount = true',
            "f.toml: key 'inner.count' is True; it must be an integer, 1 or more",
        ),
        (
            'name = "x"\n[inner]\ncount = 2\nshare = nan',
            "f.toml: key 'inner.share' is nan; it must be a number from 0 to 1",
        ),
        (
            'name = "x"\n[inner]\ncount = 2\nshare = 1.5',
            "f.toml: key 'inner.share' is 1.5; it must be a number from 0 to 1",
        ),
        (
            "name = 5\n[inner]\ncount = 2",
            "f.toml: key 'name' is 5; it must be a text in quotes",
        ),
        (
            'name = "x"\nfast = 1\n[inner]\ncount = 2',
            "f.toml: key 'fast' is 1; it must be true or false",
        ),
        ('name = "x"\nfast = true\n[inner]\ncount = 20', "f.toml: fast things are few"),
        ("name = ", "f.toml: not valid TOML: Invalid value (at end of document)"),
    ],
)
def test_bad_input_names_file_and_key(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        outer(text)
    assert str(caught.value) == message


@dataclass(frozen=True)
class Links:
    rate: Annotated[str, Example("400 Gb/s")] = "1 B/s"
    changes: dict[str, Annotated[str, Example("50 %")]] = field(default_factory=dict)
    latency: Quantity | None = None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate = 800", "key 'rate' is 800; it must be a text in quotes, as \"400 Gb/s\""),
        (
            'changes.node0.nic3 = "cut"',
            "key 'changes.node0' is {'nic3': 'cut'}; it must be a text in quotes, as \"50 %\"; a "
            'name with points stands in quotes: changes."node0.nic3"',
        ),
        (
            'latency = "3 us"',
            "key 'latency' is '3 us'; it must be a table, "
            '{ value = 400, unit = "Gb/s", error = 0.1, source = "datasheet" }',
        ),
    ],
)
def test_what_is_refused_is_shown_as_it_must_be(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(Links, parse(text, "f.toml"), "f.toml")
    assert str(caught.value) == f"f.toml: {message}"
    assert build(Links, {"rate": "2 GB/s"}, "f.toml").rate == "2 GB/s"


def test_quantities_are_converted_once() -> None:
    assert Quantity(3.35, "TB/s", 0.0, "datasheet").si == 3.35e12
    assert Quantity(7, "us", 0.3, "measured").si == pytest.approx(7e-6)


def test_a_quantity_needs_a_known_unit_and_a_source() -> None:
    with pytest.raises(InputError, match=r"unknown unit 'GB/S' \(did you mean 'GB/s'\?\)"):
        Quantity(1, "GB/S", 0.0, "datasheet")
    with pytest.raises(InputError, match="'source' is empty"):
        Quantity(1, "GB/s", 0.0, " ")


def test_seconds_are_rounded_to_picoseconds() -> None:
    assert picoseconds(5e-6) == 5_000_000
    assert picoseconds(1.4e-12) == 1


@dataclass(frozen=True)
class Part:
    size: int = 1


@dataclass(frozen=True)
class Wide:
    kind: Literal["ring", "tree"] = "ring"
    count: Annotated[int, Limits(least=1)] | None = None
    sizes: tuple[Annotated[int, Limits(least=1)], ...] = ()
    parts: dict[str, Part] = field(default_factory=dict)
    part: Part | None = None


def test_choices_lists_tables_and_what_may_be_left_out():
    assert build(Wide, {}, "f") == Wide()
    found = build(
        Wide,
        {"kind": "tree", "count": 3, "sizes": [1, 2], "parts": {"a": {"size": 4}}, "part": {}},
        "f",
    )
    assert found == Wide("tree", 3, (1, 2), {"a": Part(4)}, Part(1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "tre"}, "f: key 'kind' is 'tre' (did you mean 'tree'?); allowed: ring, tree"),
        ({"kind": 3}, "f: key 'kind' is 3; allowed: ring, tree"),
        ({"kind": []}, "f: key 'kind' is []; allowed: ring, tree"),
        ({"count": 0}, "f: key 'count' is 0; it must be an integer, 1 or more"),
        ({"sizes": 3}, "f: key 'sizes' is 3; it must be a list in brackets"),
        ({"sizes": [1, 0]}, "f: key 'sizes[1]' is 0; it must be an integer, 1 or more"),
        ({"parts": 3}, "f: key 'parts' is 3; it must be a table, [parts]"),
        (
            {"parts": {"a": {"sise": 1}}},
            "f: unknown key 'sise' in [parts.a] (did you mean 'size'?); allowed: size",
        ),
    ],
)
def test_what_is_refused_of_them(values, message):
    with pytest.raises(InputError) as error:
        build(Wide, values, "f")
    assert str(error.value) == message


@dataclass(frozen=True)
class Counted:
    tokens: Annotated[float, Limits(least=1, counted=True)] | None = None
    steps: Annotated[int, Limits(least=1, counted=True)] | None = None
    batch: Annotated[int, Limits(least=1, most=10**6)] | None = None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1T", 1e12),
        ("1.5T", 1.5e12),
        ("300 B", 300e9),
        ("20m", 20e6),
        ("1_000", 1000),
        ("1,000K", 1e6),
        ("2e3", 2000),
    ],
)
def test_what_is_counted_may_have_a_suffix(text: str, number: float) -> None:
    found = build(Counted, {"tokens": text, "steps": text}, "f")
    assert (found.tokens, found.steps) == (number, number)
    assert isinstance(found.steps, int)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # A comma may be a decimal point: neither of the two is guessed.
        (
            {"tokens": "1,5T"},
            "'1,5T'; it must be a number, 1 or more, as 2e6 or \"2M\" (K, M, B, T)",
        ),
        ({"tokens": "1P"}, "'1P'; it must be a number"),
        ({"tokens": "T"}, "'T'; it must be a number"),
        ({"steps": "1.0005K"}, "1000.5; it must be an integer"),
        ({"tokens": "0.1"}, "0.1; it must be a number"),
        # Whether K is 1000 or 1024 is not guessed either.
        ({"batch": "8K"}, "'8K'; it must be an integer from 1 to 1000000; write 8000, or 8192"),
        ({"batch": "8"}, "'8'; it must be an integer from 1 to 1000000; write 8"),
        ({"batch": 1e3}, "1000.0; it must be an integer from 1 to 1000000; write 1000"),
        ({"batch": 2.5}, "2.5; it must be an integer from 1 to 1000000"),
        ({"batch": "8M"}, "'8M'; it must be an integer from 1 to 1000000"),
        ({"batch": True}, "True; it must be an integer from 1 to 1000000"),
    ],
)
def test_what_was_meant_is_said(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as error:
        build(Counted, values, "f")
    assert said in str(error.value)
    assert said.endswith(('M" (K, M, B, T)', "number", "integer")) or str(error.value).endswith(
        said
    )
