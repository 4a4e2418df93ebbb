"""Targets of verification tests, a first case, and the quick verification."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

from harness.mutants import named
from harness.records import Case
from harness.verify import Verdict, verify
from implementations import Implementation

every_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])


def case_in(dtype: str) -> Case:
    """Return the case that contract checks start from."""
    return Case(implementation="target", shape=(6, 32), dtype=dtype, param_dtype=dtype)


CASE = case_in("float32")


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


def then(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return a right LayerNorm whose result is changed."""
    return lambda *arguments: change(layer_norm(*arguments))


def with_dy(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a right LayerNorm whose backward begins with another dy."""

    def function(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        if y.requires_grad:
            y.register_hook(change)
        return y

    return function


def raising(
    error: Exception, refuses: Callable[[Tensor], bool] = lambda x: True
) -> Callable[..., Tensor]:
    """Return a right LayerNorm that raises for some x, or for all."""

    def function(x: Tensor, *others: Any) -> Tensor:
        if refuses(x):
            raise copy(error)  # the traceback of one error would keep x of every call
        return layer_norm(x, *others)

    return function


def leaving(change: Callable[[], object]) -> Callable[..., Tensor]:
    """Return a right LayerNorm whose calls change a setting."""

    def function(*arguments: Any) -> Tensor:
        change()
        return layer_norm(*arguments)

    return function


def by_call(change: Callable[[int, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a right LayerNorm whose result is changed, given the number of the call from 1."""
    numbers = itertools.count(1)
    return lambda *arguments: change(next(numbers), layer_norm(*arguments))


def target(function: Callable[..., Any], **declared: Any) -> Implementation:
    return Implementation(name="target", function=function, source="", **declared)


def mutant(name: str, **declared: Any) -> Implementation:
    """Return the known mistake of that name."""
    return target(named(name).fresh(), **declared)


def quick(subject: Any, *dtypes: str, **options: Any) -> Verdict:
    """Verify a target with the quick cases, in float32 unless dtypes are named."""
    return verify(subject, quick=True, dtypes=dtypes or ("float32",), **options)
