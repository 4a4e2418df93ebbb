"""Mutants with the mistakes of kernels: a wrong index, tail or padding.

Many of them are right if the number of rows or of elements is a multiple of a block size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import (
    CheckKind,
    as_if_contiguous,
    first_rows,
    on_call,
    on_rows,
    without_tail,
)
from implementations.torch_private import negated_view

__all__ = ["INDEX_LIMIT", "VECTOR", "WARP"]

VECTOR = 4  # elements of a 16-byte load of float32
WARP = 32  # lanes of a warp, and rows of a block
INDEX_LIMIT = 1 << 16  # number of rows that a 16-bit index can address
_BLOCK = 1024  # maximum threads per block in CUDA, and so a common tile width
_CHUNK = 64  # elements per chunk; the moments of the chunks are combined


# --- along a row ---------------------------------------------------------------------------------


@on_rows()
def last_of_odd_rows_dropped(rows: Rows) -> Tensor:
    """Leaves the last element out of the statistics where N is odd."""
    return rows.with_statistics_of(rows.x[:, : without_tail(rows.hidden, 2) or rows.hidden])


@on_rows()
def vector_tail_dropped(rows: Rows) -> Tensor:
    """Leaves the elements beyond a multiple of 4 out of the statistics."""
    return rows.with_statistics_of(rows.x[:, : without_tail(rows.hidden, VECTOR) or rows.hidden])


@on_rows()
def padding_in_the_variance(rows: Rows) -> Tensor:
    """Adds (0 - mean)^2 to the variance for each lane of padding up to a power of two."""
    padding = (1 << (rows.hidden - 1).bit_length()) - rows.hidden
    return rows.normalised_by(rows.mean, rows.variance + padding / rows.hidden * rows.mean.square())


def _divided_by(rows: Rows, count: float | Tensor) -> Tensor:
    """Return y with the sums for mean and variance divided by ``count`` instead of N."""
    mean = rows.x.sum(-1, keepdim=True) / count
    return rows.normalised_by(mean, (rows.x - mean).square().sum(-1, keepdim=True) / count)


@on_rows()
def padding_in_the_count(rows: Rows) -> Tensor:
    """Divides both sums by N padded to the next power of two."""
    return _divided_by(rows, 1 << (rows.hidden - 1).bit_length())


@on_rows()
def count_in_float16(rows: Rows) -> Tensor:
    """Counts N in float16, which holds no odd number beyond 2048."""
    return _divided_by(rows, torch.tensor(float(rows.hidden)).half().to(rows.x))


@on_rows()
def second_block_of_a_row_ignored(rows: Rows) -> Tensor:
    """Leaves elements after the first 1024 of each row out of the statistics."""
    return rows.with_statistics_of(rows.x[:, :_BLOCK])


@on_rows()
def second_block_of_a_row_unwritten(rows: Rows) -> Tensor:
    """Does not write elements after the first 1024 of each row."""
    y = rows.y
    return torch.where(torch.arange(rows.hidden, device=y.device) < _BLOCK, y, torch.zeros_like(y))


@on_rows()
def lane_lost(rows: Rows) -> Tensor:
    """Leaves one lane of 32 out of the sums."""
    kept = (torch.arange(rows.hidden) % WARP != WARP - 1).to(rows.x)
    mean = (rows.x * kept).mean(-1, keepdim=True)
    return rows.normalised_by(mean, ((rows.x - mean).square() * kept).mean(-1, keepdim=True))


@on_rows()
def chunks_weighted_equally(rows: Rows) -> Tensor:
    """Averages the means of chunks of 64 as if the shorter last one were full."""
    means = [chunk.mean(-1, keepdim=True) for chunk in rows.x.split(_CHUNK, dim=1)]
    mean = torch.cat(means, dim=1).mean(-1, keepdim=True)
    return rows.normalised_by(mean, (rows.x - mean).square().mean(-1, keepdim=True))


@on_rows()
def between_chunks_lost(rows: Rows) -> Tensor:
    """Combines the variances of chunks of 64 without the distances between their means."""
    squares = [
        (chunk - chunk.mean(-1, keepdim=True)).square().sum(-1, keepdim=True)
        for chunk in rows.x.split(_CHUNK, dim=1)
    ]
    variance = torch.cat(squares, dim=1).sum(-1, keepdim=True) / rows.hidden
    return rows.normalised_by(rows.mean, variance)


@on_rows()
def weight_off_by_one(rows: Rows) -> Tensor:
    """Multiplies each element by the weight of its neighbour."""
    return replace(rows, weight=None if rows.weight is None else rows.weight.roll(1)).y


# --- across rows ---------------------------------------------------------------------------------


@on_rows()
def row_off_by_one(rows: Rows) -> Tensor:
    """Reads each row's statistics one element late, into the next row."""
    late = torch.cat([rows.x.flatten()[1:], rows.x.flatten()[-1:]]).reshape(rows.x.shape)
    return rows.with_statistics_of(late)


@on_rows()
def pairs_share_statistics(rows: Rows) -> Tensor:
    """Uses the statistics of the first row of each pair for both rows."""
    first = torch.arange(rows.x.shape[0], device=rows.x.device) // 2 * 2
    return rows.with_statistics_of(rows.x[first])


@on_rows()
def rows_beyond_32_unwritten(rows: Rows) -> Tensor:
    """Leaves 0 in the rows beyond a multiple of 32."""
    return first_rows(rows.y, without_tail(len(rows.x), WARP))


@on_rows()
def rows_beyond_32_copied(rows: Rows) -> Tensor:
    """Copies the rows beyond a multiple of 32 without normalising them."""
    return first_rows(rows.y, without_tail(len(rows.x), WARP), otherwise=rows.x)


@on_rows()
def last_odd_row_not_normalised(rows: Rows) -> Tensor:
    """Does not normalise the last row where the number of rows is odd."""
    return first_rows(rows.y, without_tail(len(rows.x), 2), otherwise=rows.affine(rows.x))


@on_rows()
def row_index_of_16_bits(rows: Rows) -> Tensor:
    """Does not write rows from the 65537th on, whose 16-bit index wraps around."""
    return first_rows(rows.y, INDEX_LIMIT)


@on_rows(caught_by=CheckKind.THREADS)
def rows_of_other_threads_unwritten(rows: Rows) -> Tensor:
    """Does not write the rows of any thread but the first."""
    return first_rows(rows.y, -(-len(rows.x) // torch.get_num_threads()))


# --- in memory -----------------------------------------------------------------------------------


@on_call(caught_by=CheckKind.LAYOUT)
def strides_ignored(call: LayerNormCall) -> Tensor:
    """Reads x from its first element on as if it were contiguous."""
    strides = torch.empty(call.x.shape, device="meta").stride()
    return replace(call, x=torch.as_strided(call.x, call.x.shape, strides)).y


@on_call(caught_by=CheckKind.LAYOUT)
def storage_offset_ignored(call: LayerNormCall) -> Tensor:
    """Reads x from the start of its storage, wherever x begins there."""
    return replace(call, x=torch.as_strided(call.x, call.x.shape, call.x.stride(), 0)).y


@on_call(caught_by=CheckKind.LAYOUT)
def written_in_the_order_of_memory(call: LayerNormCall) -> Tensor:
    """Writes y row after row into memory with the strides of a transposed x."""
    y = call.y.contiguous()
    # empty_like keeps the strides of x only if x is dense
    strides = torch.empty_like(call.x, device="meta").stride()
    return torch.as_strided(y, y.shape, strides)


@on_call(caught_by=CheckKind.LAYOUT)
def parameter_strides_ignored(call: LayerNormCall) -> Tensor:
    """Reads weight and bias from their first elements on as if they were contiguous."""
    weight, bias = (
        None if each is None else as_if_contiguous(each) for each in (call.weight, call.bias)
    )
    return replace(call, weight=weight, bias=bias).y


@on_call(caught_by=CheckKind.LAYOUT, remark=RemarkKind.NEGATED_MISREAD)
def negative_bit_ignored(call: LayerNormCall) -> Tensor:
    """Reads the memory of x without negating it where x is stored as -x."""
    return replace(call, x=negated_view(call.x) if call.x.is_neg() else call.x).y
