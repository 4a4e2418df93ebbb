"""How long a case will take is told from the largest before, without what that had to compile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import Case, Status
from harness.verify import tally as module
from harness.verify.tally import Tally
from harness.verify.trial import Trial
from implementations import Implementation, find

SMALL = Case(implementation="native", shape=(64, 64))
LARGE = replace(SMALL, shape=(6400, 640))  # a thousand times as many elements


def trial(case: Case, guest_s: float) -> Trial:
    return Trial(case=case, status=Status.OK, guest_s=guest_s)


def test_time_grows_with_the_elements() -> None:
    tally = Tally()
    assert tally.predicted_s(LARGE) == 0.0
    tally.time(trial(SMALL, 1e-3))
    assert tally.predicted_s(LARGE) == pytest.approx(1.0)
    assert tally.predicted_s(SMALL) == 0.0


def test_what_a_first_run_had_to_compile_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Case] = []

    def try_case(implementation: Implementation, case: Case) -> Trial:
        tried.append(case)
        return trial(case, 1e-3)

    monkeypatch.setattr(module, "try_case", try_case)
    tally = Tally()
    tally.time_again(find("native"))  # nothing to repeat
    tally.time(trial(SMALL, 2.0))
    for _ in range(3):
        tally.time_again(find("native"))
    assert tally.predicted_s(LARGE) == pytest.approx(1.0)
    assert tried == [SMALL]
