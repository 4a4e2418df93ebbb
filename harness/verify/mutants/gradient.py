"""Mutants whose y is right and whose gradient is not.

With xhat = (x - mean) rstd and g = dy weight, the right ones are, per row,
dx = rstd (g - mean(g) - xhat mean(g xhat)), and summed over rows dweight = sum dy xhat and
dbias = sum dy (Ba, Kiros and Hinton, arXiv 1607.06450, differentiated).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import Gradients, Rule, Terms, analytic
from harness.verify.mutants.mutant import (
    HALVES,
    Check,
    Family,
    Mutant,
    Remembering,
    Rows,
    as_if_contiguous,
    layer_norm_of,
    mutant,
)
from harness.verify.mutants.reread import reading_dy
from implementations.torch_private import negated_view

_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})
_WARP = 32  # rows of a block
_ROWS_AT_ONCE = 20  # ours


def _in_backward(rule: Rule, caught_by: Check = Check.GRADIENT) -> Mutant:
    """Wrap wrong gradients as a mutant named and described after them."""
    wrong = analytic(rule)
    return mutant(Family.GRADIENT, directions=_RECORDING, caught_by=caught_by)(wrong)


# --- dx ------------------------------------------------------------------------------------------


@_in_backward
def dx_without_mean_of_dy(of: Terms) -> Gradients:
    """Leaves mean(g) out of dx."""
    return replace(of.right, dx=of.rstd * (of.scaled - of.normalised * of.across))


@_in_backward
def dx_with_mean_of_dy_added(of: Terms) -> Gradients:
    """Adds mean(g) to dx where it is to be subtracted."""
    return replace(of.right, dx=of.rstd * (of.scaled + of.plain - of.normalised * of.across))


@_in_backward
def dx_with_mean_of_dy_twice(of: Terms) -> Gradients:
    """Subtracts mean(g) twice from dx."""
    return replace(of.right, dx=of.rstd * (of.scaled - 2 * of.plain - of.normalised * of.across))


@_in_backward
def dx_without_projection(of: Terms) -> Gradients:
    """Leaves xhat mean(g xhat) out of dx, as if the variance were a constant."""
    return replace(of.right, dx=of.rstd * (of.scaled - of.plain))


@_in_backward
def dx_with_unbiased_projection(of: Terms) -> Gradients:
    """Divides the sum of g xhat by N-1 instead of N."""
    across = (of.scaled * of.normalised).sum(-1, keepdim=True) / (of.hidden - 1)
    return replace(of.right, dx=of.rstd * (of.scaled - of.plain - of.normalised * across))


@_in_backward
def dx_with_unbiased_rstd(of: Terms) -> Gradients:
    """Forms rstd of the backward from the variance divided by N-1."""
    variance = of.deviation.square().sum(-1, keepdim=True) / (of.hidden - 1)
    return replace(of.right, dx=of.right.dx / of.rstd * torch.rsqrt(variance + of.eps))


@_in_backward
def dx_without_eps(of: Terms) -> Gradients:
    """Forms rstd of the backward without eps."""
    rstd = torch.rsqrt(of.deviation.square().mean(-1, keepdim=True))
    return replace(of, rstd=rstd).right


@_in_backward
def dx_without_weight(of: Terms) -> Gradients:
    """Forms dx of dy instead of dy weight."""
    return replace(of.right, dx=replace(of, weight=torch.ones_like(of.weight)).right.dx)


@_in_backward
def dx_times_weight_at_last(of: Terms) -> Gradients:
    """Multiplies by the weight after the means of dy are taken instead of before."""
    unscaled = replace(of, weight=torch.ones_like(of.weight)).right.dx
    return replace(of.right, dx=unscaled * of.weight)


@_in_backward
def dx_of_constant_statistics(of: Terms) -> Gradients:
    """Stops the gradient of mean and variance."""
    return replace(of.right, dx=of.rstd * of.scaled)


@_in_backward
def dx_of_normalised_in_bfloat16(of: Terms) -> Gradients:
    """Keeps xhat for the backward in bfloat16."""
    normalised = _through(torch.bfloat16, of.normalised)
    across = (of.scaled * normalised).mean(-1, keepdim=True)
    return replace(of.right, dx=of.rstd * (of.scaled - of.plain - normalised * across))


@_in_backward
def dx_of_rstd_in_bfloat16(of: Terms) -> Gradients:
    """Keeps rstd for the backward in bfloat16."""
    return replace(of, rstd=_through(torch.bfloat16, of.rstd)).right


def _through(dtype: torch.dtype, value: Tensor) -> Tensor:
    return value.to(dtype).to(value.dtype)


@_in_backward
def statistics_kept_in_bfloat16(of: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in bfloat16."""
    mean, rstd = (_through(torch.bfloat16, each) for each in (of.mean, of.rstd))
    return replace(of, mean=mean, rstd=rstd).right


@_in_backward
def statistics_kept_in_float16(of: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in float16."""
    mean, rstd = (_through(torch.float16, each) for each in (of.mean, of.rstd))
    return replace(of, mean=mean, rstd=rstd).right


# --- dweight and dbias ---------------------------------------------------------------------------


@_in_backward
def dweight_of_deviations(of: Terms) -> Gradients:
    """Forms dweight of x - mean instead of xhat."""
    return replace(of.right, dweight=(of.dy * of.deviation).sum(0))


@_in_backward
def dweight_averaged(of: Terms) -> Gradients:
    """Averages dweight over rows instead of adding it up."""
    return replace(of.right, dweight=(of.dy * of.normalised).mean(0))


@_in_backward
def dbias_averaged(of: Terms) -> Gradients:
    """Averages dbias over rows instead of adding it up."""
    return replace(of.right, dbias=of.dy.mean(0))


def _bfloat16_sum(terms: Tensor) -> Tensor:
    """One running sum over rows, rounded to bfloat16 at every step."""
    total = terms.new_zeros(terms.shape[1], dtype=torch.bfloat16)
    for row in terms.to(torch.bfloat16):
        total = total + row
    return total.to(terms.dtype)


@_in_backward
def dweight_summed_in_bfloat16(of: Terms) -> Gradients:
    """Adds up dweight in bfloat16, one row after the other."""
    return replace(of.right, dweight=_bfloat16_sum(of.dy * of.normalised))


@_in_backward
def dbias_summed_in_bfloat16(of: Terms) -> Gradients:
    """Adds up dbias in bfloat16, one row after the other: it stops growing at 256 equal rows."""
    return replace(of.right, dbias=_bfloat16_sum(of.dy))


@_in_backward
def last_row_left_out(of: Terms) -> Gradients:
    """Leaves the last row out of dweight and dbias."""
    terms = of.dy * of.normalised
    return replace(of.right, dweight=terms[:-1].sum(0), dbias=of.dy[:-1].sum(0))


@_in_backward
def rows_beyond_32_left_out(of: Terms) -> Gradients:
    """Leaves the rows beyond a multiple of 32 out of dweight and dbias."""
    whole = of.dy.shape[0] - of.dy.shape[0] % _WARP
    terms = of.dy * of.normalised
    return replace(of.right, dweight=terms[:whole].sum(0), dbias=of.dy[:whole].sum(0))


@partial(_in_backward, caught_by=Check.THREADS)
def sums_of_other_threads_lost(of: Terms) -> Gradients:
    """Leaves the rows of all threads but the first out of dweight and dbias."""
    share = -(-of.dy.shape[0] // torch.get_num_threads())
    terms = of.dy * of.normalised
    return replace(of.right, dweight=terms[:share].sum(0), dbias=of.dy[:share].sum(0))


@_in_backward
def dbias_zero(of: Terms) -> Gradients:
    """Returns zeros for dbias."""
    return replace(of.right, dbias=torch.zeros_like(of.right.dbias))


@_in_backward
def dbias_of_scaled_dy(of: Terms) -> Gradients:
    """Adds up dy weight instead of dy for dbias."""
    return replace(of.right, dbias=of.scaled.sum(0))


@_in_backward
def dweight_and_dbias_swapped(of: Terms) -> Gradients:
    """Returns dweight for dbias and dbias for dweight."""
    return replace(of.right, dweight=of.right.dbias, dbias=of.right.dweight)


@mutant(Family.GRADIENT, dtypes=HALVES, directions=_RECORDING, caught_by=Check.GRADIENT)
@layer_norm_of
def portions_added_in_parameter_dtype(of: Rows) -> Tensor:
    """Adds up dweight and dbias of portions of twenty rows in float16 or bfloat16."""
    portions = of.x.split(_ROWS_AT_ONCE)
    return torch.cat([Rows(each, of.weight, of.bias, of.eps).y for each in portions])


# --- other than values ---------------------------------------------------------------------------


@mutant(Family.GRADIENT, directions=_RECORDING, caught_by=Check.CONTRACT)
@layer_norm_of
def dbias_missing(of: Rows) -> Tensor:
    """Returns no dbias at all."""
    bias = None if of.bias is None else of.bias.detach()
    return Rows(of.x, of.weight, bias, of.eps).y


class _DxAddsUp(Remembering):
    """Adds each dx to those of earlier calls with the same shape: a buffer is never cleared."""

    def __init__(self) -> None:
        self._sums: dict[torch.Size, Tensor] = {}

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        def adding(of: Terms) -> Gradients:
            right = of.right
            before = self._sums.get(right.dx.shape, torch.zeros_like(right.dx))
            self._sums[right.dx.shape] = right.dx + before.to(right.dx.dtype)
            return replace(right, dx=self._sums[right.dx.shape])

        return analytic(adding)(x, normalized_shape, weight, bias, eps)


dx_adds_up = mutant(Family.GRADIENT, directions=_RECORDING, caught_by=Check.REPETITION)(_DxAddsUp)


# --- in memory -----------------------------------------------------------------------------------


@reading_dy(Family.GRADIENT, Check.LAYOUT)
def dy_strides_ignored(dy: Tensor) -> Tensor:
    """Reads dy from its first element on as if it were contiguous."""
    return as_if_contiguous(dy)


@reading_dy(Family.GRADIENT, Check.LAYOUT, remark=RemarkKind.NEGATED_MISREAD)
def dy_negative_bit_ignored(dy: Tensor) -> Tensor:
    """Reads the memory of dy, where dy may be kept as -dy."""
    return negated_view(dy) if dy.is_neg() else dy
