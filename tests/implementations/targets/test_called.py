"""A function or module of another signature is called with the signature of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import CallOptions, UnsupportedError
from implementations.targets.adapter import Adapter, on_channels
from implementations.targets.from_function import NamedFunction, needs_adapter
from implementations.targets.from_module import ModuleFunction

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
    assert made.training
    assert torch.equal(made.weight, WEIGHT)
    assert torch.equal(layer_norm.new((5,)).weight, WEIGHT)  # type: ignore[arg-type]


def test_another_shape_than_that_of_an_instance_is_declined() -> None:
    with pytest.raises(UnsupportedError, match=r"\[5\], and \[4\]"):
        ModuleFunction(instance())(X[:, :4], (4,), WEIGHT[:4], BIAS[:4])


WIDTH = 32


def numbered(image: Tensor) -> Tensor:
    """Multiply each channel by its number."""
    return (image.movedim(1, -1) * torch.arange(6.0)).movedim(-1, 1)


@pytest.mark.parametrize("shape", [(6,), (12, 6), (2, 3, 6), (2, 3, 5, 6), (2, 3, 5, 7, 6), (0, 6)])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_the_last_axis_of_any_x_becomes_the_channels(shape: tuple[int, ...], spatial: int) -> None:
    seen: list[torch.Size] = []

    def recording(image: Tensor) -> Tensor:
        seen.append(image.shape)
        return numbered(image)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(on_channels(recording, x, (spatial,)), x * torch.arange(6.0))
    ((batch, channels, *others),) = seen
    assert (channels, len(others)) == (6, spatial)
    assert batch * torch.Size(others).numel() == x.numel() // 6


def test_an_x_of_an_accepted_rank_keeps_its_axes() -> None:
    def checked(image: Tensor) -> Tensor:
        assert image.shape == (2, 6, 3, 5)
        return image

    on_channels(checked, torch.zeros(2, 3, 5, 6), (1, 2))


def test_gradients_reach_x() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.arange(24.0).reshape(4, 6)
    (found,) = torch.autograd.grad(on_channels(numbered, x, (2,)), x, weights)
    (expected,) = torch.autograd.grad(x * torch.arange(6.0), x, weights)
    assert torch.equal(found, expected)


def test_a_contiguous_x_becomes_a_contiguous_image() -> None:
    def dense_only(image: Tensor) -> Tensor:
        assert image.is_contiguous()
        return image

    on_channels(dense_only, torch.zeros(4, 6), (2,))
    with pytest.raises(AssertionError):
        on_channels(dense_only, torch.zeros(6, 4).T, (2,))


def test_writes_into_the_image_reach_x() -> None:
    x = torch.zeros(4, 6)
    on_channels(lambda image: image.add_(1), x, (2,))
    assert torch.equal(x, torch.ones(4, 6))


def test_inference_tensors_are_accepted() -> None:
    with torch.inference_mode():
        x = torch.ones(4, 6)
        assert torch.equal(on_channels(numbered, x, (2,)), x * torch.arange(6.0))


# --- the checks of a call ------------------------------------------------------------------------


def last_axis(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


@pytest.mark.parametrize(
    "target",
    [NamedFunction(last_axis), ModuleFunction(nn.LayerNorm(WIDTH, eps=1e-6))],
    ids=["function", "module"],
)
def test_functions_and_modules_check_eps_and_axes(target: Adapter) -> None:
    x, weight = torch.zeros(3, WIDTH), torch.ones(WIDTH)
    for accepted in (None, 1e-6):
        assert torch.equal(target(x, (WIDTH,), weight, weight, accepted), torch.ones_like(x))
    for wrong, why, shape, eps in (
        (UnsupportedError, r"1e-06, and 0\.5", (WIDTH,), 0.5),
        (UnsupportedError, "one axis; 2", (3, WIDTH), None),
        (ValueError, "end in", (4,), None),
        (ValueError, "end in", (4, WIDTH), None),
    ):
        with pytest.raises(wrong, match=why):
            target(x, shape, weight.expand(shape) if shape[-1] == WIDTH else weight, weight, eps)


def test_a_module_of_several_axes_takes_them() -> None:
    y = ModuleFunction(nn.LayerNorm)(torch.zeros(2, 3, 5), (3, 5), torch.ones(3, 5), None)
    assert y.shape == (2, 3, 5)
