"""A module is called with the signature of a function; arguments it cannot use are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import CallOptions, UnsupportedError
from implementations.targets.from_module import ModuleFunction

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


class Unbuildable(nn.Module):
    """Cannot be made from a shape and eps alone."""

    def __init__(self, config: object, depth: int) -> None:
        super().__init__()


@pytest.mark.parametrize("module", [nn.LayerNorm, Annotated])
def test_the_module_is_given_weight_bias_and_eps(module: type[nn.Module]) -> None:
    y = ModuleFunction(module)(X, [5], WEIGHT, BIAS, 0.5)
    assert torch.equal(y, functional.layer_norm(X, (5,), WEIGHT, BIAS, 0.5))


WEIGHTS = WEIGHT.expand(3, 5).contiguous()


@pytest.mark.parametrize("parameters", [(WEIGHTS, WEIGHTS), (WEIGHTS,), ()])
def test_several_axes_are_passed_and_flags_switch_parameters_off(
    parameters: tuple[Tensor, ...],
) -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in (X, *parameters)]
    results = []
    for norm in (ModuleFunction(nn.LayerNorm), functional.layer_norm):
        y = norm(leaves[0], (3, 5), *leaves[1:])
        results.append([y, *torch.autograd.grad(y, leaves, X)])
    assert all(map(torch.equal, *results))


class CountsItsCalls(nn.LayerNorm):
    """Counts its calls in a buffer, as torch.nn.BatchNorm1d does."""

    calls: Tensor

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input)


def test_a_module_first_called_in_inference_mode_has_normal_buffers() -> None:
    norm = ModuleFunction(CountsItsCalls)
    norm.meaning()
    with torch.inference_mode():
        norm(X, (5,), WEIGHT, BIAS)
    assert torch.equal(norm(X, (5,), WEIGHT, BIAS), functional.layer_norm(X, (5,), WEIGHT, BIAS))


def test_a_class_with_a_required_argument_needs_it_from_the_user() -> None:
    with pytest.raises(UnsupportedError, match=r"Unbuildable\(config.* --init 'depth=\.\.\.'"):
        ModuleFunction(Unbuildable)(X, (5,), WEIGHT, BIAS)
    options = CallOptions(init={"config": None, "depth": 2})
    assert isinstance(ModuleFunction(Unbuildable, options).new((5,)), Unbuildable)


# --- the experiment ------------------------------------------------------------------------------


class OneAxis(nn.Module):
    """Has an eps of its own, and no way to choose it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.weight, eps=1e-3)


class OfImages(nn.Module):
    """Normalises the channels, wherever the others are."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)  # type: ignore[no-any-return]


class OfTwo(nn.Module):
    """Needs more than x."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return x + condition


def test_a_fixed_eps_is_the_only_one_accepted() -> None:
    layer_norm = ModuleFunction(OneAxis)
    assert layer_norm.meaning().eps == 1e-3
    expected = functional.layer_norm(X, (5,), WEIGHT, eps=1e-3)
    for given in ((), (1e-3,)):
        assert torch.equal(layer_norm(X, (5,), WEIGHT, None, *given), expected)
    with pytest.raises(UnsupportedError, match=r"0\.001, and 1e-05"):
        layer_norm(X, (5,), WEIGHT, None, 1e-5)


def test_an_eps_that_is_not_given_is_the_default_of_the_module() -> None:
    y = ModuleFunction(OfImages)(X * 1e-3, (5,), WEIGHT, BIAS)
    assert torch.equal(y, functional.layer_norm(X * 1e-3, (5,), WEIGHT, BIAS, 1e-6))


def test_a_module_of_images_is_called_for_features_last() -> None:
    layer_norm = ModuleFunction(OfImages)
    assert layer_norm.meaning().channels_first
    x = X.expand(2, 3, 5)
    y = layer_norm(x, (5,), WEIGHT, BIAS, 0.5)
    torch.testing.assert_close(y, functional.layer_norm(x, (5,), WEIGHT, BIAS, 0.5))


def test_a_forward_with_another_required_argument_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="condition besides x"):
        ModuleFunction(OfTwo).meaning()


# --- an instance ---------------------------------------------------------------------------------


def instance() -> nn.LayerNorm:
    """Return one that was trained."""
    made = nn.LayerNorm(5, eps=0.25)
    with torch.no_grad():
        made.weight.copy_(WEIGHT)
        made.bias.copy_(BIAS)
    return made


def test_an_instance_is_called_with_its_own_eps_and_the_given_parameters() -> None:
    layer_norm = ModuleFunction(instance())
    assert (layer_norm.is_instance, layer_norm.normalized_shape) == (True, (5,))
    assert layer_norm.meaning().eps == 0.25
    y = layer_norm(X, (5,), BIAS, WEIGHT)
    assert torch.equal(y, functional.layer_norm(X, (5,), BIAS, WEIGHT, 0.25))


def test_an_instance_stays_as_it_is() -> None:
    made = instance()
    layer_norm = ModuleFunction(made)
    layer_norm(X, (5,), BIAS, WEIGHT)
    layer_norm.in_other_mode()(X, (5,), BIAS, WEIGHT)
    assert made.training
    assert torch.equal(made.weight, WEIGHT)
    assert torch.equal(layer_norm.new((5,)).weight, WEIGHT)  # type: ignore[arg-type]


def test_another_shape_than_that_of_an_instance_is_declined() -> None:
    with pytest.raises(UnsupportedError, match=r"\[5\], and \[4\]"):
        ModuleFunction(instance())(X[:, :4], (4,), WEIGHT[:4], BIAS[:4])
