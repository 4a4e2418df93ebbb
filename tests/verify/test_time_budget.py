"""The time of a case is predicted from earlier cases, by rows and by elements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import Case, Status
from harness.run.attempt import Judged
from harness.verify import verification
from harness.verify.verification import TimeBudget

SMALL = Case(implementation="native", shape=(64, 64))
LARGE = replace(SMALL, shape=(6400, 640))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock, for a test to set."""
    now = [0.0]
    monkeypatch.setattr(verification, "monotonic", lambda: now[0])
    return now


def trial(case: Case, implementation_s: float) -> Judged:
    return Judged(case=case, status=Status.OK, implementation_s=implementation_s)


def test_nothing_is_predicted_before_the_first_case() -> None:
    assert TimeBudget().predicted_s(LARGE) == 0.0


def test_a_prediction_is_never_below_what_rows_and_elements_cost() -> None:
    of_rows, of_elements = 1e-3, 1e-6  # as in an interpreter
    budget = TimeBudget()
    for case in (SMALL, LARGE):
        elements = case.rows * case.hidden
        true_s = of_rows * case.rows + of_elements * elements
        budget.add(trial(case, true_s))
        assert budget.predicted_s(LARGE) >= of_rows * LARGE.rows
    assert budget.predicted_s(LARGE) < 2 * (of_rows * 6400 + of_elements * 6400 * 640)


def test_compilation_in_the_first_call_is_forgotten_after_the_next() -> None:
    budget = TimeBudget()
    budget.add(trial(SMALL, 20.0))
    assert budget.is_too_slow(LARGE)
    budget.add(trial(SMALL, 1e-6))
    assert not budget.is_too_slow(LARGE)


def test_an_empty_case_predicts_nothing() -> None:
    budget = TimeBudget()
    budget.add(trial(replace(SMALL, shape=(0, 64)), 1.0))
    assert budget.predicted_s(LARGE) == 0.0


def test_a_case_of_more_than_half_a_minute_is_too_slow() -> None:
    budget = TimeBudget()
    budget.add(trial(SMALL, 20.0))
    assert not budget.is_too_slow(replace(SMALL, shape=(32, 64)))
    assert budget.is_too_slow(replace(SMALL, shape=(128, 64)))


def test_without_a_budget_there_is_no_time_limit(clock: list[float]) -> None:
    budget = TimeBudget()
    clock[0] = 1e9
    assert budget.left_s == float("inf")


def test_a_case_of_more_than_is_left_is_too_slow(clock: list[float]) -> None:
    budget = TimeBudget(budget_s=10.0)
    budget.add(trial(SMALL, 1.0))
    assert not budget.is_too_slow(SMALL)
    clock[0] = 9.5
    assert budget.left_s == 0.5
    assert budget.is_too_slow(SMALL)
