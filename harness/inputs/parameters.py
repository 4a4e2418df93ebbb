"""Named values of weight and bias, each saying what it breaks.

A choice of parameters takes normal draws of weight and bias, both float64 (hidden,), and returns
what is to be used in their place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["PARAMETERS", "Parameters"]

Parameters = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def normal(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Normal both: with ones and zeros half the mistakes in using them are invisible."""
    return weight, bias


def zero_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """All of weight 0: y is bias and dx is 0, while dweight is not."""
    return torch.zeros_like(weight), bias


def negative_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """All of weight negative: a root, a logarithm or a size taken of it shows."""
    return -weight.abs(), bias


def power_of_two_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Powers of two from 1/16 to 16, either sign: exact factors, so nothing hides in them."""
    steps = torch.arange(len(weight), dtype=torch.float64)
    return torch.copysign(2.0 ** (steps % 9 - 4), weight), bias


def transposed(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Normal both, their last axis with the largest stride: of several axes, order shows."""
    return weight, bias


def nan_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One element of weight NaN: its column of y and all of dx are NaN, dweight and dbias not."""
    return _poisoned(weight), bias


def nan_bias(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One element of bias NaN: its column of y is NaN, and no gradient is."""
    return weight, _poisoned(bias)


def _poisoned(values: Tensor) -> Tensor:
    values = values.clone()
    if len(values):
        values[len(values) // 2] = float("nan")
    return values


PARAMETERS: dict[str, Parameters] = {
    each.__name__: each
    for each in (
        normal,
        zero_weight,
        negative_weight,
        power_of_two_weight,
        transposed,
        nan_weight,
        nan_bias,
    )
}
