"""Results and pages that several tests share, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from factories.page_reading import ARGUMENTS, CHROMIUM
from factories.results_factory import make_results

from harness.report import write_report
from harness.store import Results

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREEN = 1280


@pytest.fixture(scope="session")
def results() -> Results:
    return make_results(1200, devices=["cpu"], dtypes=["float32", "float16"])


@pytest.fixture(scope="session")
def page_path(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    write_report([results], path)
    return path


@pytest.fixture(scope="session")
def page(page_path: Path) -> str:
    return page_path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module; for longer it would keep asyncio from other tests."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser, page_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open the report; the test fails if the report logs an error or makes a request."""
    context = browser.new_context(
        color_scheme=getattr(request, "param", "light"), viewport={"width": SCREEN, "height": 900}
    )
    tab = context.new_page()
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("request", lambda request: problems.append(request.url))
    tab.goto(page_path.as_uri())
    yield tab
    context.close()
    assert [problem for problem in problems if not problem.startswith(("file:", "blob:"))] == []
