"""Report pages in a real browser: what they show, what keys and mouse do, and that nothing leaks.

Skipped where there is no Chromium (run_scripts/get_browser.sh) or no playwright (the `test` extra).
"""

from __future__ import annotations

import re
from typing import Any

import made_up_pages as pages
import numpy as np
import pytest
from browser_pages import KINDS, MARKS, fact, settled, title

from mpisim.page.html import page_html

pytestmark = MARKS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_without_errors_requests_or_violations(opened, kind, scheme):
    with opened(kind, color_scheme=scheme) as page:
        drawn = page.evaluate("performance.getEntriesByName('mpisim-drawn')[0].startTime")
        print(f"{kind}: drawn after {drawn:.0f} ms")
        assert page.locator("h1").count() == 1
        for heading in page.locator("h2").all():
            assert heading.inner_text().strip()
        canvases = page.locator("main canvas:not(.ramp)")
        for each in canvases.all():
            assert each.evaluate("c => c.width > 100 && c.height > 20")


def test_what_the_headline_and_sections_say(opened):
    payload = KINDS["one"]()
    with opened("one") as page:
        step = payload["headline"]["step"]
        assert page.locator("[data-role=step]").inner_text().replace("\n", "") == step
        assert "± 8.1 %" in page.locator(".top").inner_text()
        assert page.title() == "A pipeline"
        titles = page.locator("h2").all_inner_texts()
        assert titles == [
            "Where the step goes", "Timeline", "Critical path", "GPUs", "Memory", "Links",
            "Sensitivities", "What this rests on", "Experiment",
        ]  # fmt: skip
        assert page.locator("nav a").all_inner_texts() == titles
        assert page.locator("#experiment pre").inner_text().strip() == payload["experiment"].strip()
        shares = page.locator("#step .keys .part").all_inner_texts()
        assert sum(float(each.rstrip(" %")) for each in shares) == pytest.approx(100, abs=0.3)


def test_reasons_stand_where_a_section_is_missing(opened):
    with opened("empty") as page:
        assert "No rows were kept." in page.locator("#timeline").inner_text()


def test_parts_of_the_step_by_mouse_and_keys(opened):
    with opened("one") as page:
        strips = page.locator("#step .strip")
        assert strips.count() == 5
        heading = page.locator("#step h3")
        assert heading.inner_text().startswith("mean")
        strips.nth(2).hover()
        assert heading.inner_text().startswith("stage 1")
        page.mouse.move(5, 300)
        strips.nth(0).focus()
        page.keyboard.press("ArrowDown")
        assert heading.inner_text().startswith("stage 0")
        page.keyboard.press("ArrowRight")
        assert page.locator("#step .keys [aria-pressed=true]").inner_text().startswith("compute")


def test_double_click_zooms_to_a_kernel(opened):
    rows = KINDS["one"]()["timeline"]["rows"]
    with opened("one", reduced_motion="reduce") as page:
        canvas = page.locator("canvas.lanes")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        canvas.dblclick(position={"x": box["width"] * 0.5, "y": 42})
        settled(page)
        begin = float(fact(page, "Begin").split()[0])
        row = int(np.argmin(np.abs(rows["begin"] / 1e9 - begin) + (rows["kind"] != 0) * 1e9))
        assert title(page) == KINDS["one"]()["timeline"]["names"][rows["name"][row]]
        assert fact(page, "Begin").endswith(" ms")
        assert float(fact(page, "Duration").split()[0]) == pytest.approx(
            rows["duration"][row] / 1e6
        )
        assert fact(page, "Duration").endswith(" µs")
        assert fact(page, "Micro-batch") == str(rows["micro_batch"][row])
        assert fact(page, "Layer") == str(rows["layer"][row])
        # The kernel now fills most of the width: both ends of the canvas' middle half belong to it.
        for x in (0.4, 0.8):
            canvas.click(position={"x": box["width"] * x, "y": 42})
            assert float(fact(page, "Begin").split()[0]) == begin


def test_keys_go_from_row_to_row_and_lane_to_lane(opened):
    timeline = KINDS["one"]()["timeline"]
    rows, streams = timeline["rows"], timeline["groups"][0]["streams"]
    names = timeline["names"]
    with opened("one") as page:
        canvas = page.locator("canvas.lanes")
        canvas.focus()
        seen = []
        for _ in range(4):
            page.keyboard.press(".")
            seen.append((title(page), fact(page, "Begin")))
        assert [name for name, _ in seen] == [names[rows["name"][i]] for i in range(4)]
        page.keyboard.press(",")
        assert (title(page), fact(page, "Begin")) == seen[2]
        page.keyboard.press("Shift+ArrowRight")
        assert (title(page), fact(page, "Begin")) == seen[3]
        page.keyboard.press("ArrowDown")
        assert fact(page, "Stream") == "communication"
        page.keyboard.press("ArrowDown")
        assert "rank 1" in fact(page, "GPU")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("End")
        last = streams[1]["first"] + streams[1]["count"] - 1
        assert title(page) == names[rows["name"][last]]
        assert "moving" in page.locator("[data-role=row]").inner_text()
        page.keyboard.press("Enter")
        settled(page)
        assert title(page).casefold() in page.locator("[data-role=said]").inner_text().casefold()
        page.keyboard.press("Escape")
        assert page.locator("[data-role=row] .title").count() == 0


def test_zoom_and_pan_by_keys_wheel_and_drag(opened):
    with opened("one", reduced_motion="reduce") as page:
        canvas = page.locator("canvas.lanes")
        canvas.scroll_into_view_if_needed()

        def picture() -> str:
            page.evaluate(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            return canvas.evaluate("c => c.toDataURL()")

        whole = picture()
        canvas.focus()
        for into, back in (("w", "s"), ("+", "-")):
            page.keyboard.press(into)
            zoomed = picture()
            assert zoomed != whole
            page.keyboard.press("d")
            moved = picture()
            assert moved not in (zoomed, whole)
            page.keyboard.press("a")
            assert picture() == zoomed
            page.keyboard.press(back)
            assert picture() == whole
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
        top = page.evaluate("scrollY")
        page.mouse.wheel(0, -400)
        zoomed = picture()
        assert zoomed != whole
        assert page.evaluate("scrollY") == top
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2 - 120, box["y"] + 60, steps=4)
        page.mouse.up()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        assert picture() not in (zoomed, whole)
        page.keyboard.press("0")
        page.keyboard.down("Shift")
        page.mouse.move(box["x"] + 400, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 60, steps=4)
        page.mouse.up()
        page.keyboard.up("Shift")
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        assert picture() != whole
        page.get_by_role("button", name="Whole step").click()
        assert picture() == whole


def test_a_wheel_scrolls_the_page_until_the_timeline_is_chosen(opened):
    with opened("one") as page:
        canvas = page.locator("canvas.lanes")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 500, box["y"] + 60)
        top = page.evaluate("scrollY")
        page.mouse.wheel(0, 200)
        settled(page)
        assert page.evaluate("scrollY") > top


def test_what_is_left_out_is_marked(browser, tmp_path):
    """The middle of a long step: not taken for idle, and what comes before it is seen first."""
    payload = KINDS["one"]()
    rows = payload["timeline"]["rows"]
    whole = payload["whole_ps"]
    late = rows["begin"] > 0.4 * whole
    rows["begin"] = rows["begin"] + np.where(late, 6 * whole, 0)
    crossing = ~late & (rows["begin"] + rows["duration"] > 0.4 * whole)
    rows["duration"] = np.where(crossing, 1000, rows["duration"])
    payload["whole_ps"] = 7 * whole
    pictures = []
    for cut in ("What begins after 14 ms is left out.", ""):
        payload["timeline"]["cut"] = cut
        file = tmp_path / "page.html"
        file.write_text(page_html(payload), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]")
        first = page.locator("canvas.lanes").evaluate("c => c.toDataURL()")
        page.get_by_role("button", name="Whole step").click()
        settled(page)
        pictures.append((first, page.locator("canvas.lanes").evaluate("c => c.toDataURL()")))
        page.close()
    (marked_first, marked), (plain_first, plain) = pictures
    assert marked_first != marked != plain
    assert plain_first == plain


def test_search_finds_rows(opened):
    rows = KINDS["one"]()["timeline"]["rows"]
    hits = np.flatnonzero(rows["name"] == pages.FORWARD.index("attention"))
    with opened("one") as page:
        search = page.get_by_label("Search rows by name")
        search.fill("ATTention")
        page.wait_for_selector(f".found:has-text('{len(hits)} rows')")
        search.press("Enter")
        assert title(page) == "attention"
        assert page.locator(".found").inner_text().startswith(f"1 of {len(hits)} rows")
        search.press("Shift+Enter")
        assert page.locator(".found").inner_text().startswith(f"{len(hits)} of {len(hits)} rows")
        search.fill("no such kernel")
        page.wait_for_selector(".found:has-text('no row of that name')")


def test_a_piece_of_the_critical_path_leads_into_the_timeline(opened):
    payload = KINDS["one"]()
    pieces, names = payload["path"]["pieces"], payload["path"]["names"]
    with opened("one") as page:
        page.locator("#path tr:has-text('Show') >> nth=2").get_by_role("button").click()
        settled(page)
        assert title(page) == names[pieces["name"][2]]
        assert float(fact(page, "Begin").split()[0]) == pytest.approx(pieces["begin"][2] / 1e9)
        toggle = page.get_by_role("button", name="Critical path", exact=True)
        before = page.locator("canvas.lanes").evaluate("c => c.toDataURL()")
        toggle.click()
        settled(page)
        assert toggle.get_attribute("aria-pressed") == "true"
        assert page.locator("canvas.lanes").evaluate("c => c.toDataURL()") != before


def column(page: Any, n: int) -> list[str]:
    return page.locator(f"#gpus tbody tr > :nth-child({n})").all_inner_texts()


def test_tables_sort_filter_and_turn_pages(opened):
    data = KINDS["many"]()["tables"][0]["data"]
    with opened("many") as page:
        heading = page.locator("#gpus th", has_text="Compute")
        assert page.locator("#gpus tbody tr").count() == 20
        assert heading.get_attribute("aria-sort") is None
        heading.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "descending"
        most = np.argsort(-data["compute"])[:20]
        assert column(page, 1) == [data["ranks"][i] for i in most]
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "ascending"
        assert column(page, 1)[0] == data["ranks"][int(np.argmin(data["compute"]))]
        page.locator("#gpus th", has_text="Busy").get_by_role("button").click()
        assert heading.get_attribute("aria-sort") is None
        assert "–" not in column(page, 5)[0]  # what is missing comes last, either way
        page.locator("#gpus").get_by_role("button", name="Next").click()
        assert page.locator("#gpus [role=status]").inner_text() == "21 to 40 of 8,192"
        page.get_by_label("Filter rows of Ranks").fill("rank 77")
        wanted = [name for name in data["ranks"] if "rank 77" in name]
        assert page.locator("#gpus [role=status]").inner_text() == f"1 to 20 of {len(wanted)}"
        page.get_by_label("Filter rows of Ranks").fill("nothing at all")
        assert "Nothing has" in page.locator("#gpus tbody").inner_text()


def test_memory_shows_the_group_that_is_chosen(opened):
    groups = KINDS["one"]()["memory"]["groups"]
    with opened("one") as page:
        for chosen in (0, 2):
            page.locator("#memory select").select_option(str(chosen))
            most = max(np.sum([part["bytes"] for part in groups[chosen]["parts"]], axis=0))
            text = page.locator("#memory h3").first.inner_text()
            assert text.startswith(f"stage {chosen} at ")
            assert f"{most / 2**30:.1f} GiB, its most" in text


def test_links_say_what_is_under_the_pointer(opened):
    links = KINDS["one"]()["links"]
    with opened("one") as page:
        canvas = page.locator("#links canvas[role=img]")
        canvas.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        share = 100 * links["utilisation"][101]
        assert f"{links['names'][1]}: {share:.1f} %" in page.locator(".readout").inner_text()


def test_two_runs_beside_each_other(opened):
    with opened("two") as page:
        text = page.locator(".versus").inner_text()
        assert "841.000 ms" in text.replace("\n", "")
        assert "−9.51 %" in text
        first = page.locator("#differences tbody tr").first.inner_text()
        assert "−100.0" in first
        assert page.locator("#keys tbody tr").first.inner_text().split() == ["plan.tp", "8", "4"]


@pytest.mark.parametrize("kind", ["hostile", "two hostile"])
def test_hostile_names_are_shown_and_do_nothing(opened, kind):
    with opened(kind) as page:
        assert page.title() != "owned"
        assert page.locator("img, iframe, main script, main a[href]:not([href^='#'])").count() == 0
        assert (
            page.evaluate("document.querySelectorAll('[onerror], [onload], [onclick]').length") == 0
        )
        text = page.locator("main").inner_text()
        for name in pages.HOSTILE[:5]:
            assert name in text, name
        assert "\u202e" not in text
        assert "\x00" not in text
        assert "half \ufffd a pair \ufffd" in page.locator("body").inner_text()
        if kind == "hostile":
            page.get_by_label("Search rows by name").fill("<img")
            page.get_by_label("Search rows by name").press("Enter")
            settled(page)
            page.get_by_label("Search rows by name").press("Enter")
            assert title(page) == pages.HOSTILE[1]
            page.locator("canvas.lanes").hover(position={"x": 500, "y": 42})
            settled(page)
            assert page.title() != "owned"


def test_a_file_that_was_cut_says_so(browser, files, tmp_path):
    text = files["many"].read_text(encoding="utf-8")
    cut = tmp_path / "cut.html"
    block = re.search(r'data-column="0">([^<]+)<', text)
    assert block
    cut.write_text(text.replace(block[1], block[1][: len(block[1]) // 2], 1), encoding="utf-8")
    page = browser.new_page()
    page.goto(cut.as_uri())
    page.wait_for_selector("[role=alert]")
    assert "Was the file copied whole?" in page.locator("[role=alert]").inner_text()
    page.close()
