#!/usr/bin/env python3
"""Report pages: how large they are, how long they take to write and to open in headless Chromium.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/page.py [--repeat N] [FILE.html ...]

Without files: `mpisim run --html` of Llama 3 8B on 8 GPUs and of GPT-3 175B on 8,192, and a
made-up pipeline of half a million rows whose durations all differ. Columns: size of the file;
seconds of CPU time that packing takes (of the made-up one); milliseconds from the begin of loading
until all sections are drawn, and of a frame of the timeline while it is zoomed, medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent

MPISIM = (sys.executable, "-m", "mpisim")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
FRAMES = """async () => {
  const canvas = document.querySelector('canvas.lanes');
  if (!canvas) return 0;
  canvas.focus();
  const took = [];
  for (let i = 0; i < 30; i++) {
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: i < 15 ? -120 : 120, ctrlKey: true,
      clientX: 700, clientY: 300, bubbles: true, cancelable: true }));
    const begin = performance.now();
    await new Promise((done) => requestAnimationFrame(() => done()));
    took.push(performance.now() - begin);
  }
  return took.sort((a, b) => a - b)[15];
}"""


def main() -> None:
    """Print a line for each page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = [(path.name, path, None) for path in arguments.files] or made(Path(folder))
        print(f"{'page':34}  {'kB':>7}  {'pack s':>6}  {'open ms':>7}  {'frame ms':>8}")
        for name, path, packed in pages:
            opened, frame = timed(path, arguments.repeat)
            pack = "" if packed is None else f"{packed:.2f}"
            size = path.stat().st_size / 1e3
            print(f"{name:34}  {size:7,.0f}  {pack:>6}  {opened:7,.0f}  {frame:8.1f}")


def made(folder: Path) -> list[tuple[str, Path, float | None]]:
    """Folder → pages made in it: (name, file, seconds that packing took or None)."""
    from made_up_pages import pipeline

    from mpisim.page.html import page_html

    new = [*MPISIM, "new", "gpt.toml", "--model", "gpt3-175b", "--gpus", "8192"]
    subprocess.run(new, cwd=folder, check=True, capture_output=True)
    pages: list[tuple[str, Path, float | None]] = []
    runs = {"Llama 3 8B, 8 GPUs": "llama3-8b-8-h100", "GPT-3, 8,192 GPUs": "gpt.toml"}
    for name, experiment in runs.items():
        path = folder / f"{experiment}.html"
        command = [*MPISIM, "run", experiment, "--html", str(path)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        pages.append((name, path, None))
    payload = pipeline(16, 64, 40, ranks=8192)
    begin = time.process_time()
    text = page_html(payload)
    took = time.process_time() - begin
    path = folder / "pipeline.html"
    path.write_text(text, encoding="utf-8")
    rows = len(payload["timeline"]["rows"]["begin"])
    return [*pages, (f"made up, {rows:,} rows", path, took)]


def timed(path: Path, repeat: int) -> tuple[float, float]:
    """Page → milliseconds until it is drawn and of a frame, medians of so many times."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        sys.exit("no Chromium: bash run_scripts/get_browser.sh")
    opened, frames = [], []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=ARGUMENTS)
        for _ in range(repeat):
            page = chromium.new_page(viewport={"width": 1440, "height": 900})
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-drawn]")
            mark = "performance.getEntriesByName('mpisim-drawn')[0].startTime"
            opened.append(page.evaluate(mark))
            frames.append(page.evaluate(FRAMES))
            page.close()
        chromium.close()
    return statistics.median(opened), statistics.median(frames)


if __name__ == "__main__":
    main()
