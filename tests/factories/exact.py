"""LayerNorm in rational arithmetic, against which the oracles are tested.

Floats are rationals, so mean and variance are exact; the square root is taken to 400 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from operator import mul

from torch import Tensor

_BITS = 400
Rows = list[list[Fraction]]


@dataclass(frozen=True)
class ExactLayerNorm:
    """Rows of rationals, named as in the oracle."""

    mean: list[Fraction] = field(default_factory=list)
    variance: list[Fraction] = field(default_factory=list)
    rstd: list[Fraction] = field(default_factory=list)
    y: Rows = field(default_factory=list)
    dx: Rows = field(default_factory=list)
    dweight: Rows = field(default_factory=list)
    dbias: Rows = field(default_factory=list)


def exact_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor, eps: float
) -> ExactLayerNorm:
    """Forward and backward of rows ``x`` (rows, hidden), float64 or narrower."""
    gamma, beta = as_fraction(weight), as_fraction(bias)
    products, gradients = [], []
    result = ExactLayerNorm()
    for row, gradient in zip(map(as_fraction, x), map(as_fraction, dy), strict=True):
        mean = _mean(row)
        variance = _mean([(value - mean) ** 2 for value in row])
        rstd = 1 / square_root(variance + Fraction(eps))
        normalised = [(value - mean) * rstd for value in row]
        scaled = _products(gradient, gamma)
        across = _mean(_products(scaled, normalised))
        plain = _mean(scaled)
        result.mean.append(mean)
        result.variance.append(variance)
        result.rstd.append(rstd)
        result.y.append([n * g + b for n, g, b in zip(normalised, gamma, beta, strict=True)])
        result.dx.append([
            rstd * (s - plain - n * across) for s, n in zip(scaled, normalised, strict=True)
        ])
        products.append(_products(gradient, normalised))
        gradients.append(gradient)
    for total, rows in ((result.dweight, products), (result.dbias, gradients)):
        total.append([sum(column, Fraction(0)) for column in zip(*rows, strict=True)])
    return result


def as_fraction(high: Tensor, low: Tensor | None = None) -> list[Fraction]:
    """The exact values of a flat (high, low) pair."""
    parts = [high] if low is None else [high, low.expand_as(high)]
    return [
        sum(map(Fraction, values), Fraction(0))
        for values in zip(*(part.double().flatten().tolist() for part in parts), strict=True)
    ]


def square_root(value: Fraction) -> Fraction:
    """Square root to 400 bits, relative to its size."""
    shift = 2 * max(0, _BITS - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return Fraction(isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2))


def _mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _products(one: list[Fraction], other: list[Fraction]) -> list[Fraction]:
    return list(map(mul, one, other))
