"""Named distributions of x. The first line of each docstring says what the distribution breaks.

A distribution returns a float64 tensor (rows, hidden), which is rounded once to the dtype under
test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import torch
from torch import Generator, Tensor

from harness.cases.layouts import Registry, by_name


def standard_normal(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Draw float64 (rows, hidden) with mean 0 and variance 1."""
    return torch.randn(rows, hidden, dtype=torch.float64, generator=generator)


@dataclass(frozen=True, slots=True)
class Draw:
    """What a distribution draws: its shape, the limits of the dtype under test, random numbers."""

    rows: int
    hidden: int
    limits: torch.finfo
    generator: Generator

    def normal(self) -> Tensor:
        """Draw with mean 0 and variance 1."""
        return standard_normal(self.rows, self.hidden, self.generator)

    def uniform(self, hidden: int | None = None) -> Tensor:
        """Draw from [0, 1); by default as many columns as x has."""
        shape = (self.rows, self.hidden if hidden is None else hidden)
        return torch.rand(shape, dtype=torch.float64, generator=self.generator)

    def full(self, value: float) -> Tensor:
        return torch.full((self.rows, self.hidden), value, dtype=torch.float64)

    @property
    def large(self) -> float:
        """From where squares overflow: in float16 itself, else in the dtype of the sums."""
        is_float16 = self.limits.bits == 16 and self.limits.max < 1e5
        return 2e3 if is_float16 else 1e154 if self.limits.bits == 64 else 1e19


Distribution = Callable[[Draw], Tensor]


def _named(name: str, text: str, distribution: Distribution) -> Distribution:
    distribution.__name__, distribution.__doc__ = name, text
    return distribution


def least_scale(dtype: torch.dtype) -> float:
    """Return the smallest size of x that can be normalised without eps.

    Elements of less than 1 / k of the standard deviation add about 0.3 / k^3 of the variance. If
    their squares are subnormal and taken for 0, that is below half an ulp of the sums.
    """
    of_sums = torch.finfo(torch.promote_types(dtype, torch.float32))
    return 4.0 * float(torch.finfo(dtype).tiny ** 0.5 * of_sums.eps ** (-1 / 3))


def with_one(x: Tensor, value: float) -> Tensor:
    """Put ``value`` in the middle of the middle row, unless x is empty."""
    if x.numel():
        x[x.shape[0] // 2, x.shape[1] // 2] = value
    return x


def scaled_to(values: Tensor, largest: float) -> Tensor:
    """Scale ``values`` so that the largest absolute value is ``largest``."""
    return values * (largest / values.abs().amax()) if values.numel() else values


def cancelling(rows: int, hidden: int, generator: Generator) -> Tensor:
    """Draw float64 (rows, hidden), eighths whose sum is exactly 0 in each row and in any order.

    Each row is the negative of itself read backwards, and the last rows repeat the first ones. So
    sums, means and ends are those of trivial rows, whose other elements are not trivial.
    """
    values = (standard_normal(rows, hidden, generator) * 8).round().clamp(-16, 16) / 8
    values = values - values.flip(-1)
    is_first = torch.arange(rows)[:, None] < rows / 2
    return torch.where(is_first, values, values.flip(0))


def _one_in(x: Tensor, column: int, value: float) -> Tensor:
    """Put ``value`` in one column of every row, unless rows are empty."""
    if x.shape[1]:
        x[:, column % x.shape[1]] = value
    return x


# --- benign, and what models hold -----------------------------------------------------------------


def normal(d: Draw) -> Tensor:
    """Standard normal: the benign case that every implementation should get right."""
    return d.normal()


def _largest(value: float) -> Distribution:
    """Normal times a factor, so that the largest |x| is a number: shows a limit on values."""
    return lambda d: scaled_to(d.normal(), value)


def uniform(d: Draw) -> Tensor:
    """Uniform on [0, 1): a mean of 1.7 standard deviations, still benign."""
    return d.uniform()


def embedding(d: Draw) -> Tensor:
    """Normal times 0.02, as embeddings are initialised: eps is 2.5 % of the variance."""
    return d.normal() * 0.02


def post_gelu(d: Draw) -> Tensor:
    """GELU of a normal: skewed, with many values near zero."""
    return torch.nn.functional.gelu(d.normal())


def transformer_outlier(d: Draw) -> Tensor:
    """Normal times 0.5 plus 0.02, two channels at 60 and -35: like a transformer's residual."""
    x = _one_in(d.normal() * 0.5 + 0.02, 7, 60.0)
    return _one_in(x, d.hidden // 2 + 3, -35.0)


def massive_activation(d: Draw) -> Tensor:
    """Normal times 0.2 with one channel at 2500: its square overflows float16."""
    return _one_in(d.normal() * 0.2, d.hidden // 5, 2500.0)


def pixels(d: Draw) -> Tensor:
    """Integers from 0 to 255, like the pixels of an image."""
    return torch.randint(0, 256, (d.rows, d.hidden), generator=d.generator).double()


def deep_pixels(d: Draw) -> Tensor:
    """Integers from 0 to 65,535, like the pixels of a scan: their squares overflow an int32."""
    return torch.randint(0, 1 << 16, (d.rows, d.hidden), generator=d.generator).double()


def log_probabilities(d: Draw) -> Tensor:
    """Log-softmax of a normal: every element is negative."""
    return d.normal().log_softmax(-1)


def cauchy(d: Draw) -> Tensor:
    """Cauchy clamped at 3e4: a heavy tail, so that a few values determine the variance."""
    return torch.tan(pi * (d.uniform() - 0.5)).clamp(-3e4, 3e4)


# --- condition ------------------------------------------------------------------------------------


def _offset(exponent: int) -> Distribution:
    breaks = "a one-pass variance loses twice as many digits as a mean."
    text = f"Normal plus 1e{exponent}: condition number 1e{exponent}; {breaks}"
    return _named(f"offset_1e{exponent}", text, lambda d: d.normal() + 10.0**exponent)


def ramp(d: Draw) -> Tensor:
    """Sorted values from c to 2c: all rounding errors of a running sum have the same sign."""
    steps = torch.linspace(1, 2, d.hidden, dtype=torch.float64)
    return steps * (1 + d.uniform(1))


def ramp_offset(d: Draw) -> Tensor:
    """Sorted values from 1000 to 1001: like ramp, and ill-conditioned."""
    steps = torch.linspace(1000, 1001, d.hidden, dtype=torch.float64)
    return steps + d.uniform(1)


def ulp_comb(d: Draw) -> Tensor:
    """c + {2, 1, 3, 1, 3, ...}, neighbouring numbers at c: the exact mean and variance are known.

    NIST StRD's NumAcc series made exact in every dtype. c is the largest power of two at which
    the dtype's numbers are 1 apart: the mean is c + 2 and, for odd N, the variance (N - 1)/N.
    """
    comb = torch.ones(d.hidden, dtype=torch.float64)
    comb[1::2] = 3
    comb[:1] = 2
    return (comb + 1 / d.limits.eps).expand(d.rows, d.hidden)


def _spread(d: Draw) -> tuple[Tensor, Tensor]:
    """Return the index of one element of each row, in another column each; none in empty rows."""
    rows = torch.arange(d.rows if d.hidden else 0)
    return rows, (rows * 37) % max(d.hidden, 1)


def one_ulp_spike(d: Draw) -> Tensor:
    """All 1 except one element, the next number above 1: the largest condition number possible."""
    x = d.full(1.0)
    x[_spread(d)] = 1 + d.limits.eps
    return x


def last_digit(d: Draw) -> Tensor:
    """One element in 300 is c + 1, the next number; the others are c: a second centring is needed.

    The dtype's numbers are 1 apart at c. In float32 the condition number is 2e8: the mean is many
    standard deviations off, and the mean of the deviations from it more than u of one.
    """
    c = torch.floor((1 + 0.99 * d.uniform(1)) / d.limits.eps)
    raised = d.uniform() < 1 / 300
    raised[_spread(d)] = True  # else short rows would be constant
    return c + raised


def alternating(d: Draw) -> Tensor:
    """Normal plus 1000 and minus 1000 in turn: the mean cancels, the squares do not."""
    sign = 1.0 - 2.0 * (torch.arange(d.hidden) % 2)
    return d.normal() + 1e3 * sign


def mirrored(d: Draw) -> Tensor:
    """Rows whose sum is exactly 0, the last equal to the first: shows rows taken for padding."""
    return cancelling(d.rows, d.hidden, d.generator)


# --- variance far below eps, or none ------------------------------------------------------------


def tiny_variance(d: Draw) -> Tensor:
    """Normal times 1e-4: the variance is far below eps, so a wrong or misplaced eps shows."""
    return d.normal() * 1e-4


def tiny_variance_offset(d: Draw) -> Tensor:
    """Normal times 1e-3 plus 1: a small variance and cancellation together."""
    return d.normal() * 1e-3 + 1


def _constant(name: str, value: float, breaks: str) -> Distribution:
    text = f"Every element {value:g}: y must equal the bias; {breaks}."
    return _named(name, text, lambda d: d.full(value))


# --- places and scales --------------------------------------------------------------------------


def outlier(d: Draw) -> Tensor:
    """Normal with 1e4 as its middle element: one value determines the variance."""
    return _one_in(d.normal(), d.hidden // 2, 1e4)


def outlier_first(d: Draw) -> Tensor:
    """Normal with 1e4 as its first element, which is a bad pivot."""
    return _one_in(d.normal(), 0, 1e4)


def outlier_last(d: Draw) -> Tensor:
    """Normal with 1e4 as its last element: shows a tail left out of the statistics."""
    return _one_in(d.normal(), -1, 1e4)


def offset_outlier_first(d: Draw) -> Tensor:
    """Normal plus 100 with -1e4 as its first element: as a pivot it worsens the condition."""
    return _one_in(d.normal() + 100, 0, -1e4)


def one_hot(d: Draw) -> Tensor:
    """One element 1, all others 0: shows wrong masks, and rounding errors that are all equal."""
    return _one_in(d.full(0.0), d.hidden // 3, 1.0)


def sparse(d: Draw) -> Tensor:
    """Normal with 95 % of the elements 0: shows wrong masks."""
    kept = d.uniform() < 0.05
    return d.normal() * kept


def log_uniform(d: Draw) -> Tensor:
    """Magnitudes from 1e-4 to 1e4, either sign: small values are lost in sums with large ones."""
    sign = torch.sign(d.normal())
    return sign * 10 ** (8 * d.uniform() - 4)


def row_scales(d: Draw) -> Tensor:
    """Normal rows scaled from 1e-4 to 1e4: shows statistics taken from another row."""
    scale = 10 ** torch.linspace(-4, 4, d.rows, dtype=torch.float64)
    return d.normal() * scale[:, None]


def huge_row(d: Draw) -> Tensor:
    """Normal, the last row so large that its squares nearly overflow: shows one scale for all."""
    x = d.normal()
    x[-1:] *= (d.limits.max / max(d.hidden, 1)) ** 0.5 / 8
    return x


# --- the ends of the dtype's range ----------------------------------------------------------------


def subnormal(d: Draw) -> Tensor:
    """Normal times 1/16 of the smallest normal number: shows subnormals flushed to zero."""
    return d.normal() * d.limits.tiny / 16


def square_overflow(d: Draw) -> Tensor:
    """So large that squares overflow: y becomes 0, although the exact y is of size 1."""
    return d.normal().clamp(-3, 3) * d.large


def near_max(d: Draw) -> Tensor:
    """Either sign, up to the largest number: x - mean overflows before it is scaled."""
    return (2 * d.uniform() - 1) * d.limits.max * 0.99


def sum_overflow(d: Draw) -> Tensor:
    """Positive, near the largest number: the sum overflows before it is divided."""
    return (d.uniform() * 0.5 + 0.5) * d.limits.max * 0.99


# --- poison: one bad element in one row ---------------------------------------------------------


def _poisoned(name: str, value: float) -> Distribution:
    text = f"Normal with one {value}: its row must become NaN, and no other row may change."
    return _named(name, text, lambda d: with_one(d.normal(), value))


def nan_after_row(d: Draw) -> Tensor:
    """Normal, with a NaN as the first element of every second row: shows a tail that reads on.

    A tail that is loaded as a whole vector and multiplied by a mask of zeros makes NaN of it.
    """
    x = d.normal()
    x[1::2, :1] = float("nan")
    return x


# --- rows that differ -----------------------------------------------------------------------------
# What shows in one row of a batch need not show in another: a mistake that shows only in
# ill-conditioned rows, in rows of tiny variance or beside an outlier shows in each of these
# batches, whatever else triggers it. The first kind of row is random, so that batches of one row
# differ.

_OFFSETS = (0.0, 1e1, 1e2, 1e3, 1e4)
_SCALES = (1e-4, 2e-2, 1.0, 1e3)
_OUTLIER = 1e4


def mixed_conditions(d: Draw) -> Tensor:
    """Rows in turn: normal, plus 10, 100, 1000 and 1e4; one-pass variances lose digits in some."""
    offsets = torch.tensor(_OFFSETS, dtype=torch.float64)
    return d.normal() + offsets[_kinds(d, len(_OFFSETS))]


def mixed_scales(d: Draw) -> Tensor:
    """Rows in turn: normal times 1e-4, 0.02, 1 and 1000: a wrong eps shows in some."""
    scales = torch.tensor(_SCALES, dtype=torch.float64)
    return d.normal() * scales[_kinds(d, len(_SCALES))]


def mixed_outliers(d: Draw) -> Tensor:
    """Rows in turn: normal with 1e4 first, in the middle, last, or nowhere, constant, and zero."""
    x = d.normal()
    kinds = _kinds(d, 6)[:, 0]
    if d.hidden:
        for kind, column in enumerate((0, d.hidden // 2, d.hidden - 1)):
            x[kinds == kind, column] = _OUTLIER
        x[kinds == 3] = 0.1
        x[kinds == 4] = 0.0
    return x


def mixed_nonfinite(d: Draw) -> Tensor:
    """mixed_conditions with a NaN or an infinity in one row: no other row may change."""
    x = mixed_conditions(d)
    is_nan = bool(torch.randint(2, (), generator=d.generator))
    # one alone: the sums of two would not show which of them is hidden
    return with_one(x, float("nan") if is_nan else float("inf"))


def _kinds(d: Draw, kinds: int) -> Tensor:
    """Return the kind of each row, (rows, 1): in turn, from a random first one."""
    first = int(torch.randint(kinds, (), generator=d.generator))
    return ((torch.arange(d.rows) + first) % kinds)[:, None]


# --- public bug reports, named by project and issue -----------------------------------------------
# A formula in the report is used as it is; numbers in the report are repeated to fill the shape.

_MLX_2238 = (
    1449.570556640625, 1448.8741455078125, 1450.650390625, 1449.2633056640625,
    1449.7763671875, 1449.317138671875, 1449.3297119140625, 1449.077880859375,
    1449.2181396484375, 1449.4329833984375, 1449.1605224609375, 1449.413330078125,
    1449.7933349609375, 1450.066650390625, 1449.7762451171875, 1450.364990234375,
)  # fmt: skip


def mlx_2238(d: Draw) -> Tensor:
    """Sixteen values near 1449.6, condition number 3e3: a one-pass kernel returned NaN."""
    return _repeated(d, _MLX_2238)


def onnxruntime_21935(d: Draw) -> Tensor:
    """Every element 1234: a one-pass variance rounded below -eps gave NaN."""
    return d.full(1234.0)


def onnxruntime_28463(d: Draw) -> Tensor:
    """40000, 40001, 40002, 40003: squares of 1.6e9 leave float32 no digits for the variance."""
    return _repeated(d, (40000.0, 40001.0, 40002.0, 40003.0))


def pytorch_40302(d: Draw) -> Tensor:
    """Normal times 0.01 plus 100: a one-pass variance is 0 instead of 1e-4."""
    return d.normal() * 0.01 + 100


def pytorch_51102(d: Draw) -> Tensor:
    """Normal plus 2000: the variance of y was 48,000 instead of 1."""
    return d.normal() + 2000


def pytorch_81090(d: Draw) -> Tensor:
    """Consecutive integers up to 6,400,000: the last rows of a torch.arange."""
    last = 6_400_000.0
    counted = torch.arange(d.rows * d.hidden, dtype=torch.float64) + (last - d.rows * d.hidden)
    return counted.reshape(d.rows, d.hidden)


def pytorch_108072(d: Draw) -> Tensor:
    """Rows of 2 and rows of 14 in turn: with eps 1e-6, x * scale + bias was 1e-4 off the bias."""
    values = 2.0 + 12.0 * (torch.arange(d.rows, dtype=torch.float64) % 2)
    return values[:, None].expand(d.rows, d.hidden)


def pytorch_162489(d: Draw) -> Tensor:
    """Normal times 1e30: squares overflow, and y was 0 or NaN."""
    return d.normal() * 1e30


def pytorch_188372(d: Draw) -> Tensor:
    """Every element 1e6, reported with one element per row: y must be the bias and dweight 0."""
    return d.full(1e6)


def _repeated(d: Draw, values: tuple[float, ...]) -> Tensor:
    times = -(-d.hidden // len(values))
    row = torch.tensor(values, dtype=torch.float64).repeat(times)[: d.hidden]
    return row.expand(d.rows, d.hidden)


REPORTED = (
    mlx_2238, onnxruntime_21935, onnxruntime_28463, pytorch_40302, pytorch_51102, pytorch_81090,
    pytorch_108072, pytorch_162489, pytorch_188372,
)  # fmt: skip


DISTRIBUTIONS: Registry[Distribution] = by_name(
    normal, uniform, *(_offset(exponent) for exponent in range(1, 8)), tiny_variance,
    tiny_variance_offset, _constant("constant", 0.1, "the computed mean is not exactly 0.1"),
    _constant("constant_zero", 0.0, "without eps it is 1/sqrt(0)"),
    _constant("constant_1234", 1234.0, "a one-pass variance can round below -eps"),
    _constant("constant_6e4", 6e4, "x * scale + bias cancels; squares overflow float16"),
    _constant("constant_1e30", 1e30, "squares overflow"), outlier, outlier_first, outlier_last,
    offset_outlier_first, alternating, mirrored, ramp, ramp_offset, one_hot, sparse, log_uniform,
    row_scales, huge_row, embedding, post_gelu, transformer_outlier, massive_activation, pixels,
    deep_pixels, log_probabilities, cauchy,
    mixed_conditions, mixed_scales, mixed_outliers, mixed_nonfinite, ulp_comb, one_ulp_spike,
    last_digit, subnormal, square_overflow, near_max, sum_overflow,
    _poisoned("nan_row", float("nan")), _poisoned("positive_infinity_row", float("inf")),
    _poisoned("negative_infinity_row", float("-inf")), nan_after_row, *REPORTED, largest=_largest,
)  # fmt: skip
