"""Mistakes under conditions: another mistake, made only where some conditions hold, as a row each.

Kernels have separate code for inference, for vector loads, for one width, and for many rows. Each
of these mutants is wrong in one of those paths only, and right in all others. Compound mutants are
the same with conditions drawn at random, so that no cases can be written to find them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
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
    without_gradient,
)
from harness.mutants.conditions import CONDITIONS, CallCondition, conditions_of
from harness.mutants.mutant import (
    DTYPES,
    HALVES,
    Memory,
    Mutant,
    evenly_spaced,
    in_portions,
    mutant_of,
    mutants_in,
    read_from_memory,
    rounded_to,
)

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


def _x_read_from_memory(call: LayerNormCall) -> Tensor:
    """Reads x as if it were contiguous."""
    return changed(call, "x", read_from_memory).y


def _x_taken_for_evenly_spaced(call: LayerNormCall) -> Tensor:
    """Uses the stride of the last batch axis as the distance between all rows of x."""
    return changed(call, "x", evenly_spaced).y


def _no_dx(call: LayerNormCall) -> Tensor:
    """Returns zeros as dx."""
    return changed(call, "x", without_gradient).y


def _no_dweight(call: LayerNormCall) -> Tensor:
    """Returns zeros as dweight."""
    return changed(call, "weight", without_gradient).y


def _no_dbias(call: LayerNormCall) -> Tensor:
    """Returns zeros as dbias."""
    return changed(call, "bias", without_gradient).y


# --- the rows ------------------------------------------------------------------------------------


def _row(name: str, wrong: Callable[..., Any], where: str, **fields: Any) -> Mutant:
    """Return the mutant of a function under conditions, which a semicolon separates."""
    base, conditions = mutant_of(wrong), conditions_of(*where.split("; "))
    mistake = f"{base.mistake} (only where: {where})"
    return replace(base, name=name, mistake=mistake, where=conditions, **fields)


CONDITIONAL: tuple[Mutant, ...] = (
    # for some sizes, parameters and modes
    _row("bias_ignored_without_weight", values.bias_ignored, "there is no weight"),
    _row("weight_ignored_without_bias", values.weight_ignored, "there is no bias"),
    _row("one_pass_in_long_rows", values.one_pass_clamped, "N > 4096"),
    _row("last_of_odd_rows_dropped", last_element_left_out, "N % 2 != 0"),
    _row("tail_dropped_at_2048", _tail_of_8_left_out, "N is 2048"),
    _row("bias_ignored_without_weight_in_vectors", values.bias_ignored,
         "there is no weight; N % 4 == 0"),
    _row("parameters_rounded_in_vectors", _parameters_in_dtype_of_x, "the last axis % 4 == 0",
         dtypes=HALVES),
    _row("row_index_of_16_bits_in_vectors", kernel.row_index_of_16_bits, "N % 4 == 0"),
    _row("rounded_to_a_half_default_dtype", values.rounded_through_float16,
         "the default dtype is float16", dtypes=DTYPES - HALVES),
    _row("unbiased_in_the_deterministic_mode", values.unbiased_variance, "deterministic mode"),
    # in inference
    _row("strides_ignored_in_inference", _x_read_from_memory, "no gradient mode"),
    _row("last_axis_only_in_inference", values.last_axis_only,
         "no gradient mode; several normalized axes"),
    _row("promoted_in_inference", kernel.promoted_by_parameters,
         "no gradient mode; there is a weight"),
    _row("rows_beyond_32_unwritten_in_inference", kernel.rows_beyond_32_unwritten,
         "no gradient mode; rows > 31"),
    _row("eps_at_least_1e_6_in_inference", values.eps_always_1e_6, "no gradient mode; eps < 1e-6"),
    # in one layout
    _row("rows_taken_for_evenly_spaced", _x_taken_for_evenly_spaced, "one normalized axis"),
    _row("transposed_square_read_in_order_of_memory", _x_read_from_memory,
         "x is a transposed square"),
    _row("axes_of_parameters_in_order_of_memory", kernel.parameter_strides_ignored,
         "several normalized axes"),
    # of gradients
    _row("dbias_zero_without_weight_in_vectors", _no_dbias, "there is no weight; N % 4 == 0"),
    # as before the first step of training
    _row("weight_of_ones_gets_no_gradient", _no_dweight, "every weight is 1"),
    _row("portions_of_16384_added_in_parameter_dtype", _in_portions_of_16384,
         "a parameter is bfloat16", dtypes=frozenset({"bfloat16"})),
    _row("frozen_weight_stops_dx", _no_dx, "the weight is frozen"),
    _row("frozen_x_stops_dweight", _no_dweight, "x is frozen"),  # as in a first layer
    _row("recorded_for_x_alone", gradient.detached, "x is frozen"),
    _row("computed_x_gets_no_gradient", _no_dx, "x is not a leaf"),
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


# --- compound mutants ----------------------------------------------------------------------------

ORDERS = (1, 2, 3)
"""Numbers of conditions in a trigger."""
# another order draws other mutants
_BASES = """
unbiased_variance eps_outside_the_root eps_ignored eps_always_1e_6 eps_squared eps_is_a_floor
no_root sum_of_squares absolute_deviation root_mean_square uncentred_denominator
constant_rows_are_zero bias_before_weight weight_ignored bias_ignored weight_and_bias_swapped
first_weight_for_all one_plus_weight weight_twice statistics_of_all_rows statistics_over_the_batch
statistics_in_bfloat16 mean_in_float16 newton_step_missing one_pass_in_disguise one_pass_clamped
normalised_in_bfloat16 parameters_in_bfloat16 truncated_to_bfloat16
lane_lost weight_off_by_one row_off_by_one pairs_share_statistics
nan_spreads nan_hidden nan_skipped dy_nan_hidden
dx_without_mean_of_dy dx_without_projection dx_with_unbiased_projection dx_without_weight
dx_without_eps dx_of_rstd_in_bfloat16
statistics_kept_in_bfloat16 dweight_of_deviations dweight_averaged dbias_averaged
dweight_summed_in_bfloat16 last_row_left_out dbias_zero dbias_of_scaled_dy
last_element_left_out one_pass_in_the_backward dweight_of_products_in_bfloat16
"""
_KNOWN = (
    *mutants_in(values, kernel, gradient),
    mutant_of(last_element_left_out),
    mutant_of(one_pass_in_the_backward),
)
BASES: tuple[Mutant, ...] = tuple(
    next(known for known in _KNOWN if known.name == name) for name in _BASES.split()
)
"""Mistakes that are made on every path, although not all data show them."""


def draw_compounds(count: int, seed: int = 0) -> tuple[Mutant, ...]:
    """Draw ``count`` mistakes behind triggers of each order, none twice.

    Mistakes, the axes of conditions and conditions on one axis are all equally likely.
    """
    random = Random(seed)
    by_axis: dict[str, list[CallCondition]] = {}
    for condition in CONDITIONS:
        by_axis.setdefault(condition.about, []).append(condition)
    drawn: dict[tuple[str, frozenset[str]], Mutant] = {}
    for order in ORDERS:
        wanted = len(drawn) + count
        while len(drawn) < wanted:
            axes = random.sample(sorted(by_axis), order)
            trigger = tuple(random.choice(by_axis[axis]) for axis in axes)
            compound = replace(random.choice(BASES), where=trigger)
            key = compound.name, frozenset(part.text for part in trigger)
            drawn.setdefault(key, compound)
    return tuple(drawn.values())
