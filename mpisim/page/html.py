"""Payload of a page → one HTML file that holds all it needs.

The file opens without a network, and a Content-Security-Policy makes sure of that: nothing is
loaded, and no script or style runs but the blocks written here, each known by its hash. What the
payload says stands in blocks of JSON and base64, which browsers do not run; `assets/*.js` turn it
into text, never into markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from .columns import Columns

__all__ = ["page_html"]

ASSETS = Path(__file__).with_name("assets")
STYLES = ("vendor/uPlot.min.css", "base.css", "parts.css", "timeline.css", "print.css")
LIBRARY = "vendor/uPlot.iife.min.js"
SCRIPTS = (
    "dom.js",
    "format.js",
    "data.js",
    "theme.js",
    "table.js",
    "step.js",
    "timeline_rows.js",
    "timeline_draw.js",
    "timeline_overview.js",
    "timeline_words.js",
    "timeline_tools.js",
    "timeline_input.js",
    "timeline.js",
    "path.js",
    "memory.js",
    "links.js",
    "sensitivities.js",
    "compare.js",
    "page.js",
)
"""In the order in which they use each other; together they are one function."""


def page_html(payload: dict[str, Any]) -> str:
    """Payload of a page → its HTML.

    Parameters
    ----------
    payload : dict
        Dicts, lists, texts, numbers and one-dimensional arrays of numbers. Texts may hold anything
        at all, half a surrogate pair included: they are shown as they are.

    Returns
    -------
    str
        A whole file; what is not ASCII in it comes from mpisim's own scripts and styles, so it can
        be encoded in UTF-8 whatever the payload holds.

    Raises
    ------
    TypeError
        If the payload holds anything else.
    """
    columns = Columns()
    data = json.dumps(_plain(payload, columns), ensure_ascii=True, separators=(",", ":"))
    # In a script element only "</script" and "<!--" end or change the text, in attributes quotes
    # and ampersands do; none of these is left. Backslashes escape them, since this is JSON.
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    style = "\n".join(_asset(name) for name in STYLES)
    library = _asset(LIBRARY)
    own = "\n".join(_asset(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{own}\n}})();'
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    blocks = "\n".join(
        f'<script type="application/octet-stream" data-column="{i}">{block}</script>'
        for i, block in enumerate(columns.blocks)
    )
    title = _ascii(html.escape(_visible(str(payload.get("title") or "mpisim"))[:200]))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="mpisim">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<noscript><p class="notice">This page draws itself: allow scripts for it, or use mpisim report.</p>
</noscript>
<div id="page"></div>
<script type="application/json" id="payload">{data}</script>
{blocks}
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def _plain(value: Any, columns: Columns) -> Any:
    """Part of a payload → the same for JSON: arrays moved to `columns`, null for NaN."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        begin, duration = value.get("begin"), value.get("duration")
        rows = isinstance(begin, np.ndarray) and isinstance(duration, np.ndarray)
        return {
            str(key): columns.add(each, after=duration)
            if rows and key == "begin"
            else _plain(each, columns)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, columns) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item(), columns)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OU":
            return _plain(value.tolist(), columns)
        return columns.add(value)
    raise TypeError(f"a page cannot hold {type(value).__name__} {value!r:.60}")


def _asset(name: str) -> str:
    """Name of a file in `ASSETS` → its text, which must not end the element it is put into."""
    return (ASSETS / name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    """Text of a script or style element → how a Content-Security-Policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _visible(text: str) -> str:
    """Text → the same without characters that control a terminal or the direction of writing."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _ascii(text: str) -> str:
    """Text of HTML → the same with references in place of all but ASCII."""
    return text.encode("ascii", "xmlcharrefreplace").decode()
