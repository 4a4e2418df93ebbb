"""How long a case will take is told from those before it, by rows and by elements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import Case, Status
from harness.verify import pace as module
from harness.verify.pace import Pace
from harness.verify.trial import Trial

SMALL = Case(implementation="native", shape=(64, 64))
LARGE = replace(SMALL, shape=(6400, 640))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock, for a test to set."""
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def trial(case: Case, implementation_s: float) -> Trial:
    return Trial(case=case, status=Status.OK, implementation_s=implementation_s)


def test_nothing_is_predicted_of_nothing() -> None:
    assert Pace().predicted_s(LARGE) == 0.0


def test_a_prediction_is_never_below_what_rows_and_elements_cost() -> None:
    of_rows, of_elements = 1e-3, 1e-6  # an interpreter's
    pace = Pace()
    for case in (SMALL, LARGE):
        elements = case.rows * case.hidden
        true_s = of_rows * case.rows + of_elements * elements
        pace.add(trial(case, true_s))
        assert pace.predicted_s(LARGE) >= of_rows * LARGE.rows
    assert pace.predicted_s(LARGE) < 2 * (of_rows * 6400 + of_elements * 6400 * 640)


def test_what_a_first_call_compiles_is_forgotten_after_the_next() -> None:
    pace = Pace()
    pace.add(trial(SMALL, 20.0))
    assert pace.is_too_slow(LARGE)
    pace.add(trial(SMALL, 1e-6))
    assert not pace.is_too_slow(LARGE)


def test_an_empty_case_says_nothing() -> None:
    pace = Pace()
    pace.add(trial(replace(SMALL, shape=(0, 64)), 1.0))
    assert pace.predicted_s(LARGE) == 0.0


def test_a_case_of_more_than_half_a_minute_is_too_slow() -> None:
    pace = Pace()
    pace.add(trial(SMALL, 20.0))
    assert not pace.is_too_slow(replace(SMALL, shape=(32, 64)))
    assert pace.is_too_slow(replace(SMALL, shape=(128, 64)))


def test_without_a_budget_there_is_no_end(clock: list[float]) -> None:
    pace = Pace()
    clock[0] = 1e9
    assert pace.left_s == float("inf")


def test_a_case_of_more_than_is_left_is_too_slow(clock: list[float]) -> None:
    pace = Pace(budget_s=10.0)
    pace.add(trial(SMALL, 1.0))
    assert not pace.is_too_slow(SMALL)
    clock[0] = 9.5
    assert pace.left_s == 0.5
    assert pace.is_too_slow(SMALL)
