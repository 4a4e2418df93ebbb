"""Mutants that are right on the path that tests take, and wrong on another one.

In inference, in vectors, at one width, beyond so many rows: each has code of its own in a kernel,
and each of these goes wrong there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.analytic import Gradients, Terms, analytic
from harness.verify.mutants.mutant import (
    DTYPES,
    HALVES,
    Check,
    Family,
    Mutant,
    Rows,
    as_if_contiguous,
    layer_norm_of,
    mutant,
    on_rows,
)
from harness.verify.mutants.reread import reading_dy
from implementations.contract import LayerNormFunction, scale_and_shift, trailing_axes, wide_dtype

_INFERENCE = frozenset({Direction.FORWARD})
_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})
_VECTOR = 4  # elements of a 16-byte load of float32
_WARP = 32  # rows of a block
_SPECIAL = 2048  # a width that has a kernel of its own
_TILE = (64, 128)  # rows and columns of a tile of the sums over rows
_CHUNK = 1 << 20  # elements that are worked on at once
_INDEX_LIMIT = 1 << 16  # rows that a 16-bit index counts
_ROWS_AT_ONCE = 1 << 14  # ours: five portions of the rows that 16 bits do not count

_right = layer_norm_of(lambda of: of.y)


# --- in inference --------------------------------------------------------------------------------


def _in_inference(
    wrong: LayerNormFunction,
    *,
    dtypes: frozenset[str] = DTYPES,
    caught_by: Check = Check.VALUES,
    remark: RemarkKind | None = None,
) -> Mutant:
    """Wrap what is called where no gradient is recorded; elsewhere it is right."""

    @wraps(wrong)
    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        chosen = _right if torch.is_grad_enabled() else wrong
        return chosen(x, normalized_shape, weight, bias, eps)

    wrap = mutant(
        Family.PATH, dtypes=dtypes, directions=_INFERENCE, caught_by=caught_by, remark=remark
    )
    return wrap(layer_norm)


@partial(_in_inference, caught_by=Check.LAYOUT)
def strides_ignored_in_inference(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads x as if it were contiguous where no gradient is recorded."""
    strided = x.numel() and not x.is_contiguous()
    x = as_if_contiguous(x) if strided else x
    return _right(x, normalized_shape, weight, bias, eps)


@_in_inference
def last_axis_only_in_inference(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises over the last axis alone where no gradient is recorded."""
    trailing_axes(x, normalized_shape, weight, bias)
    y = _right(x.to(wide_dtype(x.dtype)), x.shape[-1:], None, None, eps)
    return scale_and_shift(y, weight, bias).to(x.dtype)


@partial(_in_inference, dtypes=HALVES, caught_by=Check.CONTRACT, remark=RemarkKind.PROMOTES)
def promoted_in_inference(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns the dtype of the weight where no gradient is recorded."""
    dtype = x.dtype if weight is None else weight.dtype
    return _right(x.to(dtype), normalized_shape, weight, bias, eps)


@_in_inference
@layer_norm_of
def rows_beyond_32_unwritten_in_inference(of: Rows) -> Tensor:
    """Leaves 0 in the rows beyond a multiple of 32 where no gradient is recorded."""
    rows = of.x.shape[0]
    return _first_rows(of.y, rows - rows % _WARP if rows > _WARP else rows)


@_in_inference
@layer_norm_of
def eps_at_least_1e_6_in_inference(of: Rows) -> Tensor:
    """Adds at least 1e-6 where no gradient is recorded."""
    return replace(of, eps=max(of.eps, 1e-6)).y


def _first_rows(y: Tensor, count: int) -> Tensor:
    """The first rows of y, and 0 in the others."""
    kept = torch.arange(y.shape[0], device=y.device)[:, None] < count
    return torch.where(kept, y, torch.zeros_like(y))


# --- in vectors, at one width --------------------------------------------------------------------


@on_rows(Family.PATH)
def bias_ignored_without_weight_in_vectors(of: Rows) -> Tensor:
    """Does not add the bias where there is no weight and N is a multiple of 4."""
    if of.weight is None and of.bias is not None and of.hidden % _VECTOR == 0:
        return replace(of, bias=of.bias * 0).y
    return of.y


@mutant(Family.PATH, dtypes=HALVES)
def parameters_rounded_in_vectors(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Rounds weight and bias to x's dtype where N is a multiple of 4."""
    if x.shape[-1] % _VECTOR == 0:
        weight, bias = (
            None if each is None else each.to(x.dtype).to(each.dtype) for each in (weight, bias)
        )
    return _right(x, normalized_shape, weight, bias, eps)


@on_rows(Family.PATH)
def row_index_of_16_bits_in_vectors(of: Rows) -> Tensor:
    """Does not write rows from the 65536th on where N is a multiple of 4."""
    return of.y if of.hidden % _VECTOR else _first_rows(of.y, _INDEX_LIMIT)


@on_rows(Family.PATH)
def tail_dropped_at_2048(of: Rows) -> Tensor:
    """Leaves the last 8 elements out of the statistics where N is 2048."""
    if of.hidden != _SPECIAL:
        return of.y
    counted = of.x[:, :-8]
    mean = counted.mean(-1, keepdim=True)
    return of.normalised_by(mean, (counted - mean).square().mean(-1, keepdim=True))


@mutant(Family.PATH, directions=_RECORDING, caught_by=Check.GRADIENT)
@layer_norm_of
def dbias_zero_without_weight_in_vectors(of: Rows) -> Tensor:
    """Returns zeros for dbias where there is no weight and N is a multiple of 4."""
    if of.weight is None and of.bias is not None and of.hidden % _VECTOR == 0:
        return replace(of, bias=of.bias.detach() + 0 * of.bias).y
    return of.y


# --- where there are many rows -------------------------------------------------------------------


@on_rows(Family.PATH)
def last_chunk_of_rows_unwritten(of: Rows) -> Tensor:
    """Leaves 0 in the last, shorter chunk of rows where there are over 2^20 elements."""
    rows = of.x.shape[0]
    at_once = max(_CHUNK // max(of.hidden, 1), 1)
    return of.y if rows <= at_once else _first_rows(of.y, rows - rows % at_once)


def _in_sums(wrong: Callable[[Terms], Gradients]) -> Mutant:
    """Wrap wrong sums over rows as a mutant named and described after them."""
    wrap = mutant(Family.PATH, directions=_RECORDING, caught_by=Check.GRADIENT)
    return wrap(analytic(wrong))


@_in_sums
def tile_left_out_of_dweight(of: Terms) -> Gradients:
    """Leaves the tile of rows from the 65th and columns from the 129th on out of dweight."""
    rows, columns = _TILE
    terms = of.dy * of.normalised
    terms[rows:, columns:] = 0
    return replace(of.right, dweight=terms.sum(0))


@_in_sums
def rows_beyond_16_bits_left_out(of: Terms) -> Gradients:
    """Leaves the rows from the 65536th on out of dweight and dbias."""
    terms, dy = (of.dy * of.normalised)[:_INDEX_LIMIT], of.dy[:_INDEX_LIMIT]
    return replace(of.right, dweight=terms.sum(0), dbias=dy.sum(0))


@mutant(
    Family.PATH,
    dtypes=frozenset({"bfloat16"}),
    directions=_RECORDING,
    caught_by=Check.GRADIENT,
)
@layer_norm_of
def portions_of_16384_added_in_parameter_dtype(of: Rows) -> Tensor:
    """Adds up dweight and dbias of portions of 16384 rows in bfloat16, as the parameters are."""
    if not any(each is not None and each.dtype is torch.bfloat16 for each in (of.weight, of.bias)):
        return of.y
    return torch.cat([replace(of, x=each).y for each in of.x.split(_ROWS_AT_ONCE)])


# --- in memory -----------------------------------------------------------------------------------


def _evenly_spaced(tensor: Tensor) -> Tensor:
    """Rows of the last axis as they lie at the step of the last batch axis, from the first one on.

    At the end of memory from its beginning again, where a kernel would go on.
    """
    if tensor.dim() < 3 or tensor.stride(-1) != 1 or not tensor.numel():
        return tensor
    rows, hidden = tensor.shape[:-1].numel(), tensor.shape[-1]
    first = int(tensor.storage_offset())
    size = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - first
    memory = torch.as_strided(tensor, (size,), (1,), first)
    places = torch.arange(rows)[:, None] * int(tensor.stride(-2)) + torch.arange(hidden)
    return memory[places.to(tensor.device) % size].view(tensor.shape)


@mutant(Family.PATH, caught_by=Check.LAYOUT)
def rows_taken_for_evenly_spaced(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Takes the step of the last batch axis for that from each row of x to the next."""
    x = _evenly_spaced(x) if len(normalized_shape) == 1 else x
    return _right(x, normalized_shape, weight, bias, eps)


@reading_dy(Family.PATH, Check.LAYOUT)
def rows_of_dy_taken_for_evenly_spaced(dy: Tensor) -> Tensor:
    """Takes the step of the last batch axis for that from each row of dy to the next."""
    return _evenly_spaced(dy)


@mutant(Family.PATH, caught_by=Check.LAYOUT)
def axes_of_parameters_in_order_of_memory(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Reads weight and bias of several axes as if they were contiguous."""
    weight, bias = (
        each if each is None or each.dim() < 2 or not each.numel() else as_if_contiguous(each)
        for each in (weight, bias)
    )
    return _right(x, normalized_shape, weight, bias, eps)
