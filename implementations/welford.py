"""Welford's running mean and sum of squared deviations, and Chan's combination of such pairs.

``welford`` processes one element of every row at a time, so it is vectorised over rows and makes N
roundings. ``welford_chunked`` computes the pair of each chunk of a row and combines neighbours in a
tree, as parallel kernels do, and makes about log2(N) roundings.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from implementations.contract import (
    Algorithm,
    Param,
    Reduction,
    implementation,
    scale_and_shift,
    trailing_axes,
    wide_dtype,
)
from implementations.operators import differentiable

CHUNK = 64  # elements per chunk: long enough to vectorise, and a row has several


# An opaque operator, because torch.compile would unroll the loop to N copies of its body.
@torch.library.custom_op("layernorm_bench::welford_moments", mutates_args=())
def _welford_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared deviations of each row, as (rows, 1)."""
    mean = x.new_zeros(x.shape[0])
    squares = torch.zeros_like(mean)
    for count, element in enumerate(x.t().contiguous(), start=1):
        above_old = element - mean
        mean += above_old / count
        squares.addcmul_(above_old, element - mean)
    return mean[:, None], squares[:, None]


@_welford_moments.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], 1)), x.new_empty((x.shape[0], 1))


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: object) -> None:
    ctx.save_for_backward(inputs[0], output[0])  # type: ignore[index]


def _gradient(
    ctx: torch.autograd.function.FunctionCtx, d_mean: Tensor, d_squares: Tensor
) -> Tensor:
    """Return d_mean/N + 2 (x - mean) d_squares: the derivatives of mean and of sum (x - mean)^2."""
    x, mean = ctx.saved_tensors  # type: ignore[attr-defined]
    gradient: Tensor = d_mean / max(x.shape[1], 1) + 2 * (x - mean) * d_squares
    return gradient


_differentiable_moments = differentiable(_welford_moments, _gradient, _save)


@implementation(
    source="Welford, Technometrics 4 (1962) 419-420; Knuth, TAOCP 2, section 4.2.2, eq. 15-16",
    algorithm=Algorithm.WELFORD,
    reduction=Reduction.SEQUENTIAL,
)
def welford(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Welford's sequential update, one element of every row at a time."""
    rows = _wide_rows(x, trailing_axes(x, normalized_shape, weight, bias))
    mean, squares = _differentiable_moments(rows)
    return _finish(x, rows, mean, squares, weight, bias, eps)


@implementation(
    source="Chan, Golub and LeVeque, Am. Stat. 37 (1983) 242-247, eq. 2.1, as a tree",
    algorithm=Algorithm.WELFORD,
)
def welford_chunked(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean and squares of each chunk of a row, combined pair by pair (Chan)."""
    rows = _wide_rows(x, trailing_axes(x, normalized_shape, weight, bias))
    hidden = rows.shape[1]
    whole = hidden // CHUNK
    parts = []
    if whole:
        chunks = rows[:, : whole * CHUNK].unflatten(1, (whole, CHUNK))
        parts.append(_combine_equal(*_two_pass_moments(chunks), count=CHUNK))
    if hidden % CHUNK or not hidden:
        tail = rows[:, None, whole * CHUNK :]
        parts.append([(hidden - whole * CHUNK, *_two_pass_moments(tail))])
    pending = [moments for part in parts for moments in part]
    while len(pending) > 1:  # smallest last, so that a short tail undergoes few roundings
        pending.append(_combine(pending.pop(-2), pending.pop()))
    _, mean, squares = pending[0]
    return _finish(x, rows, mean, squares, weight, bias, eps)


Moments = tuple[int, Tensor, Tensor]
"""Number of elements, their mean and their sum of squared deviations, each (rows, 1)."""


def _wide_rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return ``x`` as (rows, hidden) in float32 or wider; ``axes`` become hidden."""
    split = x.dim() - len(axes)
    rows, hidden = x.shape[:split].numel(), x.shape[split:].numel()
    return x.to(wide_dtype(x.dtype)).reshape(rows, hidden)


def _two_pass_moments(chunks: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared deviations over the last axis, as (rows, chunks)."""
    mean = chunks.mean(-1)
    return mean, (chunks - mean[..., None]).square().sum(-1)


def _combine_equal(mean: Tensor, squares: Tensor, *, count: int) -> list[Moments]:
    """Combine neighbouring chunks until one is left; odd ones are set aside, largest first."""
    set_aside: list[Moments] = []
    while mean.shape[1] > 1:
        if mean.shape[1] % 2:
            set_aside.append((count, mean[:, -1:], squares[:, -1:]))
            mean, squares = mean[:, :-1], squares[:, :-1]
        delta = mean[:, 1::2] - mean[:, 0::2]
        mean = mean[:, 0::2] + delta * 0.5
        squares = squares[:, 0::2] + squares[:, 1::2] + delta.square() * (count / 2)
        count *= 2
    return [(count, mean, squares), *reversed(set_aside)]


def _combine(a: Moments, b: Moments) -> Moments:
    (n_a, mean_a, squares_a), (n_b, mean_b, squares_b) = a, b
    n = n_a + n_b
    delta = mean_b - mean_a
    mean = mean_a + delta * (n_b / n)
    return n, mean, squares_a + squares_b + delta.square() * (n_a * n_b / n)


def _finish(
    x: Tensor, rows: Tensor, mean: Tensor, squares: Tensor, weight: Param, bias: Param, eps: float
) -> Tensor:
    """Normalise ``rows`` (rows, hidden) by their moments; return x's shape and dtype."""
    variance = squares / max(rows.shape[1], 1)
    y = ((rows - mean) * torch.rsqrt(variance + eps)).reshape(x.shape)
    return scale_and_shift(y, weight, bias).to(x.dtype)
