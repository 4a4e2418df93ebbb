"""The kernels as operators for autograd and torch.compile, and the LayerNorm that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Param, requires_gradient, trailing_axes, wide_dtype
from implementations.triton import launch

FORWARD, BACKWARD = "layernorm_bench::fused_forward", "layernorm_bench::fused_backward"


def layer_norm(
    statistic: str,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise x with a fused kernel, as :class:`implementations.contract.LayerNormFunction`.

    Args:
        statistic: how mean and variance are formed: one_pass, two_pass, welford or recentred.

    Raises:
        UnsupportedError: triton is not installed, or there is no kernel for device, dtype or size.
        ValueError: the shapes do not agree.
    """
    axes = trailing_axes(x, normalized_shape, weight, bias)
    hidden = x.shape[x.dim() - len(axes) :].numel()
    saves = requires_gradient(x, weight, bias)
    y: Tensor = _forward(x, weight, bias, hidden, eps, statistic, saves)[0]
    return y


_forward = torch.library.custom_op(FORWARD, launch.forward, mutates_args=())
_backward = torch.library.custom_op(BACKWARD, launch.backward, mutates_args=())


@_forward.register_fake
def _(
    x: Tensor, weight: Param, bias: Param, hidden: int, eps: float, statistic: str, saves: bool
) -> tuple[Tensor, Tensor]:
    rows = x.numel() // hidden if hidden and saves else 0
    moments = x.new_empty((launch.moments_of(statistic), rows), dtype=wide_dtype(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Param,
    moments: Tensor,
    hidden: int,
    wants_dx: bool,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if wants_dx else (0,)),
        x.new_empty((hidden if dweight_dtype else 0,), dtype=dweight_dtype),
        x.new_empty((hidden if dbias_dtype else 0,), dtype=dbias_dtype),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.hidden, *_ = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.set_materialize_grads(False)  # the moments have a gradient of None, not of zeros


def _gradients(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    none = (None,) * 4  # hidden, eps, statistic, saves
    if dy is None:
        return None, None, None, *none
    x, weight, bias, moments = ctx.saved_tensors
    wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
    dx, dweight, dbias = _backward(
        dy,
        x,
        weight,
        moments,
        ctx.hidden,
        wants_dx,
        weight.dtype if wants_dweight else None,
        bias.dtype if wants_dbias else None,
    )
    return (
        dx if wants_dx else None,
        dweight.view_as(weight) if wants_dweight else None,
        dbias.view_as(bias) if wants_dbias else None,
        *none,
    )


torch.library.register_autograd(FORWARD, _gradients, setup_context=_save)
