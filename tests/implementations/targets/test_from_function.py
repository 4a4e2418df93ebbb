"""Parameters of a function are recognised by name; other arguments are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from implementations import CallOptions, UnsupportedError
from implementations.targets.from_function import NamedFunction, needs_adapter

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
WEIGHT, BIAS = torch.arange(1.0, 6.0), torch.arange(5.0)


def torchs(
    x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    return functional.layer_norm(x, normalized_shape, weight, bias, eps)


def without_shape(inp: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return functional.layer_norm(inp, inp.shape[-1:], gamma, beta, epsilon)


def eps_first(x: Tensor, eps: float, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b, eps)


def by_keyword(x: Tensor, *, ln_weight: Any = None, ln_bias: Any = None) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], ln_weight, ln_bias, 1e-3)


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


# --- needs_adapter -------------------------------------------------------------------------------


def decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def passing_on(*arguments: Any, **named: Any) -> Tensor:
        return function(*arguments, **named)

    return passing_on


def another_signature(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def changed(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        return function(x, weight, bias, eps)

    return changed


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (torchs, False),
        (lambda x, shape, gamma, beta, epsilon: x, False),
        (lambda x, s, w, b, e: x, False),
        (lambda *arguments: arguments[0], False),
        (lambda x, shape, *others: x, False),
        (decorated(torchs), False),
        (another_signature(without_shape), False),
        (without_shape, True),
        (decorated(without_shape), True),
        (lambda x, weight, bias: x, True),
        (lambda x: x, True),
        (Saving, True),
        (max, False),
    ],
)
def test_a_function_needs_an_adapter_unless_its_call_is_that_of_torch(
    function: Callable[..., Any], needed: bool
) -> None:
    assert needs_adapter(function) is needed


# --- calling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [without_shape, eps_first, Saving, WithSetup, torchs])
def test_arguments_reach_the_parameters_of_their_names(function: Callable[..., Any]) -> None:
    y = NamedFunction(function)(X, (5,), WEIGHT, BIAS, 0.25)
    assert torch.equal(y, functional.layer_norm(X, (5,), WEIGHT, BIAS, 0.25))


def test_keyword_only_arguments_are_passed_by_name() -> None:
    y = NamedFunction(by_keyword)(X, (5,), WEIGHT, BIAS)
    assert torch.equal(y, functional.layer_norm(X, (5,), WEIGHT, BIAS, 1e-3))


def test_an_eps_that_is_not_given_is_the_default_of_the_function_or_of_torch() -> None:
    def small_eps(x: Tensor, weight: Tensor, eps: float = 1e-12) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, None, eps)

    y = NamedFunction(small_eps)(X * 1e-3, (5,), WEIGHT)
    assert torch.equal(y, functional.layer_norm(X * 1e-3, (5,), WEIGHT, None, 1e-12))
    y = NamedFunction(without_shape)(X * 1e-3, (5,), WEIGHT, BIAS)  # a required eps
    assert torch.equal(y, functional.layer_norm(X * 1e-3, (5,), WEIGHT, BIAS))


def test_a_function_of_images_receives_the_features_on_axis_1() -> None:
    def of_images(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias)
        return y.permute(0, 3, 1, 2)

    y = NamedFunction(of_images)(X, (5,), WEIGHT, BIAS)
    torch.testing.assert_close(y, functional.layer_norm(X, (5,), WEIGHT, BIAS))


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (lambda x, eps: torchs(x, x.shape[-1:], eps=eps), (WEIGHT, None), "weight"),
        (lambda x, w, eps: torchs(x, w.shape, w, None, eps), (WEIGHT, BIAS), "bias"),
        (by_keyword, (WEIGHT, BIAS, 1e-5), r"eps .* 0\.001"),
    ],
)
def test_an_argument_without_a_parameter_is_refused(
    function: Callable[..., Any], arguments: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(UnsupportedError, match=why):
        NamedFunction(function)(X, (5,), *arguments)


# --- parameters of unknown role ------------------------------------------------------------------


def test_a_parameter_of_unknown_role_must_be_supplied() -> None:
    def blocked(x: Tensor, weight: Tensor, block: int) -> Tensor:
        return functional.layer_norm(x, weight.shape, weight) * block

    with pytest.raises(UnsupportedError, match=r"needs block: give --init 'block=\.\.\.'"):
        NamedFunction(blocked)
    y = NamedFunction(blocked, CallOptions(init={"block": 1}))(X, (5,), WEIGHT)
    assert torch.equal(y, functional.layer_norm(X, (5,), WEIGHT))


@pytest.mark.parametrize(
    ("function", "words"),
    [(lambda: None, "x"), (lambda gamma, beta, x: x, "needs x")],
    ids=["no parameter", "another parameter first"],
)
def test_x_must_be_the_first_parameter(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        NamedFunction(function)
