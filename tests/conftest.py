"""What all tests share: Hypothesis without chance or deadline, one thread, a file of targets."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copy

import pytest
import torch
from factories import failing_targets
from hypothesis import HealthCheck, settings

# A failure must be the same on every machine, and a slow machine is not a failure.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # depends on what else the machine does
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _process() -> None:
    """With one thread, sums are added in the same order on every machine."""
    torch.set_num_threads(1)
    os.environ.pop("PYTEST_XDIST_WORKER", None)  # a pytest that a test starts is no worker of ours


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    """A file of targets that fail."""
    return Path(copy(failing_targets.__file__, tmp_path / "targets.py"))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore what targets and commands leave changed: import path, threads, garbage collector."""
    before = list(sys.path)
    yield
    sys.path[:] = before
    torch.set_num_threads(1)
    gc.enable()
