"""Triton's interpreter rounds as a GPU does, and need not interpret huge tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.fused_kernels import INTERPRETED, SHRINK

from implementations.triton import layout as layouts
from implementations.triton.layout import Layout


@pytest.fixture(autouse=True, scope="module")
def _bfloat16_is_rounded() -> Iterator[None]:
    """Make the interpreter round float32 to bfloat16 as a GPU does, instead of truncating."""
    if not INTERPRETED:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(data: Any, dtype: Any, to: Any, rounding_mode: Any) -> Any:
        if (dtype, to) != (tl.float32, tl.bfloat16):
            return convert(data, dtype, to, rounding_mode)
        bits = torch.from_numpy(data.copy()).bfloat16().view(torch.int16)
        return bits.numpy().view("uint16")

    interpreter._convert_float = rounded
    yield
    interpreter._convert_float = convert


@pytest.fixture
def shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the columns of every tile by SHRINK."""

    def smaller(layout: Layout) -> Layout:
        return replace(layout, columns=layout.columns // SHRINK)

    for name in ("FORWARD", "BACKWARD"):
        table = {
            itemsize: {columns // SHRINK: smaller(each) for columns, each in by_columns.items()}
            for itemsize, by_columns in getattr(layouts, name).items()
        }
        monkeypatch.setattr(layouts, name, table)
    for name in ("SUMMING", "JOINING", "WRITING", "GRADIENTS"):
        monkeypatch.setattr(layouts, name, smaller(getattr(layouts, name)))
    for name in ("LONG_BLOCK", "SHORT"):
        monkeypatch.setattr(layouts, name, getattr(layouts, name) // SHRINK)
