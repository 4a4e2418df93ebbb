"""A result in the memory of an argument or of an earlier result is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, layer_norm, target
from torch import Tensor

from harness.verify.checks.memory import (
    y_shares_no_memory,
)
from implementations import Implementation


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        (lambda x, shape, weight, bias, eps: x.view_as(x), "x"),
        (lambda x, shape, weight, bias, eps: weight.expand_as(x), "weight"),
        (lambda x, shape, weight, bias, eps: bias.expand_as(x), "bias"),
    ],
    ids=["x", "weight", "bias"],
)
def test_a_result_in_an_arguments_memory_is_found(
    function: Callable[..., Tensor], owner: str
) -> None:
    assert f"memory of {owner}" in str(y_shares_no_memory(target(function), CASE))


def from_a_slab(step: int) -> Implementation:
    """A right LayerNorm, each result so many elements further on in one allocation."""
    slab, starts = torch.empty(1 << 12), itertools.count(0, step)

    def sliced(x: Tensor, *others: Any) -> Tensor:
        y = slab[next(starts) :][: x.numel()].view(x.shape)
        return y.copy_(layer_norm(x, *others))

    return target(sliced)


@pytest.mark.parametrize(
    ("step", "shares"), [(0, True), (1, True), (6 * 32 - 1, True), (6 * 32, False)]
)
def test_results_share_memory_if_they_overlap_in_one_allocation(step: int, shares: bool) -> None:
    assert (y_shares_no_memory(from_a_slab(step), CASE) is not None) is shares
