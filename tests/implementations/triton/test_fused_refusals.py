"""Calls that the fused kernels refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from implementations import UnsupportedError, find
from implementations.triton import arguments
from implementations.triton import layout as layouts

norm = find("triton_recentred")


@pytest.fixture(autouse=True)
def _nothing_was_imported() -> Iterator[None]:
    arguments.imported.cache_clear()
    yield
    arguments.imported.cache_clear()


def have(monkeypatch: pytest.MonkeyPatch, name: str, module: Any) -> None:
    monkeypatch.setitem(sys.modules, name, module)


def test_without_triton_the_installation_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'layernorm-bench\[triton\]'"):
        norm(torch.zeros(2, 8), (8,))


def test_a_triton_that_cannot_compile_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: True)
    have(monkeypatch, "triton", SimpleNamespace(__version__="3.2.0"))
    with pytest.raises(UnsupportedError, match=r"needs triton 3\.3 or newer.*found 3\.2\.0"):
        norm(torch.zeros(2, 8), (8,))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are compiled, and so need a GPU."""
    monkeypatch.setattr(arguments, "imported", lambda name: (None, False))


@pytest.mark.usefixtures("compiled")
def test_without_a_gpu_a_call_is_refused_with_the_name_of_the_interpreter() -> None:
    with pytest.raises(UnsupportedError, match=r"run on cuda, x is on cpu.*TRITON_INTERPRET=1"):
        norm(torch.zeros(2, 8), (8,))


@pytest.mark.usefixtures("compiled")
def test_a_dtype_without_a_kernel_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="int64; there are for float16, bfloat16"):
        norm(torch.zeros(2, 8, dtype=torch.int64), (8,))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("shape", [(1, layouts.LONGEST + 1), (layouts.LONGEST + 1, 1)])
def test_more_elements_than_32_bits_count_are_refused(shape: tuple[int, int]) -> None:
    x = torch.zeros(1).expand(shape)
    with pytest.raises(UnsupportedError, match="the Triton kernels count up to 2147418112"):
        norm(x, shape[1:])


def test_shapes_are_checked_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="weight has shape"):
        norm(torch.zeros(2, 8), (8,), torch.ones(7))
    with pytest.raises(ValueError, match="normalized_shape is"):
        norm(torch.zeros(2, 8), (7,))
