"""The tables of figures that the documentation shows are those of the published results."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "figures.py"


def test_no_table_of_figures_is_stale() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_changed_figure_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = spec_from_file_location("figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    figures = module_from_spec(spec)
    spec.loader.exec_module(figures)
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: copy -->\n\n<!-- end of figures -->\n")
    monkeypatch.setattr(figures, "PAGES", [page])
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.stale_tables() == ["page.md: copy"]
    page.write_text(figures.renewed(page.read_text()))
    assert figures.stale_tables() == []
    page.write_text(page.read_text().replace("%", ".1%", 1))
    assert figures.stale_tables() == ["page.md: copy"]
