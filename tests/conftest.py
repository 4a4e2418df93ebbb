"""What all tests share: Hypothesis without chance and without deadline, one thread for torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import torch
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
def _alone() -> None:
    """A pytest that a test starts is no worker of ours."""
    os.environ.pop("PYTEST_XDIST_WORKER", None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """With one thread, sums are added in the same order on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _import_path() -> Iterator[None]:
    """Take folders off the import path that finding a target has put there."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def _garbage_collector() -> Iterator[None]:
    """Switch the garbage collector on again after a command that switches it off for speed."""
    yield
    gc.enable()
