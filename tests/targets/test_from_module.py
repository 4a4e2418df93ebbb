"""A module class behind a function's signature: what it has no place for, it declines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import UnsupportedError, adopt
from implementations.from_module import ModuleFunction

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
WEIGHT, BIAS = torch.arange(1.0, 6.0), torch.arange(5.0)


class Annotated(nn.Module):
    """Names its parameters and eps otherwise, and takes a size."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        if not isinstance(size, int):
            raise TypeError("size is a number")
        self.gain = nn.Parameter(torch.ones(size))
        self.beta = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gain, self.beta, self.epsilon)


class Bare(nn.Module):
    """Has no parameters."""

    def __init__(self, normalized_shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.shape, self.eps = normalized_shape, eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.shape, eps=self.eps)


class Unbuildable(nn.Module):
    """Cannot be made from a shape and eps."""

    def __init__(self, config: object, depth: int) -> None:
        super().__init__()


@pytest.mark.parametrize("module", [nn.LayerNorm, Annotated])
def test_the_module_is_given_weight_bias_and_eps(module: type[nn.Module]) -> None:
    y = ModuleFunction(module)(X, [5], WEIGHT, BIAS, 0.5)
    assert torch.equal(y, functional.layer_norm(X, (5,), WEIGHT, BIAS, 0.5))


def test_several_axes_are_given_as_a_shape() -> None:
    weight = WEIGHT.expand(3, 5).contiguous()
    y = ModuleFunction(nn.LayerNorm)(X, (3, 5), weight, weight)
    assert torch.equal(y, functional.layer_norm(X, (3, 5), weight, weight))


def test_gradients_reach_what_was_given() -> None:
    leaves = [each.clone().requires_grad_() for each in (X, WEIGHT, BIAS)]
    x, weight, bias = leaves
    y = ModuleFunction(nn.LayerNorm)(x, (5,), weight, bias)
    expected = functional.layer_norm(x, (5,), weight, bias)
    for found, right in zip(
        torch.autograd.grad(y, leaves, X), torch.autograd.grad(expected, leaves, X), strict=True
    ):
        assert torch.equal(found, right)


def test_a_module_without_parameters_answers_without_them() -> None:
    assert torch.equal(ModuleFunction(Bare)(X, (5,)), functional.layer_norm(X, (5,)))


@pytest.mark.parametrize("given", [(WEIGHT, None), (None, BIAS), (WEIGHT, BIAS)])
def test_a_parameter_that_the_module_has_not_is_declined(
    given: tuple[Tensor | None, Tensor | None],
) -> None:
    with pytest.raises(UnsupportedError, match="no parameter named any of"):
        ModuleFunction(Bare)(X, (5,), *given)


@pytest.mark.parametrize(
    ("given", "name"),
    [((WEIGHT, None), "bias"), ((None, BIAS), "weight"), ((None, None), "weight")],
)
def test_a_parameter_that_cannot_be_left_out_is_declined(
    given: tuple[Tensor | None, Tensor | None], name: str
) -> None:
    with pytest.raises(UnsupportedError, match=f"the module always has its {name}"):
        ModuleFunction(nn.LayerNorm)(X, (5,), *given)


@pytest.mark.parametrize("wrong", [WEIGHT[:1], WEIGHT[:3], WEIGHT.repeat(2), WEIGHT.expand(3, 5)])
def test_a_parameter_of_another_shape_is_an_error(wrong: Tensor) -> None:
    layer_norm = ModuleFunction(nn.LayerNorm)
    with pytest.raises(ValueError, match="weight has shape"):
        layer_norm(X, (5,), wrong, BIAS)
    with pytest.raises(ValueError, match="bias has shape"):
        layer_norm(X, (5,), WEIGHT, wrong)


def test_a_module_that_cannot_be_made_so_is_declined() -> None:
    with pytest.raises(UnsupportedError, match=r"takes no eps: Unbuildable\(config"):
        ModuleFunction(Unbuildable)(X, (5,), WEIGHT, BIAS)


def test_the_parameters_given_are_not_kept() -> None:
    layer_norm = ModuleFunction(nn.LayerNorm)
    first = layer_norm(X, (5,), WEIGHT, BIAS)
    layer_norm(X, (5,), BIAS, WEIGHT)
    assert torch.equal(layer_norm(X, (5,), WEIGHT, BIAS), first)


def test_an_adopted_module_class_keeps_its_name_and_document() -> None:
    found = adopt(Annotated, "mine")
    assert found.name == "mine"
    assert found.function.__doc__ == Annotated.__doc__
