"""What several threads lose of one's result is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from harness.verify.checks.contract_checks import is_right_on_several_threads
from harness.verify.mutants import WRONG
from harness.verify.trial import first_case
from implementations import Implementation, native

CASE = first_case("implementation", "float32", "cpu")


def implementation(function: Any, **claims: Any) -> Implementation:
    return Implementation(name="implementation", function=function, source="", **claims)


def mutant(name: str, **claims: Any) -> Implementation:
    return implementation(next(each for each in WRONG if each.name == name).function, **claims)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["rows_of_other_threads_unwritten", "sums_of_other_threads_lost"])
def test_what_other_threads_lose_is_found(name: str, dtype: str) -> None:
    said = is_right_on_several_threads(mutant(name), first_case("implementation", dtype, "cpu"))
    assert said == "dbias is right on one thread and wrong on 4"


def test_a_forward_that_loses_rows_is_found() -> None:
    forward = mutant("rows_of_other_threads_unwritten", forward_only=True)
    said = is_right_on_several_threads(forward, CASE)
    assert said == "y is right on one thread and wrong on 4"


def test_what_is_lost_now_and_then_is_found() -> None:
    """A race: the third call on several threads goes wrong."""
    calls = 0

    def racing(x: torch.Tensor, shape: Any, *others: Any) -> torch.Tensor:
        nonlocal calls
        calls += torch.get_num_threads() > 1
        y = functional.layer_norm(x, tuple(shape), *others)
        return y * (y > 0) if calls == 3 else y

    said = is_right_on_several_threads(implementation(racing, forward_only=True), CASE)
    assert said == "y is right on one thread and wrong on 4"


def test_what_is_wrong_on_one_thread_already_is_no_matter_of_threads() -> None:
    assert is_right_on_several_threads(mutant("unbiased_variance"), CASE) is None
    assert (
        is_right_on_several_threads(native, first_case("implementation", "bfloat16", "cpu")) is None
    )


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()

    def failing(*arguments: Any) -> torch.Tensor:
        if torch.get_num_threads() > 1:
            raise ValueError("no threads")
        return functional.layer_norm(arguments[0], tuple(arguments[1]), *arguments[2:])

    with pytest.raises(Exception, match="no threads"):
        is_right_on_several_threads(implementation(failing), CASE)
    assert torch.get_num_threads() == before


def test_threads_of_the_cpu_are_no_matter_of_a_gpu() -> None:
    assert is_right_on_several_threads(implementation(None), replace(CASE, device="cuda")) is None
