"""Report pages in a real browser: colours, print, widths, touch and screen readers.

Skipped where there is no Chromium (run_scripts/get_browser.sh) or no playwright (the `test` extra).
"""

from __future__ import annotations

import itertools
import re

import pytest
from browser_pages import MARKS, settled

pytestmark = MARKS


def test_the_button_and_the_system_choose_the_colours(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    canvas = "document.querySelector('canvas.lanes').toDataURL()"
    with opened("one") as page:
        light, drawn = page.evaluate(ground), page.evaluate(canvas)
        page.emulate_media(color_scheme="dark")
        settled(page)
        dark = page.evaluate(ground)
        assert dark != light
        assert page.evaluate(canvas) != drawn
        page.locator("[data-action=theme]").click()
        settled(page)
        assert page.evaluate(ground) == light
        assert page.evaluate(canvas) == drawn
        page.emulate_media(color_scheme="light")
        page.locator("[data-action=theme]").click()
        assert page.evaluate(ground) == dark


def test_prints_in_light_with_the_first_rows_of_tables(opened):
    with opened("many", color_scheme="dark") as page:
        page.evaluate(
            """() => addEventListener('beforeprint', () => {
                 window.rows = document.querySelectorAll('#gpus tbody tr').length;
                 window.note = document.querySelector('#gpus .onpaper.note').textContent;
               })"""
        )
        dark = page.locator("canvas.lanes").evaluate("c => c.toDataURL()")
        paper = page.pdf()
        assert paper.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", paper)) >= 3
        assert page.evaluate("window.rows") == 50
        assert "8,192" in page.evaluate("window.note")
        settled(page)
        assert page.locator("#gpus tbody tr").count() == 20
        assert page.locator("canvas.lanes").evaluate("c => c.toDataURL()") == dark
        page.emulate_media(media="print")
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )


@pytest.mark.parametrize("kind", ["many", "hostile", "two", "two hostile"])
@pytest.mark.parametrize("width", [360, 768, 3840])
def test_no_width_scrolls_sideways(opened, kind, width):
    with opened(kind, viewport={"width": width, "height": 800}, device_scale_factor=2) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_canvases_are_as_sharp_as_the_screen(opened):
    with opened("one", device_scale_factor=3) as page:
        sizes = page.locator("canvas.lanes").evaluate("c => [c.width, c.clientWidth]")
        assert sizes[0] == 3 * sizes[1]


def test_fingers_move_and_pinch(opened):
    options = {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True}
    with opened("one", reduced_motion="reduce", **options) as page:
        canvas = page.locator("canvas.lanes")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        whole = canvas.evaluate("c => c.toDataURL()")
        touch = page.context.new_cdp_session(page)

        def fingers(kind: str, *places: float) -> None:
            points = [
                {"x": box["x"] + x, "y": box["y"] + 60, "id": i} for i, x in enumerate(places)
            ]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        fingers("touchStart", 150)
        fingers("touchStart", 150, 200)
        for apart in (40, 80, 120):
            fingers("touchMove", 150 - apart, 200 + apart)
        fingers("touchEnd")
        settled(page)
        assert canvas.evaluate("c => c.toDataURL()") != whole


def test_everything_that_is_used_has_a_name(opened):
    with opened("many") as page:
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, a, section,' +
                 'nav, [role=region], [role=img], [role=application]')].filter((element) => {
                 const id = element.getAttribute('aria-labelledby');
                 const label = element.labels?.[0]?.textContent;
                 const name = element.getAttribute('aria-label') || label || element.textContent
                   || (id && document.getElementById(id)?.textContent);
                 return !name?.trim();
               }).map((element) => element.outerHTML.slice(0, 100))"""
        )
        assert nameless == []
        assert page.locator("main").count() == 1
        assert page.locator("html").get_attribute("lang") == "en"
        headings = page.locator("h1, h2, h3")
        levels = headings.evaluate_all("all => all.map(each => Number(each.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
