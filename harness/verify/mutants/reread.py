"""A LayerNorm that is right but for what it takes for dy, or for what it returns as dx."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from harness.records import Direction
from harness.verify.findings import RemarkKind
from harness.verify.mutants.mutant import DTYPES, Check, Family, Mutant, layer_norm_of, mutant

__all__ = ["Reread", "reading_dy", "returning_dx"]

Reread = Callable[[Tensor], Tensor]
_RECORDING = frozenset({Direction.BACKWARD, Direction.FORWARD_BACKWARD})

_right = layer_norm_of(lambda of: of.y)


def reading_dy(
    family: Family, caught_by: Check, *, remark: RemarkKind | None = None
) -> Callable[[Reread], Mutant]:
    """Wrap what is wrongly read for dy as a mutant named and described after it."""

    def wrap(reread: Reread) -> Mutant:
        @wraps(reread)
        def layer_norm(
            x: Tensor,
            normalized_shape: Sequence[int],
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            eps: float = 1e-5,
        ) -> Tensor:
            return _backward_through(reread, _right(x, normalized_shape, weight, bias, eps))

        wrapped = mutant(family, directions=_RECORDING, caught_by=caught_by, remark=remark)
        return wrapped(layer_norm)

    return wrap


def returning_dx(
    family: Family, caught_by: Check, dtypes: frozenset[str] = DTYPES
) -> Callable[[Reread], Mutant]:
    """Wrap what is wrongly returned for dx as a mutant named and described after it."""

    def wrap(change: Reread) -> Mutant:
        @wraps(change)
        def layer_norm(
            x: Tensor,
            normalized_shape: Sequence[int],
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            eps: float = 1e-5,
        ) -> Tensor:
            return _right(_backward_through(change, x), normalized_shape, weight, bias, eps)

        return mutant(family, dtypes=dtypes, directions=_RECORDING, caught_by=caught_by)(layer_norm)

    return wrap


def _backward_through(reread: Reread, tensor: Tensor) -> Tensor:
    found: Tensor = _Reread.apply(tensor, reread)  # type: ignore[no-untyped-call]
    return found


class _Reread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reread: Reread) -> Tensor:
        ctx.reread = reread
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.reread(gradient), None
