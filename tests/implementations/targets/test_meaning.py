"""An experiment finds what a target computes: which normalisation, its axis and its eps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from implementations import UnsupportedError
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.recognise import measured_eps, recognise, sample

WIDTH = 32


def meaning_of(
    call: Callable[..., Any], options: CallOptions | None = None, **more: Any
) -> Meaning:
    described = {"has_weight": True, "has_bias": True, "takes_eps": False, "shape": (WIDTH,)}
    return find_meaning(Probe(call=call, **described | more), options or CallOptions())


def last_axis(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


def channels_first(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return last_axis(x.movedim(1, -1), weight, bias).movedim(-1, 1)


def test_a_layer_norm_over_the_last_axis_is_found_with_its_eps() -> None:
    found = meaning_of(last_axis)
    assert (found.normalization, found.channels_first) == ("LayerNorm", False)
    assert (found.takes_eps, found.eps, found.default_eps) == (False, 1e-6, 1e-6)
    found = meaning_of(last_axis, takes_eps=True)  # the caller chooses it, so it is a default only
    assert (found.takes_eps, found.eps, found.default_eps) == (True, None, 1e-6)
    assert meaning_of(last_axis, CallOptions(eps=0.25)).eps == 0.25  # declared, not measured


@pytest.mark.parametrize("has", [True, False], ids=["parameters", "no parameters"])
def test_channels_first_is_found(has: bool) -> None:
    def call(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return channels_first(x, weight, bias) if has else channels_first(x, None, None)

    found = meaning_of(call, has_weight=has, has_bias=has)
    assert (found.normalization, found.channels_first) == ("LayerNorm", True)


def test_only_channels_first_is_tried_if_the_user_declares_it() -> None:
    shapes: list[torch.Size] = []

    def recording(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shapes.append(x.shape)
        return channels_first(x, weight, bias)

    assert meaning_of(recording, CallOptions(channels_first=True)).channels_first
    assert all(shape[1] == WIDTH for shape in shapes[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_one_accepted_rank_and_dtype_are_enough(rank: int, dtype: torch.dtype) -> None:
    def narrow(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        assert (x.dim(), x.dtype) == (rank, dtype)
        return last_axis(x, weight, bias)

    found = meaning_of(narrow)
    assert (found.normalization, len(found.leading)) == ("LayerNorm", rank - 1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda x, weight, bias: (
                x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight + bias
            ),
            "RMSNorm",
        ),
        (lambda x, weight, bias: torch.sin(x), None),
        (lambda *given: (last_axis(*given), None), None),
    ],
    ids=["RMSNorm", "sine", "no tensor"],
)
def test_another_normalisation_is_named_if_it_is_known_and_has_no_eps(
    call: Callable[..., Any], name: str | None
) -> None:
    found = meaning_of(call)
    assert (found.normalization, found.eps) == (name, None)


def test_several_axes_of_an_instance_are_found() -> None:
    def of_two(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.layer_norm(x, (4, 8), None, None, 1e-3)
        return y * weight.reshape(4, 8) + bias.reshape(4, 8)

    found = meaning_of(of_two, shape=(4, 8))
    assert (found.normalization, found.channels_first, found.eps) == ("LayerNorm", False, 1e-3)


def test_a_target_that_raises_for_every_x_is_refused_with_the_first_reason() -> None:
    def raising(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        raise RuntimeError(f"not of {x.dim()} axes")

    with pytest.raises(UnsupportedError, match="first: RuntimeError: not of 4 axes"):
        meaning_of(raising)


X = sample(3, 5, WIDTH)
IMAGE = sample(2, WIDTH, 5, 7)
WEIGHT, BIAS = sample(WIDTH, seed=1), sample(WIDTH, seed=2)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return functional.layer_norm(x, (WIDTH,), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("LayerNorm", layer_norm(X, WEIGHT, BIAS)),
        ("LayerNorm with 1 + weight", layer_norm(X, 1 + WEIGHT, BIAS)),
        ("LayerNorm", layer_norm(X, WEIGHT, BIAS) * ((WIDTH - 1) / WIDTH) ** 0.5),
        ("LayerNorm without its weight", layer_norm(X, None, BIAS)),
        ("LayerNorm without its bias", layer_norm(X, WEIGHT)),
        ("RMSNorm", rms_norm(X, WEIGHT) + BIAS),
        ("RMSNorm with 1 + weight", rms_norm(X, 1 + WEIGHT) + BIAS),
        ("Identity", X),
        ("scale and shift without normalisation", X * WEIGHT + BIAS),
        ("LayerNorm with one weight for all features", layer_norm(X) * WEIGHT[0] + BIAS[0]),
    ],
)
def test_each_known_function_of_the_last_axis_is_named(name: str, y: Tensor) -> None:
    assert recognise(y, X, -1, WEIGHT, BIAS) == name


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("BatchNorm", nn.BatchNorm2d(WIDTH, affine=False, dtype=torch.float64)),
        ("InstanceNorm", nn.InstanceNorm2d(WIDTH)),
        ("GroupNorm with 8 groups", nn.GroupNorm(8, WIDTH, affine=False)),
        (
            "LayerNorm over all axes but the first (GroupNorm with 1 group)",
            nn.GroupNorm(1, WIDTH, affine=False),
        ),
        ("LayerNorm", lambda x: layer_norm(x.movedim(1, -1)).movedim(-1, 1)),
        ("Identity", nn.Identity()),
    ],
)
def test_each_known_function_of_images_is_named(
    name: str, function: Callable[[Tensor], Tensor]
) -> None:
    assert recognise(function(IMAGE), IMAGE, 1, None, None) == name


@pytest.mark.parametrize(
    "y",
    [torch.sin(X), X.flatten(), X * float("nan"), torch.zeros_like(X)],
    ids=["sine", "flat", "nan", "zeros"],
)
def test_a_result_near_no_known_function_has_no_name(y: Tensor) -> None:
    assert recognise(y, X, -1, None, None) is None


def test_statistics_of_a_sample_differ_along_every_axis() -> None:
    for axis in range(X.dim()):
        others = [other for other in range(X.dim()) if other != axis]
        for statistic in (X.mean(others), X.var(others)):
            assert statistic.unique().numel() == X.shape[axis]


# --- eps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.5, 1e-3, 1e-5, 1e-6, 1e-12, 3e-7, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eps_is_measured(eps: float, dtype: torch.dtype) -> None:
    def call(x: Tensor) -> Tensor:
        given = (tensor.to(dtype) for tensor in (x, WEIGHT, BIAS))
        x, weight, bias = given
        return functional.layer_norm(x, (WIDTH,), weight, bias, eps).double()

    assert measured_eps(call, (3, WIDTH), -1, WEIGHT, BIAS) == eps


def test_eps_is_measured_beside_a_variance_of_n_minus_1() -> None:
    def call(x: Tensor) -> Tensor:
        deviation = x - x.mean(-1, keepdim=True)
        return deviation / torch.sqrt(x.var(-1, keepdim=True) + 1e-6)

    assert measured_eps(call, (3, WIDTH), -1, None, None) == 1e-6


def test_a_known_value_near_the_measured_one_is_preferred() -> None:
    eps = 1.25e-6
    found = measured_eps(
        lambda x: functional.layer_norm(x.float(), (WIDTH,), eps=eps).double(),
        (3, WIDTH),
        -1,
        None,
        None,
        known=(1e-5, eps),
    )
    assert found == eps


def test_no_eps_is_measured_of_another_function() -> None:
    assert measured_eps(lambda x: -x, (3, WIDTH), -1, None, None) is None
