"""What a report page is made of: packed columns, texts that cannot escape, colours, the library."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made_up_pages as pages
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.page.columns import Columns
from mpisim.page.html import ASSETS, LIBRARY, SCRIPTS, STYLES, page_html


def unpacked(note: Any, blocks: list[str]) -> np.ndarray:
    """What stands in a column's place → its values, but for `delta: after`; as data.js does it."""
    if isinstance(note, list):
        return np.array(note)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(blocks[note["$column"]])), np.uint8)
    planes = planes.reshape(note["planes"], note["count"])
    if note["type"] in ("f4", "f8"):
        return np.ascontiguousarray(planes.T).view(f"<{note['type']}").ravel()
    values = [
        sum(int(plane[i]) << 8 * p for p, plane in enumerate(planes)) for i in range(note["count"])
    ]
    if note.get("signed"):
        values = [-(value + 1) // 2 if value % 2 else value // 2 for value in values]
    if note.get("delta") == "before":
        values = list(itertools.accumulate(values))
    return np.array(values, dtype=np.int64)


integers = st.one_of(
    st.integers(-(2**53), 2**53), st.integers(-300, 300), st.sampled_from((0, 127, 128, 255, 256))
)


@settings(max_examples=60)
@given(st.lists(integers, max_size=130), st.sampled_from((np.int64, np.int32, np.uint8, np.bool_)))
def test_whole_numbers_come_back(values, dtype):
    numbers = np.array(values, dtype=np.int64).astype(dtype)
    columns = Columns()
    note = columns.add(numbers)
    assert unpacked(note, columns.blocks).tolist() == numbers.astype(np.int64).tolist()


@settings(max_examples=40)
@given(st.lists(st.floats(width=32), max_size=120), st.sampled_from((np.float32, np.float64)))
def test_floats_come_back(values, dtype):
    numbers = np.array(values, dtype=dtype)
    columns = Columns()
    back = unpacked(columns.add(numbers), columns.blocks)
    if len(values) > 48:
        np.testing.assert_array_equal(back, numbers)
    else:
        finite = np.isfinite(numbers)
        assert [each for each in back if each is not None] == numbers[finite].tolist()


def test_begins_are_distances_from_the_row_before():
    duration = np.arange(100, 200)
    begin = np.concatenate([[7], 7 + np.cumsum(duration + 3)[:-1]])
    columns = Columns()
    note = columns.add(begin, after=duration)
    assert note["delta"] == "after"
    assert unpacked(note, columns.blocks).tolist() == [7, *[3] * 99]


def test_what_is_no_column_is_refused():
    with pytest.raises(TypeError, match="lists of numbers"):
        Columns().add(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="cannot hold set"):
        page_html({"title": {1, 2}})


def test_half_a_million_rows_take_less_than_five_megabytes():
    payload = pages.pipeline(16, 64, 40, ranks=8192)
    assert len(payload["timeline"]["rows"]["begin"]) > 490_000
    assert len(page_html(payload).encode()) < 5e6


class Blocks(HTMLParser):
    """Elements of a page that run, style or hold data, as a browser separates them."""

    CDATA_CONTENT_ELEMENTS = ("script", "style")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in self.CDATA_CONTENT_ELEMENTS:
            self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data):
        if self.found and self.cdata_elem:
            tag, attrs, text = self.found[-1]
            self.found[-1] = (tag, attrs, text + data)


@pytest.mark.parametrize("names", [(), pages.HOSTILE], ids=["plain", "hostile"])
@pytest.mark.parametrize("make", [pages.pipeline, pages.comparison])
def test_only_what_the_policy_names_runs(make, names):
    page = page_html(make(names=names))
    page.encode()  # whatever the names hold
    blocks = Blocks(page)
    policy = next(a["content"] for t, a in blocks.tags if a.get("http-equiv") and t == "meta")
    rules = dict(each.split(" ", 1) for each in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in policy
    for element, key in (("script", "script-src"), ("style", "style-src")):
        sums = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            for tag, attrs, text in blocks.found
            if tag == element
            and "json" not in (kind := attrs.get("type", ""))
            and "octet" not in kind
        ]
        assert [f"'sha256-{each}'" for each in sums] == rules[key].split()
    for tag, attrs in blocks.tags:
        assert not any(name == "style" or name.startswith("on") for name in attrs), (tag, attrs)
        assert "src" not in attrs
        assert tag in [
            "html",
            "head",
            "meta",
            "title",
            "link",
            "style",
            "body",
            "noscript",
            "p",
            "div",
            "script",
        ]


def test_texts_of_the_payload_are_whole_in_the_data():
    payload = pages.pipeline(names=pages.HOSTILE)
    (data,) = (text for _, a, text in Blocks(page_html(payload)).found if a.get("id") == "payload")
    assert data.isascii()
    assert not set(data) & set("<>&")
    back = json.loads(data)
    assert back["timeline"]["names"] == payload["timeline"]["names"]
    assert back["title"] == pages.HOSTILE[0]


def test_numbers_that_json_has_not_are_null():
    page = page_html(
        {"title": "x", "headline": {"step": float("nan"), "facts": [np.float64("inf")]}}
    )
    (data,) = (text for _, a, text in Blocks(page).found if a.get("id") == "payload")
    assert json.loads(data)["headline"] == {"step": None, "facts": [None]}


def test_assets_are_those_that_are_put_together():
    there = {path.name for path in ASSETS.iterdir() if path.is_file()}
    assert there == {name for name in (*STYLES, *SCRIPTS) if "/" not in name}
    for name in (*STYLES, LIBRARY, *SCRIPTS):
        text = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(
            r"</(script|style)|<!--|@import|url\(|https?://(?!github.com/leeoniya)", text
        )
    for name in SCRIPTS:
        text = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function", text
        ), name


def test_the_library_is_the_published_one():
    """The sums in its README are of the files in the archive whose integrity stands there, too."""
    readme = (ASSETS / "vendor/README.md").read_text()
    rows = dict(re.findall(r"\| `(\S+)` \| ([0-9a-f]{64}) \|", readme))
    assert set(rows) == {p.name for p in (ASSETS / "vendor").iterdir()} - {"README.md"}
    for name, digest in rows.items():
        assert hashlib.sha256((ASSETS / "vendor" / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (ASSETS / "vendor/uPlot.LICENSE").read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_scripts_are_javascript(tmp_path):
    whole = tmp_path / "page.js"
    own = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    whole.write_text(f'(() => {{\n"use strict";\n{own}\n}})();', encoding="utf-8")
    subprocess.run(["node", "--check", whole], check=True)


# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision
# Deficiency (2009), severity 1.0; OKLab: Ottosson (2020). Both of linear sRGB.
EYES = {
    "most": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
LMS = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
TOKENS = dict(
    re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\);", (ASSETS / "base.css").read_text())
)
PHASES = ("forward", "backward", "recompute", "optimizer", "collective", "p2p", "copy", "host")


def linear(name: str, theme: int) -> np.ndarray:
    """Name of a colour → its linear sRGB, of the light theme (0) or the dark one (1)."""
    text = TOKENS[name].split(", ")[theme]
    value = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str, theme: int) -> float:
    """Names of two colours → their contrast, as WCAG 2 defines it."""
    high, low = sorted(
        (float(np.dot((0.2126, 0.7152, 0.0722), linear(each, theme))) for each in (one, other)),
        reverse=True,
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("eye", EYES)
def test_colours_of_phases_differ_to_every_eye(eye, theme):
    def seen(name: str) -> np.ndarray:
        return LAB @ np.cbrt(LMS @ np.clip(EYES[eye] @ linear(name, theme), 0, 1))

    for one, other in itertools.combinations(PHASES, 2):
        assert np.linalg.norm(seen(one) - seen(other)) > 0.085, (one, other)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_and_edges_have_the_contrast_of_wcag_aa(theme):
    for text, ground in itertools.product(
        ("ink", "soft", "accent", "bad", "good"), ("page", "surface", "sunken")
    ):
        assert contrast(text, ground, theme) >= 4.5, (text, ground)
    assert contrast("on-accent", "accent", theme) >= 4.5
    assert contrast("accent", "accent-wash", theme) >= 4.5
    for ground in ("page", "surface"):
        assert contrast("edge", ground, theme) >= 3, ground


def test_assets_are_in_wheels():
    """All of them, by the patterns of pyproject.toml and MANIFEST.in."""
    import tomllib

    repository = Path(__file__).resolve().parent.parent
    data = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = ASSETS.parent
    packed = {p for pattern in data["package-data"]["mpisim.page"] for p in folder.glob(pattern)}
    assert {p for p in ASSETS.rglob("*") if p.is_file()} == {p for p in packed if p.is_file()}
    assert "recursive-include mpisim/page/assets *" in (repository / "MANIFEST.in").read_text()
