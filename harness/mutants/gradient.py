"""Mutants whose y is right and whose gradients are not, or not in every use of them.

Some gradients are right only if all are computed, once, directly after the forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import get_ident

import torch
from torch import Tensor

from harness.mutants.arguments import (
    Gradients,
    LayerNormCall,
    Rows,
    Terms,
    changed,
    with_gradient,
    with_gradients,
)
from harness.mutants.kernel import INDEX_LIMIT, WARP
from harness.mutants.mutant import (
    BFLOAT16,
    DTYPES,
    HALVES,
    Memory,
    evenly_spaced,
    in_portions,
    read_from_memory,
    rounded_to,
    running_sum,
    with_fields,
    without_tail,
)
from harness.records.finding import RemarkKind
from implementations.torch_private import negated_view

_RING = 32
Statistics = tuple[Tensor, Tensor]
_TILE = (64, 128)  # rows and columns of a tile of the sums over rows

# --- dx ------------------------------------------------------------------------------------------


def dx_without_mean_of_dy(terms: Terms) -> Gradients:
    """Leaves the term mean(dy * weight) out of dx."""
    return terms.with_dx(terms.g - terms.xhat * terms.mean_g_xhat)


def dx_without_projection(terms: Terms) -> Gradients:
    """Leaves the term xhat * mean(dy * weight * xhat) out of dx."""
    return terms.with_dx(terms.g - terms.mean_g)


def dx_with_unbiased_projection(terms: Terms) -> Gradients:
    """Divides the sum of dy * weight * xhat in dx by N-1 instead of N."""
    mean_g_xhat = (terms.g * terms.xhat).sum(-1, keepdim=True) / (terms.x.shape[1] - 1)
    return terms.with_dx(terms.g - terms.mean_g - terms.xhat * mean_g_xhat)


def dx_with_unbiased_rstd(terms: Terms) -> Gradients:
    """Divides the variance by N-1 instead of N in the backward."""
    variance = terms.deviation.square().sum(-1, keepdim=True) / (terms.x.shape[1] - 1)
    rstd = torch.rsqrt(variance + terms.eps)
    return replace(terms.right, dx=terms.right.dx / terms.rstd * rstd)


def dx_without_eps(terms: Terms) -> Gradients:
    """Adds no eps to the variance in the backward."""
    rstd = torch.rsqrt(terms.deviation.square().mean(-1, keepdim=True))
    return replace(terms, rstd=rstd).right


def dx_without_weight(terms: Terms) -> Gradients:
    """Computes dx from dy instead of dy * weight."""
    return replace(terms.right, dx=replace(terms, weight=torch.ones_like(terms.weight)).right.dx)


def dx_times_weight_at_last(terms: Terms) -> Gradients:
    """Multiplies dx by the weight at the end, instead of dy at the start."""
    unscaled = replace(terms, weight=torch.ones_like(terms.weight)).right.dx
    return replace(terms.right, dx=unscaled * terms.weight)


def dx_of_constant_statistics(terms: Terms) -> Gradients:
    """Treats mean and variance as constants in dx."""
    return terms.with_dx(terms.g)


@with_fields(rounded=BFLOAT16)
def dx_of_normalised_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps xhat for the backward in bfloat16."""
    xhat = rounded_to(torch.bfloat16, terms.xhat)
    mean_g_xhat = (terms.g * xhat).mean(-1, keepdim=True)
    return terms.with_dx(terms.g - terms.mean_g - xhat * mean_g_xhat)


@with_fields(rounded=BFLOAT16)
def dx_of_rstd_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps rstd for the backward in bfloat16."""
    return replace(terms, rstd=rounded_to(torch.bfloat16, terms.rstd)).right


def _with_statistics_in(dtype: torch.dtype, terms: Terms) -> Gradients:
    mean, rstd = rounded_to(dtype, terms.mean), rounded_to(dtype, terms.rstd)
    return replace(terms, mean=mean, rstd=rstd).right


@with_fields(inaccurate=BFLOAT16)
def statistics_kept_in_bfloat16(terms: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in bfloat16."""
    return _with_statistics_in(torch.bfloat16, terms)


@with_fields(inaccurate=HALVES - BFLOAT16)
def statistics_kept_in_float16(terms: Terms) -> Gradients:
    """Keeps mean and rstd for the backward in float16."""
    return _with_statistics_in(torch.float16, terms)


# --- dweight and dbias ---------------------------------------------------------------------------


def dweight_of_deviations(terms: Terms) -> Gradients:
    """Computes dweight from x - mean instead of xhat."""
    return replace(terms.right, dweight=(terms.dy * terms.deviation).sum(0))


def dweight_averaged(terms: Terms) -> Gradients:
    """Averages dweight over rows instead of summing it."""
    return replace(terms.right, dweight=(terms.dy * terms.xhat).mean(0))


def dbias_averaged(terms: Terms) -> Gradients:
    """Averages dbias over rows instead of summing it."""
    return replace(terms.right, dbias=terms.dy.mean(0))


@with_fields(inaccurate=BFLOAT16)
def dweight_summed_in_bfloat16(terms: Terms) -> Gradients:
    """Sums dweight in bfloat16, one row after the other."""
    return replace(terms.right, dweight=running_sum(terms.dy * terms.xhat, torch.bfloat16))


@with_fields(inaccurate=BFLOAT16)
def dbias_summed_in_bfloat16(terms: Terms) -> Gradients:
    """Sums dbias in bfloat16, one row after the other."""
    return replace(terms.right, dbias=running_sum(terms.dy, torch.bfloat16))


@with_fields(inaccurate=HALVES - BFLOAT16, rounded=BFLOAT16)
def dweight_of_products_in_bfloat16(terms: Terms) -> Gradients:
    """Rounds dy * xhat to bfloat16 before summing it for dweight."""
    products = rounded_to(torch.bfloat16, terms.dy * terms.xhat)
    return replace(terms.right, dweight=products.sum(0))


def last_row_left_out(terms: Terms) -> Gradients:
    """Leaves the last row out of dweight and dbias."""
    return terms.summed_over_first(max(len(terms.dy) - 1, 0))


def rows_beyond_32_left_out(terms: Terms) -> Gradients:
    """Leaves the rows after the last multiple of 32 out of dweight and dbias."""
    return terms.summed_over_first(without_tail(len(terms.dy), WARP))


def sums_of_other_threads_lost(terms: Terms) -> Gradients:
    """Leaves the rows of all threads but the first out of dweight and dbias."""
    return terms.summed_over_first(-(-len(terms.dy) // torch.get_num_threads()))


def dbias_zero(terms: Terms) -> Gradients:
    """Returns zeros as dbias."""
    return replace(terms.right, dbias=torch.zeros_like(terms.right.dbias))


def dbias_of_scaled_dy(terms: Terms) -> Gradients:
    """Sums dy * weight instead of dy for dbias."""
    return replace(terms.right, dbias=terms.g.sum(0))


def dweight_and_dbias_swapped(terms: Terms) -> Gradients:
    """Returns dweight as dbias and dbias as dweight."""
    return replace(terms.right, dweight=terms.right.dbias, dbias=terms.right.dweight)


@with_fields(dtypes=HALVES, inaccurate=HALVES)
def portions_added_in_parameter_dtype(rows: Rows) -> Tensor:
    """Sums dweight and dbias of portions of 20 rows in float16 or bfloat16."""
    return in_portions(rows, 20)  # few, so that small cases have several portions


def tile_left_out_of_dweight(terms: Terms) -> Gradients:
    """Leaves the rows from the 65th on out of dweight, in the columns from the 129th on."""
    rows, columns = _TILE
    products = terms.dy * terms.xhat
    products[rows:, columns:] = 0
    return replace(terms.right, dweight=products.sum(0))


def rows_beyond_16_bits_left_out(terms: Terms) -> Gradients:
    """Leaves the rows from the 65537th on out of dweight and dbias."""
    return terms.summed_over_first(INDEX_LIMIT)


# --- other than values ---------------------------------------------------------------------------


def dbias_missing(rows: Rows) -> Tensor:
    """Returns no dbias."""
    return changed(rows, "bias", Tensor.detach).y


def dx_adds_up(terms: Terms, memory: Memory) -> Gradients:
    """Adds each dx to those of earlier calls with the same shape, in a buffer never cleared."""
    dx = terms.right.dx
    memory[dx.shape] = dx + memory.get(dx.shape, torch.zeros_like(dx)).to(dx.dtype)
    return replace(terms.right, dx=memory[dx.shape])


# --- in memory -----------------------------------------------------------------------------------


def dy_storage_offset_ignored(dy: Tensor) -> Tensor:
    """Reads dy from the start of its storage, wherever dy begins there."""
    return torch.as_strided(dy, dy.shape, dy.stride(), 0)


def dy_strides_ignored(dy: Tensor) -> Tensor:
    """Reads dy from its first element on as if it were contiguous."""
    return read_from_memory(dy)


@with_fields(remark=RemarkKind.NEGATED_MISREAD)
def dy_negative_bit_ignored(dy: Tensor) -> Tensor:
    """Reads the memory of dy without negating it where dy is stored as -dy."""
    return negated_view(dy) if dy.is_neg() else dy


def rows_of_dy_taken_for_evenly_spaced(dy: Tensor) -> Tensor:
    """Uses the stride of the last batch axis as the distance between all rows of dy."""
    return evenly_spaced(dy)


def row_of_expanded_dy_taken_once(dy: Tensor) -> Tensor:
    """Takes an expanded dy for 0 in all rows but the first."""
    is_one_row = dy.dim() > 1 and dy.stride(0) == 0 and dy.stride(-1) == 1 and len(dy) > 1
    return torch.cat((dy[:1], torch.zeros_like(dy[1:]))) if is_one_row else dy


def expanded_dy_taken_for_ones(dy: Tensor) -> Tensor:
    """Takes a dy that is one expanded number for 1."""
    return dy if any(dy.stride()) or dy.numel() < WARP else torch.ones_like(dy)


# --- where only some inputs require gradients ----------------------------------------------------


def detached(call: LayerNormCall) -> Tensor:
    """Returns y without a gradient."""
    return call.y.detach()


# --- what is kept between the passes -------------------------------------------------------------


@with_fields(remark=RemarkKind.CHANGES_UNNOTICED)
def inputs_kept_unguarded(rows: Rows) -> Tensor:
    """Keeps its inputs without save_for_backward, so that later changes to them go unnoticed."""
    return with_gradients(rows, lambda terms: terms.right, is_guarded=False)


def used_up_by_the_backward(rows: Rows) -> Tensor:
    """Overwrites in its backward what a second backward needs."""
    kept = rows.x.detach().clone()

    @torch.no_grad()
    def once(terms: Terms) -> Gradients:
        right = replace(terms, x=kept).right
        kept.zero_()
        return right

    return with_gradients(rows, once)


def gradient_buffer_reused(call: LayerNormCall, memory: Memory) -> Tensor:
    """Returns dweight in the same memory every time."""

    def into_buffer(gradient: Tensor) -> Tensor:
        key = gradient.shape, gradient.dtype
        buffer: Tensor = memory.setdefault(key, torch.empty_like(gradient))
        return buffer.copy_(gradient)

    return changed(call, "weight", lambda weight: with_gradient(weight, into_buffer)).y


def dweight_of_the_first_backward(call: LayerNormCall) -> Tensor:
    """Returns the dweight of the first backward over a graph, in its memory, in each later one."""
    kept: list[Tensor] = []

    def once_computed(gradient: Tensor) -> Tensor:
        kept.append(gradient.clone())
        return kept[0].view_as(kept[0])

    return changed(call, "weight", lambda weight: with_gradient(weight, once_computed)).y


def _statistics_of(rows: Rows) -> Statistics:
    return rows.mean.detach(), rows.rstd.detach()


def _with_kept_statistics(rows: Rows, kept: Callable[[], Statistics]) -> Tensor:
    """Return y, whose backward uses the statistics that ``kept`` returns then."""

    @torch.no_grad()
    def stale(terms: Terms) -> Gradients:
        mean, rstd = kept()
        return replace(terms, mean=mean, rstd=rstd).right

    return with_gradients(rows, stale)


def statistics_of_the_latest_forward(rows: Rows, memory: Memory) -> Tensor:
    """Keeps mean and rstd for the backward in memory that the next forward overwrites."""
    now = _statistics_of(rows)
    kept: Statistics = memory.setdefault((rows.x.shape, rows.x.dtype), now)
    for old, new in zip(kept, now, strict=True):
        old.copy_(new)
    return _with_kept_statistics(rows, lambda: kept)


def statistics_in_a_ring(rows: Rows, memory: Memory) -> Tensor:
    """Keeps mean and rstd of the last 32 forwards alone."""
    ring, numbers = memory.setdefault((rows.x.shape, rows.x.dtype), ({}, count()))
    at = next(numbers) % _RING
    ring[at] = _statistics_of(rows)
    return _with_kept_statistics(rows, lambda: ring[at])


def statistics_of_this_thread(rows: Rows, memory: Memory) -> Tensor:
    """Keeps rstd for the backward by thread: another thread takes 1."""
    (mean, rstd), thread = _statistics_of(rows), get_ident()
    return _with_kept_statistics(
        rows, lambda: (mean, rstd if get_ident() == thread else torch.ones_like(rstd))
    )


@with_fields(dtypes=frozenset({"float32"}), remark=RemarkKind.AUTOCAST)
def statistics_rounded_by_autocast(rows: Rows) -> Tensor:
    """Keeps mean and rstd for the backward in bfloat16 where autocast is on."""
    mean, rstd = _statistics_of(rows)
    if torch.is_autocast_enabled(rows.x.device.type):
        mean, rstd = rounded_to(torch.bfloat16, mean), rounded_to(torch.bfloat16, rstd)
    return _with_kept_statistics(rows, lambda: (mean, rstd))


# --- other uses of the gradients -----------------------------------------------------------------


def gradient_added_to_the_last(rows: Rows) -> Tensor:
    """Adds weight.grad to dweight, although autograd adds them too."""
    weight = rows.weight

    @torch.no_grad()
    def adding(terms: Terms) -> Gradients:
        if weight is None or not weight.is_leaf or weight.grad is None:
            return terms.right
        dweight = terms.right.dweight.to(weight.dtype) + weight.grad
        return replace(terms.right, dweight=dweight)

    return with_gradients(rows, adding)


def another_gradient_when_recorded(terms: Terms) -> Gradients:
    """Halves dx where the backward is recorded for a second derivative."""
    is_recorded = torch.is_grad_enabled()
    with torch.no_grad():
        return replace(terms.right, dx=terms.right.dx / (2 if is_recorded else 1))


@with_fields(dtypes=DTYPES - HALVES, remark=RemarkKind.SECOND_DERIVATIVE_WRONG)
def second_derivative_of_constant_statistics(terms: Terms) -> Gradients:
    """Treats mean and rstd as constants where its gradients are differentiated again."""
    return replace(terms, mean=terms.mean.detach(), rstd=terms.rstd.detach()).right


@with_fields(dtypes=frozenset({"float64"}), remark=RemarkKind.HIGHER_DERIVATIVE_WRONG)
def third_derivative_wrong(terms: Terms) -> Gradients:
    """Adds a term to dx that is 0, and so is its derivative, but not the next one."""
    return replace(terms.right, dx=terms.right.dx + (terms.x - terms.x.detach()).square())


@with_fields(dtypes=DTYPES - HALVES, remark=RemarkKind.SHARES_DY)
def dbias_of_one_row_is_dy(terms: Terms) -> Gradients:
    """Returns dy itself as dbias where x has one row, instead of a copy."""
    return replace(terms.right, dbias=terms.dy[0]) if len(terms.dy) == 1 else terms.right


def gradient_of_x_doubled_by_a_hook(call: LayerNormCall) -> Tensor:
    """Halves dx and doubles it by a hook on x, which doubles the gradients of other uses too."""
    if not call.x.requires_grad:
        return call.y
    value, half = call.x.detach(), call.x / 2
    call.x.register_hook(lambda gradient: 2 * gradient)
    return replace(call, x=half - half.detach() + value).y
