"""Two runs side by side: what is in one only, what holds for all, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_runs import (
    ELSEWHERE,
    HERE,
    STEADY,
    compared,
    confirming,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
)

from harness.records import Status
from harness.regression.changes import ChangeKind
from harness.regression.compare import (
    DuplicateCaseError,
    NotComparableError,
    NotMeasuredError,
)

ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))


# --- the cases -----------------------------------------------------------------------------------


def test_a_case_that_is_in_one_run_only_is_new_or_gone_and_fails_nothing() -> None:
    before = results_of(make_record(ONE), make_record(TWO))
    found = compared(before, results_of(make_record(TWO), make_record(THREE)))
    assert {each.case: each.kind for each in found.changes} == {
        ONE: ChangeKind.GONE,
        TWO: ChangeKind.UNCHANGED,
        THREE: ChangeKind.NEW,
    }
    assert not found.failed
    assert "not of one sweep: 1 case of the baseline gone, 1 case of the run new" in found.notes


def test_a_new_case_that_did_not_end_well_is_told() -> None:
    after = results_of(make_record(ONE), make_record(TWO, status=Status.WRONG, reason="9 ulp off"))
    found = compared(make_record(ONE), after)
    assert found.changes[0].reason == "in the run only, wrong there: 9 ulp off"
    assert any(each.startswith("of the new cases 1 did not end well") for each in found.notes)


def test_the_worst_comes_first_and_of_two_alike_the_larger() -> None:
    before = results_of(*(make_record(each, STEADY) for each in (ONE, TWO, THREE)))
    after = results_of(
        make_record(ONE, (1.5,)), make_record(TWO, (3.0,)), failed(THREE, Status.CRASHED)
    )
    found = compared(before, after, confirm=lambda cases: {ONE.id: [1.5] * 5, TWO.id: [3.0] * 5})
    assert [each.case for each in found.changes] == [THREE, TWO, ONE]
    assert found.failed


def test_a_case_is_found_again_by_its_id_whatever_its_place() -> None:
    before = results_of(make_record(ONE), make_record(TWO))
    found = compared(before, results_of(make_record(TWO), make_record(ONE)))
    assert found.counts == {ChangeKind.UNCHANGED: 2}


def test_a_run_equals_itself_and_is_told_to_be_the_same() -> None:
    run = results_of(make_record(ONE, STEADY))
    found = compared(run, run)
    assert found.counts == {ChangeKind.UNCHANGED: 1}
    assert "both hold the same measurements, which are always equal to themselves" in found.notes


# --- notes ---------------------------------------------------------------------------------------


def test_another_version_of_torch_is_named_and_no_latency_is_compared() -> None:
    newer = replace(HERE, packages=(("torch", "2.14.0"), ("numpy", "2.4.6")))
    before, after = make_record(ONE, STEADY), make_record(ONE, (2.0,), environment=newer)
    head = replace(results_of(after), environments={newer.fingerprint: newer})
    found = compared(results_of(before), head, confirm=confirming(*[2.0] * 5))
    assert found.counts == {ChangeKind.NOT_COMPARABLE: 1}
    (note,) = found.notes
    assert "torch 2.13.0, numpy 2.4.6 before, torch 2.14.0, numpy 2.4.6 now" in note
    assert "latency of 1 case is not compared" in note


def test_a_machine_that_no_file_describes_is_another_one() -> None:
    after = replace(results_of(make_record(ONE, environment=ELSEWHERE)), environments={})
    (note,) = compared(make_record(ONE), after).notes
    assert note.startswith(
        "another machine or other software (one of the files does not say which)"
    )


def test_a_baseline_of_few_processes_is_told_how_to_become_one_of_many() -> None:
    found = compared(make_record(ONE, STEADY[:1]), make_record(ONE, (1.0,)))
    assert found.counts == {ChangeKind.INCONCLUSIVE: 1}
    assert any("--record-baseline" in each for each in found.notes)


def test_noisy_cases_are_counted() -> None:
    before = make_record(ONE, latency=make_latency(STEADY, converged=False))
    found = compared(before, make_record(ONE, (1.0,)))
    assert found.notes == ("latency of 1 case is too noisy for any but a large change to show",)


def test_cold_times_are_told_not_to_be_compared() -> None:
    cold = make_record(ONE, cold=make_latency())
    assert compared(cold, cold).notes[-1] == "cold latencies are not compared"


# --- what is refused -----------------------------------------------------------------------------


def test_an_empty_baseline_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="old: holds no case at all"):
        compared(results_of(), make_record())


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="new: holds no case at all"):
        compared(make_record(), results_of())


def test_a_baseline_full_of_failures_is_refused() -> None:
    before = results_of(failed(ONE), failed(TWO, Status.CRASHED))
    with pytest.raises(NotMeasuredError, match=r"old: no case in it .* \(1 error, 1 crashed\)"):
        compared(before, make_record(ONE))


def test_a_run_full_of_failures_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="new: no case in it was measured"):
        compared(make_record(ONE), failed(ONE))


def test_runs_of_two_sweeps_are_refused() -> None:
    with pytest.raises(NotComparableError, match="0 cases in common"):
        compared(make_record(ONE), make_record(TWO))


def test_runs_on_two_kinds_of_device_are_refused() -> None:
    with pytest.raises(NotComparableError, match="one kind of device"):
        compared(make_record(ONE), make_record(replace(ONE, device="cuda")))


def test_runs_with_no_case_measured_in_both_are_refused() -> None:
    before = results_of(make_record(ONE), failed(TWO))
    with pytest.raises(NotComparableError, match="2 cases in common, none measured in both"):
        compared(before, results_of(failed(ONE), make_record(TWO)))


def test_runs_with_nothing_that_another_machine_would_not_change_are_refused() -> None:
    before = make_record(ONE, STEADY, status=Status.OUT_OF_GUARANTEE, memory=None)
    with pytest.raises(NotComparableError, match="nothing that old and new have in common"):
        compared(before, replace(before, environment=ELSEWHERE.fingerprint))


def test_a_case_held_twice_is_refused() -> None:
    twice = results_of(make_record(ONE), make_record(ONE))
    with pytest.raises(DuplicateCaseError, match="old: holds 1 case more than once"):
        compared(twice, make_record(ONE))
    with pytest.raises(DuplicateCaseError, match="new: holds 1 case more than once"):
        compared(make_record(ONE), twice)


def test_the_codes_tell_unmeasured_from_incomparable() -> None:
    codes = [each.exit_code for each in (NotMeasuredError, NotComparableError, DuplicateCaseError)]
    assert codes == [3, 4, 2]


# --- runs that were cut short --------------------------------------------------------------------


def test_a_finished_run_is_finished() -> None:
    assert results_of(make_record(ONE)).why_unfinished is None


def test_a_run_without_an_end_was_cut_short() -> None:
    assert results_of(make_record(ONE), wall_s=None).why_unfinished is not None


def test_a_run_with_cases_left_was_cut_short() -> None:
    found = results_of(make_record(ONE), planned=9).why_unfinished
    assert found == "1 of its 9 cases are there"
