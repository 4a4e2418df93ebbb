"""One implementation for a workload, and a choice per shape."""

from math import inf

import pytest
from factories.choice_records import (
    LARGE,
    OTHER_MACHINE,
    SMALL,
    call,
    failed,
    ran,
    workload_choice,
    workload_choices,
)

from harness.records import Record, Status
from harness.records.refusal import NotComparableError, Refusal
from harness.selection import Decider
from harness.selection.workload import WorkloadChoice


def both(name: str, small: float, large: float, **axes: object) -> list[Record]:
    """Records of two shapes, with the time of each over that of native."""
    return [ran(name, small, shape=SMALL, **axes), ran(name, large, shape=LARGE, **axes)]


NATIVE = both("native", 1.0, 1.0)
CALLS = [call(SMALL), call(LARGE)]


def best_of(choice: WorkloadChoice) -> str | None:
    return None if choice.best is None else choice.best.label


def test_counts_decide_between_one_for_small_and_one_for_large() -> None:
    records = [*NATIVE, *both("large", 3.0, 0.5)]
    assert best_of(workload_choice([call(SMALL, 1000), call(LARGE, 1)], *records)) == "native"
    assert best_of(workload_choice([call(SMALL, 1), call(LARGE, 1000)], *records)) == "large"


@pytest.mark.parametrize(
    "large",
    [
        [ran("quick", 0.5, shape=LARGE, status=Status.WRONG)],
        [ran("quick", 585.0, interval=(0.0, inf), shape=LARGE)],
        [],
    ],
    ids=["wrong", "timed in one epoch", "not measured"],
)
def test_a_candidate_ineligible_for_one_call_is_not_chosen_for_all(large: list[Record]) -> None:
    choice = workload_choice(CALLS, *NATIVE, ran("quick", 0.1, shape=SMALL), *large)
    assert best_of(choice) == "native"


def test_if_no_candidate_serves_all_a_choice_per_shape_may() -> None:
    quick = [ran("quick", 0.5, shape=SMALL), failed("quick", Status.CRASHED, shape=LARGE)]
    native = [failed("native", Status.CRASHED, shape=SMALL), ran("native", 1.0, shape=LARGE)]
    choice = workload_choice(CALLS, *quick, *native)
    assert best_of(choice) is None
    assert choice.per_shape_s is not None


@pytest.mark.parametrize(
    ("decider", "records"),
    [
        (Decider.ACCURACY, both("other", 0.99, 0.99, error_ulp=5.0)),
        (Decider.ESTIMATE, both("other", 2.0, 2.0, interval=(0.82, 4.9), error_ulp=0.5)),
    ],
)
def test_totals_are_ranked_as_times_of_one_scenario_are(
    decider: Decider, records: list[Record]
) -> None:
    choice = workload_choice(CALLS, *records, *NATIVE)
    assert (best_of(choice), choice.ranking.decider) == ("native", decider)


# --- a choice per shape ---------------------------------------------------------------------------


def test_a_choice_per_shape_takes_the_time_of_the_best_of_each() -> None:
    records = [*NATIVE, *both("large", 3.0, 0.5)]
    choice = workload_choice([call(SMALL, 1000), call(LARGE, 1)], *records)
    costs = [own.best.cost.value for _, own in choice.calls if own.best and own.best.cost]
    assert choice.per_shape_s is not None
    assert choice.per_shape_s.value == pytest.approx(1000 * costs[0] + costs[1])


# --- which calls the run holds --------------------------------------------------------------------


@pytest.mark.parametrize("absent", [call((5, 7), 10), call(SMALL, 10, device="cuda")])
def test_a_call_that_the_run_does_not_hold_is_missing(absent: object) -> None:
    choice = workload_choice([call(SMALL, 30), absent], *NATIVE)
    assert choice.covered == (30, 40)
    assert choice.missing == (absent,)


def test_a_workload_without_a_matching_case_in_the_run_is_refused() -> None:
    with pytest.raises(NotComparableError, match="5x7"):
        workload_choices([call((5, 7))], *NATIVE)


def test_each_device_and_machine_has_its_own_choice() -> None:
    calls = [call(SMALL)]
    cuda = ran("native", 1.0, shape=SMALL, device="cuda")
    assert [found.device for found in workload_choices(calls, *NATIVE, cuda)] == ["cpu", "cuda"]
    there = ran("native", 1.0, shape=SMALL, environment=OTHER_MACHINE.fingerprint)
    assert len(workload_choices(calls, *NATIVE, there)) == 2


def test_a_call_of_one_device_belongs_to_that_device() -> None:
    cuda = ran("native", 1.0, shape=SMALL, device="cuda")
    calls = [call(SMALL, 3, device="cpu"), call(SMALL, 4, device="cuda")]
    for_workload = workload_choices(calls, *NATIVE, cuda)
    assert [(found.device, found.covered) for found in for_workload] == [
        ("cpu", (3, 3)),
        ("cuda", (4, 4)),
    ]


def test_a_call_that_matches_two_scenarios_is_refused_with_what_tells_them_apart() -> None:
    twice = [*NATIVE, ran("native", 1.0, shape=SMALL, threads=4)]
    with pytest.raises(Refusal, match="threads = 1 or 4"):
        workload_choices([call(SMALL)], *twice)
    assert workload_choice([call(SMALL, threads=4)], *twice).covered == (1, 1)
