"""LayerNorm in rational arithmetic, against which the oracles are tested.

Floats are rationals, so mean and variance are exact; the square root is taken to 400 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from torch import Tensor

_BITS = 400


@dataclass(frozen=True)
class ExactLayerNorm:
    """Rows of rationals, named as in the oracle."""

    mean: list[Fraction]
    variance: list[Fraction]
    rstd: list[Fraction]
    y: list[list[Fraction]]
    dx: list[list[Fraction]]
    dweight: list[Fraction]
    dbias: list[Fraction]


def exact_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dy: Tensor
) -> ExactLayerNorm:
    """Forward and backward of rows ``x`` (rows, hidden), float64 or narrower."""
    gamma, beta = _row(weight), _row(bias)
    hidden = len(gamma)
    result = ExactLayerNorm([], [], [], [], [], [Fraction(0)] * hidden, [Fraction(0)] * hidden)
    for stored, grad_output in zip(x.double().tolist(), dy.double().tolist(), strict=True):
        row, gradient = _rationals(stored), _rationals(grad_output)
        mean = sum(row, Fraction(0)) / hidden
        variance = sum(((value - mean) ** 2 for value in row), Fraction(0)) / hidden
        rstd = 1 / _square_root(variance + Fraction(eps))
        normalised = [(value - mean) * rstd for value in row]
        scaled = [d * g for d, g in zip(gradient, gamma, strict=True)]
        mean_g = sum(scaled, Fraction(0)) / hidden
        mean_g_xhat = (
            sum((s * n for s, n in zip(scaled, normalised, strict=True)), Fraction(0)) / hidden
        )
        result.mean.append(mean)
        result.variance.append(variance)
        result.rstd.append(rstd)
        result.y.append([n * g + b for n, g, b in zip(normalised, gamma, beta, strict=True)])
        result.dx.append([
            rstd * (s - mean_g - n * mean_g_xhat) for s, n in zip(scaled, normalised, strict=True)
        ])
        for column, (d, n) in enumerate(zip(gradient, normalised, strict=True)):
            result.dweight[column] += d * n
            result.dbias[column] += d
    return result


def as_fraction(high: Tensor, low: Tensor | None = None) -> list[Fraction]:
    """The exact values of a flat (high, low) pair."""
    highs = _rationals(high.flatten().tolist())
    if low is None:
        return highs
    lows = _rationals(low.expand_as(high).flatten().tolist())
    return [a + b for a, b in zip(highs, lows, strict=True)]


def _row(parameter: Tensor) -> list[Fraction]:
    return _rationals(parameter.double().flatten().tolist())


def _rationals(values: list[float]) -> list[Fraction]:
    return [Fraction(value) for value in values]


def _square_root(value: Fraction) -> Fraction:
    """Square root to 400 bits, relative to its size."""
    shift = 2 * max(0, _BITS - (value.numerator.bit_length() - value.denominator.bit_length()) // 2)
    return Fraction(isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2))
