"""Named distributions of x. The first line of each docstring says what the distribution breaks.

A distribution takes (rows, hidden, limits of the dtype under test, generator) and returns a float64
tensor (rows, hidden), which is rounded once to the dtype under test.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import torch
from torch import Generator, Tensor

from harness.inputs import mixed, reported

__all__ = ["DISTRIBUTIONS", "Distribution", "standard_normal"]

Distribution = Callable[[int, int, torch.finfo, Generator], Tensor]


def standard_normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Draw float64 (rows, hidden) with mean 0 and variance 1."""
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator)


def _unit(rows: int, hidden: int, generator: Generator) -> Tensor:
    return torch.rand(rows, hidden, dtype=torch.float64, generator=generator)


def _one_in(x: Tensor, column: int, value: float) -> Tensor:
    """Put ``value`` in one column of every row, unless rows are empty."""
    if x.shape[1]:
        x[:, column % x.shape[1]] = value
    return x


def _square_limit(limits: torch.finfo) -> float:
    """Magnitude from which squares overflow: in float16 itself, else in the dtype of the sums."""
    return 2e3 if limits.bits == 16 and limits.max < 1e5 else 1e154 if limits.bits == 64 else 1e19


# --- benign, and what models hold -----------------------------------------------------------------


def normal(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Standard normal: the benign case that every implementation should get right."""
    return standard_normal(rows, hidden, generator)


def uniform(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Uniform on [0, 1): a mean of 1.7 standard deviations, still benign."""
    return _unit(rows, hidden, generator)


def embedding(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 0.02, as embeddings are initialised: eps is 2.5 % of the variance."""
    return standard_normal(rows, hidden, generator) * 0.02


def post_gelu(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """GELU of a normal: skewed, with many values near zero."""
    return torch.nn.functional.gelu(standard_normal(rows, hidden, generator))


def transformer_outlier(
    rows: int, hidden: int, limits: torch.finfo, generator: Generator
) -> Tensor:
    """Normal times 0.5 plus 0.02, two channels at 60 and -35: like a transformer's residual."""
    x = _one_in(standard_normal(rows, hidden, generator) * 0.5 + 0.02, 7, 60.0)
    return _one_in(x, hidden // 2 + 3, -35.0)


def massive_activation(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 0.2 with one channel at 2500: its square overflows float16."""
    return _one_in(standard_normal(rows, hidden, generator) * 0.2, hidden // 5, 2500.0)


def pixels(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Integers from 0 to 255, like the pixels of an image."""
    return torch.randint(0, 256, (rows, hidden), generator=generator).double()


def cauchy(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Cauchy clamped at 3e4: a heavy tail, so that a few values determine the variance."""
    return torch.tan(pi * (_unit(rows, hidden, generator) - 0.5)).clamp(-3e4, 3e4)


# --- condition ------------------------------------------------------------------------------------


def _offset(exponent: int) -> Distribution:
    def offset(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
        return standard_normal(rows, hidden, generator) + 10.0**exponent

    offset.__name__ = f"offset_1e{exponent}"
    offset.__doc__ = (
        f"Normal plus 1e{exponent}: condition number 1e{exponent}; a one-pass variance loses "
        "twice as many digits as a mean."
    )
    return offset


def ramp(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Sorted values from c to 2c: all rounding errors of a running sum have the same sign."""
    steps = torch.linspace(1, 2, hidden, dtype=torch.float64)
    return steps * (1 + _unit(rows, 1, generator))


def ramp_offset(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Sorted values from 1000 to 1001: like ramp, and ill-conditioned."""
    steps = torch.linspace(1000, 1001, hidden, dtype=torch.float64)
    return steps + _unit(rows, 1, generator)


def ulp_comb(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """c + {2, 1, 3, 1, 3, ...}, neighbouring numbers at c: the exact mean and variance are known.

    NIST StRD's NumAcc series made exact in every dtype. c is the largest power of two at which
    the dtype's numbers are 1 apart: the mean is c + 2 and, for odd N, the variance (N - 1)/N.
    """
    comb = torch.ones(hidden, dtype=torch.float64)
    comb[1::2] = 3
    comb[:1] = 2
    return (comb + 1 / limits.eps).expand(rows, hidden)


def one_ulp_spike(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """All 1 except one element, the next number above 1: the largest condition number possible."""
    x = torch.ones(rows, hidden, dtype=torch.float64)
    if hidden:
        row = torch.arange(rows)
        x[row, (row * 37) % hidden] = 1 + limits.eps
    return x


def last_digit(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """One element in 300 is c + 1, the next number; the others are c: a second centring is needed.

    The dtype's numbers are 1 apart at c. In float32 the condition number is 2e8: the mean is many
    standard deviations off, and the mean of the deviations from it more than u of one.
    """
    c = torch.floor((1 + 0.99 * _unit(rows, 1, generator)) / limits.eps)
    raised = _unit(rows, hidden, generator) < 1 / 300
    if hidden:  # else short rows would be constant
        row = torch.arange(rows)
        raised[row, (row * 37) % hidden] = True
    return c + raised


def alternating(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal plus 1000 and minus 1000 in turn: the mean cancels, the squares do not."""
    sign = 1.0 - 2.0 * (torch.arange(hidden) % 2)
    return standard_normal(rows, hidden, generator) + 1e3 * sign


# --- variance far below eps, or none ------------------------------------------------------------


def tiny_variance(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 1e-4: the variance is far below eps, so a wrong or misplaced eps shows."""
    return standard_normal(rows, hidden, generator) * 1e-4


def tiny_variance_offset(
    rows: int, hidden: int, limits: torch.finfo, generator: Generator
) -> Tensor:
    """Normal times 1e-3 plus 1: a small variance and cancellation together."""
    return standard_normal(rows, hidden, generator) * 1e-3 + 1


def _constant(name: str, value: float, breaks: str) -> Distribution:
    def constant(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
        return torch.full((rows, hidden), value, dtype=torch.float64)

    constant.__name__ = name
    constant.__doc__ = f"Every element {value:g}: y must equal the bias; {breaks}."
    return constant


# --- places and scales --------------------------------------------------------------------------


def outlier(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with 1e4 as its middle element: one value determines the variance."""
    return _one_in(standard_normal(rows, hidden, generator), hidden // 2, 1e4)


def outlier_first(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with 1e4 as its first element, which is a bad pivot."""
    return _one_in(standard_normal(rows, hidden, generator), 0, 1e4)


def outlier_last(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with 1e4 as its last element: shows a tail left out of the statistics."""
    return _one_in(standard_normal(rows, hidden, generator), -1, 1e4)


def offset_outlier_first(
    rows: int, hidden: int, limits: torch.finfo, generator: Generator
) -> Tensor:
    """Normal plus 100 with -1e4 as its first element: as a pivot it worsens the condition."""
    return _one_in(standard_normal(rows, hidden, generator) + 100, 0, -1e4)


def one_hot(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """One element 1, all others 0: shows wrong masks, and rounding errors that are all equal."""
    return _one_in(torch.zeros(rows, hidden, dtype=torch.float64), hidden // 3, 1.0)


def sparse(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal with 95 % of the elements 0: shows wrong masks."""
    kept = _unit(rows, hidden, generator) < 0.05
    return standard_normal(rows, hidden, generator) * kept


def log_uniform(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Magnitudes from 1e-4 to 1e4, either sign: small values are lost in sums with large ones."""
    sign = torch.sign(standard_normal(rows, hidden, generator))
    return sign * 10 ** (8 * _unit(rows, hidden, generator) - 4)


def row_scales(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal rows scaled from 1e-4 to 1e4: shows statistics taken from another row."""
    scale = 10 ** torch.linspace(-4, 4, rows, dtype=torch.float64)
    return standard_normal(rows, hidden, generator) * scale[:, None]


# --- the ends of the dtype's range ----------------------------------------------------------------


def subnormal(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Normal times 1/16 of the smallest normal number: shows subnormals flushed to zero."""
    return standard_normal(rows, hidden, generator) * limits.tiny / 16


def square_overflow(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """So large that squares overflow: y becomes 0, although the exact y is of size 1."""
    return standard_normal(rows, hidden, generator).clamp(-3, 3) * _square_limit(limits)


def near_max(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Either sign, up to the largest number: x - mean overflows before it is scaled."""
    return (2 * _unit(rows, hidden, generator) - 1) * limits.max * 0.99


def sum_overflow(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
    """Positive, near the largest number: the sum overflows before it is divided."""
    return (_unit(rows, hidden, generator) * 0.5 + 0.5) * limits.max * 0.99


# --- poison: one bad element in one row ---------------------------------------------------------


def _poisoned(name: str, value: float) -> Distribution:
    def poisoned(rows: int, hidden: int, limits: torch.finfo, generator: Generator) -> Tensor:
        x = standard_normal(rows, hidden, generator)
        if x.numel():
            x[rows // 2, hidden // 2] = value
        return x

    poisoned.__name__ = name
    poisoned.__doc__ = (
        f"Normal with one {value}: its row must become NaN, and no other row may change."
    )
    return poisoned


DISTRIBUTIONS: dict[str, Distribution] = {
    each.__name__: each
    for each in (
        normal,
        uniform,
        *(_offset(exponent) for exponent in range(1, 8)),
        tiny_variance,
        tiny_variance_offset,
        _constant("constant", 0.1, "the computed mean is not exactly 0.1"),
        _constant("constant_zero", 0.0, "without eps it is 1/sqrt(0)"),
        _constant("constant_1234", 1234.0, "a one-pass variance can round below -eps"),
        _constant("constant_6e4", 6e4, "x * scale + bias cancels; squares overflow float16"),
        _constant("constant_1e30", 1e30, "squares overflow"),
        outlier,
        outlier_first,
        outlier_last,
        offset_outlier_first,
        alternating,
        ramp,
        ramp_offset,
        one_hot,
        sparse,
        log_uniform,
        row_scales,
        embedding,
        post_gelu,
        transformer_outlier,
        massive_activation,
        pixels,
        cauchy,
        mixed.mixed_conditions,
        mixed.mixed_scales,
        mixed.mixed_outliers,
        mixed.mixed_nonfinite,
        ulp_comb,
        one_ulp_spike,
        last_digit,
        subnormal,
        square_overflow,
        near_max,
        sum_overflow,
        _poisoned("nan_row", float("nan")),
        _poisoned("positive_infinity_row", float("inf")),
        _poisoned("negative_infinity_row", float("-inf")),
        *(getattr(reported, name) for name in reported.__all__),
    )
}
