"""How far from exact a correct implementation may be: a-priori bounds, element by element.

Notation, per row: mean m, biased variance s2, unit roundoff u of the dtype in which statistics
are formed, chain length f (how many roundings an addend of a sum can meet),
``K = sqrt((m^2 + s2)/(s2 + eps))`` (the condition number, kept finite for constant rows by eps)
and ``rho = sqrt(s2/(s2 + eps))``. t bounds the relative error of s2 + eps:

    class       t                                               source
    recentred   (f+4) u rho^2                                   derived here: no mean is left
    two_pass    (f+4) u rho^2 + ((f+2) u K)^2                   Chan, Golub, LeVeque 1983
    welford     (f+4) u (rho^2 + K rho) + ((f+2) u K)^2         the same; Barlow 1991
    one_pass    2 (f+2) u K^2                                   the same
    shifted     2 (f+2) u (rho^2 + (m - pivot)^2/(s2 + eps))    the same, shifted data

The relative error of rstd is at most ``1/sqrt(1-t) - 1``. At t >= 1 no digit is
certain, and the bound is infinite. Two passes with a mean that is off by d compute
``s2 + d^2``, so that rstd comes out at most ``1 - 1/sqrt(1+t)`` too small, whatever t, and too
large by the first term of t alone: ``at_any_condition`` bounds results
without a correct digit by this.
The bound of y adds the error of a mean kept in one word, (f+2) u K, and one rounding for each
remaining operation and for the result. These are bounds, not estimates: correct code cannot exceed
them, whatever the data.

PyTorch's CPU kernel (aten/src/ATen/native/cpu/layer_norm_kernel.cpp) does not centre the sums of
its backward: ``dx = rstd g + b x + c``, g = dy weight, ``b = (m sum(g) - sum(g x)) rstd^3/N``. Both
lose (f+2) u of addends up to K times as large as those of sum(g n), n the normalised value. This
adds ``2 (f+3) u K mean(abs(g))`` to the error of mean(g n), and K to n in the roundings of b x + c.

A sum over rows counts only the k rows whose dy is not 0 in the column: adding an exact zero rounds
nothing. Of k - 1 additions in whatever order, none rounds a number larger than the sum of the
positive addends or that of the negative ones, ``(sum abs(addend) + abs(sum addend))/2``. And where
all dy are multiples of a number q with ``sum abs(dy) <= q/u``, every partial sum of dbias fits the
dtype, and none is rounded. Where k u is not small, a rounded partial sum may exceed the exact
one by a factor ``(1 + u)^k <= exp(k u)`` (Higham, Accuracy and Stability, 2002, section 3.1).

A sum over several axes that are not one axis in memory is no single tree: PyTorch
(aten/src/ATen/native/cpu/SumKernel.cpp, cascade_sum) makes one along an axis and adds the results
to the output one by one. f then grows by their number.

Code that runs in half precision rounds a result more than once. In y a factor, a product and the
sum are rounded: the factor's error is at most one ulp of the largest number that is added, those of
product and sum are half an ulp each. In dx dy weight is rounded first, then the terms and their two
sums. In dweight n and each product are. ``rounds_again`` bounds y and dbias by two ulp, and dx and
dweight by three, of the largest number that is added: n weight and bias in y; dy weight, its root
mean square and its projection on n in dx; the norm of the addends in dweight and dbias. Where these
numbers leave the range of the dtype, dx has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from harness.numerics.bound_terms import COMPILED_LANES, chain_length, condition_limit, terms
from harness.numerics.oracle import ExactRows
from harness.records import Case, Mode
from implementations.contract import Algorithm, Implementation, Reduction

_SLACK = 1 + 2.0**-10  # the spacing is that of the exact value; the rounded value differs slightly
_EXPONENT_BITS = 0x7FF << 52


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the spacing of ``dtype`` just above 1."""
    return torch.finfo(dtype).eps / 2


def spacing(dtype: torch.dtype, value: Tensor) -> Tensor:
    """Spacing of ``dtype`` at abs(value), a float64 tensor (one ulp); the least one at 0.

    The exponent bits of a float64 alone are the power of two at or below its size. For infinity
    and NaN the result is finite, so that an error there is infinitely many of it.
    """
    limits = torch.finfo(dtype)
    power = (value.contiguous().view(torch.int64) & _EXPONENT_BITS).view(torch.float64)
    return power.clamp_(limits.tiny, 2.0**1023).mul_(limits.eps)


def rounding(dtype: torch.dtype, exact: Tensor) -> Tensor:
    """Half an ulp: the result is rounded once, whatever else is right."""
    half = 0.5 * spacing(dtype, exact) * _SLACK
    # half of the smallest float64 is 0, and no error is within a bound of 0
    return half.clamp_(min=5e-324) if dtype is torch.float64 else half


def grain(value: Tensor) -> Tensor:
    """Return the largest power of two of which each float64 is a multiple; infinite for 0."""
    value = value.resolve_neg().contiguous()
    digits = (value.view(torch.int64) & ((1 << 52) - 1)) | (1 << 52)
    last = (digits & -digits).double().mul_(spacing(torch.float64, value))
    return last.masked_fill_(value == 0, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSums:
    """What the bounds of dweight and dbias need of a block of rows; each (1, hidden) float64."""

    addends: Tensor
    """Rows whose dy is not 0."""
    size: Tensor
    """Sum of abs(dy)."""
    grain: Tensor
    """The largest power of two of which every dy is a multiple; infinite without addends."""
    product_size: Tensor
    """Sum of abs(dy xhat), as large as it can be computed."""
    inherited: Tensor
    """Error of dweight from the addends themselves; infinite without a bound."""
    square: Tensor
    """Sum of dy^2; 0 unless results may be rounded more than once."""
    product_square: Tensor
    """Sum of (dy xhat)^2, likewise."""

    @classmethod
    def without_rows(cls, hidden: int) -> ColumnSums:
        """Return the sums over no rows."""
        nothing = torch.zeros((1, hidden), dtype=torch.float64)
        return cls(
            addends=nothing,
            size=nothing,
            grain=torch.full_like(nothing, float("inf")),
            product_size=nothing,
            inherited=nothing,
            square=nothing,
            product_square=nothing,
        )

    def __add__(self, other: ColumnSums) -> ColumnSums:
        return ColumnSums(
            addends=self.addends + other.addends,
            size=self.size + other.size,
            grain=torch.minimum(self.grain, other.grain),
            product_size=self.product_size + other.product_size,
            inherited=self.inherited + other.inherited,
            square=self.square + other.square,
            product_square=self.product_square + other.product_square,
        )

    def additions(self, chain: float, size: Tensor, total: Tensor, u: float) -> Tensor:
        """Return how much the additions of a sum over the rows can round, (1, hidden), over u.

        Args:
            chain: the most roundings that an addend can meet.
            size: sum of the absolute values of the addends.
            total: absolute value of their sum.
            u: unit roundoff of the additions.
        """
        # k - 1 additions, and one more for a mean that is multiplied by the number of rows
        count = self.addends.clamp(min=1)
        growth = torch.exp(count * u)
        # no partial sum exceeds that of the positive addends, or that of the negative ones
        largest = (size + total) / 2 * growth
        return torch.minimum(count.clamp(max=chain) * size * growth, count * largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBound:
    """The error bounds of an implementation, from its algorithm and the shape of its sums."""

    algorithm: Algorithm
    reduction: Reduction
    """Of the sums over a row in the forward."""
    backward_reduction: Reduction
    """Of the sums over a row in the backward."""
    column_reduction: Reduction
    """Of the sums over all rows."""
    centred_backward: bool = True
    """Whether the backward sums dy weight (x - mean), not dy weight x."""
    lanes: int
    """Running sums of a BLOCKS reduction."""
    accumulate_dtype: torch.dtype
    """In which mean and variance are formed."""
    at_any_condition: bool = False
    """Whether two passes are bounded at t >= 1 too, where no digit is certain."""
    column_dtype: torch.dtype | None = None
    """In which the sums over all rows are formed; None for that of mean and variance."""
    sums_rounded_once: bool = False
    """Whether sums over a row are formed in a wider dtype than the statistics, and rounded."""
    rounds_again: torch.dtype | None = None
    """The dtype of x, if results may be rounded to it more than once."""
    row_parts: int = 1
    """How many sums are added one by one where a tree over a row is expected."""
    column_parts: int = 1
    """The same of a tree over all rows."""

    def in_layout(self, case: Case, x: Tensor, dy: Tensor | None) -> ErrorBound:
        """Return the bounds for the layout in memory of x and dy, which have the case's shape."""
        given = [tensor for tensor in (x, dy) if tensor is not None]
        axes = range(x.dim())[: -case.normalized_dims], range(x.dim())[-case.normalized_dims :]
        columns, rows = (max(_parts_of_sum(tensor, own) for tensor in given) for own in axes)
        return replace(self, row_parts=rows, column_parts=columns)

    def chain(self, count: int, reduction: Reduction, parts: int = 1) -> float:
        """Roundings an addend can meet in a sum of ``count``: f."""
        further = parts - 1 if reduction is Reduction.TREE else 0
        return chain_length(count, reduction, self.lanes) + further

    def _row_chain(self, count: int, reduction: Reduction) -> float:
        return 1.0 if self.sums_rounded_once else self.chain(count, reduction, self.row_parts)

    def condition_limit(self, hidden: int) -> float:
        """Condition number from which on there is no bound, ignoring eps: where t reaches 1."""
        u = unit_roundoff(self.accumulate_dtype)
        return condition_limit(self.algorithm, self._row_chain(hidden, self.reduction), u)

    def y(
        self, exact: ExactRows, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> Tensor:
        """Bound of abs(y - exact y), (rows, hidden) float64; infinite where t >= 1."""
        u = unit_roundoff(self.accumulate_dtype)
        f = self._row_chain(exact.y[0].shape[1], self.reduction)
        size, rho, rstd_error = _of_statistics(self, exact, eps)
        mean_error = (f + 2) * self._mean_size(exact, size, rho)
        # factors per row are combined first: a pass over the elements costs more than all of them
        of_weight = u * mean_error * (1 + rstd_error) + self._underflow(exact, rstd_error)
        of_part = 4 * u * (1 + rstd_error) + rstd_error
        part = exact.normalised[0].abs().mul_(of_part)
        bound = part.add_(of_weight).mul_(weight.abs())
        bound.add_(exact.y[0].abs(), alpha=2 * u).add_(bias.abs(), alpha=2 * u)
        bound += rounding(dtype, exact.y[0])
        if self.rounds_again is not None:
            scaled = torch.maximum(exact.normalised[0].abs(), rho).mul_(weight.abs())
            bound += self._rounded_again(torch.maximum(exact.y[0].abs(), scaled), bias)
        return _infinite_where_unbounded(bound, rstd_error)

    def dx(
        self, exact: ExactRows, weight: Tensor, dy: Tensor, eps: float, dtype: torch.dtype
    ) -> Tensor:
        """Bound of abs(dx - exact dx), (rows, hidden) float64."""
        if exact.dx is None:
            raise ValueError("a forward case has no dx")
        u, f = (
            unit_roundoff(self.accumulate_dtype),
            self._row_chain(dy.shape[1], self.backward_reduction),
        )
        rstd_error, fixed, slope = self._backward_errors(exact, eps)
        # e = fixed + slope n bounds the error of n = abs(normalised). All but the first term of
        #   4 u (scaled + plain + n across) + (f+2) u mean(scaled) + across e
        #   + (n + e) ((f+3) u mean(scaled n) + mean(scaled e))
        # is then a constant of the row and a multiple of n: fewer passes over the elements.
        normalised = exact.normalised[0].abs()
        signed = dy * weight
        plain = signed.mean(-1, keepdim=True).abs()
        across = _row_mean(signed, exact.normalised[0]).abs()
        scaled = signed.abs_()
        mean, mean_product = scaled.mean(-1, keepdim=True), _row_mean(scaled, normalised)
        of_sum = (f + 3) * u * mean_product + fixed * mean + slope * mean_product
        of_centre = fixed
        if not self.centred_backward:
            size, _, _ = _of_statistics(self, exact, eps)
            of_sum, of_centre = of_sum + 2 * (f + 3) * u * size * mean, fixed + 4 * u * size
        constant = 4 * u * plain + (f + 2) * u * mean + of_centre * (of_sum + across)
        of_normalised = 4 * u * across + (1 + slope) * of_sum + slope * across
        inner = normalised.mul_(of_normalised).add_(scaled, alpha=4 * u).add_(constant)
        bound = inner.mul_(exact.rstd * (1 + rstd_error))
        bound.addcmul_(exact.dx[0].abs(), rstd_error)
        bound += rounding(dtype, exact.dx[0])
        if self.rounds_again is not None:
            along = exact.normalised[0].abs() * across
            largest = torch.maximum(scaled, along)
            rms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True) / scaled.shape[1] ** 0.5
            largest = torch.maximum(largest, rms)
            bound += self._rounded_again(largest * exact.rstd, exact.dx[0], ulps=3)
            # a part that leaves the range is infinite, and the sum of two of them may be NaN
            partial = (scaled + plain + along) * exact.rstd
            bound[partial > torch.finfo(self.rounds_again).max] = float("inf")
            # a subnormal number that is multiplied by rstd has fewer digits
            bound += self._rounded_again(largest, largest) * exact.rstd
        # where dy is subnormal, so are its products with powers of rstd, in whatever order
        powers = 1 + exact.rstd + exact.rstd**2 + 1 / exact.rstd
        subnormal = (f + 2) * self._smallest * powers * (mean > 0)
        bound.add_(subnormal).addcmul_(exact.normalised[0].abs(), subnormal)
        # differentiating 1/sqrt gives its cube, which leaves the range sooner than anything else
        limits, cube = torch.finfo(self.accumulate_dtype), exact.rstd**3
        # beyond their limit, two passes compute a much smaller rstd than the exact one
        computed = torch.where(rstd_error < 1, cube * (1 - rstd_error) ** 3, cube)
        usable = (computed > limits.tiny) & (cube < limits.max / 4)
        return _infinite_where_unbounded(bound, torch.where(usable, rstd_error, float("inf")))

    def columns(self, exact: ExactRows, dy: Tensor, eps: float) -> ColumnSums:
        """Return what one block adds to the bounds of dweight and dbias."""
        rstd_error, fixed, slope = self._backward_errors(exact, eps)
        size, normalised = dy.abs(), exact.normalised[0].abs()
        # an addend dy n is off by dy e, e = fixed + slope n, and is of size dy (n + e)
        error = _infinite_where_unbounded((normalised * slope).add_(fixed), rstd_error)
        inherited = _infinite_where_unbounded(error * size, rstd_error)
        product_size = normalised.add_(error).mul_(size).sum(0, keepdim=True)
        square = product_square = torch.zeros_like(product_size)
        if self.rounds_again is not None:
            square = dy.square().sum(0, keepdim=True)
            product_square = (dy * exact.normalised[0]).square_().sum(0, keepdim=True)
        return ColumnSums(
            addends=torch.count_nonzero(dy, 0)[None].double(),
            size=size.sum(0, keepdim=True),
            grain=grain(dy).amin(0, keepdim=True),
            product_size=product_size,
            inherited=inherited.sum(0, keepdim=True),
            square=square,
            product_square=product_square,
        )

    def dweight(self, sums: ColumnSums, rows: int, exact: Tensor, dtype: torch.dtype) -> Tensor:
        """Bound of abs(dweight - exact), (1, hidden), from the sum of all blocks of ``rows``."""
        u = unit_roundoff(self.column_dtype or self.accumulate_dtype)
        # two more roundings, of the product and of the total. The addends themselves are off by
        # what they inherit, and by the smallest number if they are subnormal
        chain = self.chain(rows, self.column_reduction, self.column_parts)
        total = exact.abs() + sums.inherited
        rounded = u * sums.additions(chain, sums.product_size, total, u)
        bound = rounded + 2 * u * sums.product_size + sums.addends * self._smallest
        bound = _infinite_where_unbounded(bound + sums.inherited, sums.inherited)
        bound += rounding(dtype, exact)
        if self.rounds_again is not None:  # of the normalised value, and of each product
            limits = torch.finfo(self.rounds_again)
            bound += self._rounded_again(sums.product_square.sqrt(), exact, ulps=3)
            bound += sums.addends * (limits.tiny * limits.eps)
        return bound

    def dbias(self, sums: ColumnSums, rows: int, exact: Tensor, dtype: torch.dtype) -> Tensor:
        """Bound of abs(dbias - exact), (1, hidden), from the sum of all blocks of ``rows``."""
        u = unit_roundoff(self.column_dtype or self.accumulate_dtype)
        chain = self.chain(rows, self.column_reduction, self.column_parts)
        rounded = u * sums.additions(chain, sums.size, exact.abs(), u)
        rounded = torch.where(sums.size * u <= sums.grain, u * sums.size, rounded)
        bound = rounded + u * sums.size + rounding(dtype, exact)
        return bound + self._rounded_again(sums.square.sqrt(), exact)

    def _rounded_again(self, size: Tensor, other: Tensor, ulps: int = 2) -> Tensor:
        """What further roundings add to half an ulp, up to ``ulps`` of the larger number."""
        if self.rounds_again is None:
            return torch.zeros_like(size)
        return (ulps - 0.5) * spacing(self.rounds_again, torch.maximum(size.abs(), other.abs()))

    def _mean_size(self, exact: ExactRows, size: Tensor, rho: Tensor) -> Tensor:
        """Size of the number whose rounding the deviations inherit, over their rms; (rows, 1)."""
        if self.algorithm is Algorithm.RECENTRED:
            return rho
        if self.algorithm is Algorithm.SHIFTED:
            # x - pivot: a pivot from the row is no further from the mean than its furthest element
            if not exact.y[0].numel():
                return rho
            distance = exact.normalised[0].abs().amax(-1, keepdim=True)
            return torch.sqrt(rho**2 + distance**2)
        return size

    def _backward_errors(self, exact: ExactRows, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds of the relative error of rstd, and of the error of the normalised value.

        The second has two parts: a constant, and the factor of abs(normalised). All three are
        (rows, 1).
        """
        u = unit_roundoff(self.accumulate_dtype)
        f = self._row_chain(exact.y[0].shape[1], self.reduction)
        size, rho, rstd_error = _of_statistics(self, exact, eps)
        rstd_error = rstd_error + 5 * u  # 4 operations and storing it
        mean_error = (f + 6) * u * self._mean_size(exact, size, rho) * (1 + rstd_error)
        return rstd_error, mean_error + self._underflow(exact, rstd_error), 4 * u + rstd_error

    @property
    def _smallest(self) -> float:
        """The smallest number of the dtype of the statistics."""
        limits = torch.finfo(self.accumulate_dtype)
        return limits.tiny * limits.eps

    def _underflow(self, exact: ExactRows, rstd_error: Tensor) -> Tensor:
        """Error of the normalised value where x - mean is subnormal, (rows, 1).

        There an operation is off by half the smallest number, however small its result.
        """
        f = self._row_chain(exact.y[0].shape[1], self.reduction)
        return (f + 2) * self._smallest * exact.rstd * (1 + rstd_error)

    def overflows(self, exact: ExactRows) -> Tensor:
        """Whether a row's sums leave the range of the dtype they are formed in, (rows, 1)."""
        hidden = exact.y[0].shape[1]
        # a quarter: partial sums and combined moments can be larger than the final ones
        limit = torch.finfo(self.accumulate_dtype).max / 4
        squares = exact.variance + exact.mean.square()
        # Welford's chunks square the difference of their means, and an empty one has the mean 0
        squares_mean = self.algorithm in {Algorithm.ONE_PASS, Algorithm.WELFORD}
        summed = squares if squares_mean else exact.variance
        if self.at_any_condition:  # the square of the mean's error is summed too
            summed = summed + self._terms(hidden)[0] * squares
        # written so that NaN, of an exact square that overflows float64 itself, counts
        return ~((hidden * summed < limit) & (hidden * squares.sqrt() < limit))

    def of_rstd(self, exact: ExactRows, size: Tensor, rho: Tensor) -> Tensor:
        """Bound of the relative error of rstd, (rows, 1); infinite where t >= 1."""
        a, b, c = self._terms(exact.y[0].shape[1])
        of_mean, of_sum = a * size**2, b * size * rho + c * rho**2
        if self.algorithm is Algorithm.SHIFTED:
            of_sum = c * self._mean_size(exact, size, rho) ** 2
        if self.at_any_condition and self.algorithm is Algorithm.TWO_PASS:
            bounded = (of_sum <= 0.5) & torch.isfinite(of_mean) & ~self.overflows(exact)
            too_large = 1 / torch.sqrt(1 - of_sum.clamp(max=0.5)) - 1
            too_small = 1 - 1 / torch.sqrt(1 + of_sum + of_mean * (1 + of_sum))
            return torch.where(bounded, torch.maximum(too_large, too_small), float("inf"))
        t = of_mean + of_sum
        bounded = (t < 1) & ~self.overflows(exact)  # t < 1 is False for NaN too
        error = 1 / torch.sqrt(1 - torch.where(bounded, t, torch.zeros_like(t))) - 1
        return torch.where(bounded, error, torch.full_like(t, float("inf")))

    def _terms(self, hidden: int) -> tuple[float, float, float]:
        """a, b and c in t = a K^2 + b K rho + c rho^2; shifted: c (rho^2 + distance^2)."""
        u, f = unit_roundoff(self.accumulate_dtype), self._row_chain(hidden, self.reduction)
        return terms(self.algorithm, f, u)


def _parts_of_sum(tensor: Tensor, axes: Sequence[int]) -> int:
    """Return how many sums torch adds one by one in a sum over axes of a tensor.

    One if the axes are one axis in memory. Otherwise torch makes a tree along a single axis, which
    may be the shortest, and adds the results to the output in turn.
    """
    merged: list[tuple[int, int]] = []
    for step, size in sorted((tensor.stride(axis), tensor.shape[axis]) for axis in axes):
        if not size:
            return 1
        if merged and step == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        elif size > 1:
            merged.append((step, size))
    sizes = [size for _, size in merged]
    return prod(sizes) // min(sizes, default=1)


def error_bound_of(implementation: Implementation, case: Case) -> ErrorBound:
    """Return the error bounds of ``implementation`` for ``case``.

    torch.compile replaces trees over a row by running sums in the lanes of a vector, and trees
    over all rows by one running sum; the declared dtype of the statistics still bounds it.
    """
    dtype: torch.dtype = getattr(torch, case.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    compiled = case.mode is Mode.COMPILED
    forward, lanes = implementation.reduction, implementation.lanes
    backward = implementation.backward_reduction or forward
    if compiled and forward is Reduction.TREE:
        forward = backward = Reduction.BLOCKS
        lanes = COMPILED_LANES
    return ErrorBound(
        algorithm=implementation.algorithm,
        reduction=forward,
        backward_reduction=backward,
        column_reduction=Reduction.SEQUENTIAL if compiled else implementation.column_reduction,
        centred_backward=implementation.centred_backward,
        lanes=lanes,
        accumulate_dtype=dtype if implementation.statistics_in_input_dtype else wide,
    )


@lru_cache(maxsize=1)  # y, dx and the columns of a block need them in turn
def _of_statistics(
    bounds: ErrorBound, exact: ExactRows, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """K, rho and the bound of the relative error of rstd of each row, (rows, 1).

    0/0 for constant rows of zeros without eps is NaN.
    """
    size = torch.sqrt((exact.mean.square() + exact.variance) / (exact.variance + eps))
    rho = torch.sqrt(exact.variance / (exact.variance + eps))
    return size, rho, bounds.of_rstd(exact, size, rho)


def _row_mean(a: Tensor, b: Tensor) -> Tensor:
    """Mean of a product over each row, (rows, 1)."""
    products: Tensor = torch.linalg.vecdot(a, b)
    return products[:, None] / a.shape[1]


def _infinite_where_unbounded(bound: Tensor, rstd_error: Tensor) -> Tensor:
    finite = torch.isfinite(rstd_error)
    if bool(finite.all()):  # the usual case, without a pass over the elements
        return bound
    return torch.where(finite, bound, torch.full_like(bound, float("inf")))
