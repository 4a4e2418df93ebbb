"""Fixtures that reset the caches of peers and the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from factories.peering import CACHES


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Clear the caches of peers before and after the test."""
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
