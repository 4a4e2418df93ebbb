"""A LayerNorm that is right except for what it reads as dy, or for what it returns as dx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Unpack

import torch
from torch import Tensor

from harness.verify.mutants.arguments import LayerNormCall
from harness.verify.mutants.mutant import RECORDING, Mutant, Options, on_call

__all__ = ["altering_dx", "altering_dy"]

Alteration = Callable[[Tensor], Tensor]


def altering_dy(**options: Unpack[Options]) -> Callable[[Alteration], Mutant]:
    """Wrap a function that alters dy as a mutant named and described after it."""
    options["directions"] = RECORDING

    def wrap(alter: Alteration) -> Mutant:
        @wraps(alter)
        def altered(call: LayerNormCall) -> Tensor:
            return _backward_through(alter, call.y)

        return on_call(**options)(altered)

    return wrap


def altering_dx(**options: Unpack[Options]) -> Callable[[Alteration], Mutant]:
    """Wrap a function that alters dx as a mutant named and described after it."""
    options["directions"] = RECORDING

    def wrap(alter: Alteration) -> Mutant:
        @wraps(alter)
        def altered(call: LayerNormCall) -> Tensor:
            return replace(call, x=_backward_through(alter, call.x)).y

        return on_call(**options)(altered)

    return wrap


def _backward_through(alter: Alteration, tensor: Tensor) -> Tensor:
    found: Tensor = _Altered.apply(tensor, alter)  # type: ignore[no-untyped-call]
    return found


class _Altered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, alter: Alteration) -> Tensor:
        ctx.alter = alter
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.alter(gradient), None
