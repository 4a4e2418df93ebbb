"""Python in a process of its own: its outputs, and what a program imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python(
    *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with these variables beside those of this process."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_in(
    folder: Path, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder."""
    command = ("-m", "pytest", "-p", "no:cacheprovider", *arguments)
    return python(*command, folder=folder, **environment)
