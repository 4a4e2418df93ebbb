"""Two passes and the residual mean removed as well, in C, for the CPU: accurate and fast at once.

PyTorch's own kernel is limited by its arithmetic on one core, not by memory, which leaves room for
a second centring. The C is compiled on first use by whatever compiler the system has
(:mod:`implementations.c.build`); without one every call is refused with the reason.

It is one operator to torch.compile, torch.export, autocast and the transforms of torch.func. A call
that none of them sees goes to the C directly, since the way through the dispatcher and Python
takes as long as a small LayerNorm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from implementations.c import calls
from implementations.contract import (
    Algorithm,
    UnsupportedError,
    implementation,
    trailing_axes,
    wide_dtype,
)

__all__ = ["c_recentred"]

FORWARD, BACKWARD = "layernorm_bench::c_recentred", "layernorm_bench::c_recentred_backward"


@implementation(
    source="ours; the residual mean as in the corrected two-pass variance of Chan, Golub and "
    "LeVeque, Am. Stat. 37 (1983) 242-247, but removed from x too",
    algorithm=Algorithm.RECENTRED,
    devices=frozenset({"cpu"}),
)
def c_recentred(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Two-pass without a residual mean in C, compiled on first use, in float32 or wider."""
    axes = trailing_axes(x, normalized_shape, weight, bias)
    hidden = x.shape[x.dim() - len(axes) :].numel()
    if x.device.type not in {"cpu", "meta"}:
        raise UnsupportedError(f"c_recentred runs on the cpu; x is on {x.device}")
    y: Tensor
    if torch.compiler.is_compiling() or not _is_plain(x, weight, bias):
        y = _forward(x, weight, bias, hidden, eps)[0]
    elif torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        y = _Direct.apply(x, weight, bias, hidden, eps)
    else:
        y = calls.forward(x, weight, bias, hidden, eps, saves=False)[0]
    return y


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing but a kernel would see a call on ``tensors``.

    What else may: a mode (of fake tensors, of tracing), a transform of torch.func, forward-mode
    differentiation, a subclass of tensor, a view that negates.
    """
    return (
        not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and forward_ad._current_level < 0
        and all(
            each is None or (type(each) in _PLAIN and each.is_cpu and not each.is_neg())
            for each in tensors
        )
    )


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


# --- differentiation -----------------------------------------------------------------------------


def _gradients(
    ctx: Any, dy: Tensor, run: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """dx, dweight and dbias, as far as they are wanted, by ``run``, a way to the backward.

    Where they are to be differentiated themselves they are composed of what torch can.
    """
    x, weight, bias, statistics = ctx.saved_tensors
    wants_dx, wants_dweight, wants_dbias = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        dx, dweight, dbias = _composed_gradients(dy, x, weight, ctx.hidden, ctx.eps)
    else:
        dx, dweight, dbias = run(
            dy,
            x,
            weight,
            statistics,
            ctx.hidden,
            wants_dx,
            weight.dtype if wants_dweight else None,
            bias.dtype if wants_dbias else None,
        )
    return (
        dx if wants_dx else None,
        dweight.to(weight.dtype).view_as(weight) if wants_dweight else None,
        dbias.to(bias.dtype).view_as(bias) if wants_dbias else None,
        None,
        None,
    )


def _composed_gradients(
    dy: Tensor, x: Tensor, weight: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients as the C forms them, dweight and dbias not yet rounded."""
    wide = wide_dtype(x.dtype)
    rows, upstream = x.reshape(-1, hidden).to(wide), dy.reshape(-1, hidden).to(wide)
    deviation = rows - rows.mean(-1, keepdim=True)
    deviation = deviation - deviation.detach().mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    normalised = deviation * rstd
    scaled = upstream if weight is None else upstream * weight.reshape(hidden)
    across = (scaled * normalised).mean(-1, keepdim=True)
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - normalised * across)
    return dx.view(x.shape).to(x.dtype), (upstream * normalised).sum(0), upstream.sum(0)


class _Direct(torch.autograd.Function):
    """The C's forward and backward, without a way through the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
    ) -> Tensor:
        y, statistics = calls.forward(x, weight, bias, hidden, eps, saves=True)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.hidden, ctx.eps = hidden, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return _gradients(ctx, dy, calls.backward)


# --- the operator --------------------------------------------------------------------------------


@torch.library.custom_op(FORWARD, mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor, Tensor]:
    y, statistics = calls.forward(x, weight, bias, hidden, eps, saves=True)
    assert statistics is not None  # they were asked for
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
    statistics: Tensor,
    hidden: int,
    wants_dx: bool,
    dweight_dtype: torch.dtype | None,
    dbias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    found = calls.backward(
        dy, x, weight, statistics, hidden, wants_dx, dweight_dtype, dbias_dtype
    )
    # an operator returns tensors: an empty one stands for what is not wanted
    dx, dweight, dbias = (x.new_empty(0) if each is None else each for each in found)
    return dx, dweight, dbias


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    statistics: Tensor,
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
    x, weight, bias, ctx.hidden, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.set_materialize_grads(False)  # the statistics have a gradient of None, not of zeros


def _operator_gradients(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return None, None, None, None, None
    return _gradients(ctx, dy, _backward)


torch.library.register_autograd(FORWARD, _operator_gradients, setup_context=_save)
