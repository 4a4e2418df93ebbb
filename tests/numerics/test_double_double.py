"""Double-double arithmetic against rationals: floats are rationals, so the truth is exact."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf, nan
from operator import neg

import pytest
import torch
from factories.exact import as_fraction, square_root
from hypothesis import given
from hypothesis import strategies as st

from harness.numerics import double_double as dd

Pair = dd.Pair

# Joldes, Muller and Popescu (ACM TOMS 44, 2017) prove 3 to 10 units of 2^-106 for these
# algorithms; one Newton step from a float64 adds 3/2 d^2 with d <= 2.5 * 2^-53. All are below 16.
RELATIVE_ERROR = Fraction(16, 2**106)

# Exponents far enough from the ends that no product of three over- or underflows.
magnitudes = st.floats(min_value=1e-60, max_value=1e60)
numbers = st.one_of(st.just(0.0), magnitudes, magnitudes.map(neg))
fractions_of_ulp = st.floats(min_value=-0.5, max_value=0.5)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def pairs(draw: st.DrawFn, highs: st.SearchStrategy[float] = numbers) -> Pair:
    """A number of 106 bits, as (high, low) of shape (1,)."""
    high = tensor(draw(highs))
    return dd.two_sum(high, high * 2.0**-52 * draw(fractions_of_ulp))


def value(pair: Pair) -> Fraction:
    (only,) = as_fraction(*pair)
    return only


def assert_close(pair: Pair, exact: Fraction) -> None:
    assert abs(value(pair) - exact) <= RELATIVE_ERROR * abs(exact)


@given(numbers, numbers)
def test_sums_and_products_of_two_floats_lose_nothing(a: float, b: float) -> None:
    exact_sum = Fraction(a) + Fraction(b)
    high, low = dd.two_sum(tensor(a), tensor(b))
    assert (value((high, low)), high.item()) == (exact_sum, float(exact_sum))
    assert value(dd.two_product(tensor(a), tensor(b))) == Fraction(a) * Fraction(b)


def nearly_opposite(a: Pair) -> Pair:
    return -a[0] * (1 + 2.0**-50), -a[1]


@pytest.mark.parametrize(
    ("computed", "exact"),
    [
        (dd.add, lambda a, b: value(a) + value(b)),
        (
            lambda a, _: dd.add(a, nearly_opposite(a)),
            lambda a, _: value(a) + value(nearly_opposite(a)),
        ),
        (lambda a, b: dd.add_float(a, b[0]), lambda a, b: value(a) + as_fraction(b[0])[0]),
        (dd.multiply, lambda a, b: value(a) * value(b)),
        (lambda a, b: dd.multiply_float(a, b[0]), lambda a, b: value(a) * as_fraction(b[0])[0]),
        (lambda a, _: dd.divide_float(a, 7.0), lambda a, _: value(a) / 7),
    ],
)
@given(a=pairs(), b=pairs())
def test_an_operation_is_as_good_as_106_bits(
    computed: Callable[[Pair, Pair], Pair],
    exact: Callable[[Pair, Pair], Fraction],
    a: Pair,
    b: Pair,
) -> None:
    assert_close(computed(a, b), exact(a, b))


@given(pairs(magnitudes))
def test_rsqrt_is_as_good_as_106_bits(a: Pair) -> None:
    assert_close(dd.rsqrt(a), 1 / square_root(value(a)))


@pytest.mark.parametrize(("number", "expected"), [(0.0, inf), (-1.0, nan), (nan, nan)])
def test_rsqrt_of_a_number_without_root_is_not_finite(number: float, expected: float) -> None:
    high, low = dd.rsqrt((tensor(number), tensor(0.0)))
    assert (high.item(), low.item()) == (pytest.approx(expected, nan_ok=True), 0.0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 64, 77])
def test_sum_over_adds_every_element_of_any_count(count: int) -> None:
    # 1/3 as a pair: a float64 sum of it would be far outside the tolerance
    third = dd.divide_float((tensor(1.0), tensor(0.0)), 3.0)
    weights = torch.arange(1.0, count + 1, dtype=torch.float64)
    terms = dd.multiply_float((third[0].expand(count), third[1].expand(count)), weights)
    total = dd.sum_over(terms, 0)
    assert total[0].shape == (1,)
    assert_close(total, sum(as_fraction(*terms), Fraction(0)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sum_over_sums_the_axis_it_is_told_and_keeps_it(dim: int) -> None:
    terms = torch.arange(15.0, dtype=torch.float64).reshape(3, 5)
    high, low = dd.sum_over((terms, torch.zeros_like(terms)), dim)
    assert torch.equal(high, terms.sum(dim, keepdim=True))
    assert not bool(low.any())
