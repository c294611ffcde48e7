"""A least-recently-used cache of limited size."""

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import mpisim
from mpisim.base.lru_cache import LruCache, kept_by_size
from mpisim.schedules import pipeline

SOURCES = Path(mpisim.__file__).parent


@given(st.lists(st.integers(1, 12), max_size=60), st.integers(1, 30))
def test_answers_are_right_and_never_take_more_than_allowed(asked: list[int], most: int) -> None:
    """The value of n is n letters, so that it takes n."""
    kept: LruCache[str] = LruCache(most, len)
    for n in asked:
        assert kept.get(n, lambda n=n: "x" * n) == "x" * n  # type: ignore[misc]
        held = [i for i in range(13) if i in kept]
        assert n in held
        assert sum(held) <= most or held == [n]


def test_what_was_asked_lately_stays() -> None:
    kept: LruCache[str] = LruCache(2)
    for n in (1, 2, 1, 3):
        kept.get(n, lambda: "x")
    assert [n for n in (1, 2, 3) if n in kept] == [1, 3]


def test_an_answer_that_is_kept_is_not_made_again() -> None:
    kept: LruCache[str] = LruCache(2, len)
    made = []
    for _ in range(3):
        kept.get("a", lambda: made.append(1) or "x")  # type: ignore[func-returns-value]
    kept.get("b", lambda: made.append(2) or "xxx")  # type: ignore[func-returns-value]
    assert made == [1, 2]
    assert len(kept) == 1  # the other had to go


def test_functions_keep_what_they_returned_by_its_size() -> None:
    made = []

    @kept_by_size(4, len)
    def letters(n: int, *, letter: str = "x") -> str:
        """So many letters."""
        made.append(n)
        return letter * n

    assert [letters(2), letters(2), letters(2, letter="y"), letters(2)] == ["xx", "xx", "yy", "xx"]
    assert [letters(3), letters(2)] == ["xxx", "xx"]
    assert made == [2, 2, 3, 2]
    assert letters.__doc__ == "So many letters."


def test_schedules_are_laid_out_once() -> None:
    assert pipeline("1f1b", 4, 16) is pipeline("1f1b", 4, 16)


def test_caches_belong_to_objects_and_functions() -> None:
    """No module has one as a variable of its own, which all of its callers would change."""
    for path in SOURCES.rglob("*.py"):
        for statement in ast.parse(path.read_bytes()).body:
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call):
                assert ast.unparse(value.func) != "LruCache", f"{path}: line {value.lineno}"
