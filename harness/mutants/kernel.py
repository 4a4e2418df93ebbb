"""Mutants with the mistakes of kernels: a wrong index, tail, padding, stride, dtype or shape.

Many of them are right if the number of rows or of elements is a multiple of a block size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from harness.mutants.arguments import LayerNormCall, Rows, changed, with_gradient
from harness.mutants.mutant import (
    HALVES,
    first_rows,
    read_from_memory,
    with_fields,
    without_tail,
)
from harness.records.finding import RemarkKind
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype
from implementations.torch_private import negated_view

VECTOR = 4  # elements of a 16-byte load of float32
WARP = 32  # lanes of a warp, and rows of a block
INDEX_LIMIT = 1 << 16  # number of rows that a 16-bit index can address
_BLOCK = 1024  # maximum threads per block in CUDA, and so a common tile width
_CHUNK = 64  # elements per chunk; the moments of the chunks are combined
_AT_ONCE = 1 << 20  # elements that are processed at once

# --- along a row ---------------------------------------------------------------------------------


def vector_tail_dropped(rows: Rows) -> Tensor:
    """Leaves the elements after the last multiple of 4 out of the statistics."""
    return rows.with_statistics_of(rows.x[:, : without_tail(rows.hidden, VECTOR) or rows.hidden])


def padding_in_the_variance(rows: Rows) -> Tensor:
    """Pads rows with zeros to a power of two and counts the zeros in the variance."""
    padding = (1 << (rows.hidden - 1).bit_length()) - rows.hidden
    return rows.normalised_by(rows.mean, rows.variance + padding / rows.hidden * rows.mean.square())


def padding_in_the_count(rows: Rows) -> Tensor:
    """Divides both sums by N padded to the next power of two."""
    return rows.divided_by(1 << (rows.hidden - 1).bit_length())


def count_in_float16(rows: Rows) -> Tensor:
    """Counts N in float16, which holds no odd number beyond 2048."""
    return rows.divided_by(torch.tensor(float(rows.hidden)).half().to(rows.x))


def second_block_of_a_row_ignored(rows: Rows) -> Tensor:
    """Leaves elements after the first 1024 of each row out of the statistics."""
    return rows.with_statistics_of(rows.x[:, :_BLOCK])


def second_block_of_a_row_unwritten(rows: Rows) -> Tensor:
    """Does not write elements after the first 1024 of each row."""
    y = rows.y
    return torch.where(torch.arange(rows.hidden, device=y.device) < _BLOCK, y, torch.zeros_like(y))


def lane_lost(rows: Rows) -> Tensor:
    """Leaves one of every 32 elements out of the sums."""
    kept = (torch.arange(rows.hidden) % WARP != WARP - 1).to(rows.x)
    return rows.with_means_by(lambda x: (x * kept).mean(-1, keepdim=True))


def chunks_weighted_equally(rows: Rows) -> Tensor:
    """Averages the means of chunks of 64 as if the shorter last one were full."""
    means = [chunk.mean(-1, keepdim=True) for chunk in rows.x.split(_CHUNK, dim=1)]
    mean = torch.cat(means, dim=1).mean(-1, keepdim=True)
    return rows.normalised_by(mean, (rows.x - mean).square().mean(-1, keepdim=True))


def between_chunks_lost(rows: Rows) -> Tensor:
    """Combines the variances of chunks of 64 without the distances between their means."""
    squares = [
        (chunk - chunk.mean(-1, keepdim=True)).square().sum(-1, keepdim=True)
        for chunk in rows.x.split(_CHUNK, dim=1)
    ]
    variance = torch.cat(squares, dim=1).sum(-1, keepdim=True) / rows.hidden
    return rows.normalised_by(rows.mean, variance)


def weight_off_by_one(rows: Rows) -> Tensor:
    """Multiplies each element by the weight of its neighbour."""
    return changed(rows, "weight", lambda weight: weight.roll(1)).y


# --- across rows ---------------------------------------------------------------------------------


def row_off_by_one(rows: Rows) -> Tensor:
    """Computes each row's statistics from one element later, into the next row."""
    late = torch.cat([rows.x.flatten()[1:], rows.x.flatten()[-1:]]).reshape(rows.x.shape)
    return rows.with_statistics_of(late)


def pairs_share_statistics(rows: Rows) -> Tensor:
    """Uses the statistics of the first row of each pair for both rows."""
    first = torch.arange(rows.x.shape[0], device=rows.x.device) // 2 * 2
    return rows.with_statistics_of(rows.x[first])


def rows_beyond_32_unwritten(rows: Rows) -> Tensor:
    """Returns 0 in the rows after the last multiple of 32."""
    return first_rows(rows.y, without_tail(len(rows.x), WARP))


def rows_beyond_32_copied(rows: Rows) -> Tensor:
    """Returns x itself in the rows after the last multiple of 32."""
    return first_rows(rows.y, without_tail(len(rows.x), WARP), otherwise=rows.x)


def last_odd_row_not_normalised(rows: Rows) -> Tensor:
    """Does not normalise the last row where the number of rows is odd."""
    return first_rows(rows.y, without_tail(len(rows.x), 2), otherwise=rows.affine(rows.x))


def row_index_of_16_bits(rows: Rows) -> Tensor:
    """Does not write the rows from the 65537th on."""
    return first_rows(rows.y, INDEX_LIMIT)


def rows_of_other_threads_unwritten(rows: Rows) -> Tensor:
    """Does not write the rows of any thread but the first."""
    return first_rows(rows.y, -(-len(rows.x) // torch.get_num_threads()))


def last_chunk_of_rows_unwritten(rows: Rows) -> Tensor:
    """Returns 0 in the last rows of an x of more than 2^20 elements."""
    count = len(rows.x)
    at_once = max(_AT_ONCE // max(rows.hidden, 1), 1)
    return rows.y if count <= at_once else first_rows(rows.y, without_tail(count, at_once))


# --- in memory -----------------------------------------------------------------------------------


def strides_ignored(call: LayerNormCall) -> Tensor:
    """Reads x from its first element on as if it were contiguous."""
    return changed(call, "x", read_from_memory).y


def storage_offset_ignored(call: LayerNormCall) -> Tensor:
    """Reads x from the start of its storage, wherever x begins there."""
    return replace(call, x=torch.as_strided(call.x, call.x.shape, call.x.stride(), 0)).y


def written_in_the_order_of_memory(call: LayerNormCall) -> Tensor:
    """Writes y row after row into memory with the strides of a transposed x."""
    y = call.y.contiguous()
    # empty_like keeps the strides of x only if x is dense
    strides = torch.empty_like(call.x, device="meta").stride()
    return torch.as_strided(y, y.shape, strides)


def parameter_strides_ignored(call: LayerNormCall) -> Tensor:
    """Reads weight and bias from their first elements on as if they were contiguous."""
    return call.with_parameters(read_from_memory).y


@with_fields(remark=RemarkKind.NEGATED_MISREAD)
def negative_bit_ignored(call: LayerNormCall) -> Tensor:
    """Reads the memory of x without negating it where x is stored as -x."""
    return replace(call, x=negated_view(call.x) if call.x.is_neg() else call.x).y


# --- another type, shape or dtype ----------------------------------------------------------------


@with_fields(dtypes=HALVES)
def float32_for_halves(call: LayerNormCall) -> Tensor:
    """Returns float32 for float16 and bfloat16."""
    return replace(call, x=call.x.to(wide_dtype(call.x.dtype))).y


@with_fields(dtypes=HALVES, remark=RemarkKind.PROMOTES)
def promoted_by_parameters(call: LayerNormCall) -> Tensor:
    """Returns float32 for float16 and bfloat16 where weight or bias is float32."""
    trailing_axes(call.x, call.normalized_shape, call.weight, call.bias)
    parameters = [tensor for tensor in (call.weight, call.bias) if tensor is not None]
    if all(parameter.dtype == call.x.dtype for parameter in parameters):
        return call.y
    wide = call.x.to(wide_dtype(call.x.dtype))
    return scale_and_shift(replace(call, x=wide, weight=None, bias=None).y, call.weight, call.bias)


def flattened(call: LayerNormCall) -> Tensor:
    """Returns y of shape (rows, hidden), whatever the shape of x."""
    return call.y.reshape(call.x.shape[: call.x.dim() - len(call.normalized_shape)].numel(), -1)


def squeezed(call: LayerNormCall) -> Tensor:
    """Returns y without its axes of length 1."""
    return call.y.squeeze()


def statistics_returned_too(call: LayerNormCall) -> Tensor:
    """Returns (y, mean, rstd) instead of y."""
    mean = call.x.detach().mean(tuple(range(-len(call.normalized_shape), 0)), keepdim=True)
    return cast("Tensor", (call.y, mean, torch.zeros_like(mean)))  # the mistake is this wrong type


# --- what is not finite --------------------------------------------------------------------------


def nan_spreads(rows: Rows) -> Tensor:
    """Spreads a NaN in one row to all other rows."""
    return rows.y + 0 * rows.x.sum()


def nan_hidden(rows: Rows) -> Tensor:
    """Returns 0 where the right result is NaN."""
    return rows.y.nan_to_num()


def nan_skipped(rows: Rows) -> Tensor:
    """Leaves NaN elements out of the statistics of their row."""
    return rows.with_means_by(lambda x: x.nanmean(-1, keepdim=True))


def dy_nan_hidden(dy: Tensor) -> Tensor:
    """Replaces NaN in dy by 0 and infinity by the largest number."""
    return dy.nan_to_num()


def dy_nan_spreads(dy: Tensor) -> Tensor:
    """Spreads a NaN in one row of dy to dx of all others."""
    return dy + 0 * dy.sum()


# no other dtype has a range that gradients reach
@with_fields(dtypes=frozenset({"float16"}))
def dx_saturated(call: LayerNormCall) -> Tensor:
    """Returns the largest number where dx overflows to infinity."""
    largest = torch.finfo(call.x.dtype).max
    return replace(call, x=with_gradient(call.x, lambda dx: dx.clamp(-largest, largest))).y
