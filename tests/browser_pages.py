"""Made-up report pages of every kind, and a browser that opens them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import made_up_pages as pages
import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
KINDS = {
    "one": lambda: pages.pipeline(),
    "many": lambda: pages.pipeline(8, 16, ranks=8192),
    "hostile": lambda: pages.pipeline(names=pages.HOSTILE),
    "two": lambda: pages.comparison(),
    "two hostile": lambda: pages.comparison(pages.HOSTILE),
    "empty": lambda: {"title": "Nothing", "why": {"timeline": "No rows were kept."}},
}

MARKS = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium: bash run_scripts/get_browser.sh"),
    pytest.mark.timeout(300),
]
"""Of tests that open a page."""


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window, closed at the end."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield chromium
        chromium.close()


@contextmanager
def opened_page(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """The page of a file in a browser, which must say, ask for and be refused nothing."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: said.append(f"request: {request.url[:200]}"))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', e => console.error(e.violatedDirective))"
    )
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]")
    assert said.pop(0).startswith("request: file:")
    yield page
    assert [each for each in said if not each.startswith("request: data:")] == []
    context.close()


def settled(page: Any) -> None:
    """Wait until motion, typing and what is said to screen readers have come to rest."""
    page.evaluate(
        """() => new Promise((done) => setTimeout(() => requestAnimationFrame(
             () => requestAnimationFrame(() => setTimeout(done, 50))), 300))"""
    )


def fact(page: Any, term: str) -> str:
    """What the panel says of the chosen row."""
    return page.locator(f"[data-role=row] div:has(> dt:text-is('{term}')) dd").inner_text()


def title(page: Any) -> str:
    return page.locator("[data-role=row] .title").inner_text()
