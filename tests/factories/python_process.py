"""Python in a process of its own: its outputs, and what a program imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def python(
    *arguments: object, folder: Path | None = None, code: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with these variables beside those of this process.

    It exits with ``code`` if one is given.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in {None, done.returncode}, done.stdout[-4000:] + done.stderr[-2000:]
    return done


def pytest_in(folder: Path, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder."""
    command = ("-m", "pytest", "-p", "no:cacheprovider", *arguments)
    return python(*command, folder=folder, **more)
