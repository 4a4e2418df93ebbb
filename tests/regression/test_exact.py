"""The metrics that are compared exactly: status, errors, memory, operators."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import pytest
from factories.compared_runs import (
    change,
    elsewhere,
    failed,
    make_case,
    make_record,
    with_error,
    with_memory,
)

from harness.records import Direction, Memory, Mode, OutputErrors, Record, Status
from harness.records.metrics import OUTPUT_METRICS, metrics_in
from harness.regression import ChangeKind

ERRORS = [metric.field for metric in OUTPUT_METRICS]
MEMORY = {
    metric.field.partition(".")[2]: metric.title
    for metric in metrics_in("exact")
    if metric.part == "memory"
}


def figure(record: Record, name: str) -> Any:
    assert record.errors is not None
    return getattr(record.errors.outputs[0], name)


BACKWARD = make_record(make_case(direction=Direction.BACKWARD))
UNSAVED = with_memory(BACKWARD, saved_bytes=None)
ON_GPU = make_record(make_case(device="cuda"))


# --- status --------------------------------------------------------------------------------------


def test_equal_records_are_unchanged() -> None:
    found = change(make_record(), make_record())
    assert (found.kind, found.metric) == (ChangeKind.UNCHANGED, None)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_case_that_is_no_longer_right_regressed(status: Status) -> None:
    found = change(make_record(), replace(make_record(), status=status, reason="it says why"))
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, "status")
    assert "it says why" in found.reason


def test_an_inaccurate_case_is_better_than_a_wrong_one_and_worse_than_a_right_one() -> None:
    inaccurate, wrong = (make_record(status=one) for one in (Status.INACCURATE, Status.WRONG))
    assert change(inaccurate, wrong).kind is ChangeKind.REGRESSED
    assert change(wrong, inaccurate).kind is ChangeKind.IMPROVED
    assert change(inaccurate, make_record()).kind is ChangeKind.IMPROVED
    assert change(inaccurate, failed(status=Status.UNSUPPORTED)).kind is ChangeKind.REGRESSED
    remark = "dx is 1.52 ulp off: rounded more than once"
    assert change(make_record(), make_record(reason=remark)).kind is ChangeKind.UNCHANGED


def test_a_wrong_case_improves_by_being_right_or_declined() -> None:
    wrong = make_record(status=Status.WRONG)
    assert change(wrong, make_record()).kind is ChangeKind.IMPROVED
    assert change(wrong, failed(status=Status.UNSUPPORTED)).kind is ChangeKind.IMPROVED


@pytest.mark.parametrize(
    ("before", "after"),
    [(Status.ERROR, Status.TIMEOUT), (Status.UNSUPPORTED, Status.UNSUPPORTED)],
)
def test_one_failure_instead_of_another_changes_nothing(before: Status, after: Status) -> None:
    assert change(failed(status=before), failed(status=after)).kind is ChangeKind.UNCHANGED


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.TIMEOUT])
def test_a_failure_that_the_other_machine_may_cause_is_inconclusive(status: Status) -> None:
    after = failed(status=status)
    assert change(make_record(), elsewhere(after)).kind is ChangeKind.INCONCLUSIVE
    assert change(make_record(), after).kind is ChangeKind.REGRESSED
    crashed = elsewhere(failed(status=Status.CRASHED))
    assert change(make_record(), crashed).kind is ChangeKind.REGRESSED


# --- errors of one machine -----------------------------------------------------------------------


def test_every_figure_of_an_output_but_raw_max_ulp_is_compared() -> None:
    others = {"raw_max_ulp", "output", "elements"}
    assert {*ERRORS} == {field.name for field in fields(OutputErrors)} - others


@pytest.mark.parametrize("name", ERRORS)
def test_any_growth_of_an_error_is_a_regression_and_the_reverse_an_improvement(name: str) -> None:
    before = with_error(make_record(), **{name: 1})
    after = with_error(before, **{name: 1 + 1e-6})
    found = change(before, after)
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, "error")
    assert "1.000001" in found.reason
    found = change(after, before)
    assert (found.kind, found.metric) == (ChangeKind.IMPROVED, "error")


def test_a_larger_error_of_a_gradient_beside_smaller_ones_is_a_regression() -> None:
    smaller = with_error(BACKWARD, 0, scaled_max_ulp=0.0, max_abs=0.0)
    found = change(BACKWARD, with_error(smaller, 2, scaled_max_ulp=9.0, max_abs=0.0))
    assert found.kind is ChangeKind.REGRESSED
    assert "dweight" in found.reason


def test_an_error_that_becomes_nan_is_a_regression_and_one_that_stays_nan_inconclusive() -> None:
    before = with_error(make_record(), scaled_max_ulp=nan)
    assert change(make_record(), before).kind is ChangeKind.REGRESSED
    assert change(before, before).kind is ChangeKind.INCONCLUSIVE
    assert change(before, elsewhere(before)).kind is ChangeKind.INCONCLUSIVE
    worse = with_error(before, scaled_p99_ulp=1e9)
    assert change(before, worse).kind is ChangeKind.REGRESSED
    after = elsewhere(with_error(make_record(), bound_ratio=nan))
    assert change(make_record(), after).kind is ChangeKind.REGRESSED
    infinite = with_error(make_record(), scaled_max_ulp=inf, scaled_mean_ulp=None)
    assert change(infinite, infinite).kind is ChangeKind.UNCHANGED


def test_a_gradient_that_is_no_longer_returned_is_a_regression() -> None:
    assert BACKWARD.errors is not None
    left = replace(BACKWARD.errors, outputs=BACKWARD.errors.outputs[:-1])
    for after in (replace(BACKWARD, errors=left), elsewhere(replace(BACKWARD, errors=left))):
        found = change(BACKWARD, after)
        assert (found.kind, found.metric) == (ChangeKind.REGRESSED, "error")


# --- errors of another machine -------------------------------------------------------------------


def test_on_another_machine_an_error_may_change_with_the_order_of_sums() -> None:
    before = with_error(make_record(), bound_ratio=0.0135, scaled_max_ulp=2e4)
    after = elsewhere(with_error(before, bound_ratio=0.0329, scaled_max_ulp=5e4))
    assert change(before, after).kind is ChangeKind.UNCHANGED


def test_on_another_machine_an_error_beyond_another_order_of_sums_is_a_regression() -> None:
    before = with_error(make_record(), bound_ratio=0.2)
    found = change(before, elsewhere(with_error(before, bound_ratio=0.41)))
    assert found.kind is ChangeKind.REGRESSED
    assert "0.41" in found.reason


def test_a_weaker_declaration_does_not_hide_a_larger_error_on_another_machine() -> None:
    before = with_error(make_record(), bound_ratio=0.2, scaled_max_ulp=0.6)
    after = elsewhere(with_error(before, bound_ratio=0.1, scaled_max_ulp=4.0))
    assert after.errors is not None
    found = change(before, replace(after, errors=replace(after.errors, algorithm="one_pass")))
    assert found.kind is ChangeKind.REGRESSED
    assert "one_pass" in found.reason


def test_outside_the_guarantee_another_machine_may_have_any_error() -> None:
    before = make_record(status=Status.OUT_OF_GUARANTEE)
    after = elsewhere(with_error(before, scaled_max_ulp=1e6, bound_ratio=9.0))
    assert change(before, after).kind is ChangeKind.UNCHANGED


def test_outside_the_guarantee_the_same_machine_still_repeats_its_errors() -> None:
    before = make_record(status=Status.OUT_OF_GUARANTEE)
    assert change(before, with_error(before, unexpected_nonfinite=3)).kind is ChangeKind.REGRESSED


def test_on_a_gpu_sums_may_have_another_order_in_the_next_run() -> None:
    found = change(ON_GPU, with_error(ON_GPU, scaled_max_ulp=figure(ON_GPU, "scaled_max_ulp") + 1))
    assert found.kind is ChangeKind.UNCHANGED


# --- memory --------------------------------------------------------------------------------------


def test_every_figure_of_the_memory_but_the_minimum_is_compared() -> None:
    assert {*MEMORY} == {field.name for field in fields(Memory)} - {"minimum_bytes"}


@pytest.mark.parametrize("name", MEMORY)
@pytest.mark.parametrize("where", [lambda record: record, elsewhere], ids=["here", "elsewhere"])
def test_one_byte_more_is_a_regression_on_any_machine(name: str, where: Any) -> None:
    before = with_memory(BACKWARD, **{name: 1000})
    after = where(with_memory(before, **{name: 1001}))
    found = change(before, after)
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, MEMORY[name])
    assert "1001" in found.reason
    found = change(after, before)
    assert (found.kind, found.metric) == (ChangeKind.IMPROVED, MEMORY[name])


def test_another_gpu_may_need_other_buffers() -> None:
    found = change(ON_GPU, elsewhere(with_memory(ON_GPU, peak_extra_bytes=1 << 40)))
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, "peak memory")


def test_the_reason_names_everything_that_changed_the_worst_first() -> None:
    after = with_memory(with_error(make_record(), scaled_max_ulp=0.5), peak_extra_bytes=1 << 40)
    found = change(make_record(), after)
    assert found.metric == "peak memory"
    memory, error = found.reason.split("; ")
    assert str(1 << 40) in memory
    assert "0.5" in error


# --- operators -----------------------------------------------------------------------------------


def with_operators(count: int | None, mode: Mode = Mode.EAGER) -> Record:
    return replace(make_record(make_case(mode=mode)), operators=count)


@pytest.mark.parametrize("where", [lambda record: record, elsewhere], ids=["here", "elsewhere"])
def test_one_operator_more_is_a_regression_on_any_machine(where: Any) -> None:
    found = change(with_operators(9), where(with_operators(10)))
    assert (found.kind, found.metric) == (ChangeKind.REGRESSED, "operators")
    assert "9 before, 10 now" in found.reason
    assert change(with_operators(10), where(with_operators(9))).kind is ChangeKind.IMPROVED


def test_a_compiler_elsewhere_may_fuse_differently() -> None:
    after = elsewhere(with_operators(10, Mode.COMPILED))
    assert change(with_operators(9, Mode.COMPILED), after).kind is ChangeKind.INCONCLUSIVE


# --- what only one of the runs has ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "missing", "metric"),
    [
        (make_record(), {"errors": None}, "error"),
        (make_record(), {"memory": None}, "peak memory"),
        (
            BACKWARD,
            {"memory": with_memory(BACKWARD, saved_bytes=None).memory},
            "memory saved for the backward",
        ),
        (with_operators(9), {"operators": None}, "operators"),
    ],
    ids=["errors", "memory", "saved", "operators"],
)
def test_a_metric_that_is_no_longer_measured_is_inconclusive(
    record: Record, missing: dict[str, Any], metric: str
) -> None:
    bare = replace(record, **missing)
    found = change(record, bare)
    assert (found.kind, found.metric) == (ChangeKind.INCONCLUSIVE, metric)
    assert change(bare, record).kind is ChangeKind.UNCHANGED
