"""Results lost between threads of PyTorch or of Python are found."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, case_in, every_dtype, layer_norm, mutant, target
from torch import Tensor

from harness.cases.inputs import make_inputs
from harness.verify.checks import calls
from harness.verify.checks.surroundings import (
    is_correct_on_several_threads,
    is_safe_for_concurrent_callers,
)
from implementations import native


@every_dtype
@pytest.mark.parametrize("name", ["rows_of_other_threads_unwritten", "sums_of_other_threads_lost"])
def test_sums_that_other_threads_lose_are_found(name: str, dtype: str) -> None:
    assert "dbias" in str(is_correct_on_several_threads(mutant(name), case_in(dtype)))


def test_a_forward_that_loses_rows_is_found() -> None:
    forward = mutant("rows_of_other_threads_unwritten", forward_only=True)
    assert "a right y on one thread" in str(is_correct_on_several_threads(forward, CASE))


def test_a_race_that_shows_in_one_call_is_found() -> None:
    calls = 0

    def racing(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += torch.get_num_threads() > 1
        y = layer_norm(*arguments)
        return y * (y > 0) if calls == 3 else y

    assert is_correct_on_several_threads(target(racing, forward_only=True), CASE) is not None


def test_a_mistake_on_one_thread_is_not_one_of_several_threads() -> None:
    assert is_correct_on_several_threads(mutant("unbiased_variance"), CASE) is None
    assert is_correct_on_several_threads(native, case_in("bfloat16")) is None


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()

    def failing(*arguments: Any) -> Tensor:
        if torch.get_num_threads() > 1:
            raise ValueError("no threads")
        return layer_norm(*arguments)

    with pytest.raises(Exception, match="no threads"):
        is_correct_on_several_threads(target(failing), CASE)
    assert torch.get_num_threads() == before


def test_a_gpu_is_not_checked_for_threads_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "make_inputs", lambda case: make_inputs(replace(case, device="cpu")))
    assert is_correct_on_several_threads(target(layer_norm), replace(CASE, device="cuda")) is None


def test_a_result_that_depends_on_the_calling_thread_is_found() -> None:
    main = threading.current_thread()

    def of_one_thread(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        return y if threading.current_thread() is main else y + 1

    assert is_safe_for_concurrent_callers(target(of_one_thread), CASE) is not None
    on_a_gpu = target(of_one_thread, devices=frozenset({"cuda"}))
    assert is_safe_for_concurrent_callers(on_a_gpu, CASE) is None


def test_a_result_of_many_rows_that_depends_on_the_calling_thread_is_found() -> None:
    main = threading.current_thread()

    def of_many_rows(x: Tensor, *others: Any) -> Tensor:
        is_other = threading.current_thread() is not main
        return layer_norm(x, *others) + (is_other and len(x) > 1024)

    assert is_safe_for_concurrent_callers(target(of_many_rows), CASE) is not None
