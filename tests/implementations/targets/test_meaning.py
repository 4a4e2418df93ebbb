"""What a target computes is found on inputs of several shapes, orders of axes and dtypes."""

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


def test_an_eps_that_the_caller_chooses_is_a_default_alone() -> None:
    found = meaning_of(last_axis, takes_eps=True)
    assert (found.takes_eps, found.eps, found.default_eps) == (True, None, 1e-6)


def test_an_eps_that_the_user_says_is_not_measured() -> None:
    assert meaning_of(last_axis, CallOptions(eps=0.25)).eps == 0.25


def test_channels_first_is_found() -> None:
    found = meaning_of(channels_first)
    assert (found.normalization, found.channels_first) == ("LayerNorm", True)


def test_channels_first_is_found_without_parameters() -> None:
    found = meaning_of(
        lambda x, weight, bias: channels_first(x, None, None), has_weight=False, has_bias=False
    )
    assert (found.normalization, found.channels_first) == ("LayerNorm", True)


def test_channels_first_is_tried_alone_where_the_user_says_so() -> None:
    ranks: list[torch.Size] = []

    def watching(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ranks.append(x.shape)
        return channels_first(x, weight, bias)

    assert meaning_of(watching, CallOptions(channels_first=True)).channels_first
    assert all(shape[1] == WIDTH for shape in ranks[:1])


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_one_rank_is_enough(rank: int) -> None:
    def of_one_rank(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        assert x.dim() == rank
        return last_axis(x, weight, bias)

    found = meaning_of(of_one_rank)
    assert (found.normalization, len(found.leading)) == ("LayerNorm", rank - 1)


def test_one_dtype_is_enough() -> None:
    def of_halves(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        assert x.dtype is torch.bfloat16
        return last_axis(x, weight, bias)

    assert meaning_of(of_halves).normalization == "LayerNorm"


def test_several_axes_of_an_instance_are_found() -> None:
    def of_two(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = functional.layer_norm(x, (4, 8), None, None, 1e-3)
        return y * weight.reshape(4, 8) + bias.reshape(4, 8)

    found = meaning_of(of_two, shape=(4, 8))
    assert (found.normalization, found.channels_first, found.eps) == ("LayerNorm", False, 1e-3)


def test_another_normalisation_is_named_and_has_no_eps() -> None:
    found = meaning_of(
        lambda x, weight, bias: x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * weight + bias
    )
    assert (found.normalization, found.eps) == ("RMSNorm", None)


def test_what_is_near_nothing_has_no_name() -> None:
    assert meaning_of(lambda x, weight, bias: torch.sin(x)).normalization is None


def test_what_returns_no_tensor_has_no_name() -> None:
    assert meaning_of(lambda *given: (last_axis(*given), None)).normalization is None


def test_what_raises_for_every_x_is_declined_with_the_first_reason() -> None:
    def raising(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        raise RuntimeError(f"not of {x.dim()} axes")

    with pytest.raises(UnsupportedError, match="first: RuntimeError: not of 4 axes"):
        meaning_of(raising)
