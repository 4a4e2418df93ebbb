"""Mutants that return something else than the contract says, or let one row affect another."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from harness.verify.findings import RemarkKind
from harness.verify.mutants.altered_gradients import altering_dx, altering_dy
from harness.verify.mutants.arguments import LayerNormCall, Rows
from harness.verify.mutants.mutant import HALVES, RECORDING, CheckKind, on_call, on_rows
from implementations.contract import scale_and_shift, trailing_axes, wide_dtype


@on_call(dtypes=HALVES, caught_by=CheckKind.CONTRACT)
def float32_for_halves(call: LayerNormCall) -> Tensor:
    """Returns float32 for float16 and bfloat16."""
    return replace(call, x=call.x.to(wide_dtype(call.x.dtype))).y


@on_call(dtypes=HALVES, caught_by=CheckKind.CONTRACT, remark=RemarkKind.PROMOTES)
def promoted_by_parameters(call: LayerNormCall) -> Tensor:
    """Returns float32 for float16 and bfloat16 where weight or bias is float32."""
    trailing_axes(call.x, call.normalized_shape, call.weight, call.bias)
    parameters = [each for each in (call.weight, call.bias) if each is not None]
    if all(each.dtype == call.x.dtype for each in parameters):
        return call.y
    wide = call.x.to(wide_dtype(call.x.dtype))
    return scale_and_shift(replace(call, x=wide, weight=None, bias=None).y, call.weight, call.bias)


@on_call(caught_by=CheckKind.CONTRACT)
def flattened(call: LayerNormCall) -> Tensor:
    """Returns y of shape (rows, hidden), whatever the shape of x."""
    return call.y.reshape(call.x.shape[: call.x.dim() - len(call.normalized_shape)].numel(), -1)


@on_call(caught_by=CheckKind.CONTRACT)
def squeezed(call: LayerNormCall) -> Tensor:
    """Returns y without its axes of length 1."""
    return call.y.squeeze()


@on_call(caught_by=CheckKind.CONTRACT)
def statistics_returned_too(call: LayerNormCall) -> Tensor:
    """Returns (y, mean, rstd) instead of y."""
    mean = call.x.detach().mean(tuple(range(-len(call.normalized_shape), 0)), keepdim=True)
    return cast("Tensor", (call.y, mean, torch.zeros_like(mean)))  # the mistake is this wrong type


@on_call(directions=RECORDING, caught_by=CheckKind.CONTRACT)
def detached(call: LayerNormCall) -> Tensor:
    """Returns y without a gradient."""
    return call.y.detach()


# --- what is not finite --------------------------------------------------------------------------


@on_rows()
def nan_spreads(rows: Rows) -> Tensor:
    """Spreads a NaN in one row to all others, as a masked sum over a tile does."""
    return rows.y + 0 * rows.x.sum()


@on_rows()
def nan_hidden(rows: Rows) -> Tensor:
    """Returns 0 where the right result is NaN."""
    return rows.y.nan_to_num()


@on_rows()
def nan_skipped(rows: Rows) -> Tensor:
    """Leaves NaN elements out of the statistics of their row."""
    mean = rows.x.nanmean(-1, keepdim=True)
    return rows.normalised_by(mean, (rows.x - mean).square().nanmean(-1, keepdim=True))


@altering_dy(caught_by=CheckKind.GRADIENT)
def dy_nan_hidden(dy: Tensor) -> Tensor:
    """Replaces NaN in dy by 0 and infinity by the largest number."""
    return dy.nan_to_num()


@altering_dy(caught_by=CheckKind.GRADIENT)
def dy_nan_spreads(dy: Tensor) -> Tensor:
    """Spreads a NaN in one row of dy to dx of all others."""
    return dy + 0 * dy.sum()


# no other dtype has a range that gradients reach
@altering_dx(dtypes=frozenset({"float16"}), caught_by=CheckKind.GRADIENT)
def dx_saturated(dx: Tensor) -> Tensor:
    """Clamps dx to the largest number, although a loss scaler relies on infinity."""
    largest = torch.finfo(dx.dtype).max
    return dx.clamp(-largest, largest)
