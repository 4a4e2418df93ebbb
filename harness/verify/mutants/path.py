"""Mutants that are right on the path that tests usually take, and wrong on another one.

Kernels have separate code for inference, for vector loads, for one width, and for many rows. Each
of these mutants is wrong in one of those paths only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Unpack

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.altered_gradients import altering_dy
from harness.verify.mutants.analytic import Gradients, Rule, Terms, analytic
from harness.verify.mutants.arguments import LayerNormCall, Rows, layer_norm_of
from harness.verify.mutants.kernel import INDEX_LIMIT, VECTOR, WARP
from harness.verify.mutants.mutant import (
    HALVES,
    RECORDING,
    CheckKind,
    Mutant,
    Options,
    as_if_contiguous,
    first_rows,
    mutant,
    on_call,
    on_rows,
    rounded_to,
    without_tail,
)
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype

_SPECIAL = 2048  # a width that has a kernel of its own
_TILE = (64, 128)  # rows and columns of a tile of the sums over rows
_CHUNK = 1 << 20  # elements that are processed at once
_ROWS_AT_ONCE = 1 << 14  # four portions of the rows that a 16-bit index counts


# --- in inference --------------------------------------------------------------------------------


def _in_inference(
    **options: Unpack[Options],
) -> Callable[[Callable[[LayerNormCall], Tensor]], Mutant]:
    """Wrap a function as a mutant that is wrong only where no gradient is recorded."""
    options["directions"] = frozenset({Direction.FORWARD})

    def wrap(wrong: Callable[[LayerNormCall], Tensor]) -> Mutant:
        @wraps(wrong)
        def in_inference(call: LayerNormCall) -> Tensor:
            return call.y if torch.is_grad_enabled() else wrong(call)

        return on_call(**options)(in_inference)

    return wrap


@_in_inference(caught_by=CheckKind.LAYOUT)
def strides_ignored_in_inference(call: LayerNormCall) -> Tensor:
    """Reads x as if it were contiguous where no gradient is recorded."""
    if call.x.is_contiguous() or not call.x.numel():
        return call.y
    return replace(call, x=as_if_contiguous(call.x)).y


@_in_inference()
def last_axis_only_in_inference(call: LayerNormCall) -> Tensor:
    """Normalises over the last axis only where no gradient is recorded."""
    x = call.x
    trailing_axes(x, call.normalized_shape, call.weight, call.bias)
    y = LayerNormCall(x.to(wide_dtype(x.dtype)), x.shape[-1:], None, None, call.eps).y
    return scale_and_shift(y, call.weight, call.bias).to(x.dtype)


@_in_inference(dtypes=HALVES, caught_by=CheckKind.CONTRACT, remark=RemarkKind.PROMOTES)
def promoted_in_inference(call: LayerNormCall) -> Tensor:
    """Returns y in the dtype of the weight where no gradient is recorded."""
    return call.y if call.weight is None else replace(call, x=call.x.to(call.weight.dtype)).y


@_in_inference()
def rows_beyond_32_unwritten_in_inference(call: LayerNormCall) -> Tensor:
    """Leaves 0 in the rows beyond a multiple of 32 where no gradient is recorded."""

    def unwritten(rows: Rows) -> Tensor:
        return first_rows(rows.y, without_tail(len(rows.x), WARP) or len(rows.x))

    return call.by(layer_norm_of(unwritten))


@_in_inference()
def eps_at_least_1e_6_in_inference(call: LayerNormCall) -> Tensor:
    """Adds at least 1e-6 instead of eps where no gradient is recorded."""
    return replace(call, eps=max(call.eps, 1e-6)).y


# --- in vectors, at one width --------------------------------------------------------------------


@on_rows()
def bias_ignored_without_weight_in_vectors(rows: Rows) -> Tensor:
    """Does not add the bias where there is no weight and N is a multiple of 4."""
    if rows.weight is None and rows.bias is not None and rows.hidden % VECTOR == 0:
        return replace(rows, bias=rows.bias * 0).y
    return rows.y


@on_call(dtypes=HALVES)
def parameters_rounded_in_vectors(call: LayerNormCall) -> Tensor:
    """Rounds weight and bias to the dtype of x where N is a multiple of 4."""
    if call.x.shape[-1] % VECTOR:
        return call.y
    weight, bias = (
        None if each is None else rounded_to(call.x.dtype, each)
        for each in (call.weight, call.bias)
    )
    return replace(call, weight=weight, bias=bias).y


@on_rows()
def row_index_of_16_bits_in_vectors(rows: Rows) -> Tensor:
    """Does not write rows from the 65537th on where N is a multiple of 4."""
    return rows.y if rows.hidden % VECTOR else first_rows(rows.y, INDEX_LIMIT)


@on_rows()
def tail_dropped_at_2048(rows: Rows) -> Tensor:
    """Leaves the last 8 elements out of the statistics where N is 2048."""
    return rows.with_statistics_of(rows.x[:, :-8]) if rows.hidden == _SPECIAL else rows.y


@on_rows(directions=RECORDING, caught_by=CheckKind.GRADIENT)
def dbias_zero_without_weight_in_vectors(rows: Rows) -> Tensor:
    """Returns zeros as dbias where there is no weight and N is a multiple of 4."""
    if rows.weight is None and rows.bias is not None and rows.hidden % VECTOR == 0:
        return replace(rows, bias=rows.bias.detach() + 0 * rows.bias).y
    return rows.y


# --- for particular values -----------------------------------------------------------------------


@on_rows()
def bias_skipped_in_zero_rows(rows: Rows) -> Tensor:
    """Leaves 0 in rows of zeros, which should hold the bias."""
    return torch.where((rows.x != 0).any(1, keepdim=True), rows.y, torch.zeros_like(rows.y))


@on_call(directions=RECORDING, caught_by=CheckKind.GRADIENT)
def weight_of_ones_gets_no_gradient(call: LayerNormCall) -> Tensor:
    """Returns zeros as dweight where every weight is 1, as before the first step of training."""
    weight = call.weight
    if weight is None or not bool((weight.detach() == 1).all()):
        return call.y
    return replace(call, weight=weight.detach() + 0 * weight).y


@on_call(dtypes=frozenset({"float32", "float64"}), caught_by=CheckKind.INTERACTION)
def rounded_to_a_half_default_dtype(call: LayerNormCall) -> Tensor:
    """Rounds y to the default dtype of the process where that is float16."""
    default = torch.get_default_dtype()
    return rounded_to(default, call.y) if default is torch.float16 else call.y


@on_call(caught_by=CheckKind.INTERACTION)
def unbiased_in_the_deterministic_mode(call: LayerNormCall) -> Tensor:
    """Divides the variance by N - 1 in PyTorch's deterministic mode."""
    if not torch.are_deterministic_algorithms_enabled():
        return call.y
    return call.by(
        layer_norm_of(lambda rows: rows.normalised_by(rows.mean, rows.unbiased_variance))
    )


# --- where there are many rows -------------------------------------------------------------------


@on_rows()
def last_chunk_of_rows_unwritten(rows: Rows) -> Tensor:
    """Leaves 0 in the last, shorter chunk of rows where there are over 2^20 elements."""
    count = len(rows.x)
    at_once = max(_CHUNK // max(rows.hidden, 1), 1)
    return rows.y if count <= at_once else first_rows(rows.y, without_tail(count, at_once))


def _in_sums(rule: Rule) -> Mutant:
    """Wrap wrong sums over rows as a mutant named and described after them."""
    return mutant(directions=RECORDING, caught_by=CheckKind.GRADIENT)(analytic(rule))


@_in_sums
def tile_left_out_of_dweight(terms: Terms) -> Gradients:
    """Leaves rows from the 65th on out of dweight in columns from the 129th on."""
    rows, columns = _TILE
    products = terms.dy * terms.xhat
    products[rows:, columns:] = 0
    return replace(terms.right, dweight=products.sum(0))


@_in_sums
def rows_beyond_16_bits_left_out(terms: Terms) -> Gradients:
    """Leaves the rows from the 65537th on out of dweight and dbias."""
    return terms.summed_over_first(INDEX_LIMIT)


@on_rows(dtypes=frozenset({"bfloat16"}), directions=RECORDING, caught_by=CheckKind.GRADIENT)
def portions_of_16384_added_in_parameter_dtype(rows: Rows) -> Tensor:
    """Sums dweight and dbias of portions of 16384 rows in bfloat16 where the parameters are."""
    parameters = (rows.weight, rows.bias)
    if not any(each is not None and each.dtype is torch.bfloat16 for each in parameters):
        return rows.y
    return torch.cat([replace(rows, x=portion).y for portion in rows.x.split(_ROWS_AT_ONCE)])


# --- in memory -----------------------------------------------------------------------------------


def _evenly_spaced(tensor: Tensor) -> Tensor:
    """Read rows at the step of the last batch axis, as if that led from each row to the next.

    At the end of memory it starts at the beginning again, where a kernel would read on.
    """
    if tensor.dim() < 3 or tensor.stride(-1) != 1 or not tensor.numel():
        return tensor
    rows, hidden = tensor.shape[:-1].numel(), tensor.shape[-1]
    first = int(tensor.storage_offset())
    size = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - first
    memory = torch.as_strided(tensor, (size,), (1,), first)
    places = torch.arange(rows)[:, None] * int(tensor.stride(-2)) + torch.arange(hidden)
    return memory[places.to(tensor.device) % size].view(tensor.shape)


@on_call(caught_by=CheckKind.LAYOUT)
def rows_taken_for_evenly_spaced(call: LayerNormCall) -> Tensor:
    """Uses the stride of the last batch axis as the distance between all rows of x."""
    return replace(call, x=_evenly_spaced(call.x)).y if len(call.normalized_shape) == 1 else call.y


@altering_dy(caught_by=CheckKind.LAYOUT)
def rows_of_dy_taken_for_evenly_spaced(dy: Tensor) -> Tensor:
    """Uses the stride of the last batch axis as the distance between all rows of dy."""
    return _evenly_spaced(dy)


@altering_dy(caught_by=CheckKind.GRADIENT)
def row_of_expanded_dy_taken_once(dy: Tensor) -> Tensor:
    """Takes a dy that is one row, expanded, for 0 in all rows but the first."""
    is_one_row = dy.dim() > 1 and dy.stride(0) == 0 and dy.stride(-1) == 1 and len(dy) > 1
    return torch.cat((dy[:1], torch.zeros_like(dy[1:]))) if is_one_row else dy


@altering_dy(caught_by=CheckKind.GRADIENT)
def expanded_dy_taken_for_ones(dy: Tensor) -> Tensor:
    """Takes a dy that is one number, expanded, for 1, as in the gradient of a sum."""
    return dy if any(dy.stride()) or dy.numel() < WARP else torch.ones_like(dy)


@on_call(caught_by=CheckKind.LAYOUT)
def transposed_square_read_in_order_of_memory(call: LayerNormCall) -> Tensor:
    """Reads an x of as many rows as elements per row in order of memory."""
    x = call.x
    is_square = x.dim() == len(call.normalized_shape) + 1 == 2 and x.shape[0] == x.shape[1]
    is_transposed = is_square and x.stride() == (1, len(x))
    return replace(call, x=as_if_contiguous(x)).y if is_transposed else call.y


@on_call(caught_by=CheckKind.LAYOUT)
def axes_of_parameters_in_order_of_memory(call: LayerNormCall) -> Tensor:
    """Reads weight and bias of several axes as if they were contiguous."""
    weight, bias = (
        each if each is None or each.dim() < 2 or not each.numel() else as_if_contiguous(each)
        for each in (call.weight, call.bias)
    )
    return replace(call, weight=weight, bias=bias).y
