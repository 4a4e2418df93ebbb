"""LayerNorm in C, on the CPU, as one operator for torch.compile, torch.export and torch.func.

Calling a kernel through the dispatcher and Python takes as long as a small LayerNorm. A call that
none of these observes skips the dispatcher: :func:`implementations.torch_private.is_observed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from implementations.contract import UnsupportedError, trailing_axes, wide_dtype
from implementations.cpu import calls

__all__ = ["composed_gradients", "elements_of_a_row", "layer_norm"]

FORWARD, BACKWARD = "layernorm_bench::c_recentred", "layernorm_bench::c_recentred_backward"


def elements_of_a_row(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> int:
    """Check that the shapes agree, and return the number of elements per row.

    Raises:
        ValueError: they do not agree.
    """
    if (  # the usual case; it takes a third of the time of the general one
        len(normalized_shape) == 1
        and x.dim()
        and (hidden := x.shape[-1]) == normalized_shape[0]
        and (weight is None or weight.shape == normalized_shape)
        and (bias is None or bias.shape == normalized_shape)
    ):
        return hidden
    axes = trailing_axes(x, normalized_shape, weight, bias)
    return x.shape[x.dim() - len(axes) :].numel()


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Call the operator."""
    if x.device.type not in {"cpu", "meta"}:
        raise UnsupportedError(f"the C kernels run on the cpu; x is on {x.device}")
    hidden = elements_of_a_row(x, normalized_shape, weight, bias)
    y: Tensor = _forward(x, weight, bias, hidden, eps)[0]
    return y


@torch.library.custom_op(FORWARD, mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor, Tensor]:
    y, statistics = calls.forward(x, weight, bias, hidden, eps, True)
    assert statistics is not None  # saves is True
    return y, statistics


@_forward.register_fake
def _(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor, Tensor]:
    rows = x.numel() // hidden if hidden else 0
    statistics = x.new_empty((rows, calls.STATISTICS), dtype=wide_dtype(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), statistics


@torch.library.custom_op(BACKWARD, mutates_args=(), device_types="cpu")
def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    hidden: int,
    wants_dx: bool,
    wants_dweight: bool,
    wants_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    found = calls.backward(
        dy, x, weight, bias, statistics, hidden, wants_dx, wants_dweight, wants_dbias
    )
    # an operator returns tensors: an empty one stands for a gradient that is not needed
    dx, dweight, dbias = (x.new_empty(0) if each is None else each for each in found)
    return dx, dweight, dbias


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    hidden: int,
    wants_dx: bool,
    wants_dweight: bool,
    wants_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = (
        x.new_empty(0)
        if each is None or not is_wanted
        else torch.empty_like(each, memory_format=torch.contiguous_format)
        for each, is_wanted in ((x, wants_dx), (weight, wants_dweight), (bias, wants_dbias))
    )
    return dx, dweight, dbias


def composed_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the C code, composed of operations that torch can differentiate."""
    x, weight, bias, _ = ctx.saved_tensors
    hidden, eps = ctx.hidden, ctx.eps
    wide = wide_dtype(x.dtype)
    rows, grad_output = x.reshape(-1, hidden).to(wide), dy.reshape(-1, hidden).to(wide)
    deviation = rows - rows.mean(-1, keepdim=True)
    for _ in range(2):  # twice: see recentred.py
        # detached: apart from rounding, this mean is zero for every x, and so is its gradient
        deviation = deviation - deviation.detach().mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    normalised = deviation * rstd
    scaled = grad_output if weight is None else grad_output * weight.reshape(hidden)
    across = (scaled * normalised).mean(-1, keepdim=True)
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - normalised * across)
    dweight, dbias = (grad_output * normalised).sum(0), grad_output.sum(0)
    return (
        dx.reshape(x.shape).to(x.dtype),
        None if weight is None else dweight.reshape(weight.shape).to(weight.dtype),
        None if bias is None else dbias.reshape(bias.shape).to(bias.dtype),
        None,
        None,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.hidden, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.set_materialize_grads(False)  # the statistics have a gradient of None, not of zeros


def _operator_gradients(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return None, None, None, None, None
    if torch.is_grad_enabled():
        return composed_gradients(ctx, dy)
    x, weight, bias, statistics = ctx.saved_tensors
    wants = ctx.needs_input_grad[:3]
    found = _backward(dy, x, weight, bias, statistics, ctx.hidden, *wants)
    of_inputs = (each if is_wanted else None for each, is_wanted in zip(found, wants, strict=True))
    return *of_inputs, None, None


torch.library.register_autograd(FORWARD, _operator_gradients, setup_context=_save)
