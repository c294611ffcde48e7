#!/usr/bin/env python3
"""README.md and docs/ → every block run, its output and figures compared, every link followed.

    python run_scripts/documents.py                   all that is not slow; exit code 1 if any fails
    python run_scripts/documents.py --slow            also what takes minutes
    python run_scripts/documents.py --list            only say what happens to each block
    python run_scripts/documents.py --refresh         write today's output into blocks of output
    python run_scripts/documents.py docs/overlap.md   only these documents

The blocks of a document run one after another in a new folder, in which ``run_scripts``, ``data``
and ``tests`` are those of the repository and ``docs`` is a copy. Blocks of ``sh`` run in bash and
end with the first command that fails, blocks of ``python`` run as a script, each with the names of
those before it in the document. All other blocks, and
what is special about a block, need comments on the lines above it:

    <!-- test: slow -->                     runs nightly: it takes minutes
    <!-- test: slow: WORDS | WORDS -->      lines with any of these do, the others always
    <!-- test: needs shared -->             reads measured data, in $SHARED
    <!-- test: not run: REASON -->
    <!-- test: setup: COMMAND -->           before the block: makes files that a reader has already
    <!-- test: file: NAME -->               the block is the content of this file
    <!-- test: keys -->                     the block is part of an experiment, and is read as such
    <!-- test: keys: TABLE -->              it is keys of this table
    <!-- test: output -->                   lines of what the block of commands before printed
    <!-- test: output: COMMAND -->          lines of what this command prints; if it has run since
                                            anything else did, it does not run again

and for a paragraph or a table

    <!-- test: figures: COMMAND => FIGURE @ WORDS; ... -->   each stands in the text below, and, as
                                            it is rounded there, in a line of the output with WORDS
    <!-- test: figures: thresholds => FIGURE = MEASURE; ... -->    the same of tests/thresholds.toml
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from document_blocks import REPOSITORY, RUN, Block, blocks, documents

__all__ = [
    "Block",
    "BlockResult",
    "Session",
    "blocks",
    "broken_links",
    "documents",
    "shared_folder",
]

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
EXPERIMENT = {
    "model": 'preset = "llama-3-8b"\nseq_len = 2048\n',
    "plan": "micro_batch = 1\nglobal_batch = 64\n",
    "cluster": 'preset = "dgx-h100"\nnodes = 1\n',
}
"""What blocks of keys leave out."""
LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


class BlockResult(NamedTuple):
    """What became of a block."""

    block: Block
    error: str
    """Empty if all is well."""
    output: str
    seconds: float
    left_out: str = ""
    """Why it did not run."""


def shared_folder() -> Path | None:
    """The folder of measured data, if there is one."""
    folder = Path(os.environ.get("MPISIM_SHARED") or REPOSITORY.parent / "shared").resolve()
    return folder if (folder / "groundtruth").is_dir() else None


# --- running ------------------------------------------------------------------------------------


class Session:
    """The blocks of one document, run in order in a folder of their own.

    Parameters
    ----------
    document : str
    slow : bool
        Run slow blocks, too.
    text : str, optional
        Of the document; by default that of its file.
    """

    def __init__(self, document: str, slow: bool = False, text: str | None = None) -> None:
        self.blocks, self.slow = blocks(document, text), slow
        self.shared = shared_folder()
        self.printed = ""
        """By the last commands that ran."""
        self._said: dict[str, str] = {}
        """What commands printed, by their text, since the last that may have changed a file."""
        self._typed: list[str] = []  # blocks of Python that ran

    def run(self) -> Iterator[BlockResult]:
        """Run all blocks → what became of each."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            for each in ("run_scripts", "data", "tests"):
                (folder / each).symlink_to(REPOSITORY / each)
            shutil.copytree(REPOSITORY / "docs", folder / "docs")
            for block in self.blocks:
                begin = time.perf_counter()
                left_out, error = self._left_out(block), ""
                if not left_out:
                    try:
                        self._run(block, folder)
                    except AssertionError as found:
                        error = str(found)
                yield BlockResult(block, error, self.printed, time.perf_counter() - begin, left_out)

    def _python(self, text: str, folder: Path) -> str:
        """Run a block of Python behind those before it, which print nothing again → its output."""
        silent = "import contextlib as _, io as __\nwith _.redirect_stdout(__.StringIO()):\n"
        before = textwrap.indent("\n".join(["pass", *self._typed]), "    ")
        printed = self._script([sys.executable, "-c", f"{silent}{before}\n{text}"], folder)
        self._typed.append(text)
        return printed

    def _left_out(self, block: Block) -> str:
        if block.action.startswith("not run"):
            return block.action
        if block.action.startswith("slow") and not self.slow:
            return "slow: runs nightly"
        if "needs shared" in block.kinds and self.shared is None:
            return "not run: no measured data; set MPISIM_SHARED"
        return ""

    def _run(self, block: Block, folder: Path) -> None:
        """Run a block; `printed` becomes what it printed.

        Raises
        ------
        AssertionError
            With what is amiss.
        """
        for kind, value in block.marks:
            if kind == "setup":
                self._said.clear()
                self._bash(value, folder)
        kinds, action = block.kinds, block.action.removeprefix("slow ").partition(", slow")[0]
        if action in ("run", "file"):
            self._said.clear()
        if action == "run":
            text = block.text if self.slow else block.quick
            if block.language == "python":
                self.printed = self._python(text, folder)
            else:
                self.printed = self._output(text, folder)
        elif action == "file":
            (folder / kinds["file"]).write_text(block.text + "\n", encoding="utf-8")
        elif action == "keys":
            _check_keys(block.text, kinds["keys"])
        elif action == "output":
            if kinds["output"]:
                self.printed = self._output(kinds["output"], folder)
            missing = [old for old, new in aligned(block.text, self.printed) if old != new]
            assert not missing, "not in the output:\n" + "\n".join(missing)
        elif action == "figures":
            for kind, value in block.marks:
                if kind == "figures":
                    self._check_figures(value, block.text, folder)
        else:
            raise AssertionError(
                f"{block.document}:{block.line}: a block of {block.language or 'no language'} "
                f"without a mark; give it a language of {', '.join(RUN)}, or a comment above it: "
                "python run_scripts/documents.py --help"
            )

    def _output(self, commands: str, folder: Path) -> str:
        """Commands → what they print; those that ran a moment ago do not run again."""
        key = commands.strip()
        if key not in self._said:
            self._said[key] = self._bash(commands, folder)
        return self._said[key]

    def _bash(self, commands: str, folder: Path) -> str:
        head = f'set -euo pipefail\nsource "{REPOSITORY}/run_scripts/env.sh"\n'
        return self._script(["bash", "-c", head + commands], folder)

    def _script(self, command: list[str], folder: Path) -> str:
        settings = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        settings |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), settings.get("PATH", "")]),
            "REPOSITORY": str(REPOSITORY),
            "SHARED": str(self.shared),
            "MPISIM_PROGRESS": "0",
        }
        done = subprocess.run(
            command, cwd=folder, env=settings, stdin=subprocess.DEVNULL, capture_output=True
        )
        output, errors = (
            each.decode(errors="replace").replace("\r\n", "\n")
            for each in (done.stdout, done.stderr)
        )
        assert done.returncode == 0, (
            f"exit code {done.returncode}\n{output[-1000:]}{errors[-2000:]}"
        )
        return output

    def _check_figures(self, mark: str, text: str, folder: Path) -> None:
        source, _, items = mark.partition(" => ")
        assert items, f"figures without ' => ': {mark}"
        table = thresholds() if source == "thresholds" else {}
        lines = [] if table else self._output(source, folder).splitlines()
        flat = " ".join(text.split())
        for item in filter(None, map(str.strip, items.split(";"))):
            figure, _, where = (part.strip() for part in item.partition(" = " if table else " @ "))
            assert figure in flat, f"{figure!r} is not in the text"
            if table:
                assert where in table, f"no measure {where!r}"
                value = table[where] * (100 if figure.endswith("%") else 1)
                found = [f"{value:.6f}"]
            else:
                chosen = [line for line in lines if where in line]
                found = NUMBER.findall("\n".join(chosen))
            assert any(_rounds_to(each, figure) for each in found), (
                f"{figure!r} is not what {source} says" + (f" of {where!r}: {found[:8]}")
            )


def thresholds() -> dict[str, float]:
    """Values of the headline errors by name, as they were when the thresholds were written."""
    import headline_errors

    return {measure.name: measure.value for measure in headline_errors.read()[1]}


def _rounds_to(number: str, figure: str) -> bool:
    """Whether a number is a figure once it is rounded to its places; signs count where given."""
    match = NUMBER.search(figure)
    assert match is not None, f"no number in {figure!r}"
    wanted = match[0].replace(",", "")
    places = len(wanted.partition(".")[2])
    value, goal = float(number.replace(",", "")), float(wanted)
    if wanted[0] not in "+-":
        value = abs(value)
    return abs(value - goal) <= 0.5 * 10.0**-places + 1e-9


def _check_keys(text: str, table: str) -> None:
    """Assert that an experiment can be read that has these tables, or keys of one table."""
    from mpisim.base.errors import MpisimError
    from mpisim.experiment import read

    given = f"[{table}]\n{text}" if table else text
    named = tomllib.loads(given)
    plan = "".join(
        f"{line}\n"
        for line in EXPERIMENT["plan"].splitlines()
        if line.partition(" ")[0] not in named.get("plan", {})
    )
    if "plan" in named and "[plan]\n" not in given:  # a sub-table of it
        given = f"[plan]\n{given}"
    given = given.replace("[plan]\n", f"[plan]\n{plan}")
    missing = [f"[{name}]\n{keys}" for name, keys in EXPERIMENT.items() if name not in named]
    try:
        read("\n".join([given, *missing]), "block")
    except MpisimError as error:
        raise AssertionError(str(error)) from error


def aligned(block: str, output: str) -> list[tuple[str, str]]:
    """Lines of a block → each beside the line of the output, in order, that it is or is most like.

    Blanks count as one. A line that ends in ``…`` stands for all that begin like it; one that is
    nothing else stands for lines that are left out.
    """
    lines = output.splitlines()
    found, start = [], 0
    for line in block.splitlines():
        if line.strip() in ("", "…", "..."):
            found.append((line, line))
            continue
        same = [i for i in range(start, len(lines)) if _equal(line, lines[i])]
        if same:
            found.append((line, line))
            start = same[0] + 1
            continue
        masked = [(_likeness(line, lines[i]), -i) for i in range(start, len(lines))]
        likeness, index = max(masked, default=(0.0, 0))
        if likeness < 0.6:
            found.append((line, ""))
        else:
            found.append((line, lines[-index]))
            start = 1 - index
    return found


def _equal(line: str, other: str) -> bool:
    flat, full = " ".join(line.split()), " ".join(other.split())
    return full.startswith(flat[:-1].rstrip()) if flat.endswith("…") else flat == full


def _likeness(line: str, other: str) -> float:
    """Two lines → how alike they are, 0 to 1, where any number or digest is like any other."""
    masked = [re.sub(r"\b[0-9a-f]{16,}\b|\d+", "0", each) for each in (line, other)]
    return difflib.SequenceMatcher(None, *masked).ratio()


# --- links --------------------------------------------------------------------------------------


def broken_links(document: str, text: str | None = None) -> list[str]:
    """A document → its links and named files that lead nowhere, one line each."""
    if text is None:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
    here = (REPOSITORY / document).parent
    prose = re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", text)
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        file = (here / path).resolve()
        if not file.exists():
            found.append(f"{document}: ({target}): there is no such file")
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8") if path else text):
            found.append(f"{document}: ({target}): no such heading there")
    roots = "|".join(path.name for path in REPOSITORY.iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{roots})/[\w./-]*(?:/|\.py|\.toml|\.sh|\.md))`", prose):
        if not (REPOSITORY / name).exists():
            found.append(f"{document}: `{name}`: there is no such file")
    return found


def anchors(text: str) -> set[str]:
    """A document's text → the anchors of its headings, as GitHub makes them."""
    prose = re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", text)
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ +(.*?)\s*$", prose):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


# --- the command --------------------------------------------------------------------------------


def refreshed(text: str, outcomes: Iterable[BlockResult]) -> str:
    """A document's text, and what its blocks printed → the same with today's lines of output."""
    lines = text.splitlines()
    for outcome in outcomes:
        block = outcome.block
        if block.action.removeprefix("slow ") != "output" or not outcome.output:
            continue
        new = [now or old for old, now in aligned(block.text, outcome.output)]
        lines[block.line : block.line + len(new)] = new
    return "\n".join(lines) + "\n"


def _report(name: str, slow: bool, refresh: bool) -> int:
    """Run a document, print what became of its blocks → how many things are amiss."""
    outcomes, failed = [], broken_links(name)
    for outcome in Session(name, slow=slow).run():
        state = outcome.left_out or ("FAILED" if outcome.error else "ok")
        text = f"{outcome.seconds:6.1f} s  {outcome.block.name}: {state}\n"
        print(text + (f"{outcome.error}\n" if outcome.error else ""), end="", flush=True)
        failed += [outcome.error] if outcome.error else []
        outcomes.append(outcome)
    print("".join(f"{line}\n" for line in broken_links(name)), end="")
    file = REPOSITORY / name
    old = file.read_text(encoding="utf-8")
    new = refreshed(old, outcomes) if refresh else old
    if new != old:
        file.write_text(new, encoding="utf-8")
        print(f"{name}: output refreshed")
    return len(failed)


def main() -> int:
    """Run what is asked for, print what became of it → 0, or 1 if anything is amiss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("documents", metavar="DOCUMENT", nargs="*", help="such as docs/overlap.md")
    parser.add_argument("--slow", action="store_true", help="also run what takes minutes")
    parser.add_argument("--list", action="store_true", help="only say what happens to each block")
    parser.add_argument("--refresh", action="store_true", help="write today's lines of output")
    args = parser.parse_args()
    chosen = args.documents or documents()
    unknown = [name for name in chosen if name not in documents()]
    if unknown:
        parser.error(f"{unknown[0]}: no such document; there are {', '.join(documents())}")
    if args.list:
        for name in chosen:
            print("\n".join(block.name for block in blocks(name)))
        return 0
    with ThreadPoolExecutor(2) as pool:
        failed = sum(pool.map(lambda name: _report(name, args.slow, args.refresh), chosen))
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
