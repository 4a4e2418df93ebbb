"""Valid forms of arguments are accepted; each check of arguments finds a target that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from torch import Tensor
from verify_targets import CASE, layer_norm, target

from harness.run.call import ImplementationError
from harness.verify.checks.arguments import (
    accepts_arguments_like_torch,
    rejects_parameters_of_wrong_shape,
    rejects_parameters_with_fewer_axes,
    rejects_wrong_normalized_shape,
)
from implementations import UnsupportedError


def broadcast_weight(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, None, bias, eps) * weight


def broadcast_bias(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, weight, None, eps) + bias


def weight_per_row(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if weight.shape == x.shape:
        return broadcast_weight(x, shape, weight, bias, eps)
    return layer_norm(x, shape, weight, bias, eps)


@pytest.mark.parametrize(
    ("function", "fact"),
    [
        (broadcast_weight, "weight of shape [1]"),
        (broadcast_bias, "bias of shape [1]"),
        (weight_per_row, "weight of shape [4, 6]"),
    ],
)
def test_an_accepted_parameter_of_a_wrong_shape_is_found(
    function: Callable[..., Tensor], fact: str
) -> None:
    assert fact in str(rejects_parameters_of_wrong_shape(target(function), CASE))


def test_an_ignored_normalized_shape_is_found() -> None:
    def last_axis(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        return layer_norm(x, x.shape[-1:], *others)

    assert "normalized_shape of [4]" in str(rejects_wrong_normalized_shape(target(last_axis), CASE))


@pytest.mark.parametrize("place", [0, 1], ids=["weight", "bias"])
def test_a_parameter_broadcast_over_an_axis_is_found(place: int) -> None:
    def broadcasting(x: Tensor, shape: Any, *others: Any) -> Tensor:
        parameters = list(others[:2])
        if parameters[place] is not None:
            parameters[place] = parameters[place].expand(shape)
        return layer_norm(x, shape, *parameters, *others[2:])

    assert "of shape [7]" in str(rejects_parameters_with_fewer_axes(target(broadcasting), CASE))


def other_names(x: Tensor, shape: Any, gamma: Any, beta: Any, epsilon: float) -> Tensor:
    return layer_norm(x, shape, gamma, beta, epsilon)


def declines_one_axis(x: Tensor, *others: Any) -> Tensor:
    if x.dim() == 1:
        raise UnsupportedError("rows only")
    return layer_norm(x, *others)


@pytest.mark.parametrize("function", [other_names, declines_one_axis])
def test_other_argument_names_and_a_declined_form_are_allowed(
    function: Callable[..., Tensor],
) -> None:
    assert accepts_arguments_like_torch(target(function), CASE) is None


def float_eps_only(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: object) -> Tensor:
    eps = eps if isinstance(eps, float) else 0.0
    return layer_norm(x, normalized_shape, weight, bias, eps)


def one_axis_ignored(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return bias.clone() if x.dim() == 1 else layer_norm(x, shape, weight, bias, eps)


@pytest.mark.parametrize(
    ("function", "form"),
    [(float_eps_only, "an eps that is an int"), (one_axis_ignored, "an x of one axis")],
)
def test_a_form_with_another_result_is_found(function: Callable[..., Tensor], form: str) -> None:
    assert form in str(accepts_arguments_like_torch(target(function), CASE))


def test_a_form_that_raises_is_named() -> None:
    @cache
    def hashed(shape: Any) -> Any:
        return shape

    def caching(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return layer_norm(x, hashed(shape), *others)

    with pytest.raises(ImplementationError, match="a normalized_shape that is a list: TypeError"):
        accepts_arguments_like_torch(target(caching), CASE)
