"""Inputs that cases share are drawn once, and no implementation changes them for the next case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good
from torch import Tensor

from harness.inputs import make_inputs
from harness.records import Allocation, Case, Direction, Measurement, Mode, Status
from harness.run import resources as module
from harness.run.case import CaseRunner


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the cases whose inputs were drawn."""
    ids: list[str] = []
    draw = make_inputs

    def counting(case: Case) -> Any:
        ids.append(case.id)
        return draw(case)

    monkeypatch.setattr(module, "make_inputs", counting)
    return ids


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": "two_pass"},
        {"threads": 2},
        {"mode": Mode.EAGER},
    ],
    ids=str,
)
def test_neighbours_share_their_inputs(
    runner: CaseRunner, drawn: list[str], change: dict[str, Any]
) -> None:
    runner.run(CASE, ERRORS, ONE_EPOCH)
    runner.run(replace(CASE, **change), ERRORS, ONE_EPOCH)
    torch.set_num_threads(1)
    assert drawn == [CASE.id]


def test_both_directions_with_a_gradient_share_their_inputs(
    runner: CaseRunner, drawn: list[str]
) -> None:
    runner.run(BACKWARD, ERRORS, ONE_EPOCH)
    runner.run(replace(CASE, direction=Direction.FORWARD_BACKWARD), ERRORS, ONE_EPOCH)
    assert drawn == [BACKWARD.id]


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 32)},
        {"dtype": "bfloat16"},
        {"param_dtype": "float64"},
        {"distribution": "constant"},
        {"layout": "transposed"},
        {"affine": "none"},
        {"seed": 1},
        {"eps": 1e-3},
        {"direction": Direction.BACKWARD},
        {"normalized_dims": 2},
    ],
    ids=str,
)
def test_a_case_with_other_inputs_draws_its_own(
    runner: CaseRunner, drawn: list[str], change: dict[str, Any]
) -> None:
    other = replace(CASE, **change)
    runner.run(CASE, ERRORS, ONE_EPOCH)
    record = runner.run(other, ERRORS, ONE_EPOCH)
    assert drawn == [CASE.id, other.id]
    assert record == replace(
        CaseRunner("here", Allocation.DEFAULT).run(other, ERRORS, ONE_EPOCH), cost=record.cost
    )


def test_inputs_for_the_check_after_the_timing_are_those_of_the_next_seed(
    runner: CaseRunner, drawn: list[str]
) -> None:
    one_row = replace(CASE, shape=(1, 32))  # it has no other to change places with
    next_seed = replace(one_row, seed=1)
    runner.run(one_row, (Measurement.LATENCY,), ONE_EPOCH)
    runner.run(next_seed, ERRORS, ONE_EPOCH)
    assert drawn == [one_row.id, next_seed.id]


def test_of_many_seeds_only_neighbours_are_kept(runner: CaseRunner) -> None:
    for seed in range(5):
        runner.run(replace(CASE, seed=seed), ERRORS, ONE_EPOCH)
    assert {each.seed for each in runner._resources._drawn} == {3, 4}


def test_an_implementation_that_spoils_its_inputs_does_not_spoil_them_for_the_next(
    runner: CaseRunner, implementation: Known, drawn: list[str]
) -> None:
    def spoils(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        x.fill_(1e9)
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    spoiled = runner.run(implementation(spoils), ERRORS, ONE_EPOCH)
    after = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert (spoiled.status, spoiled.reason) == (Status.WRONG, "modified one of its inputs")
    assert after.errors == alone.errors
    assert len(drawn) == 2


def test_an_implementation_that_spoils_its_inputs_and_then_raises_does_not_spoil_them_for_the_next(
    runner: CaseRunner, implementation: Known
) -> None:
    def spoils(x: Tensor, *_: Any) -> Tensor:
        x.fill_(1e9)
        raise ValueError("after the deed")

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert runner.run(implementation(spoils), ERRORS, ONE_EPOCH).status is Status.ERROR
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors


def test_an_implementation_that_spoils_its_inputs_only_later_does_not_spoil_them_for_the_next(
    runner: CaseRunner, implementation: Known
) -> None:
    calls: list[None] = []

    def spoils(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        calls.append(None)
        if len(calls) > 1:
            x.fill_(1e9)
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    runner.run(implementation(spoils), (Measurement.MEMORY,), ONE_EPOCH)
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors


def test_equal_cases_give_equal_errors_in_any_order(runner: CaseRunner) -> None:
    cases = [replace(CASE, implementation=each) for each in ("native", "one_pass", "two_pass")]
    there = {each.id: runner.run(each, ERRORS, ONE_EPOCH).errors for each in cases}
    back = {each.id: runner.run(each, ERRORS, ONE_EPOCH).errors for each in reversed(cases)}
    assert there == back
