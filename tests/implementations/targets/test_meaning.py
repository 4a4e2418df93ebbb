"""The experiment finds what a target computes, whatever shapes and dtypes it accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from implementations import UnsupportedError
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning

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
