#!/usr/bin/env python3
"""The pictures at the head of README.md: a report on a terminal, and the page of a run.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/pictures.py [--report] [--page]

writes docs/report.svg (the report of `EXPERIMENT` as a terminal shows it, every text a text) and
docs/page.png (the top of its page in Chromium; needs a browser, `run_scripts/get_browser.sh`).
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = "echo-gpt3-175b-96-h800"

FONT_SIZE, LINE, ADVANCE, MARGIN = 13, 18, 7.83, 16
"""px: of the type, from line to line, of a character, and around all."""

COLOURS = {
    31: "#f47067", 32: "#57ab5a", 33: "#daaa3f", 34: "#539bf5", 35: "#b083f0", 36: "#39c5cf",
    91: "#ff938a", 92: "#6bc46d", 93: "#eac55f", 94: "#6cb6ff", 95: "#dcbdfb", 96: "#56d4dd",
}  # fmt: skip
"""Codes of ANSI colours, on a dark terminal."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_SIZE = {"width": 1280, "height": 1750}


def on_terminal(command: list[str]) -> str:
    """Command → what it prints on a terminal."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "MPISIM_PROGRESS": "0"}
    environment.pop("NO_COLOR", None)
    done = subprocess.Popen(command, stdout=its, env=environment)
    os.close(its)
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # its end is closed
            break
        if not part:
            break
        parts.append(part)
    if done.wait():
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def spans(line: str) -> Iterator[tuple[int, str, str]]:
    """Line of a terminal → (column, style, text) of every run of one style."""
    style, column = "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            code = int(part[2:-1] or 0)
            bold = ' font-weight="bold" fill="#ffffff"'
            style = bold if code == 1 else f' fill="{COLOURS[code]}"' if code in COLOURS else ""
        elif part:
            yield column, style, part
            column += len(part)


def terminal_svg(command: str, text: str) -> str:
    """Command line, what a terminal shows → SVG."""
    lines = [f"$ {command}", *text.rstrip("\n").split("\n")]
    columns = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines)
    width = round(2 * MARGIN + columns * ADVANCE)
    height = 2 * MARGIN + LINE * len(lines)
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="A report on a terminal">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>',
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" '
        f'font-size="{FONT_SIZE}" fill="#c8d1dc">',
    ]
    for number, line in enumerate(lines):
        y = MARGIN + LINE * number + FONT_SIZE
        for column, style, part in spans(line):
            if not part.strip():
                continue
            shown = escape(part.replace(" ", "\N{NO-BREAK SPACE}"))
            x = f"{MARGIN + column * ADVANCE:.1f}"
            length = f"{len(part) * ADVANCE:.1f}"
            found.append(
                f'<text x="{x}" y="{y}" textLength="{length}" lengthAdjust="spacingAndGlyphs"'
                f"{style}>{shown}</text>"
            )
    return "\n".join([*found, "</g>", "</svg>", ""])


def page_picture(page: Path, picture: Path) -> None:
    """HTML of a page → PNG of its top."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"there is no browser: none of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        shown = running.new_page(viewport=PAGE_SIZE, color_scheme="light")
        shown.goto(page.as_uri())
        shown.wait_for_timeout(3000)
        shown.screenshot(path=picture)
        running.close()


def main() -> None:
    """Make the pictures that are asked for, by default both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="the report alone")
    parser.add_argument("--page", action="store_true", help="the page alone")
    args = parser.parse_args()
    both = args.report == args.page
    mpisim = [sys.executable, "-m", "mpisim"]
    if both or args.report:
        text = on_terminal([*mpisim, "run", EXPERIMENT])
        svg = terminal_svg(f"mpisim run {EXPERIMENT}", text)
        (REPOSITORY / "docs" / "report.svg").write_text(svg)
    if both or args.page:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "run.html"
            subprocess.run([*mpisim, "run", EXPERIMENT, "--html", page], check=True)
            page_picture(page, REPOSITORY / "docs" / "page.png")


if __name__ == "__main__":
    main()
