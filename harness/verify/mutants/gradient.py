"""Mutants whose y is right and whose gradients are not; :mod:`.analytic` has the formula."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.altered_gradients import altering_dy
from harness.verify.mutants.analytic import Gradients, Rule, Terms, analytic
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.kernel import WARP
from harness.verify.mutants.mutant import (
    HALVES,
    RECORDING,
    CheckKind,
    Mutant,
    Stateful,
    as_if_contiguous,
    mutant,
    on_rows,
    rounded_to,
    without_tail,
)
from implementations.torch_private import negated_view

_ROWS_AT_ONCE = 20  # few, so that small cases have several portions


def _in_backward(rule: Rule, caught_by: CheckKind = CheckKind.GRADIENT) -> Mutant:
    """Wrap wrong gradients as a mutant named and described after them."""
    return mutant(directions=RECORDING, caught_by=caught_by)(analytic(rule))


# --- dx ------------------------------------------------------------------------------------------


@_in_backward
def dx_without_mean_of_dy(terms: Terms) -> Gradients:
    """Leaves mean(g) out of dx."""
    return terms.with_dx(terms.g - terms.xhat * terms.mean_g_xhat)


@_in_backward
def dx_with_mean_of_dy_added(terms: Terms) -> Gradients:
    """Adds mean(g) in dx instead of subtracting it."""
    return terms.with_dx(terms.g + terms.mean_g - terms.xhat * terms.mean_g_xhat)


@_in_backward
def dx_with_mean_of_dy_twice(terms: Terms) -> Gradients:
    """Subtracts mean(g) twice in dx."""
    return terms.with_dx(terms.g - 2 * terms.mean_g - terms.xhat * terms.mean_g_xhat)


@_in_backward
def dx_without_projection(terms: Terms) -> Gradients:
    """Leaves xhat mean(g xhat) out of dx, as if the variance were constant."""
    return terms.with_dx(terms.g - terms.mean_g)


@_in_backward
def dx_with_unbiased_projection(terms: Terms) -> Gradients:
    """Divides the sum of g xhat in dx by N-1 instead of N."""
    mean_g_xhat = (terms.g * terms.xhat).sum(-1, keepdim=True) / (terms.hidden - 1)
    return terms.with_dx(terms.g - terms.mean_g - terms.xhat * mean_g_xhat)


@_in_backward
def dx_with_unbiased_rstd(terms: Terms) -> Gradients:
    """Divides the variance for the rstd of the backward by N-1 instead of N."""
    variance = terms.deviation.square().sum(-1, keepdim=True) / (terms.hidden - 1)
    rstd = torch.rsqrt(variance + terms.eps)
    return replace(terms.right, dx=terms.right.dx / terms.rstd * rstd)


@_in_backward
def dx_without_eps(terms: Terms) -> Gradients:
    """Adds no eps for the rstd of the backward."""
    rstd = torch.rsqrt(terms.deviation.square().mean(-1, keepdim=True))
    return replace(terms, rstd=rstd).right


@_in_backward
def dx_without_weight(terms: Terms) -> Gradients:
    """Computes dx from dy instead of dy * weight."""
    return replace(terms.right, dx=replace(terms, weight=torch.ones_like(terms.weight)).right.dx)


@_in_backward
def dx_times_weight_at_last(terms: Terms) -> Gradients:
    """Multiplies dx by the weight at the end instead of dy at the start."""
    unscaled = replace(terms, weight=torch.ones_like(terms.weight)).right.dx
    return replace(terms.right, dx=unscaled * terms.weight)


@_in_backward
def dx_of_constant_statistics(terms: Terms) -> Gradients:
    """Treats mean and variance as constants in dx."""
    return terms.with_dx(terms.g)


@_in_backward
def dx_of_normalised_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps xhat for the backward in bfloat16."""
    xhat = rounded_to(torch.bfloat16, terms.xhat)
    mean_g_xhat = (terms.g * xhat).mean(-1, keepdim=True)
    return terms.with_dx(terms.g - terms.mean_g - xhat * mean_g_xhat)


@_in_backward
def dx_of_rstd_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps rstd for the backward in bfloat16."""
    return replace(terms, rstd=rounded_to(torch.bfloat16, terms.rstd)).right


def _with_statistics_in(dtype: torch.dtype, terms: Terms) -> Gradients:
    mean, rstd = rounded_to(dtype, terms.mean), rounded_to(dtype, terms.rstd)
    return replace(terms, mean=mean, rstd=rstd).right


@_in_backward
def statistics_kept_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in bfloat16."""
    return _with_statistics_in(torch.bfloat16, terms)


@_in_backward
def statistics_kept_in_float16(terms: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in float16."""
    return _with_statistics_in(torch.float16, terms)


# --- dweight and dbias ---------------------------------------------------------------------------


@_in_backward
def dweight_of_deviations(terms: Terms) -> Gradients:
    """Computes dweight from x - mean instead of xhat."""
    return replace(terms.right, dweight=(terms.dy * terms.deviation).sum(0))


@_in_backward
def dweight_averaged(terms: Terms) -> Gradients:
    """Averages dweight over rows instead of summing it."""
    return replace(terms.right, dweight=(terms.dy * terms.xhat).mean(0))


@_in_backward
def dbias_averaged(terms: Terms) -> Gradients:
    """Averages dbias over rows instead of summing it."""
    return replace(terms.right, dbias=terms.dy.mean(0))


def _bfloat16_sum(summands: Tensor) -> Tensor:
    """Sum over rows, one after the other, rounded to bfloat16 at every step."""
    total = summands.new_zeros(summands.shape[1], dtype=torch.bfloat16)
    for row in summands.to(torch.bfloat16):
        total = total + row
    return total.to(summands.dtype)


@_in_backward
def dweight_summed_in_bfloat16(terms: Terms) -> Gradients:
    """Sums dweight in bfloat16, one row after the other."""
    return replace(terms.right, dweight=_bfloat16_sum(terms.dy * terms.xhat))


@_in_backward
def dbias_summed_in_bfloat16(terms: Terms) -> Gradients:
    """Sums dbias in bfloat16, one row after the other: it stops growing at 256 equal rows."""
    return replace(terms.right, dbias=_bfloat16_sum(terms.dy))


@_in_backward
def dweight_of_products_in_bfloat16(terms: Terms) -> Gradients:
    """Rounds dy * xhat to bfloat16 before summing it for dweight."""
    products = rounded_to(torch.bfloat16, terms.dy * terms.xhat)
    return replace(terms.right, dweight=products.sum(0))


@_in_backward
def last_row_left_out(terms: Terms) -> Gradients:
    """Leaves the last row out of dweight and dbias."""
    return terms.summed_over_first(max(len(terms.dy) - 1, 0))


@_in_backward
def rows_beyond_32_left_out(terms: Terms) -> Gradients:
    """Leaves the rows beyond a multiple of 32 out of dweight and dbias."""
    return terms.summed_over_first(without_tail(len(terms.dy), WARP))


@partial(_in_backward, caught_by=CheckKind.THREADS)
def sums_of_other_threads_lost(terms: Terms) -> Gradients:
    """Leaves the rows of all threads but the first out of dweight and dbias."""
    return terms.summed_over_first(-(-len(terms.dy) // torch.get_num_threads()))


@_in_backward
def dbias_zero(terms: Terms) -> Gradients:
    """Returns zeros as dbias."""
    return replace(terms.right, dbias=torch.zeros_like(terms.right.dbias))


@_in_backward
def dbias_of_scaled_dy(terms: Terms) -> Gradients:
    """Sums dy * weight instead of dy for dbias."""
    return replace(terms.right, dbias=terms.g.sum(0))


@_in_backward
def dweight_and_dbias_swapped(terms: Terms) -> Gradients:
    """Returns dweight as dbias and dbias as dweight."""
    return replace(terms.right, dweight=terms.right.dbias, dbias=terms.right.dweight)


@on_rows(dtypes=HALVES, directions=RECORDING, caught_by=CheckKind.GRADIENT)
def portions_added_in_parameter_dtype(rows: Rows) -> Tensor:
    """Sums dweight and dbias of portions of 20 rows in float16 or bfloat16."""
    portions = rows.x.split(_ROWS_AT_ONCE)
    return torch.cat([replace(rows, x=portion).y for portion in portions])


# --- other than values ---------------------------------------------------------------------------


@on_rows(directions=RECORDING, caught_by=CheckKind.CONTRACT)
def dbias_missing(rows: Rows) -> Tensor:
    """Returns no dbias."""
    return replace(rows, bias=None if rows.bias is None else rows.bias.detach()).y


class _DxAddsUp(Stateful):
    """Adds each dx to those of earlier calls with the same shape, in a buffer never cleared."""

    def __init__(self) -> None:
        self._sums: dict[torch.Size, Tensor] = {}

    def y(self, call: LayerNormCall) -> Tensor:
        def adding(terms: Terms) -> Gradients:
            right = terms.right
            before = self._sums.get(right.dx.shape, torch.zeros_like(right.dx))
            self._sums[right.dx.shape] = right.dx + before.to(right.dx.dtype)
            return replace(right, dx=self._sums[right.dx.shape])

        return call.by(analytic(adding))


dx_adds_up = mutant(directions=RECORDING, caught_by=CheckKind.REPETITION)(_DxAddsUp)


# --- in memory -----------------------------------------------------------------------------------


@altering_dy(caught_by=CheckKind.LAYOUT)
def dy_strides_ignored(dy: Tensor) -> Tensor:
    """Reads dy from its first element on as if it were contiguous."""
    return as_if_contiguous(dy)


@altering_dy(caught_by=CheckKind.LAYOUT, remark=RemarkKind.NEGATED_MISREAD)
def dy_negative_bit_ignored(dy: Tensor) -> Tensor:
    """Reads the memory of dy without negating it where dy is stored as -dy."""
    return negated_view(dy) if dy.is_neg() else dy
