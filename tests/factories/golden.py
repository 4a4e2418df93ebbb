"""Golden files: the expected output of a renderer for fixed values, stored with its test."""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(text: str, test_file: str, name: str) -> None:
    """Compare a text with the golden file of that name, in the folder "golden" beside the test.

    ``WRITE_GOLDEN=1 pytest FILE`` rewrites it first.
    """
    path = Path(test_file).with_name("golden") / name
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    assert text.rstrip("\n") + "\n" == path.read_text(encoding="utf-8")
