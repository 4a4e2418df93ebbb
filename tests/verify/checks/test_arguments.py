"""Valid forms of arguments are accepted; each check of arguments finds a target that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from factories.verify_targets import CASE, layer_norm, target
from torch import Tensor

from harness.verify.checks.arguments import (
    accepts_arguments_like_torch,
    rejects_wrong_shapes,
)
from harness.verify.checks.contract_checks import RaisedInFormError
from implementations import UnsupportedError


def broadcast_weight(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, None, bias, eps) * weight


def broadcast_bias(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return layer_norm(x, shape, weight, None, eps) + bias


def weight_per_row(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if weight.shape == x.shape:
        return broadcast_weight(x, shape, weight, bias, eps)
    return layer_norm(x, shape, weight, bias, eps)


def last_axis(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
    return layer_norm(x, x.shape[-1:], *others)


def expanding(index: int) -> Callable[..., Tensor]:
    """Broadcast one of weight and bias over the first of several normalized axes."""

    def function(x: Tensor, shape: Any, *others: Any) -> Tensor:
        parameters = list(others[:2])
        if parameters[index] is not None and parameters[index].dim() < len(shape):
            parameters[index] = parameters[index].expand(shape)
        return layer_norm(x, shape, *parameters, *others[2:])

    return function


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (layer_norm, None),
        (broadcast_weight, " of weight"),
        (broadcast_bias, " of bias"),
        (weight_per_row, " of weight"),
        (expanding(0), " of weight"),
        (expanding(1), " of bias"),
        (last_axis, " of normalized_shape"),
        (lambda x, shape, w, b, eps: layer_norm(x, shape, eps=eps) * w + b, "s of weight and bias"),
    ],
)
def test_the_arguments_whose_shapes_are_not_checked_are_named(
    function: Callable[..., Tensor], names: str | None
) -> None:
    text = rejects_wrong_shapes(target(function), CASE)
    assert text == (None if names is None else f"does not check the shape{names}")


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

    with pytest.raises(RaisedInFormError, match="TypeError") as raised:
        accepts_arguments_like_torch(target(caching), CASE)
    assert raised.value.form == "a normalized_shape that is a list"
