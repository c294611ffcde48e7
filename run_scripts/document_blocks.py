"""README.md and docs/ → their fenced blocks and figures, with the comments that mark them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["REPOSITORY", "RUN", "Block", "blocks", "documents"]

REPOSITORY = Path(__file__).resolve().parent.parent

RUN = ("sh", "bash", "python")
"""Languages of blocks that need no mark."""

MARK = re.compile(r"\s*<!-- test: (.*?)(?:: (.*?))? -->\s*$")
MARKS = ("slow", "needs shared", "not run", "setup", "file", "keys", "output", "figures")


class Block(NamedTuple):
    """A fenced block, or figures of a paragraph."""

    document: str
    line: int
    """Of the fence, from 1."""
    language: str
    text: str
    marks: tuple[tuple[str, str], ...]
    """The comments above it: kind and what follows the colon."""

    @property
    def name(self) -> str:
        """Where it is and what is done with it."""
        return f"{self.document}:{self.line} {self.action}"

    @property
    def kinds(self) -> dict[str, str]:
        """What each kind of mark says."""
        return dict(self.marks)

    @property
    def action(self) -> str:
        """What is done with it: run, slow, output, ..., or an empty text: nothing is said."""
        kinds = self.kinds
        if any(kind not in MARKS for kind in kinds):
            return ""
        if "not run" in kinds:
            return f"not run: {kinds['not run']}" if kinds["not run"] else ""
        does = next((kind for kind in ("file", "keys", "output", "figures") if kind in kinds), "")
        if not does:
            does = "run" if self.language in RUN else ""
        if not does or "slow" not in kinds:
            return does
        return f"{does}, slow: {kinds['slow']}" if kinds["slow"] else f"slow {does}"

    @property
    def quick(self) -> str:
        """The text without lines that are slow."""
        words = [each.strip() for each in self.kinds.get("slow", "").split("|")]
        slow = [each for each in words if each]
        lines = self.text.splitlines()
        return "\n".join(line for line in lines if not any(each in line for each in slow))


def documents() -> list[str]:
    """All documents, as paths in the repository."""
    return [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
    ]


def blocks(document: str, text: str | None = None) -> list[Block]:
    """A document → its blocks and figures, in order."""
    if text is None:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
    lines = text.splitlines()
    found: list[Block] = []
    marks: list[tuple[str, str]] = []
    index = 0
    while index < len(lines):
        line, start = lines[index], index
        index += 1
        if mark := MARK.match(line):
            marks.append((mark[1].strip(), (mark[2] or "").strip()))
            continue
        if line.lstrip().startswith("```"):
            while index < len(lines) and not lines[index].lstrip().startswith("```"):
                index += 1
            body = "\n".join(lines[start + 1 : index])
            index += 1
            language = line.strip().removeprefix("```")
            found.append(Block(document, start + 1, language, body, tuple(marks)))
        elif marks:
            while index < len(lines) and lines[index].strip():
                index += 1
            body = "\n".join(lines[start:index])
            found.append(Block(document, start + 1, "", body, tuple(marks)))
        marks = []
    return found
