"""Calls that the fused kernels refuse."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from implementations import UnsupportedError, find
from implementations.triton import arguments
from implementations.triton import layout as layouts

norm = find("triton_recentred")


@pytest.fixture(autouse=True)
def _uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "imported", arguments.imported.__wrapped__)


def test_without_triton_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install -e '\.\[triton\]'"):
        norm(torch.zeros(2, 8), (8,))


def test_a_triton_that_cannot_compile_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.2.0"))
    with pytest.raises(UnsupportedError, match=r"needs triton 3\.3 or newer.*found 3\.2\.0"):
        norm(torch.zeros(2, 8), (8,))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 8), r"run on cuda, x is on cpu.*TRITON_INTERPRET=1"),
        (torch.zeros(2, 8, dtype=torch.int64), "int64; there are for float16, bfloat16"),
        (torch.zeros(1).expand(1, layouts.LONGEST + 1), "count up to 2147418112"),
        (torch.zeros(1).expand(layouts.LONGEST + 1, 1), "count up to 2147418112"),
    ],
    ids=["device", "dtype", "hidden", "rows"],
)
def test_an_x_that_the_compiled_kernels_do_not_take_is_refused(
    x: Tensor, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "imported", lambda name: (None, False))
    with pytest.raises(UnsupportedError, match=words):
        norm(x, x.shape[1:])


def test_shapes_are_checked_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="weight has shape"):
        norm(torch.zeros(2, 8), (8,), torch.ones(7))
    with pytest.raises(ValueError, match="normalized_shape is"):
        norm(torch.zeros(2, 8), (7,))
