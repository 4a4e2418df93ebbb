"""The LayerNorm that calls the kernels, for autograd and for torch.compile.

In eager mode, autograd records a function; only compiled code calls operators, since a call of an
operator takes several times as long on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from implementations.contract import Param, check_shapes, requires_gradient, wide_dtype
from implementations.operators import differentiable
from implementations.torch_private import is_transformed
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
    shapes = (
        x.shape,
        tuple(normalized_shape),
        None if weight is None else weight.shape,
        None if bias is None else bias.shape,
    )
    saves = requires_gradient(x, weight, bias)
    if torch.compiler.is_compiling() or is_transformed(x):
        check_shapes(*shapes)
        hidden = prod(shapes[1])
        y: Tensor
        y, _ = _differentiable(x, weight, bias, hidden, eps, statistic, saves)
        return y
    hidden = _checked(*shapes)
    if saves:
        return _recorded(x, weight, bias, hidden, eps, statistic, saves)
    y, _ = launch.forward(x, weight, bias, hidden, eps, statistic, saves)
    return y


@launch.plan
def _checked(
    shape: torch.Size,
    normalized_shape: tuple[int, ...],
    weight: torch.Size | None,
    bias: torch.Size | None,
) -> int:
    """Check the shapes, and return how many elements share a mean."""
    check_shapes(shape, normalized_shape, weight, bias)
    return prod(normalized_shape)


# --- a call that autograd records ----------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
    x, weight, bias, ctx.hidden, *_ = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.set_materialize_grads(False)  # the moments have a gradient of None, not of zeros


def _gradients(
    backward: Callable[..., Sequence[Tensor | None]],
    ctx: Any,
    dy: Tensor | None,
    *_: None,
) -> tuple[Tensor | None, ...]:
    none = (None,) * 4  # hidden, eps, statistic, saves
    if dy is None:
        return None, None, None, *none
    x, weight, bias, moments = ctx.saved_tensors
    wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
    dx, dweight, dbias = backward(
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
        _shaped(dweight, weight) if wants_dweight else None,
        _shaped(dbias, bias) if wants_dbias else None,
        *none,
    )


def _shaped(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    """Return a gradient of (hidden,) in the shape of its parameter; a view takes several us."""
    if gradient is None or parameter.dim() == 1:
        return gradient
    return gradient.view_as(parameter)


class _Recorded(torch.autograd.Function):
    """A call in eager mode; torch would take several times as long with ``setup_context``."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        outputs = launch.forward(*arguments)
        _save(ctx, arguments, outputs)
        return outputs[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with create_graph=True
            return _once(ctx, dy)
        return _gradients(launch.backward, ctx, dy)


@once_differentiable
def _once(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients, which raise an error if they are differentiated in turn."""
    return _gradients(launch.backward, ctx, dy)


# that of the base class in C++: the one in Python looks for transforms, as is_transformed has done
_recorded: Callable[..., Tensor] = super(torch.autograd.Function, _Recorded).apply


# --- the same as operators -----------------------------------------------------------------------


@torch.library.custom_op(FORWARD, mutates_args=())
def _forward(
    x: Tensor, weight: Param, bias: Param, hidden: int, eps: float, statistic: str, saves: bool
) -> tuple[Tensor, Tensor]:
    y, moments = launch.forward(x, weight, bias, hidden, eps, statistic, saves)
    if moments is None:
        moments = x.new_empty((launch.moments_of(statistic), 0), dtype=wide_dtype(x.dtype))
    return y, moments


@_forward.register_fake
def _(
    x: Tensor, weight: Param, bias: Param, hidden: int, eps: float, statistic: str, saves: bool
) -> tuple[Tensor, Tensor]:
    rows = x.numel() // hidden if hidden and saves else 0
    moments = x.new_empty((launch.moments_of(statistic), rows), dtype=wide_dtype(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments


@torch.library.custom_op(BACKWARD, mutates_args=())
def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Param,
    moments: Tensor,
    hidden: int,
    wants_dx: bool,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    found = launch.backward(dy, x, weight, moments, hidden, wants_dx, dweight_dtype, dbias_dtype)
    dx, dweight, dbias = (x.new_empty(0) if one is None else one for one in found)
    return dx, dweight, dbias


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


_differentiable = differentiable(_forward, partial(_gradients, _backward), _save)
