"""LayerNorm in rational arithmetic, against which the oracles are tested.

Floats are rationals, so mean and variance are exact; the square root is taken to 400 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from operator import mul
from statistics import mean as mean_of
from statistics import pvariance

from torch import Tensor

_BITS = 400
Row = list[Fraction]
Rows = list[Row]


@dataclass(frozen=True)
class ExactLayerNorm:
    """Rows of rationals, named as in the oracle."""

    mean: Row
    variance: Row
    rstd: Row
    y: Rows
    dx: Rows
    dweight: Rows
    dbias: Rows


def exact_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, eps: float
) -> ExactLayerNorm:
    """Forward and backward of rows ``x`` (rows, hidden), float64 or narrower."""
    gamma, beta = as_fraction(weight), as_fraction(bias)
    gradients = [as_fraction(row) for row in dy]
    result = ExactLayerNorm([], [], [], [], [], [], [_sums(gradients)])
    products = []
    for row, gradient in zip(map(as_fraction, x), gradients, strict=True):
        mean, variance = mean_of(row), pvariance(row)
        rstd = 1 / square_root(variance + Fraction(eps))
        normalised = [(value - mean) * rstd for value in row]
        scaled = _products(gradient, gamma)
        across, plain = mean_of(_products(scaled, normalised)), mean_of(scaled)
        result.mean.append(mean)
        result.variance.append(variance)
        result.rstd.append(rstd)
        result.y.append([n * g + b for n, g, b in zip(normalised, gamma, beta, strict=True)])
        pairs = zip(scaled, normalised, strict=True)
        result.dx.append([rstd * (s - plain - n * across) for s, n in pairs])
        products.append(_products(gradient, normalised))
    result.dweight.append(_sums(products))
    return result


def as_fraction(high: Tensor, low: Tensor | None = None) -> Row:
    """The exact values of a flat (high, low) pair."""
    parts = [high] if low is None else [high, low.expand_as(high)]
    return _sums([map(Fraction, part.double().flatten().tolist()) for part in parts])


def square_root(value: Fraction) -> Fraction:
    """Square root to 400 bits, relative to its size."""
    shift = 2 * max(0, _BITS - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return Fraction(isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2))


def _products(one: Row, other: Row) -> Row:
    return list(map(mul, one, other))


def _sums(rows: Iterable[Iterable[Fraction]]) -> Row:
    return [sum(column, Fraction(0)) for column in zip(*rows, strict=True)]
