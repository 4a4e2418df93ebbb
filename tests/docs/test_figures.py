"""The tables of figures that the documentation shows are those of the published results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_table_of_figures_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "figures.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
