"""Golden files: the expected output of a renderer for fixed values, stored with its test."""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(text: str, path: Path) -> None:
    """Compare ``text`` with the golden file; ``WRITE_GOLDEN=1 pytest FILE`` rewrites it first."""
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    assert text.rstrip("\n") + "\n" == path.read_text(encoding="utf-8")
