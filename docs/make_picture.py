"""Make docs/images/page.png: the first part of the published page.

    python docs/make_picture.py

Needs playwright and an installed Chromium, as the tests of the page do.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "reports" / "published" / "cpu.html"
PICTURE = ROOT / "docs" / "images" / "page.png"
WIDTH, MOST_HEIGHT = 1280, 2400  # pixels: readable in the column of a README


def main() -> None:
    """Take a picture of PAGE, from its top to the end of the first chart."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": MOST_HEIGHT})
        page.goto(PAGE.as_uri())
        chart = page.locator("section svg:has(text)").first  # a chart, not the mark of a legend
        box = chart.bounding_box() or {"y": 0.0, "height": MOST_HEIGHT}
        height = min(box["y"] + box["height"] + 62, MOST_HEIGHT)  # with the words below the chart
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size // 1000} kB")  # noqa: T201 - a script's result


if __name__ == "__main__":
    main()
