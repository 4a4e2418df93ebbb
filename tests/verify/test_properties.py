"""What is kept bit by bit is reported as kept, and as broken where it is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.records import Affine
from harness.verify.properties import PROPERTIES, properties_of
from harness.verify.trial import first_case
from implementations import Implementation, native, two_pass

CASE = first_case("implementation", "float32", "cpu")
NAMES = [each.__name__ for each in PROPERTIES]


def right(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return functional.layer_norm(
        x.contiguous(), tuple(normalized_shape), weight, bias, eps
    ).contiguous()


def implementation(function: Callable[..., Any]) -> Implementation:
    return Implementation(name="implementation", function=function, source="")


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
def test_a_plain_function_keeps_all(dtype: str) -> None:
    found = properties_of(implementation(right), first_case("implementation", dtype, "cpu"))
    assert found == dict.fromkeys(NAMES, True)


def test_the_kernel_is_deterministic_and_keeps_signs() -> None:
    found = properties_of(native, CASE)
    assert found["deterministic"] is True
    assert found["exact_under_negation"] is True
    assert found["batch_invariant"] is True


@pytest.mark.parametrize("name", NAMES)
def test_what_breaks_one_is_told_so(name: str) -> None:
    assert properties_of(implementation(BROKEN[name]), CASE)[name] is False


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"deterministic"}))
def test_what_breaks_one_keeps_the_others(name: str) -> None:
    found = properties_of(implementation(BROKEN[name]), CASE)
    assert [each for each, holds in found.items() if holds is not True] == [name]


@pytest.mark.parametrize("result", [lambda y: y * float("nan"), lambda y: (y, y)])
def test_what_cannot_be_compared_does_not_hold(result: Callable[[Tensor], Any]) -> None:
    found = properties_of(implementation(lambda *arguments: result(right(*arguments))), CASE)
    assert not found["deterministic"]
    assert not found["batch_invariant"]


def test_what_raises_is_not_known() -> None:
    def no_axes(x: Tensor, *others: Any) -> Tensor:
        if x.dim() > 2:
            raise RuntimeError("two axes only")
        return right(x, *others)

    found = properties_of(implementation(no_axes), CASE)
    assert found["contiguous_like_x"] is None
    assert found["deterministic"] is True


def test_what_raises_everywhere_is_known_of_nothing() -> None:
    def raising(*arguments: Any) -> Tensor:
        raise RuntimeError("never")

    assert properties_of(implementation(raising), CASE) == dict.fromkeys(NAMES)


def test_negation_is_asked_without_bias() -> None:
    seen: list[tuple[bool, bool]] = []

    def watching(x: Tensor, shape: Sequence[int], *others: Any) -> Tensor:
        seen.append((others[0] is not None, others[1] is not None))
        return right(x, shape, *others)

    assert CASE.affine is Affine.BOTH
    properties_of(implementation(watching), CASE)
    assert (True, False) in seen


def test_the_threads_of_the_process_are_as_before() -> None:
    before = torch.get_num_threads()
    properties_of(two_pass, CASE)

    def raising(*arguments: Any) -> Tensor:
        if torch.get_num_threads() == 2:
            raise RuntimeError("one thread only")
        return right(*arguments)

    assert properties_of(implementation(raising), CASE)["thread_invariant"] is None
    assert torch.get_num_threads() == before
