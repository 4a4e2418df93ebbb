"""A LayerNorm with a gradient written out by hand, for mistakes in it and for one without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from harness.verify.mutants.mutant import Rows, layer_norm_of
from implementations.contract import LayerNormFunction

__all__ = ["Gradients", "Rule", "Terms", "analytic"]


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
    """What a backward is made of, in float32 or wider."""

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
        """x - mean"""
        return self.x - self.mean

    @property
    def normalised(self) -> Tensor:
        """xhat"""
        return self.deviation * self.rstd

    @property
    def scaled(self) -> Tensor:
        """g"""
        return self.dy * self.weight

    @property
    def plain(self) -> Tensor:
        """mean(g), (rows, 1)"""
        return self.scaled.mean(-1, keepdim=True)

    @property
    def across(self) -> Tensor:
        """mean(g xhat), (rows, 1)"""
        return (self.scaled * self.normalised).mean(-1, keepdim=True)

    @property
    def right(self) -> Gradients:
        return Gradients(
            dx=self.rstd * (self.scaled - self.plain - self.normalised * self.across),
            dweight=(self.dy * self.normalised).sum(0),
            dbias=self.dy.sum(0),
        )


Rule = Callable[[Terms], Gradients]


def analytic(rule: Rule) -> LayerNormFunction:
    """Return a LayerNorm whose y is right and whose gradients are what ``rule`` says."""

    @wraps(rule)
    def rows_to_y(of: Rows) -> Tensor:
        y: Tensor = _Analytic.apply(  # type: ignore[no-untyped-call]
            of.x, of.weight, of.bias, of.eps, rule
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
        of = Rows(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias)
        ctx.eps, ctx.rule = eps, rule
        return of.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        of = Rows(x, weight, bias, ctx.eps)
        scale = x.new_ones(x.shape[1]) if weight is None else weight.to(x.dtype)
        found = ctx.rule(Terms(dy.to(x.dtype), of.x, of.mean, of.rstd, scale, ctx.eps))
        return (
            found.dx,
            None if weight is None else found.dweight.to(weight.dtype),
            None if bias is None else found.dbias.to(bias.dtype),
            None,
            None,
        )
