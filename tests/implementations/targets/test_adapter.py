"""A function of images is called with the rows of x as batch and spatial axes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import UnsupportedError
from implementations.targets.adapter import Adapter, on_channels
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction

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
