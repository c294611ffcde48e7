"""`run_scripts/bench/speed.py`: its table, its cases, and when one is slower or differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "run_scripts" / "bench"


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module; modules beside it have the names of some of the tests' own."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import speed

    return speed


def row(speed: Any, processes: int = 1, **changes: Any) -> Any:
    whole = speed.Row(
        "gpt, 8 each", processes, 2.0, 150.5, 7, 1_000, 50.0, "aa", "2026-01-02", "toy, 2 cores"
    )
    return whole._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "an_operation", "lines"),
    [
        ({}, True, []),
        ({"seconds": 2.2, "ns_a_row": 57.0}, True, []),
        ({"seconds": 2.31}, True, ["gpt, 8 each on 1: 2 -> 2.31 s, x 1.16"]),
        ({"ns_a_row": 60.0}, True, ["gpt, 8 each on 1: 50 -> 60 ns a row, x 1.20"]),
        ({"ns_a_row": 60.0}, False, []),
        ({"seconds": 1.0, "megabytes": 9e9, "digest": "bb"}, True, []),
    ],
)
def test_what_is_slower(
    speed: Any, changes: dict[str, Any], an_operation: bool, lines: list[str]
) -> None:
    new, old = row(speed, **changes), row(speed)
    assert speed.slower(new, old, an_operation) == lines
    assert speed.slower(new, None, an_operation) == []


def test_nothing_is_slower_than_what_has_no_figure(speed: Any) -> None:
    assert speed.slower(row(speed), row(speed, ns_a_row=0.0), True) == []


def test_digests_are_compared_between_numbers_of_processes(speed: Any) -> None:
    one, two = row(speed), row(speed, processes=2)
    four = row(speed, processes=4, digest="bb")
    other = row(speed, case="another", digest="cc")
    assert speed.apart([one, two, other]) == []
    assert speed.apart([one, two, four, other]) == ["gpt, 8 each: aa on [1, 2], bb on [4]"]


def test_a_table_is_read_as_it_is_written(speed: Any, tmp_path: Path) -> None:
    rows = [row(speed), row(speed, processes=2, digest="", rounds=0)]
    assert speed.read(tmp_path / "speed.csv") == {}
    speed.write(rows, tmp_path / "speed.csv")
    assert list(speed.read(tmp_path / "speed.csv").values()) == rows


def test_cases_have_titles_of_their_own(speed: Any) -> None:
    titles = [case.title for case in speed.cases()]
    assert len(set(titles)) == len(titles)
    chosen = [(case.title, on) for case, on in speed._chosen("gpt 8192 each links on 2")]
    assert chosen == [("gpt 8192 each links", 2)]


@pytest.mark.parametrize("title", ["gpt 256 each links spine", "gpt 4096 folded default nics"])
def test_every_nic_has_a_bandwidth_of_its_own(speed: Any, title: str) -> None:
    import fnmatch
    import tomllib

    (case,) = (case for case in speed.cases() if case.title == title)
    gpus = int(title.split()[1])
    share = dict.fromkeys((f"links.node{i // 8}.nic{i % 8}->to" for i in range(gpus)), 1.0)
    for pattern, part in tomllib.loads(case.experiment)["network"]["changes"].items():
        found = fnmatch.filter(share, pattern.removesuffix(".bandwidth"))
        assert found, pattern
        for name in found:
            share[name] *= float(part.removesuffix(" %")) / 100
    assert len({round(each, 8) for each in share.values()}) == gpus
