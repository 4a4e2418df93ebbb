"""Mutants that return something else than the contract says, or let one row touch another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.mutant import (
    HALVES,
    Check,
    Family,
    Rows,
    layer_norm_of,
    mutant,
    on_rows,
)
from harness.verify.mutants.reread import reading_dy, returning_dx
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype

_right = layer_norm_of(lambda of: of.y)
_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})


@mutant(Family.LAYOUT, dtypes=HALVES, caught_by=Check.CONTRACT)
def float32_for_halves(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns float32 for float16 and bfloat16."""
    return _right(x.to(wide_dtype(x.dtype)), normalized_shape, weight, bias, eps)


@mutant(Family.LAYOUT, dtypes=HALVES, caught_by=Check.CONTRACT, remark=RemarkKind.PROMOTES)
def promoted_by_parameters(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns float32 for float16 and bfloat16 where weight or bias is float32."""
    trailing_axes(x, normalized_shape, weight, bias)
    wide = x.to(wide_dtype(x.dtype))
    parameters = [each for each in (weight, bias) if each is not None]
    if all(each.dtype == x.dtype for each in parameters):
        return _right(x, normalized_shape, weight, bias, eps)
    return scale_and_shift(_right(wide, normalized_shape, None, None, eps), weight, bias)


@mutant(Family.LAYOUT, caught_by=Check.CONTRACT)
def flattened(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns (rows, hidden), whatever the shape of x."""
    y = _right(x, normalized_shape, weight, bias, eps)
    return y.reshape(x.shape[: x.dim() - len(normalized_shape)].numel(), -1)


@mutant(Family.LAYOUT, caught_by=Check.CONTRACT)
def squeezed(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns y without its axes of length 1."""
    return _right(x, normalized_shape, weight, bias, eps).squeeze()


@mutant(Family.LAYOUT, caught_by=Check.CONTRACT)
def statistics_returned_too(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns (y, mean, rstd) instead of y."""
    axes = tuple(range(-len(normalized_shape), 0))
    mean = x.detach().mean(axes, keepdim=True)
    y = _right(x, normalized_shape, weight, bias, eps)
    return cast("Tensor", (y, mean, torch.zeros_like(mean)))  # the lie is the mistake


@mutant(Family.LAYOUT, directions=_RECORDING, caught_by=Check.CONTRACT)
def detached(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns a y that autograd does not know."""
    return _right(x, normalized_shape, weight, bias, eps).detach()


# --- what is not finite --------------------------------------------------------------------------


@on_rows(Family.LAYOUT)
def nan_spreads(of: Rows) -> Tensor:
    """Lets a NaN in one row into all others, as a masked sum over a whole tile does."""
    return of.y + 0 * of.x.sum()


@on_rows(Family.LAYOUT)
def nan_hidden(of: Rows) -> Tensor:
    """Returns 0 where the right result is NaN."""
    return of.y.nan_to_num()


@on_rows(Family.LAYOUT)
def nan_skipped(of: Rows) -> Tensor:
    """Leaves NaN elements out of the statistics and normalises the rest of their row."""
    mean = of.x.nanmean(-1, keepdim=True)
    return of.normalised_by(mean, (of.x - mean).square().nanmean(-1, keepdim=True))


@reading_dy(Family.LAYOUT, Check.GRADIENT)
def dy_nan_hidden(dy: Tensor) -> Tensor:
    """Takes 0 for a NaN in dy, and the largest number for an infinity."""
    return dy.nan_to_num()


@reading_dy(Family.LAYOUT, Check.GRADIENT)
def dy_nan_spreads(dy: Tensor) -> Tensor:
    """Lets a NaN in one row of dy into dx of all others."""
    return dy + 0 * dy.sum()


# no other dtype has a range that gradients reach
@returning_dx(Family.LAYOUT, Check.GRADIENT, frozenset({"float16"}))
def dx_saturated(dx: Tensor) -> Tensor:
    """Returns the largest number for a dx beyond it, where a loss scaler waits for infinity."""
    largest = torch.finfo(dx.dtype).max
    return dx.clamp(-largest, largest)
