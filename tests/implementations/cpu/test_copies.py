"""The copy that bypasses the caches copies all its bytes and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from implementations import UnsupportedError
from implementations.cpu import build, copies
from implementations.cpu.copies import can_stream, streamed_copy

with_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

GUARD = 7


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1, 63])
@pytest.mark.parametrize("size", [0, 1, 15, 64, 130, (1 << 18) + 1, (1 << 20) - 5])
@with_compiler
def test_it_copies_all_bytes_and_no_others(size: int, start: int, threads: int) -> None:
    source = torch.randint(0, 256, (size + 1,), dtype=torch.uint8)[1:]
    before, target, after = torch.full((start + size + 64,), GUARD, dtype=torch.uint8).split([
        start,
        size,
        64,
    ])
    torch.set_num_threads(threads)
    try:
        streamed_copy(target, source)()
    finally:
        torch.set_num_threads(1)
    assert torch.equal(target, source)
    assert {*before.tolist(), *after.tolist()} <= {GUARD}


@with_compiler
def test_it_keeps_a_reference_to_the_source() -> None:
    to = torch.zeros(1 << 16)
    copy = streamed_copy(to, torch.ones(1 << 16))  # the only reference to the source
    torch.full((1 << 16,), 5.0)  # would reuse the memory of a freed source
    copy()
    assert bool((to == 1).all())


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cached in (copies._library, build._built):
        cached.cache_clear()
    try:
        assert not can_stream()
        with pytest.raises(UnsupportedError, match=r"no-such-c\+\+"):
            streamed_copy(torch.zeros(1), torch.ones(1))
    finally:
        build._built.cache_clear()
