"""Mistakes under conditions: another mistake, made only where some conditions hold, as a row each.

Kernels have separate code for inference, for vector loads, for one width, and for many rows. Each
of these mutants is wrong in one of those paths only, and right in all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.mutants import effects, gradient, kernel, values
from harness.mutants.arguments import (
    Gradients,
    LayerNormCall,
    Rows,
    Terms,
    changed,
    then,
    with_value,
    without_gradient,
)
from harness.mutants.conditions import conditions_of
from harness.mutants.mutant import (
    BFLOAT16,
    DTYPES,
    HALVES,
    Memory,
    Mutant,
    evenly_spaced,
    in_portions,
    mutant_of,
    rounded_to,
)
from harness.records.finding import RemarkKind

# --- mistakes that are made under conditions alone -----------------------------------------------


def last_element_left_out(rows: Rows) -> Tensor:
    """Leaves the last element of each row out of the statistics."""
    return rows.with_statistics_of(rows.x[:, : max(rows.hidden - 1, 1)])


def one_pass_in_the_backward(terms: Terms) -> Gradients:
    """Computes the variance for the backward as E[x^2] - E[x]^2."""
    variance = terms.x.square().mean(-1, keepdim=True) - terms.mean.square()
    return replace(terms, rstd=torch.rsqrt(variance.clamp(min=0) + terms.eps)).right


def _tail_of_8_left_out(rows: Rows) -> Tensor:
    """Leaves the last 8 elements of each row out of the statistics."""
    return rows.with_statistics_of(rows.x[:, :-8])


def _last_y_kept(call: LayerNormCall, memory: Memory) -> Tensor:
    """Keeps the y of the last call."""
    y = call.y
    memory["y"] = y.detach()
    return y


def _in_portions_of_16384(rows: Rows) -> Tensor:
    """Sums dweight and dbias of portions of 16384 rows in the dtype of the parameters."""
    return in_portions(rows, 1 << 14)  # a quarter of the rows that a 16-bit index counts


def _parameters_in_dtype_of_x(call: LayerNormCall) -> Tensor:
    """Rounds weight and bias to the dtype of x."""
    return call.with_parameters(partial(rounded_to, call.x.dtype)).y


def _x_taken_for_evenly_spaced(call: LayerNormCall) -> Tensor:
    """Uses the stride of the last batch axis as the distance between all rows of x."""
    return changed(call, "x", evenly_spaced).y


def _no_dx(call: LayerNormCall) -> Tensor:
    """Returns zeros as dx."""
    return changed(call, "x", without_gradient).y


def _no_dweight(call: LayerNormCall) -> Tensor:
    """Returns zeros as dweight."""
    return changed(call, "weight", without_gradient).y


def _next_row_times_zero(rows: Rows) -> Tensor:
    """Reads the last vector of each row into the next row, and multiplies what is read by zero."""
    read = torch.cat((rows.x[1:], torch.zeros_like(rows.x[:1])))[:, : -rows.hidden % kernel.VECTOR]
    return rows.y + 0 * read.detach().sum(-1, keepdim=True)


def _weight_of_ones(rows: Rows) -> Tensor:
    """Multiplies by 1 instead of the weight, of which the gradient is right."""
    return changed(rows, "weight", lambda weight: with_value(weight, torch.ones_like(weight))).y


def _no_sum_over_no_rows(terms: Terms) -> Gradients:
    """Returns ones as dweight of an x without rows."""
    right = terms.right
    return right if len(terms.dy) else replace(right, dweight=torch.ones_like(right.dweight))


def _once_differentiable(terms: Terms) -> Gradients:
    """Raises where its gradients are differentiated again."""

    def refuse(gradient: Tensor) -> None:
        raise NotImplementedError("differentiated twice")

    return replace(terms.right, dx=then(terms.right.dx, refuse))


# --- the rows ------------------------------------------------------------------------------------


def _row(name: str, wrong: Callable[..., Any], where: str, **fields: Any) -> Mutant:
    """Return the mutant of a function under conditions, which a semicolon separates."""
    base, conditions = mutant_of(wrong), conditions_of(*where.split("; "))
    return replace(base, name=name, where=conditions, **fields)


CONDITIONAL: tuple[Mutant, ...] = (
    # for some sizes, parameters and modes
    _row("bias_ignored_without_weight", values.bias_ignored, "there is no weight"),
    _row("weight_ignored_for_its_first", values.weight_ignored, "the first weight is 1"),
    _row("weight_ignored_without_bias", values.weight_ignored, "there is no bias"),
    _row("one_pass_in_long_rows", values.one_pass_clamped, "N > 4096"),
    _row("last_of_odd_rows_dropped", last_element_left_out, "N % 2 != 0"),
    _row("tail_dropped_at_2048", _tail_of_8_left_out, "N is 2048"),
    _row("bias_ignored_without_weight_in_vectors", values.bias_ignored,
         "there is no weight; N % 4 == 0"),
    _row("parameters_rounded_in_vectors", _parameters_in_dtype_of_x, "the last axis % 4 == 0",
         dtypes=HALVES, rounded=HALVES),
    _row("row_index_of_16_bits_in_vectors", kernel.row_index_of_16_bits, "N % 4 == 0"),
    _row("rounded_to_a_half_default_dtype", values.rounded_through_float16,
         "the default dtype is float16", dtypes=DTYPES - HALVES),
    _row("unbiased_in_the_deterministic_mode", values.unbiased_variance, "deterministic mode"),
    _row("next_row_read_by_a_tail", _next_row_times_zero, "N > 8"),
    _row("weight_of_almost_ones_left_out", _weight_of_ones, "every weight is almost 1",
         dtypes=DTYPES - HALVES),
    _row("rows_of_one_not_centred", values.root_mean_square, "N is 1; |x| > 100000",
         dtypes=frozenset({"float32"}), remark=RemarkKind.ROWS_OF_ONE),
    # in inference
    _row("strides_ignored_in_inference", kernel.strides_ignored, "no gradient mode"),
    _row("last_axis_only_in_inference", values.last_axis_only,
         "no gradient mode; several normalized axes"),
    _row("promoted_in_inference", kernel.promoted_by_parameters,
         "no gradient mode; there is a weight"),
    _row("rows_beyond_32_unwritten_in_inference", kernel.rows_beyond_32_unwritten,
         "no gradient mode; rows > 31"),
    _row("eps_at_least_1e_6_in_inference", values.eps_always_1e_6, "no gradient mode; eps < 1e-6"),
    # in one layout
    _row("rows_taken_for_evenly_spaced", _x_taken_for_evenly_spaced, "one normalized axis"),
    _row("transposed_square_read_in_order_of_memory", kernel.strides_ignored,
         "x is a transposed square"),
    _row("axes_of_parameters_in_order_of_memory", kernel.parameter_strides_ignored,
         "several normalized axes"),
    # of gradients
    _row("dbias_zero_without_weight_in_vectors", gradient.dbias_zero,
         "there is no weight; N % 4 == 0"),
    # as before the first step of training
    _row("weight_of_ones_gets_no_gradient", _no_dweight, "every weight is 1"),
    _row("portions_of_16384_added_in_parameter_dtype", _in_portions_of_16384,
         "a parameter is bfloat16", dtypes=BFLOAT16, rounded=BFLOAT16),
    _row("frozen_weight_stops_dx", _no_dx, "the weight is frozen"),
    _row("frozen_x_stops_dweight", _no_dweight, "x is frozen"),  # as in a first layer
    _row("recorded_for_x_alone", gradient.detached, "x is frozen"),
    _row("computed_x_gets_no_gradient", _no_dx, "x is not a leaf"),
    _row("dweight_of_no_rows_unwritten", _no_sum_over_no_rows, "several normalized axes",
         dtypes=frozenset({"float32"})),
    _row("once_differentiable_without_bias", _once_differentiable, "there is a weight alone",
         dtypes=DTYPES - HALVES, remark=RemarkKind.SECOND_DERIVATIVE_MISSING),
    # of the contract: beyond a threshold of a size, or in one layout, where kernels have another
    # workspace or save other tensors. To every check that runs at one small size they are right
    _row("output_buffer_reused_for_long_rows", effects.output_buffer_reused,
         "the last axis > 1024"),
    _row("last_y_of_long_rows_kept", _last_y_kept, "the last axis > 1024"),
    _row("gradient_buffer_reused_for_a_tail", gradient.gradient_buffer_reused,
         "the last axis % 4 != 0"),
    _row("statistics_of_the_latest_forward_of_many_rows",
         gradient.statistics_of_the_latest_forward, "the first axis > 128"),
    _row("another_gradient_when_recorded_for_whole_warps", gradient.another_gradient_when_recorded,
         "the last axis % 64 == 0"),
    _row("used_up_by_the_backward_of_several_axes", gradient.used_up_by_the_backward,
         "several normalized axes"),
    _row("frozen_weight_stops_dx_of_a_batch", _no_dx, "the weight is frozen; x has three axes"),
    _row("frozen_x_stops_dweight_of_strided_rows", _no_dweight,
         "x is frozen; x is not contiguous"),
)  # fmt: skip
