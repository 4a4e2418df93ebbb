"""Workloads: one implementation for all calls, a choice per shape, and the calls that are held.

tests/cli/golden/refused.txt has what is no workload, and calls of two scenarios.
"""

from dataclasses import replace

import pytest
from factories.choice_records import (
    LARGE,
    SMALL,
    both,
    call,
    choices_among,
    ran,
    workload_choice,
)

from harness.cases import expand, load_preset
from harness.records import Record, Status
from harness.selection import Call, Decider, choose_for_workload, find_workload, workload_names


@pytest.mark.parametrize("name", workload_names())
def test_a_run_of_the_preset_models_holds_every_call(name: str) -> None:
    workload = find_workload(name)
    sweep = load_preset("models").with_axes({"implementations": ("native",)})
    layouts = {"layout": ("contiguous", "transposed")}
    planned = expand(sweep, implementations={}, names=layouts, devices={"cpu": None})
    shapes = {call.shape for call in workload.calls}
    cases = [row.case for row in planned if row.case.shape in shapes]
    records = [replace(ran("native", 1.0), case=case) for case in cases]
    (choice,) = choose_for_workload(workload, choices_among(*records))
    assert choice.missing == ()
    assert len(choice.calls) == len(workload.calls)


# --- one implementation for all calls -------------------------------------------------------------


NATIVE = both("native", 1.0, 1.0)
ON_LARGE = both("large", 3.0, 0.5)


@pytest.mark.parametrize(
    ("best", "decider", "counts", "records"),
    [
        ("native", Decider.TIME, (1000, 1), ON_LARGE),
        ("large", Decider.TIME, (1, 1000), ON_LARGE),
        # ineligible for one call: wrong, not measured
        *(
            ("native", Decider.ONLY, (1, 1), [ran("quick", 0.1, shape=SMALL), *large])
            for large in (
                [ran("quick", 0.5, shape=LARGE, status=Status.WRONG)],
                [],
            )
        ),
        # totals are ranked as times of one scenario are
        ("native", Decider.ACCURACY, (1, 1), both("other", 0.99, 0.99, error_ulp=5.0)),
    ],
)
def test_one_candidate_has_to_serve_all_calls(
    best: str, decider: Decider, counts: tuple[int, int], records: list[Record]
) -> None:
    calls = [call(shape, count) for shape, count in zip((SMALL, LARGE), counts, strict=True)]
    choice = workload_choice(calls, *NATIVE, *records)
    assert (choice.best.label, choice.ranking.decider) == (best, decider)


def test_a_choice_per_shape_takes_the_time_of_the_best_of_each() -> None:
    choice = workload_choice([call(SMALL, 1000), call(LARGE, 1)], *NATIVE, *ON_LARGE)
    costs = [own.best.cost.value for _, own in choice.calls if own.best and own.best.cost]
    assert choice.per_shape_s.value == pytest.approx(1000 * costs[0] + costs[1])


# --- which calls the run holds --------------------------------------------------------------------


@pytest.mark.parametrize("absent", [call((5, 7), 10), call(SMALL, 10, device="cuda")])
def test_a_call_that_the_run_does_not_hold_is_missing(absent: Call) -> None:
    choice = workload_choice([call(SMALL, 30), absent], *NATIVE)
    assert (choice.covered, choice.missing) == ((30, 40), (absent,))
