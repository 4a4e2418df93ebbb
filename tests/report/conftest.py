"""Results and their page, made once for several tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.results_factory import make_results

from harness.report import build_page, write_whole
from harness.store import Results


@pytest.fixture(scope="session")
def results() -> Results:
    return make_results(1200, devices=["cpu"], dtypes=["float32", "float16"])


@pytest.fixture(scope="session")
def page_path(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    write_whole(path, build_page([results]))
    return path


@pytest.fixture(scope="session")
def page(page_path: Path) -> str:
    return page_path.read_text(encoding="utf-8")
