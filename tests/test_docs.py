"""README.md and docs/: every block runs or says why not, output is today's, links lead somewhere.

``python run_scripts/documents.py --help`` says how blocks are marked; ``--refresh`` writes today's
output into them. Slow blocks run where ``MPISIM_SLOW`` is set (``run_scripts/nightly.sh``). The
documents of the tests that were chosen run side by side, two at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import documents
import pytest
from documents import Block, BlockResult, Session

SLOW = bool(os.environ.get("MPISIM_SLOW"))
BLOCKS = [block for document in documents.documents() for block in documents.blocks(document)]


@pytest.fixture(scope="module")
def became(request: pytest.FixtureRequest) -> Iterator[Callable[[Block], BlockResult]]:
    """What became of a block."""
    chosen = [
        item.callspec.params["block"].document
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_block.__name__
    ]
    with ThreadPoolExecutor(2) as pool:
        runs: dict[str, Future[list[BlockResult]]] = {
            name: pool.submit(lambda name=name: list(Session(name, slow=SLOW).run()))
            for name in dict.fromkeys(chosen)
        }

        def find(block: Block) -> BlockResult:
            outcomes = runs[block.document].result()
            return next(each for each in outcomes if each.block.line == block.line)

        yield find


@pytest.mark.timeout(7200 if SLOW else 600)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_block(block: Block, became: Callable[[Block], BlockResult]) -> None:
    outcome = became(block)
    if outcome.left_out:
        pytest.skip(outcome.left_out)
    assert outcome.error == ""


@pytest.mark.parametrize("document", documents.documents())
def test_links_and_files_exist(document: str) -> None:
    assert documents.broken_links(document) == []


def test_the_index_has_every_page() -> None:
    index = (documents.REPOSITORY / "docs/README.md").read_text(encoding="utf-8")
    pages = [name for name in documents.documents() if name.startswith("docs/")]
    missing = [name for name in pages if f"({name.removeprefix('docs/')})" not in index]
    assert missing == ["docs/README.md"]


# --- the checks themselves ----------------------------------------------------------------------


def run(text: str, slow: bool = False) -> list[BlockResult]:
    """Run a document of this text."""
    return list(Session("README.md", slow=slow, text=text).run())


def fenced(body: str, language: str = "sh", *marks: str) -> str:
    return "".join(f"<!-- test: {mark} -->\n" for mark in marks) + f"```{language}\n{body}\n```\n\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (fenced("true"), ""),
        (fenced("echo said; false; true"), "exit code 1\nsaid"),
        (fenced("true | false"), "exit code 1"),
        (fenced("import mpisim", "python"), ""),
        (fenced("1 / 0", "python"), "ZeroDivisionError"),
        (fenced("true", ""), "without a mark"),
        (fenced("a = 1", "toml"), "without a mark"),
        (fenced("true", "sh", "not run:  "), "without a mark"),
        (fenced("true", "sh", "skip"), "without a mark"),
        (fenced("cat made", "sh", "setup: touch made"), ""),
        (fenced("[plan]\ntp = 2", "toml", "keys"), ""),
        (fenced("[plan]\ntpp = 2", "toml", "keys"), "did you mean 'tp'"),
        (fenced('recompute = "full"', "toml", "keys: plan"), ""),
        (fenced("a 1\nb  2", "", "output: printf 'a 1\\nx\\n b 2\\n'"), ""),
        (fenced("a 1\nb 3", "", "output: printf 'a 1\\nb 2\\n'"), "not in the output:\nb 3"),
        (fenced("b 2\na 1", "", "output: printf 'a 1\\nb 2\\n'"), "not in the output:\na 1"),
        (fenced("a …\n…\nb 2", "", "output: printf 'a 1\\nb 2\\n'"), ""),
        ("<!-- test: figures: echo up 3.14159 % => 3.14 % @ up -->\nIt is 3.14 % of it.\n", ""),
        ("<!-- test: figures: echo 3.15 => 3.14 -->\nIt is 3.14 of it.\n", "'3.14' is not what"),
        ("<!-- test: figures: echo 3.14 => 3.14 -->\nIt is 3.15 of it.\n", "is not in the text"),
        ("<!-- test: figures: echo 3 => 3 @ up -->\nIt is 3.\n", "'3' is not what"),
        ("<!-- test: figures: echo -0.5 => +0.5 -->\nIt is +0.5.\n", "'+0.5' is not what"),
        ("<!-- test: figures: thresholds => 1 = nothing -->\nIt is 1.\n", "no measure 'nothing'"),
    ],
)
def test_what_fails(text: str, error: str) -> None:
    (outcome,) = run(text)
    assert error in outcome.error
    assert bool(outcome.error) == bool(error)


def test_blocks_share_a_folder_and_leave_out_what_is_slow() -> None:
    text = (
        fenced("made", "", "file: name")
        + fenced("cat name; false", "sh", "slow")
        + fenced("cat name\nfalse", "sh", "slow: false")
        + fenced("made", "", "output")
        + fenced("false", "sh", "not run: needs a GPU")
    )
    quick = run(text)
    assert [each.error for each in quick] == [""] * 5
    assert [each.left_out for each in quick] == [
        "",
        "slow: runs nightly",
        "",
        "",
        "not run: needs a GPU",
    ]
    assert [each.block.action for each in quick] == [
        "file",
        "slow run",
        "run, slow: false",
        "output",
        "not run: needs a GPU",
    ]
    assert [bool(each.error) for each in run(text, slow=True)] == [False, True, True, True, False]


def test_lines_with_any_of_the_slow_words_are_left_out() -> None:
    text = fenced("echo a b\necho c; false\nd", "sh", "slow: echo c | d") + fenced(
        "a b", "", "output"
    )
    assert [each.error for each in run(text)] == ["", ""]


def test_what_has_just_run_is_not_run_again() -> None:
    """Unless something else has run since, which may have changed what it prints."""
    count = "echo run >> runs; wc -l < runs"
    text = (
        fenced(count)
        + fenced("1", "", f"output: {count}")
        + f"<!-- test: figures: {count} => 1 -->\nThere is 1.\n\n"
        + fenced("true")
        + fenced("2", "", f"output: {count}")
        + fenced("3", "", "setup: true", f"output: {count}")
    )
    assert [each.error for each in run(text)] == [""] * 6


def test_measured_data_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPISIM_SHARED", str(tmp_path))
    (outcome,) = run(fenced("false", "sh", "needs shared"))
    assert outcome.left_out == "not run: no measured data; set MPISIM_SHARED"


def test_output_is_refreshed() -> None:
    printed = "output: echo head; echo time 2 ms; echo rate 9"
    text = "Text.\n\n" + fenced("time 1 ms\nrate 9", "", printed)
    new = documents.refreshed(text, run(text))
    assert new == text.replace("time 1 ms", "time 2 ms")


def test_links_are_followed() -> None:
    text = (
        "# A Head: it's `b_c`\n\n"
        "[a](#a-head-its-b_c) [b](docs/scale.md#many-plans) [c](https://x.y)\n"
        "[d](#nowhere) [e](docs/none.md) [f](docs/scale.md#none)\n"
        "`mpisim/none.py` `data/gpus.toml`\n"
        "```\n[g](none.md)\n```\n"
    )
    assert documents.broken_links("README.md", text) == [
        "README.md: (#nowhere): no such heading there",
        "README.md: (docs/none.md): there is no such file",
        "README.md: (docs/scale.md#none): no such heading there",
        "README.md: `mpisim/none.py`: there is no such file",
    ]
