"""The fused kernels pass their tests under Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="this is the interpreted run")
def test_the_kernels_pass_their_tests_interpreted() -> None:
    tests = Path(__file__).with_name("test_fused_kernels.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)],
        cwd=tests.parent,  # in the root, its packages would hide the installed ones
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
