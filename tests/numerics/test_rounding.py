"""The numbers of each dtype: how far apart, and with how many digits."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.numerics.bounds import grain, spacing, unit_roundoff

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("width", [16, 32, 64])
@given(data=st.data())
def test_spacing_is_numpys(width: Literal[16, 32, 64], data: st.DataObject) -> None:
    value = data.draw(st.floats(width=width, allow_nan=False, allow_infinity=False))
    dtype, numpys = getattr(torch, f"float{width}"), np.dtype(f"float{width}").type
    if abs(value) < np.finfo(numpys).max:  # numpy calls the last spacing infinite
        found = spacing(dtype, torch.tensor(value, dtype=torch.float64)).item()
        assert found == float(np.spacing(numpys(abs(value))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    smallest = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).double()
    at = torch.tensor([0.0, 1.0, 1.5, 2.0, 3.14, 100.0, limits.tiny, limits.tiny / 2]).to(dtype)
    at = torch.cat([at, smallest[None].to(dtype), 3 * smallest[None].to(dtype)])
    after = torch.nextafter(at, torch.full_like(at, float("inf")))
    assert torch.equal(spacing(dtype, at.double()), after.double() - at.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_roundoff_is_half_the_spacing_at_one(dtype: torch.dtype) -> None:
    assert unit_roundoff(dtype) == torch.finfo(dtype).eps / 2


@given(st.integers(-(2**52), 2**52), st.integers(-1074, 900))
def test_a_number_is_a_multiple_of_its_grain_and_not_of_twice_that(
    digits: int, exponent: int
) -> None:
    value = torch.tensor([digits], dtype=torch.float64) * 2.0**exponent
    found = grain(value)
    if digits == 0:
        assert found.item() == float("inf")
    else:
        multiple = (value / found).item()
        assert multiple % 2 == 1
        assert found.item() == 2.0**exponent * (digits & -digits)


def test_the_grain_of_a_negated_view_is_that_of_its_numbers() -> None:
    assert grain(torch._neg_view(torch.tensor([0.75]).double())).tolist() == [0.25]
