"""Errors over their bounds: infinities near the end of a dtype's range."""

from __future__ import annotations

from math import inf

import pytest
import torch

from harness.numerics.error_measurement import BoundRatio


def ratio_of(computed: float, exact: float, bound: float) -> BoundRatio:
    """One element of a float16 output."""
    ratio = BoundRatio("dx", torch.float16)
    high, allowed, value = (
        torch.tensor([[values]], dtype=torch.float64) for values in (exact, bound, computed)
    )
    ratio.add(value, (high, torch.zeros((), dtype=torch.float64)), allowed)
    return ratio


@pytest.mark.parametrize(("computed", "exact"), [(inf, 65_000.0), (-inf, -65_000.0)])
def test_infinity_is_right_where_a_value_within_the_bound_overflows(
    computed: float, exact: float
) -> None:
    ratio = ratio_of(computed, exact, bound=600.0)
    assert ratio.bound_ratio == 0
    assert not ratio.unexpected_nonfinite


@pytest.mark.parametrize(
    ("computed", "exact", "bound"),
    [(inf, 65_000.0, 400.0), (-inf, 65_000.0, 600.0), (float("nan"), 65_000.0, 600.0)],
)
def test_another_value_that_is_not_finite_is_wrong(
    computed: float, exact: float, bound: float
) -> None:
    ratio = ratio_of(computed, exact, bound)
    assert ratio.bound_ratio == inf
    assert ratio.unexpected_nonfinite == 1


def test_an_infinity_without_a_guarantee_is_counted() -> None:
    ratio = ratio_of(inf, 1.0, bound=inf)
    assert ratio.bound_ratio is None
    assert (ratio.unexpected_nonfinite, ratio.vacuous_elements) == (1, 1)
