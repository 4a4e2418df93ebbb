"""Each property is reported as held, and as broken by a target that breaks it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from verify_targets import CASE, case_in, layer_norm, target

from harness.records import Affine
from harness.verify.properties import PROPERTIES, properties_of
from implementations import two_pass

NAMES = [each.__name__ for each in PROPERTIES]


def right(x: Tensor, *others: Any) -> Tensor:
    return layer_norm(x.contiguous(), *others).contiguous()


_calls = itertools.count()


def noisy(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others) + next(_calls)


def by_rows(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others) * x.shape[:-1].numel()


def by_threads(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others) * torch.get_num_threads()


def by_layout(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others) + (not x.is_contiguous())


def transposed(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others).mT.contiguous().mT


def biased(x: Tensor, *others: Any) -> Tensor:
    return right(x, *others) + 1e-3


def fixed_eps(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
    return right(x, shape, *others[:2], 1e-2)


BROKEN = {
    "deterministic": noisy,
    "batch_invariant": by_rows,
    "thread_invariant": by_threads,
    "layout_invariant": by_layout,
    "contiguous_like_x": transposed,
    "exact_under_negation": biased,
    "exact_under_powers_of_two": fixed_eps,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_plain_function_has_every_property(dtype: str) -> None:
    found = properties_of(target(right), case_in(dtype))
    assert found == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_property_is_reported(name: str) -> None:
    assert properties_of(target(BROKEN[name]), CASE)[name] is False


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"deterministic"}))
def test_breaking_one_property_breaks_no_other(name: str) -> None:
    found = properties_of(target(BROKEN[name]), CASE)
    assert [each for each, holds in found.items() if holds is not True] == [name]


@pytest.mark.parametrize("result", [lambda y: y * float("nan"), lambda y: (y, y)])
def test_nan_and_non_tensors_have_no_property(result: Callable[[Tensor], Any]) -> None:
    found = properties_of(target(lambda *arguments: result(right(*arguments))), CASE)
    assert not found["deterministic"]
    assert not found["batch_invariant"]


def test_a_property_is_unknown_if_its_call_raises() -> None:
    def no_axes(x: Tensor, *others: Any) -> Tensor:
        if x.dim() > 2:
            raise RuntimeError("two axes only")
        return right(x, *others)

    found = properties_of(target(no_axes), CASE)
    assert found["contiguous_like_x"] is None
    assert found["deterministic"] is True


def test_every_property_is_unknown_if_every_call_raises() -> None:
    def raising(*arguments: Any) -> Tensor:
        raise RuntimeError("never")

    assert properties_of(target(raising), CASE) == dict.fromkeys(NAMES)


def test_negation_is_tried_without_bias() -> None:
    seen: list[tuple[bool, bool]] = []

    def watching(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        seen.append((others[0] is not None, others[1] is not None))
        return right(x, shape, *others)

    assert CASE.affine is Affine.BOTH
    properties_of(target(watching), CASE)
    assert (True, False) in seen


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    properties_of(two_pass, CASE)

    def raising(*arguments: Any) -> Tensor:
        if torch.get_num_threads() == 2:
            raise RuntimeError("one thread only")
        return right(*arguments)

    assert properties_of(target(raising), CASE)["thread_invariant"] is None
    assert torch.get_num_threads() == before
