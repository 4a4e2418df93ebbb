"""Mutants that get an index, a tail or a padding wrong: what goes wrong in kernels.

Many of them are right for every shape that is a multiple of something.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.mutant import (
    Check,
    Family,
    Rows,
    as_if_contiguous,
    layer_norm_of,
    mutant,
    on_rows,
)
from implementations.torch_private import negated_view

_VECTOR = 4  # elements of a 16-byte load of float32
_WARP = 32  # lanes of a warp, and rows of a block
_BLOCK = 1024  # threads of the largest block, and so a usual width of a tile
_CHUNK = 64  # elements of a chunk whose moments are combined
_INDEX_LIMIT = 1 << 16  # rows that a 16-bit index counts


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


# --- along a row ---------------------------------------------------------------------------------


@on_rows(Family.KERNEL)
def last_of_odd_rows_dropped(of: Rows) -> Tensor:
    """Leaves the last element out of the statistics where N is odd."""
    even = of.hidden - of.hidden % 2 or of.hidden
    return of.normalised_by(*_moments(of.x[:, :even]))


@on_rows(Family.KERNEL)
def vector_tail_dropped(of: Rows) -> Tensor:
    """Leaves the elements beyond a multiple of 4 out of the statistics."""
    whole = of.hidden - of.hidden % _VECTOR or of.hidden
    return of.normalised_by(*_moments(of.x[:, :whole]))


@on_rows(Family.KERNEL)
def padding_in_the_variance(of: Rows) -> Tensor:
    """Counts (0 - mean)^2 for each lane of padding up to the next power of two."""
    padding = (1 << (of.hidden - 1).bit_length()) - of.hidden
    return of.normalised_by(of.mean, of.variance + padding / of.hidden * of.mean.square())


@on_rows(Family.KERNEL)
def padding_in_the_count(of: Rows) -> Tensor:
    """Divides both sums by N padded to the next power of two."""
    padded = 1 << (of.hidden - 1).bit_length()
    mean = of.x.sum(-1, keepdim=True) / padded
    return of.normalised_by(mean, (of.x - mean).square().sum(-1, keepdim=True) / padded)


@on_rows(Family.KERNEL)
def count_in_float16(of: Rows) -> Tensor:
    """Counts N in float16, which holds no odd number beyond 2048."""
    count = torch.tensor(float(of.hidden)).half().to(of.x)
    mean = of.x.sum(-1, keepdim=True) / count
    return of.normalised_by(mean, (of.x - mean).square().sum(-1, keepdim=True) / count)


@on_rows(Family.KERNEL)
def second_block_of_a_row_ignored(of: Rows) -> Tensor:
    """Takes the statistics of the first 1024 elements of longer rows."""
    return of.normalised_by(*_moments(of.x[:, :_BLOCK]))


@on_rows(Family.KERNEL)
def second_block_of_a_row_unwritten(of: Rows) -> Tensor:
    """Writes only the first 1024 elements of longer rows."""
    return torch.where(
        torch.arange(of.hidden, device=of.y.device) < _BLOCK, of.y, torch.zeros_like(of.y)
    )


@on_rows(Family.KERNEL)
def lane_lost(of: Rows) -> Tensor:
    """Loses one lane of 32 in the reduction."""
    kept = (torch.arange(of.hidden) % _WARP != _WARP - 1).to(of.x)
    mean = (of.x * kept).mean(-1, keepdim=True)
    return of.normalised_by(mean, ((of.x - mean).square() * kept).mean(-1, keepdim=True))


@on_rows(Family.KERNEL)
def chunks_weighted_equally(of: Rows) -> Tensor:
    """Averages the means of chunks of 64 as if the short last one were full."""
    means = [chunk.mean(-1, keepdim=True) for chunk in of.x.split(_CHUNK, dim=1)]
    mean = torch.cat(means, dim=1).mean(-1, keepdim=True)
    return of.normalised_by(mean, (of.x - mean).square().mean(-1, keepdim=True))


@on_rows(Family.KERNEL)
def between_chunks_lost(of: Rows) -> Tensor:
    """Combines the variances of chunks of 64 without the squares of their means' distances."""
    chunks = of.x.split(_CHUNK, dim=1)
    squares = [
        (each - each.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) for each in chunks
    ]
    return of.normalised_by(of.mean, torch.cat(squares, dim=1).sum(-1, keepdim=True) / of.hidden)


@on_rows(Family.KERNEL)
def weight_off_by_one(of: Rows) -> Tensor:
    """Multiplies each element by its neighbour's weight."""
    weight = None if of.weight is None else of.weight.roll(1)
    return Rows(of.x, weight, of.bias, of.eps).y


# --- across rows ---------------------------------------------------------------------------------


@on_rows(Family.KERNEL)
def row_off_by_one(of: Rows) -> Tensor:
    """Reads each row's statistics one element late, so that the next row's first is counted."""
    late = torch.cat([of.x.flatten()[1:], of.x.flatten()[-1:]]).reshape(of.x.shape)
    return of.normalised_by(*_moments(late))


@on_rows(Family.KERNEL)
def pairs_share_statistics(of: Rows) -> Tensor:
    """Gives both rows of a pair the first one's statistics."""
    first = torch.arange(of.x.shape[0], device=of.x.device) // 2 * 2
    mean, variance = _moments(of.x)
    return of.normalised_by(mean[first], variance[first])


def _rows_from(of: Rows, start: int) -> Tensor:
    """Whether each row is at or behind ``start``; (rows, 1)."""
    return torch.arange(of.x.shape[0], device=of.x.device)[:, None] >= start


@on_rows(Family.KERNEL)
def rows_beyond_32_unwritten(of: Rows) -> Tensor:
    """Leaves 0 in the rows beyond a multiple of 32."""
    tail = _rows_from(of, of.x.shape[0] - of.x.shape[0] % _WARP)
    return torch.where(tail, torch.zeros_like(of.y), of.y)


@on_rows(Family.KERNEL)
def rows_beyond_32_copied(of: Rows) -> Tensor:
    """Copies the rows beyond a multiple of 32 as they are."""
    tail = _rows_from(of, of.x.shape[0] - of.x.shape[0] % _WARP)
    return torch.where(tail, of.x, of.y)


@on_rows(Family.KERNEL)
def last_odd_row_not_normalised(of: Rows) -> Tensor:
    """Leaves the last row without its normalisation where there is an odd number of them."""
    tail = _rows_from(of, of.x.shape[0] - of.x.shape[0] % 2)
    return torch.where(tail, of.affine(of.x), of.y)


@on_rows(Family.KERNEL)
def row_index_of_16_bits(of: Rows) -> Tensor:
    """Does not write rows from the 65536th on, whose index wraps around."""
    return torch.where(_rows_from(of, _INDEX_LIMIT), torch.zeros_like(of.y), of.y)


@on_rows(Family.KERNEL, caught_by=Check.THREADS)
def rows_of_other_threads_unwritten(of: Rows) -> Tensor:
    """Does not write the rows of any thread but the first."""
    share = -(-of.x.shape[0] // torch.get_num_threads())
    return torch.where(_rows_from(of, share), torch.zeros_like(of.y), of.y)


# --- in memory -----------------------------------------------------------------------------------

_right = layer_norm_of(lambda of: of.y)


@mutant(Family.KERNEL, caught_by=Check.LAYOUT)
def strides_ignored(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads x from its first element on as if it were contiguous."""
    strides = torch.empty(x.shape, device="meta").stride()
    return _right(torch.as_strided(x, x.shape, strides), normalized_shape, weight, bias, eps)


@mutant(Family.KERNEL, caught_by=Check.LAYOUT)
def storage_offset_ignored(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads x from the start of its storage, wherever in it x begins."""
    from_start = torch.as_strided(x, x.shape, x.stride(), 0)
    return _right(from_start, normalized_shape, weight, bias, eps)


@mutant(Family.KERNEL, caught_by=Check.LAYOUT)
def written_in_the_order_of_memory(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Writes y row after row into memory laid out like a transposed x."""
    y = _right(x, normalized_shape, weight, bias, eps).contiguous()
    strides = torch.empty_like(x, device="meta").stride()  # x's own only where it has no gaps
    return torch.as_strided(y, y.shape, strides)


@mutant(Family.KERNEL, caught_by=Check.LAYOUT)
def parameter_strides_ignored(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads weight and bias from their first elements on as if they were contiguous."""
    weight, bias = (None if each is None else as_if_contiguous(each) for each in (weight, bias))
    return _right(x, normalized_shape, weight, bias, eps)


@mutant(Family.KERNEL, caught_by=Check.LAYOUT, remark=RemarkKind.NEGATED_MISREAD)
def negative_bit_ignored(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads the memory of x, where x may be kept as -x."""
    kept = negated_view(x) if x.is_neg() else x
    return _right(kept, normalized_shape, weight, bias, eps)
