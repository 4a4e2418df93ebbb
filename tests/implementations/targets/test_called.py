"""A function or module of another signature is called with the signature of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories.operands import normal, y_and_gradients
from factories.verify_targets import layer_norm
from torch import Tensor, nn
from torch.nn import functional

from implementations import CallOptions, UnsupportedError, adopt, find

X = 0.01 * normal(3, 5)  # so that eps matters
WEIGHT, BIAS = torch.arange(1.0, 6.0), torch.arange(5.0)


def adapted(target: Any, **declared: Any) -> Any:
    return adopt(target, "target", CallOptions(**declared)).function


def last_axis(x: Tensor, *parameters: Any) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], *parameters)


# --- targets that are LayerNorms -----------------------------------------------------------------


def without_shape(inp: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return last_axis(inp, gamma, beta, epsilon)


def eps_first(x: Tensor, eps: float, w: Tensor, b: Tensor) -> Tensor:
    return last_axis(x, w, b, eps)


def of_one_number(x: Tensor, size: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x, (size,), weight, bias, eps)


def by_keyword(x: Tensor, *, ln_weight: Any = None, ln_bias: Any = None) -> Tensor:
    return last_axis(x, ln_weight, ln_bias, 1e-3)


def blocked(x: Tensor, weight: Tensor, bias: Tensor, block: int) -> Tensor:
    return last_axis(x, weight, bias) * block


def of_images(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return last_axis(image.movedim(1, -1), weight, bias).movedim(-1, 1)


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return last_axis(x, weight, bias, eps)


class OtherNames(nn.Module):
    """Names its parameters and eps otherwise, and takes one number as its size."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        if not isinstance(size, int):
            raise TypeError("size is a number")
        self.gain = nn.Parameter(torch.ones(1, size))
        self.offset = nn.Parameter(torch.zeros(size, 1))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return last_axis(x, self.gain.flatten(), self.offset.flatten(), self.epsilon)


class FixedEps(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.second, self.first = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return last_axis(x, self.first, self.second, 1e-3)


class OfImages(nn.Module):
    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)  # type: ignore[no-any-return]


def trained() -> nn.LayerNorm:
    made = nn.LayerNorm(5, eps=0.25)
    with torch.no_grad():
        made.weight.copy_(BIAS)
        made.bias.copy_(WEIGHT)
    return made


@pytest.mark.parametrize(
    ("target", "eps", "used"),
    [
        *((target, 0.25, 0.25) for target in (layer_norm, without_shape, eps_first, of_one_number)),
        (Saving, 0.25, 0.25),
        (by_keyword, None, 1e-3),
        (without_shape, None, 1e-5),  # a required eps has the default of torch
        (of_images, None, 1e-5),
        (nn.LayerNorm, 0.25, 0.25),
        (OtherNames, 0.25, 0.25),
        (FixedEps, None, 1e-3),
        (OfImages, None, 1e-6),
        (trained(), None, 0.25),
    ],
)
def test_weight_bias_and_eps_reach_the_parameters_of_their_roles(
    target: Any, eps: float | None, used: float
) -> None:
    given = () if eps is None else (eps,)
    found = adapted(target)(X, (5,), WEIGHT, BIAS, *given)
    torch.testing.assert_close(found, functional.layer_norm(X, (5,), WEIGHT, BIAS, used))


def test_an_argument_of_unknown_role_is_supplied_by_the_user() -> None:
    found = adapted(blocked, init={"block": 2})(X, (5,), WEIGHT, BIAS)
    assert torch.equal(found, 2 * functional.layer_norm(X, (5,), WEIGHT, BIAS))


@pytest.mark.parametrize(
    ("function", "is_adapted"),
    [
        (layer_norm, False),
        (lambda x, s, w, b, e: x, False),
        (lambda *arguments: arguments[0], False),
        (wraps(without_shape)(lambda x, normalized_shape, weight, bias, eps: x), False),
        (wraps(without_shape)(lambda *arguments: without_shape(*arguments)), True),
        (lambda x, weight, bias: x, True),
    ],
)
def test_a_function_is_adapted_unless_its_call_is_that_of_torch(
    function: Callable[..., Any], is_adapted: bool
) -> None:
    assert (adapted(function) is not function) == is_adapted


# --- modules -------------------------------------------------------------------------------------

WEIGHTS = WEIGHT.expand(3, 5).contiguous()


@pytest.mark.parametrize("parameters", [(WEIGHTS, WEIGHTS), (WEIGHTS,), ()])
def test_several_axes_are_passed_and_flags_switch_parameters_off(
    parameters: tuple[Tensor, ...],
) -> None:
    found, expected = (
        y_and_gradients(norm, X, X, (3, 5), *parameters)
        for norm in (adapted(nn.LayerNorm), functional.layer_norm)
    )
    assert all(map(torch.equal, found, expected))


def test_an_instance_stays_as_it_is() -> None:
    made = trained()
    norm = adapted(made)
    norm(X, (5,), WEIGHT, BIAS)
    assert made.training
    assert torch.equal(made.weight, BIAS)
    assert torch.equal(norm.new((5,)).weight, BIAS)


# --- refusals ------------------------------------------------------------------------------------


def raising(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    raise RuntimeError(f"not of {x.dim()} axes")


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        # with this signature
        (lambda: None, (WEIGHT, BIAS), "no argument that could be x"),
        (blocked, (WEIGHT, BIAS), r"needs block: give --init 'block=\.\.\.'"),
        (raising, (WEIGHT, BIAS), "first: RuntimeError: not of 4 axes"),
        # with these arguments
        (lambda x, eps: last_axis(x, None, None, eps), (WEIGHT, None), "takes no weight"),
        (trained(), (WEIGHT, None), r"always has its bias \(bias\)"),
        (by_keyword, (WEIGHT, BIAS, 1e-5), r"eps .* 0\.001, and 1e-05"),
        (trained(), (WEIGHT, BIAS, 1e-5), r"0\.25, and 1e-05"),
    ],
)
def test_a_target_or_a_call_that_cannot_be_adapted_is_refused(
    target: Any, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(Exception, match=words) as raised:
        adapted(target)(X, (5,), *arguments)
    cause = raised.value.__cause__ or raised.value  # adopting has an error of its own
    assert isinstance(cause, UnsupportedError)


def test_an_argument_of_the_user_that_the_constructor_does_not_take_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has no argument named dpeth"):
        adapted(FixedEps, init={"dpeth": 3}).meaning()


@pytest.mark.parametrize(
    ("target", "x", "shape", "weight", "kind", "words"),
    [
        (trained(), X, (4,), WEIGHT[:4], ValueError, "does not end in"),
        (trained(), X, (3, 5), WEIGHTS, UnsupportedError, "normalises one axis; 2"),
        (trained(), X[:, :4], (4,), WEIGHT[:4], UnsupportedError, r"always \[5\], and \[4\]"),
        (trained(), X, (5,), WEIGHTS, ValueError, r"weight has shape \[3, 5\], expected \[5\]"),
        (by_keyword, X, (3, 5), WEIGHT, UnsupportedError, "normalises one axis; 2"),
    ],
)
def test_shapes_that_a_target_does_not_take_are_refused(
    target: Any, x: Tensor, shape: Any, weight: Tensor, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        adapted(target)(x, shape, weight, BIAS)


# --- channels first ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (12, 6), (2, 3, 5, 6), (0, 6)])
@pytest.mark.parametrize("spatial", [1, 2])
def test_the_last_axis_of_any_x_becomes_the_channels_of_a_dense_image(
    shape: tuple[int, ...], spatial: int
) -> None:
    def of_dense_images(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if image.dim() != spatial + 2 or not image.is_contiguous():
            raise ValueError("a dense image, please")
        return of_images(image, weight, bias)

    results = (
        y_and_gradients(
            norm, torch.ones(shape), normal(*shape), (6,), *torch.arange(12.0).view(2, 6)
        )
        for norm in (adapted(of_dense_images), functional.layer_norm)
    )
    torch.testing.assert_close(*results)


# --- functions of NumPy arrays and of TorchScript -------------------------------------------------


SCRIPTED = """
import torch

@torch.jit.script
def scripted(x, gamma, beta, eps: float = 1e-5):
    return torch.layer_norm(x, x.shape[-1:], gamma, beta, eps)
"""


def of_arrays(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    centred = np.subtract(x, x.mean(-1, keepdims=True), dtype=np.float64)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias
    return y.astype(weight.dtype)


def test_arrays_have_no_gradient_and_no_bfloat16() -> None:
    norm, x = adapted(of_arrays), torch.randn(5, 32)
    expected = functional.layer_norm(x, (32,), *torch.ones(2, 32))
    torch.testing.assert_close(norm(x, (32,), *torch.ones(2, 32)), expected)
    for refused in (x.bfloat16(), x.clone().requires_grad_()):
        with pytest.raises(UnsupportedError):
            norm(refused, (32,), *torch.ones(2, 32))


# of torch 2.13; scripts exist all the same
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_a_script_is_called_by_the_names_of_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPTED)
    results = (
        y_and_gradients(norm, torch.ones(5, 32), normal(5, 32), (32,), *torch.ones(2, 32), 0.25)
        for norm in (find(f"{tmp_path}/mine.py:scripted"), functional.layer_norm)
    )
    torch.testing.assert_close(*results)
