"""A result that depends on earlier calls is found, however late it changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, layer_norm, mutant, target, then
from torch import Tensor

from harness.verify.checks.surroundings import (
    repeated_calls_agree,
    sees_new_values_at_old_addresses,
)


def changing_after(
    calls: int, change: Callable[[Tensor], Tensor], function: Callable[..., Tensor] = layer_norm
) -> Callable[..., Tensor]:
    """Change every result after so many calls."""
    count = itertools.count()

    def changing(*arguments: Any) -> Tensor:
        y = function(*arguments)
        return y if next(count) < calls else change(y)

    return changing


@pytest.mark.parametrize(
    ("calls", "change", "fact"),
    [
        (1, torch.neg, "call 2 "),
        (40, torch.neg, "call 100 "),
        (40, lambda y: y * float("nan"), "call 100 "),
        (101, torch.neg, "calls with other arguments"),
    ],
)
def test_a_result_that_changes_after_some_calls_is_found(
    calls: int, change: Callable[[Tensor], Tensor], fact: str
) -> None:
    assert fact in str(repeated_calls_agree(target(changing_after(calls, change)), CASE))


def test_a_wrong_result_that_changes_is_found_too() -> None:
    wrong = changing_after(40, torch.neg, mutant("unbiased_variance").function)
    assert "call 100 " in str(repeated_calls_agree(target(wrong), CASE))


def test_one_result_for_all_arguments_is_found() -> None:
    known: dict[torch.Size, Tensor] = {}

    def cached(x: Tensor, *others: Any) -> Tensor:
        return known.setdefault(x.shape, layer_norm(x, *others)).clone()

    assert "other arguments" in str(repeated_calls_agree(target(cached), CASE))


def test_small_results_are_told_apart() -> None:
    assert repeated_calls_agree(target(then(lambda y: y * 1e-6)), CASE) is None


@pytest.mark.parametrize(("place", "name"), [(0, "x"), (2, "weight"), (3, "bias")])
def test_values_remembered_by_address_are_found(place: int, name: str) -> None:
    known: dict[int, Tensor] = {}
    held: list[Tensor] = []  # so that no address is reused

    def remembering(*arguments: Any) -> Tensor:
        given = list(arguments)
        held.append(given[place])
        remembered = known.setdefault(given[place].data_ptr(), given[place].clone())
        if remembered.shape == given[place].shape:
            given[place] = remembered
        return layer_norm(*given)

    text = sees_new_values_at_old_addresses(target(remembering), CASE)
    assert f"old values of {name} " in str(text)


def test_a_second_shape_that_raises_is_found() -> None:
    def one_shape(x: Tensor, *others: Any) -> Tensor:
        if x.shape[-1] == 48:
            raise RuntimeError("made for one shape")
        return layer_norm(x, *others)

    with pytest.raises(Exception, match="RuntimeError: made for one shape"):
        sees_new_values_at_old_addresses(target(one_shape), CASE)
