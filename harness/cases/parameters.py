"""Named values of weight and bias. Each docstring says what they break.

A function takes normal draws of weight and bias, both float64 (hidden,), and returns the values
to use instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.cases.distributions import scaled_to
from harness.cases.layouts import Registry, by_name

Parameters = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def normal(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal: with ones and zeros many mistakes in using them would not show."""
    return weight, bias


def zero_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight 0: y is the bias and dx is 0, but dweight is not 0."""
    return torch.zeros_like(weight), bias


def ones_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight 1, as before the first step of training: shows a weight skipped with its gradient."""
    return torch.ones_like(weight), bias


def negative_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight negative: shows a root, a logarithm or an absolute value taken of it."""
    return -weight.abs(), bias


def power_of_two_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of powers of two from 1/16 to 16, either sign: multiplying by them is exact."""
    steps = torch.arange(len(weight), dtype=torch.float64)
    return torch.copysign(2.0 ** (steps % 9 - 4), weight), bias


def mixed_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight in turn normal, negative, 0 and a power of two: one column must not show in others."""
    kinds = torch.arange(len(weight)) % 4
    weight = torch.where(kinds == 1, -weight.abs(), weight)
    weight = torch.where(kinds == 2, torch.zeros_like(weight), weight)
    power, _ = power_of_two_weight(weight, bias)
    return torch.where(kinds == 3, power, weight), bias


def transposed(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal, last axis with the largest stride: shows axes read in the wrong order."""
    return weight, bias


def every_second(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal, every second element of a buffer: shows a stride that is taken for 1."""
    return weight, bias


def any_view(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal, another view of a larger tensor for each shape: shows strides and offsets."""
    return weight, bias


def chunk(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal, starting within a longer tensor: shows an offset that is lost."""
    return weight, bias


def expanded(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both normal, their first elements expanded, with a stride of 0: shows a stride taken for 1.

    It changes values: of a parameter with one axis, all elements are equal.
    """
    return weight, bias


def equal_elements(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight 2 and bias 0.5 everywhere: shows equal elements taken for one, or for 1 and 0."""
    return torch.full_like(weight, 2), torch.full_like(bias, 0.5)


def large_bias(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Bias 1e4, weight above 0.5: shows normalised rows that are computed from y for a backward."""
    return torch.copysign(0.5 + weight.abs(), weight), torch.full_like(bias, 1e4)


def initial_ends(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight 1 and bias 0 at both ends, normal between: shows one element taken for all."""
    weight, bias = weight.clone(), bias.clone()
    for parameter, start in ((weight, 1), (bias, 0)):
        parameter.view(-1)[:1] = parameter.view(-1)[-1:] = start
    return weight, bias


def mirrored(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of mean 1, bias of sum 0, both exact: shows parameters taken for initial ones."""
    eighths = [(values * 8).round().clamp(-16, 16) / 8 for values in (weight, bias)]
    weight, bias = (values - values.flip(0) for values in eighths)
    return 1 + weight, bias


def nan_weight(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One NaN in weight: only its column of y and all of dx must be NaN."""
    return _poisoned(weight), bias


def nan_bias(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One NaN in bias: only its column of y must be NaN."""
    return weight, _poisoned(bias)


def _offset(value: float) -> Parameters:
    """Both normal, starting so many elements into a longer tensor."""
    return chunk


def _largest(value: float) -> Parameters:
    """Weight normal times a factor, so that the largest is a number: shows a limit on values."""

    def parameters(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_to(weight, value), bias

    return parameters


def _within(value: float) -> Parameters:
    """Weight 1 and bias 0, each up to a number off: shows a parameter taken for its initial one."""

    def parameters(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return 1 + scaled_to(weight, value), scaled_to(bias, value)

    return parameters


def _poisoned(values: Tensor) -> Tensor:
    values = values.clone()
    if len(values):
        values[len(values) // 2] = float("nan")
    return values


PARAMETERS: Registry[Parameters] = by_name(
    normal, zero_weight, ones_weight, negative_weight, power_of_two_weight, mixed_weight,
    transposed, every_second, any_view, chunk, expanded, equal_elements, large_bias, initial_ends,
    mirrored, nan_weight, nan_bias,
    largest=_largest, initial_within=_within, offset=_offset,
)  # fmt: skip
