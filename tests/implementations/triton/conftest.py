"""Triton's interpreter rounds as a GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fused_kernels import INTERPRETED


@pytest.fixture(autouse=True, scope="module")
def _bfloat16_is_rounded() -> Iterator[None]:
    """Make the interpreter round float32 to bfloat16 as a GPU does: it cuts the bits off."""
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
