"""A target that is right only where it is looked at is found; a right one is not.

That right targets pass every check is tested with the other contract checks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.verify_targets import CASE, case_in, every_dtype, layer_norm, target, then
from torch import Tensor

from harness.cases import make_inputs
from harness.records import Direction
from harness.run import call
from harness.run.call import ContractViolationError
from harness.verify.checks import honesty
from harness.verify.checks.honesty import (
    is_complete_when_it_returns,
    is_right_on_unknown_inputs,
    is_the_same_while_timed,
    normalises_normalised_rows,
)

SHAPE = (64, 256)
TIMED = 30
"""Calls before those that are compared."""


settling = threading.Event()
writers: list[threading.Thread] = []


def later(*arguments: Any) -> Tensor:
    """Return a y that a thread writes while the check waits."""
    y = torch.zeros_like(arguments[0])

    def write() -> None:
        settling.wait()
        y.copy_(layer_norm(*arguments))

    writers.append(threading.Thread(target=write))
    writers[-1].start()
    return y


def settle(_: float) -> None:
    settling.set()
    for thread in writers:
        thread.join()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (later, "y was still written after the call had returned"),
        (then(torch.empty_like), "y has elements that were never written"),
    ],
)
def test_an_incomplete_result_is_found(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor], said: str
) -> None:
    monkeypatch.setattr(call, "sleep", settle)
    with pytest.raises(ContractViolationError, match=said):
        is_complete_when_it_returns(target(function, forward_only=True), CASE)


def test_a_target_that_knows_the_usual_inputs_is_found() -> None:
    known = make_inputs(replace(CASE, shape=SHAPE)).x

    def knowing(x: Tensor, *others: Any) -> Tensor:
        y = layer_norm(x, *others)
        return y if torch.equal(x, known) else y * 1.01

    found = is_right_on_unknown_inputs(target(knowing, forward_only=True), CASE)
    assert str(found).startswith(
        "gives a right y for the usual inputs and a wrong one for a new seed"
    )


def test_a_target_that_is_wrong_for_all_inputs_is_not_found_here() -> None:
    wrong = target(then(lambda y: y * 1.01), forward_only=True)
    assert is_right_on_unknown_inputs(wrong, CASE) is None


def test_a_target_that_is_wrong_in_a_timed_call_is_found() -> None:
    count = itertools.count(1)

    def timed(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        return y * 1.01 if next(count) == TIMED + 1 else y

    found = is_the_same_while_timed(target(timed, forward_only=True), CASE)
    assert found == f"gives another y in a timed call, after {TIMED} calls"


def test_reuse_of_results_is_looked_for_in_training_steps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Direction] = []

    def reuse(timed: Any) -> str | None:
        tried.append(timed.case.direction)
        return "reuses" if len(tried) == 2 else None

    monkeypatch.setattr(honesty, "reuse", reuse)
    assert is_the_same_while_timed(target(layer_norm), CASE) == "reuses"
    assert tried == [Direction.FORWARD, Direction.FORWARD_BACKWARD]


@every_dtype
def test_a_target_that_returns_normalised_rows_as_they_are_is_found(dtype: str) -> None:
    def lazy(x: Tensor, *others: Any) -> Tensor:
        mean, variance = x.double().mean(-1), x.double().var(-1)
        is_near = bool((mean.abs() < 0.02).all() and ((variance - 1).abs() < 0.1).all())
        return x.clone() if is_near else layer_norm(x, *others)

    found = normalises_normalised_rows(target(lazy, forward_only=True), case_in(dtype))
    assert found == "gives a wrong y for rows whose mean is near 0 and whose variance is near 1"
