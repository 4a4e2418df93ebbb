"""Two passes and the residual mean removed as well, in C, for the CPU: accurate and fast at once.

PyTorch's own kernel is limited by its arithmetic on one core, not by memory, which leaves room for
a second centring. The C is compiled on first use by whatever compiler the system has
(:mod:`implementations.c.build`); without one every call is refused with the reason.

It is one operator to torch.compile, torch.export, autocast and the transforms of torch.func. A call
that none of them sees goes to the C directly, since the way through the dispatcher and Python
takes as long as a small LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    hidden = _hidden(x, normalized_shape, weight, bias)
    y: Tensor
    if torch.compiler.is_compiling() or not _is_plain(x, weight, bias):
        if x.device.type not in {"cpu", "meta"}:
            raise UnsupportedError(f"c_recentred runs on the cpu; x is on {x.device}")
        y = _forward(x, weight, bias, hidden, eps)[0]
    elif torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        y = _Direct.apply(x, weight, bias, hidden, eps)  # type: ignore[no-untyped-call]
    else:
        y = calls.forward(x, weight, bias, hidden, eps, False)[0]
    return y


def _hidden(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None
) -> int:
    """Elements of a row, after checking that the shapes agree."""
    if (  # the usual case, in a third of the time
        len(normalized_shape) == 1
        and x.dim()
        and x.shape[-1] == (hidden := normalized_shape[0])
        and (weight is None or (weight.dim() == 1 and weight.numel() == hidden))
        and (bias is None or (bias.dim() == 1 and bias.numel() == hidden))
    ):
        return hidden
    axes = trailing_axes(x, normalized_shape, weight, bias)
    return x.shape[x.dim() - len(axes) :].numel()


def _is_plain(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether nothing but a kernel would see a call on these.

    What else may: a mode (of fake tensors, of tracing), a transform of torch.func, forward-mode
    differentiation, a profiler, a subclass of tensor, a view that negates.
    """
    return (
        not _modes()
        and _transform() is None
        and _tracing() is None
        and not _is_profiled()
        and forward_ad._current_level < 0
        and type(x) in _PLAIN
        and x.is_cpu
        and not x.is_neg()
        and (weight is None or (type(weight) in _PLAIN and weight.is_cpu and not weight.is_neg()))
        and (bias is None or (type(bias) in _PLAIN and bias.is_cpu and not bias.is_neg()))
    )


_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# looked up once: together they take as long as the rest of a small call
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_is_profiled = torch._C._autograd._profiler_enabled


# --- differentiation -----------------------------------------------------------------------------


def _gradients(
    ctx: Any, dy: Tensor, run: Callable[..., tuple[Tensor | None, ...]]
) -> tuple[Tensor | None, ...]:
    """dx, dweight and dbias, as far as they are wanted, by ``run``, a way to the backward.

    Where they are to be differentiated themselves they are composed of what torch can.
    """
    x, weight, bias, statistics = ctx.saved_tensors
    wants = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        found = _composed_gradients(dy, x, weight, bias, ctx.hidden, ctx.eps)
    else:
        found = run(dy, x, weight, bias, statistics, ctx.hidden, *wants)
    dx, dweight, dbias = found
    return (
        dx if wants[0] else None,
        dweight if wants[1] else None,
        dbias if wants[2] else None,
        None,
        None,
    )


def _composed_gradients(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor | None, ...]:
    """The gradients as the C forms them."""
    wide = wide_dtype(x.dtype)
    rows, upstream = x.reshape(-1, hidden).to(wide), dy.reshape(-1, hidden).to(wide)
    deviation = rows - rows.mean(-1, keepdim=True)
    # detached: but for rounding it is zero whatever x is, and so is its gradient
    deviation = deviation - deviation.detach().mean(-1, keepdim=True)
    rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps)
    normalised = deviation * rstd
    scaled = upstream if weight is None else upstream * weight.reshape(hidden)
    across = (scaled * normalised).mean(-1, keepdim=True)
    dx = rstd * (scaled - scaled.mean(-1, keepdim=True) - normalised * across)
    dweight, dbias = (upstream * normalised).sum(0), upstream.sum(0)
    return (
        dx.reshape(x.shape).to(x.dtype),
        None if weight is None else dweight.reshape(weight.shape).to(weight.dtype),
        None if bias is None else dbias.reshape(bias.shape).to(bias.dtype),
    )


class _Direct(torch.autograd.Function):
    """The C's forward and backward, without a way through the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
    ) -> Tensor:
        y, statistics = calls.forward(x, weight, bias, hidden, eps, True)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.hidden, ctx.eps = hidden, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _gradients(ctx, dy, calls.backward)


# --- the operator --------------------------------------------------------------------------------


@torch.library.custom_op(FORWARD, mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, hidden: int, eps: float
) -> tuple[Tensor, Tensor]:
    y, statistics = calls.forward(x, weight, bias, hidden, eps, True)
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
    # an operator returns tensors: an empty one stands for what is not wanted
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.hidden, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias, output[1])
    ctx.set_materialize_grads(False)  # the statistics have a gradient of None, not of zeros


def _operator_gradients(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return None, None, None, None, None
    return _gradients(ctx, dy, _backward)


torch.library.register_autograd(FORWARD, _operator_gradients, setup_context=_save)
