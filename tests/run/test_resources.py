"""Equal inputs are drawn once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import BACKWARD, CASE, ERRORS, ONE_EPOCH, Known, good
from torch import Tensor

from harness.cases.inputs import make_inputs
from harness.records import Allocation, Case, Direction, Measurement, Status
from harness.run import attempt
from harness.run.case import CaseRunner


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the cases whose inputs were drawn."""
    ids: list[str] = []
    draw = make_inputs

    def counting(case: Case) -> Any:
        ids.append(case.id)
        return draw(case)

    monkeypatch.setattr(attempt, "make_inputs", counting)
    return ids


@pytest.mark.parametrize(
    ("first", "change"),
    [
        (CASE, {"implementation": "two_pass"}),
        (CASE, {"threads": 2}),
        (BACKWARD, {"direction": Direction.FORWARD_BACKWARD}),
    ],
    ids=["implementation", "threads", "direction"],
)
def test_cases_with_equal_inputs_share_them(
    runner: CaseRunner, drawn: list[str], first: Case, change: dict[str, Any]
) -> None:
    runner.run(first, ERRORS, ONE_EPOCH)
    runner.run(replace(first, **change), ERRORS, ONE_EPOCH)
    torch.set_num_threads(1)
    assert drawn == [first.id]


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


@pytest.mark.parametrize(
    ("fails_in_call", "raises", "measurement", "status"),
    [
        (1, False, Measurement.ERRORS, Status.WRONG),
        (1, True, Measurement.ERRORS, Status.ERROR),
        (2, False, Measurement.MEMORY, Status.OK),  # a copy of the inputs was modified
    ],
    ids=["at once", "and raises", "later"],
)
def test_an_implementation_that_modifies_its_inputs_does_not_affect_the_next_case(
    runner: CaseRunner,
    implementation: Known,
    fails_in_call: int,
    raises: bool,
    measurement: Measurement,
    status: Status,
) -> None:
    calls: list[None] = []

    def modifies(x: Tensor, *rest: Any) -> Tensor:
        y = good(x, *rest)
        calls.append(None)
        if len(calls) >= fails_in_call:
            x.fill_(1e9)
            if raises:
                raise ValueError("after the change")
        return y

    alone = runner.run(CASE, ERRORS, ONE_EPOCH)
    assert runner.run(implementation(modifies), (measurement,), ONE_EPOCH).status is status
    assert runner.run(CASE, ERRORS, ONE_EPOCH).errors == alone.errors
