"""A LayerNorm whose gradients are written as a formula, to make mistakes in it, or none.

With xhat = (x - mean) rstd and g = dy weight the gradients are, per row,
dx = rstd (g - mean(g) - xhat mean(g xhat)), and summed over rows dweight = sum dy xhat and
dbias = sum dy (Ba, Kiros and Hinton, arXiv 1607.06450, differentiated).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from harness.verify.mutants.arguments import Rows, layer_norm_of
from implementations.contract import LayerNormFunction

__all__ = ["Gradients", "Rule", "Terms", "analytic", "terms_of"]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a backward returns, in float32 or wider."""

    dx: Tensor
    """(rows, hidden)"""
    dweight: Tensor
    """(hidden,)"""
    dbias: Tensor
    """(hidden,)"""

    def of_inputs(
        self, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return dx, dweight and dbias as autograd requires: in the parameters' dtypes."""
        return (
            self.dx,
            None if weight is None else self.dweight.to(weight.dtype),
            None if bias is None else self.dbias.to(bias.dtype),
        )


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
    def hidden(self) -> int:
        return self.dy.shape[1]

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


def terms_of(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, eps: float
) -> Terms:
    """Return the terms of one backward."""
    scale = x.new_ones(x.shape[1]) if weight is None else weight.to(x.dtype)
    return Terms(dy.to(x.dtype), x, mean, rstd, scale, eps)


Rule = Callable[[Terms], Gradients]


def analytic(rule: Rule) -> LayerNormFunction:
    """Return a LayerNorm whose y is right and whose gradients are those of ``rule``."""

    @wraps(rule)
    def rows_to_y(rows: Rows) -> Tensor:
        y: Tensor = _Analytic.apply(  # type: ignore[no-untyped-call]
            rows.x, rows.weight, rows.bias, rows.eps, rule
        )
        return y

    return layer_norm_of(rows_to_y)


class _Analytic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        rule: Rule,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.eps, ctx.rule = eps, rule
        return Rows(x, weight, bias, eps).y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        rows = Rows(x, weight, bias, ctx.eps)
        terms = terms_of(dy, x, rows.mean, rows.rstd, weight, ctx.eps)
        return *ctx.rule(terms).of_inputs(weight, bias), None, None
