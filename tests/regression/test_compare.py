"""Comparing two runs: cases that one run lacks, notes, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories.compared_runs import (
    HERE,
    STEADY,
    compared,
    confirming,
    elsewhere,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
)

from harness.records import Record, Status
from harness.records.refusal import NotComparableError, NotMeasuredError, Refusal
from harness.regression import (
    ChangeKind,
)
from harness.store import Results

ONE, TWO, THREE = (make_case(rows=rows) for rows in (1, 2, 3))


# --- the cases -----------------------------------------------------------------------------------


def test_a_case_that_is_in_one_run_only_is_new_or_gone_and_fails_nothing() -> None:
    before = results_of(make_record(ONE), make_record(TWO))
    found = compared(before, results_of(make_record(TWO), make_record(THREE)))
    assert {change.case: change.kind for change in found.changes} == {
        ONE: ChangeKind.GONE,
        TWO: ChangeKind.UNCHANGED,
        THREE: ChangeKind.NEW,
    }
    assert not found.failed


def test_changes_are_ordered_by_kind_and_severity() -> None:
    before = results_of(*(make_record(case, STEADY) for case in (ONE, TWO, THREE)))
    after = results_of(
        make_record(ONE, (1.5,)), make_record(TWO, (3.0,)), failed(THREE, Status.CRASHED)
    )
    found = compared(before, after, confirm=lambda cases: {ONE.id: [1.5] * 5, TWO.id: [3.0] * 5})
    assert [change.case for change in found.changes] == [THREE, TWO, ONE]
    assert found.failed


def test_a_run_equals_itself() -> None:
    run = results_of(make_record(ONE, STEADY))
    assert compared(run, run).counts == {ChangeKind.UNCHANGED: 1}


# --- notes ---------------------------------------------------------------------------------------


def test_another_version_of_torch_is_named_and_no_latency_is_compared() -> None:
    newer = replace(HERE, packages=(("torch", "2.14.0"), ("numpy", "2.4.6")))
    before, after = make_record(ONE, STEADY), make_record(ONE, (2.0,), environment=newer)
    head = replace(results_of(after), environments={newer.fingerprint: newer})
    found = compared(results_of(before), head, confirm=confirming(*[2.0] * 5))
    assert found.counts == {ChangeKind.NOT_COMPARABLE: 1}
    (note,) = found.notes
    assert "torch 2.14.0" in note


def test_a_baseline_of_few_processes_is_noted_with_how_to_record_one_of_many() -> None:
    found = compared(make_record(ONE, STEADY[:1]), make_record(ONE, (1.0,)))
    assert found.counts == {ChangeKind.INCONCLUSIVE: 1}
    assert any("--record-baseline" in note for note in found.notes)


def test_a_baseline_of_another_timer_needs_no_more_processes() -> None:
    other = make_latency((9.0,), timer="pytest-benchmark:perf_counter")
    found = compared(make_record(ONE, (1.0,), memory=None), make_record(ONE, latency=other))
    assert not [note for note in found.notes if "--record-baseline" in note]


# --- what is refused -----------------------------------------------------------------------------


FAILURES = results_of(failed(ONE), failed(TWO, Status.CRASHED))
TWICE = results_of(make_record(ONE), make_record(ONE))
LOST = make_record(ONE, STEADY, status=Status.OUT_OF_GUARANTEE, memory=None)


@pytest.mark.parametrize(
    ("before", "after", "error", "fact"),
    [
        (results_of(), make_record(), NotMeasuredError, "old: "),
        (make_record(), results_of(), NotMeasuredError, "new: "),
        (FAILURES, make_record(ONE), NotMeasuredError, r"old: .*1 error, 1 crashed"),
        (make_record(ONE), FAILURES, NotMeasuredError, r"new: .*1 error, 1 crashed"),
        (make_record(ONE), make_record(TWO), NotComparableError, "no case in common"),
        (
            make_record(ONE),
            make_record(replace(ONE, device="cuda")),
            NotComparableError,
            "one kind of device",
        ),
        (
            results_of(make_record(ONE), failed(TWO)),
            results_of(failed(ONE), make_record(TWO)),
            NotComparableError,
            "no case in common",
        ),
        (LOST, elsewhere(LOST), NotComparableError, ONE.id),
        (TWICE, make_record(ONE), Refusal, f"old: .*{ONE.id}"),
        (make_record(ONE), TWICE, Refusal, f"new: .*{ONE.id}"),
    ],
    ids=[
        *("empty baseline", "empty run", "baseline of failures", "run of failures"),
        *("two sweeps", "two devices", "none measured in both", "nothing but latency elsewhere"),
        *("duplicate in the baseline", "duplicate in the run"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    before: Results | Record, after: Results | Record, error: type[Refusal], fact: str
) -> None:
    with pytest.raises(error, match=fact):
        compared(before, after)


def test_the_exit_codes_of_refusals() -> None:
    errors = (NotMeasuredError, NotComparableError, Refusal)
    assert [error.exit_code for error in errors] == [3, 4, 2]
