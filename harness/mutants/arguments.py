"""The forms in which mutants are written: a call, its rows, the terms of its gradients, a gradient.

With xhat = (x - mean) rstd and g = dy weight the gradients are, per row,
dx = rstd (g - mean(g) - xhat mean(g xhat)), and summed over rows dweight = sum dy xhat and
dbias = sum dy (Ba, Kiros and Hinton, arXiv 1607.06450, differentiated).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from implementations.contract import LayerNormFunction, scale_and_shift, trailing_axes, wide_dtype


@dataclass(frozen=True, slots=True)
class Rows:
    """The arguments of a LayerNorm in the form that most mutants need."""

    x: Tensor
    """(rows, hidden), in float32 or wider."""
    weight: Tensor | None
    """(hidden,)"""
    bias: Tensor | None
    """(hidden,)"""
    eps: float

    @property
    def hidden(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:
        return self.x.mean(-1, keepdim=True)

    @property
    def deviation(self) -> Tensor:
        return self.x - self.mean

    @property
    def variance(self) -> Tensor:
        return self.deviation.square().mean(-1, keepdim=True)

    @property
    def unbiased_variance(self) -> Tensor:
        """The variance divided by N-1 instead of N."""
        # not Tensor.var, which warns where N is 1; 0/0 is NaN all the same
        return self.deviation.square().sum(-1, keepdim=True) / (self.hidden - 1)

    @property
    def rstd(self) -> Tensor:
        return torch.rsqrt(self.variance + self.eps)

    @property
    def normalised(self) -> Tensor:
        return self.deviation * self.rstd

    @property
    def y(self) -> Tensor:
        """The right result."""
        return self.affine(self.normalised)

    def affine(self, normalised: Tensor) -> Tensor:
        """Scale by weight and shift by bias, where they are given."""
        return scale_and_shift(normalised, self.weight, self.bias)

    def normalised_by(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return y for other statistics."""
        return self.affine((self.x - mean) * torch.rsqrt(variance + self.eps))

    def with_means_by(self, mean_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return y for another function that takes means, of x and of its squared deviations."""
        mean = mean_of(self.x)
        return self.normalised_by(mean, mean_of((self.x - mean).square()))

    def divided_by(self, count: float | Tensor) -> Tensor:
        """Return y with the sums for mean and variance divided by ``count`` instead of N."""
        return self.with_means_by(lambda x: x.sum(-1, keepdim=True) / count)

    def with_statistics_of(self, x: Tensor) -> Tensor:
        """Return y for the statistics of other rows, or of a part of each row."""
        mean = x.mean(-1, keepdim=True)
        return self.normalised_by(mean, (x - mean).square().mean(-1, keepdim=True))


@dataclass(frozen=True, slots=True)
class LayerNormCall:
    """The arguments of a LayerNorm as they were given."""

    x: Tensor
    normalized_shape: Sequence[int]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @property
    def y(self) -> Tensor:
        """The right result."""
        return self.by_rows(lambda rows: rows.y)

    def by(self, layer_norm: LayerNormFunction) -> Tensor:
        """Return the result of ``layer_norm``."""
        return layer_norm(self.x, self.normalized_shape, self.weight, self.bias, self.eps)

    def by_rows(self, rows_to_y: Callable[[Rows], Tensor]) -> Tensor:
        """Return the result of a function of rows, in the shape and dtype of x."""
        x = self.x
        split = x.dim() - len(trailing_axes(x, self.normalized_shape, self.weight, self.bias))
        rows = x.reshape(x.shape[:split].numel(), x.shape[split:].numel())
        flat = self.with_parameters(Tensor.flatten)
        y = rows_to_y(Rows(rows.to(wide_dtype(x.dtype)), flat.weight, flat.bias, self.eps))
        return y.reshape(x.shape).to(x.dtype)

    def with_parameters(self, change: Callable[[Tensor], Tensor]) -> LayerNormCall:
        """Return the call with a change of weight and bias, where they are given."""
        return changed(changed(self, "weight", change), "bias", change)


Form = TypeVar("Form", Rows, LayerNormCall)


def changed(form: Form, name: str, change: Callable[[Tensor], Any]) -> Form:
    """Return a call, or its rows, with a change of one tensor, where it is given."""
    tensor = getattr(form, name)
    return form if tensor is None else replace(form, **{name: change(tensor)})


def function_of(
    call_to_y: Callable[[LayerNormCall], Tensor], default_eps: float = 1e-5
) -> LayerNormFunction:
    """Give a function of a call the signature of a LayerNorm."""

    @wraps(call_to_y)
    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = default_eps,
    ) -> Tensor:
        return call_to_y(LayerNormCall(x, normalized_shape, weight, bias, eps))

    return layer_norm


def layer_norm_of(rows_to_y: Callable[[Rows], Tensor]) -> LayerNormFunction:
    """Give a function of rows the signature of a LayerNorm, with its shapes, dtypes and checks."""
    return function_of(wraps(rows_to_y)(lambda call: call.by_rows(rows_to_y)))


# --- gradients -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward returns, in float32 or wider."""

    dx: Tensor
    """(rows, hidden)"""
    dweight: Tensor
    """(hidden,)"""
    dbias: Tensor
    """(hidden,)"""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the formula is made of, in float32 or wider."""

    dy: Tensor
    """(rows, hidden)"""
    x: Tensor
    """(rows, hidden)"""
    mean: Tensor
    """(rows, 1)"""
    rstd: Tensor
    """(rows, 1)"""
    weight: Tensor
    """(hidden,), ones if there is none"""
    eps: float

    @property
    def deviation(self) -> Tensor:
        return self.x - self.mean

    @property
    def xhat(self) -> Tensor:
        return self.deviation * self.rstd

    @property
    def g(self) -> Tensor:
        return self.dy * self.weight

    @property
    def mean_g(self) -> Tensor:
        """(rows, 1)"""
        return self.g.mean(-1, keepdim=True)

    @property
    def mean_g_xhat(self) -> Tensor:
        """(rows, 1)"""
        return (self.g * self.xhat).mean(-1, keepdim=True)

    @property
    def right(self) -> Gradients:
        return Gradients(
            dx=self.rstd * (self.g - self.mean_g - self.xhat * self.mean_g_xhat),
            dweight=(self.dy * self.xhat).sum(0),
            dbias=self.dy.sum(0),
        )

    def with_dx(self, dx_over_rstd: Tensor) -> Gradients:
        """Return the right gradients but for dx."""
        return replace(self.right, dx=self.rstd * dx_over_rstd)

    def summed_over_first(self, rows: int) -> Gradients:
        """Return the right gradients but for dweight and dbias, which miss the other rows."""
        dweight = (self.dy * self.xhat)[:rows].sum(0)
        return replace(self.right, dweight=dweight, dbias=self.dy[:rows].sum(0))


Rule = Callable[[Terms], Gradients]
Split = Callable[[Tensor], Sequence[Tensor | None]]
"""Turns the gradient of a value into the gradient of each tensor; None for none."""


def with_gradients(rows: Rows, rule: Rule, *, is_guarded: bool = True) -> Tensor:
    """Return the right y, whose gradients are those of ``rule``.

    Args:
        rows: the arguments.
        rule: gives the gradients.
        is_guarded: whether autograd is told what is kept for the backward.
    """
    tensors = rows.x, rows.weight, rows.bias
    y: Tensor = _ByRule.apply(rule, is_guarded, rows.eps, *tensors)  # type: ignore[no-untyped-call]
    return y


class _ByRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule, is_guarded: bool, eps: float, *tensors: Any) -> Tensor:
        ctx.rule, ctx.eps, ctx.kept = rule, eps, None if is_guarded else tensors
        if is_guarded:
            ctx.save_for_backward(*tensors)
        x, weight, bias = tensors
        return Rows(x, weight, bias, eps).y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.kept or ctx.saved_tensors
        rows = Rows(x, weight, bias, ctx.eps)
        scale = x.new_ones(x.shape[1]) if weight is None else weight.to(x.dtype)
        found = ctx.rule(Terms(dy.to(x.dtype), x, rows.mean, rows.rstd, scale, ctx.eps))
        dweight = None if weight is None else found.dweight.to(weight.dtype)
        dbias = None if bias is None else found.dbias.to(bias.dtype)
        return None, None, None, found.dx, dweight, dbias


def with_gradient(tensor: Tensor, alter: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a view of ``tensor`` through which a gradient passes altered."""
    return passed_on(tensor, lambda gradient: [alter(gradient)], tensor)


def then(value: Tensor, effect: Callable[[Tensor], object]) -> Tensor:
    """Return ``value``; its backward calls ``effect`` with the gradient."""

    def after(gradient: Tensor) -> Tensor:
        effect(gradient)
        return gradient

    return with_gradient(value, after)


def with_value(differentiable: Tensor, value: Tensor) -> Tensor:
    """Return a view of ``value`` whose gradient is passed to ``differentiable``."""
    return passed_on(value, lambda gradient: [gradient], differentiable)


def without_gradient(tensor: Tensor) -> Tensor:
    """Return the values of ``tensor``, with zeros as gradient."""
    return tensor.detach() + 0 * tensor


def passed_on(value: Tensor, gradients_of: Split, *tensors: Tensor) -> Tensor:
    """Return a view of ``value``, whose gradient is turned into those of ``tensors``."""
    found: Tensor = _PassedOn.apply(value, gradients_of, *tensors)  # type: ignore[no-untyped-call]
    return found


class _PassedOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients_of: Split, *tensors: Tensor) -> Tensor:
        ctx.gradients_of = gradients_of
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.gradients_of(gradient)
