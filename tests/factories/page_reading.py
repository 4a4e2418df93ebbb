"""A page in a browser: how it is opened, and what it shows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def column(tab: Page, name: str) -> list[str]:
    """Return the texts of a column of the table of all cases."""
    headings = tab.locator("#grid thead th")
    names = [heading.get_attribute("data-column") for heading in headings.all()]
    place = names.index(name) + 1
    return tab.locator(f"#grid tbody tr > :nth-child({place})").all_inner_texts()


def downloaded(tab: Page, path: Path) -> dict[str, dict[str, str]]:
    """Press the button for the CSV file; return its rows by id."""
    with tab.expect_download() as download:
        tab.click("#csv")
    download.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}
