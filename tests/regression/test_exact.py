"""What is compared exactly: verdicts, errors, memory."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import pytest
from compared_runs import ELSEWHERE, change, failed, make_case, make_record

from harness.records import Direction, Memory, Mode, OutputErrors, Record, Status
from harness.regression.changes import ChangeKind, Metric
from harness.regression.exact import _ERROR_FIGURES, _MEMORY_FIGURES


def with_error(record: Record, output: int = 0, **figures: Any) -> Record:
    """Return the record with figures of one output replaced."""
    assert record.errors is not None
    outputs = list(record.errors.outputs)
    outputs[output] = replace(outputs[output], **figures)
    return replace(record, errors=replace(record.errors, outputs=tuple(outputs)))


def with_memory(record: Record, **figures: Any) -> Record:
    assert record.memory is not None
    return replace(record, memory=replace(record.memory, **figures))


def figure(record: Record, name: str) -> Any:
    assert record.errors is not None
    return getattr(record.errors.outputs[0], name)


def elsewhere(record: Record) -> Record:
    return replace(record, environment=ELSEWHERE.fingerprint)


BACKWARD = make_record(make_case(direction=Direction.BACKWARD))
ON_GPU = make_record(make_case(device="cuda"))


# --- verdicts ------------------------------------------------------------------------------------


def test_what_is_the_same_is_the_same() -> None:
    found = change(make_record(), make_record())
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason == "errors are equal; memory is equal"
    assert found.metric is None


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.OK])
def test_a_case_that_was_right_and_is_not_any_more_broke(status: Status) -> None:
    found = change(make_record(), replace(make_record(), status=status, reason="it says why"))
    assert found.kind is ChangeKind.REGRESSED
    assert found.metric is Metric.STATUS
    assert found.reason.startswith(f"ok before, {status.replace('_', ' ')} now: it says why")


def test_a_case_that_is_right_at_last_is_better() -> None:
    found = change(make_record(status=Status.WRONG), make_record())
    assert found.kind is ChangeKind.IMPROVED
    assert found.reason == "wrong before, ok now"


def test_to_decline_a_case_is_better_than_to_get_it_wrong() -> None:
    found = change(make_record(status=Status.WRONG), failed(status=Status.UNSUPPORTED))
    assert found.kind is ChangeKind.IMPROVED


def test_one_failure_instead_of_another_changes_nothing() -> None:
    found = change(failed(status=Status.ERROR), failed(status=Status.TIMEOUT, reason="60 s"))
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason == "error before, timeout now: 60 s"


def test_a_case_declined_in_both_is_the_same() -> None:
    found = change(failed(status=Status.UNSUPPORTED), failed(status=Status.UNSUPPORTED))
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason == "unsupported in both: why"


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.TIMEOUT])
def test_what_another_machine_cannot_do_may_be_its_own_doing(status: Status) -> None:
    found = change(make_record(), elsewhere(failed(status=status)))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.reason.endswith("that may be this machine's doing")


def test_a_crash_is_a_crash_on_any_machine() -> None:
    assert (
        change(make_record(), elsewhere(failed(status=Status.CRASHED))).kind is ChangeKind.REGRESSED
    )


# --- errors of one machine -----------------------------------------------------------------------


def test_every_figure_of_an_output_is_compared_but_the_one_that_is_chance() -> None:
    chance = {"raw_max_ulp"}
    assert {*_ERROR_FIGURES} == {each.name for each in fields(OutputErrors)} - chance - {
        "output",
        "elements",
    }


@pytest.mark.parametrize("name", _ERROR_FIGURES)
def test_an_error_that_grew_by_anything_broke_the_case(name: str) -> None:
    before = with_error(make_record(), **{name: 1})
    found = change(before, with_error(before, **{name: 1 + 1e-6}))
    assert found.kind is ChangeKind.REGRESSED
    assert found.metric is Metric.ERROR
    assert "1 before, 1.000001 now" in found.reason


def test_an_error_of_a_gradient_counts_as_that_of_y_does() -> None:
    found = change(BACKWARD, with_error(BACKWARD, 2, scaled_max_ulp=9.0))
    assert found.kind is ChangeKind.REGRESSED
    assert found.reason.startswith("dweight: largest scaled ulp ")


def test_an_error_that_is_no_number_is_not_better() -> None:
    found = change(make_record(), with_error(make_record(), scaled_max_ulp=nan))
    assert found.kind is ChangeKind.REGRESSED
    assert "nan now" in found.reason


def test_an_error_that_was_no_number_and_still_is_none_does_not_pass() -> None:
    before = with_error(make_record(), scaled_max_ulp=nan)
    assert change(before, before).kind is ChangeKind.INCONCLUSIVE
    assert change(before, elsewhere(before)).kind is ChangeKind.INCONCLUSIVE
    worse = with_error(before, scaled_p99_ulp=1e9)
    assert change(before, worse).kind is ChangeKind.REGRESSED


def test_an_infinite_error_equals_another() -> None:
    before = with_error(make_record(), scaled_max_ulp=inf, scaled_mean_ulp=None)
    assert change(before, before).kind is ChangeKind.UNCHANGED


def test_a_smaller_error_is_better_and_no_failure() -> None:
    found = change(make_record(), with_error(make_record(), scaled_max_ulp=0.5))
    assert found.kind is ChangeKind.IMPROVED
    assert not found.kind.is_failure


def test_a_larger_error_beside_smaller_ones_broke_the_case() -> None:
    after = with_error(make_record(), scaled_max_ulp=0.5, scaled_mean_ulp=0.4, max_abs=0.0)
    found = change(make_record(), after)
    assert found.kind is ChangeKind.REGRESSED
    assert found.reason.startswith("y: mean scaled ulp 0.")
    assert "(2 better)" in found.reason


def test_a_gradient_that_is_not_returned_any_more_broke_the_case() -> None:
    assert BACKWARD.errors is not None
    left = replace(BACKWARD.errors, outputs=BACKWARD.errors.outputs[:-1])
    found = change(BACKWARD, replace(BACKWARD, errors=left))
    assert found.kind is ChangeKind.REGRESSED
    assert found.reason.startswith("dbias was returned before")


def test_errors_that_are_not_measured_any_more_do_not_pass_unnoticed() -> None:
    found = change(make_record(), make_record(errors=None))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.reason == "errors were measured before, and not now"


# --- errors of another machine -------------------------------------------------------------------


def test_on_another_machine_an_error_may_move_by_what_the_order_of_sums_does() -> None:
    before = with_error(make_record(), bound_ratio=0.0135, scaled_max_ulp=2e4)
    after = elsewhere(with_error(before, bound_ratio=0.0329, scaled_max_ulp=5e4))
    found = change(before, after)
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason.startswith("errors within what another instruction set may change")


def test_on_another_machine_an_error_beyond_the_luck_of_an_order_broke_the_case() -> None:
    before = with_error(make_record(), bound_ratio=0.2)
    found = change(before, elsewhere(with_error(before, bound_ratio=0.41)))
    assert found.kind is ChangeKind.REGRESSED
    assert "0.2 of its bound before, 0.41 now" in found.reason


def test_on_another_machine_a_bound_ratio_that_is_no_number_broke_the_case() -> None:
    after = elsewhere(with_error(make_record(), bound_ratio=nan))
    assert change(make_record(), after).kind is ChangeKind.REGRESSED


def test_a_weaker_declaration_does_not_hide_a_larger_error_on_another_machine() -> None:
    before = with_error(make_record(), bound_ratio=0.2, scaled_max_ulp=0.6)
    after = elsewhere(with_error(before, bound_ratio=0.1, scaled_max_ulp=4.0))
    assert after.errors is not None
    found = change(before, replace(after, errors=replace(after.errors, algorithm="one_pass")))
    assert found.kind is ChangeKind.REGRESSED
    assert "declared two_pass" in found.reason
    assert "one_pass" in found.reason


def test_where_nothing_is_promised_another_machine_may_lose_anything() -> None:
    before = make_record(status=Status.OUT_OF_GUARANTEE)
    after = elsewhere(with_error(before, scaled_max_ulp=1e6, unexpected_nonfinite=3))
    assert change(before, after).kind is ChangeKind.UNCHANGED


def test_where_nothing_is_promised_the_same_machine_still_gives_the_same() -> None:
    before = make_record(status=Status.OUT_OF_GUARANTEE)
    assert change(before, with_error(before, unexpected_nonfinite=3)).kind is ChangeKind.REGRESSED


def test_on_a_gpu_sums_may_have_another_order_in_the_next_run() -> None:
    found = change(ON_GPU, with_error(ON_GPU, scaled_max_ulp=figure(ON_GPU, "scaled_max_ulp") + 1))
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason.startswith("errors within what sums on a GPU may change")


# --- memory --------------------------------------------------------------------------------------


def test_every_figure_of_the_memory_is_compared_but_the_unavoidable() -> None:
    assert {*_MEMORY_FIGURES} == {each.name for each in fields(Memory)} - {"minimum_bytes"}


@pytest.mark.parametrize("name", _MEMORY_FIGURES)
@pytest.mark.parametrize("where", [lambda each: each, elsewhere], ids=["here", "elsewhere"])
def test_one_byte_more_broke_the_case_on_any_machine(name: str, where: Any) -> None:
    before = with_memory(BACKWARD, **{name: 1000})
    found = change(before, where(with_memory(before, **{name: 1001})))
    assert found.kind is ChangeKind.REGRESSED
    assert found.metric is _MEMORY_FIGURES[name][0]
    assert "1000 before, 1001 now" in found.reason


def test_fewer_bytes_are_better() -> None:
    found = change(make_record(), with_memory(make_record(), peak_extra_bytes=1))
    assert found.kind is ChangeKind.IMPROVED
    assert found.metric is Metric.PEAK_MEMORY


def test_memory_that_is_not_counted_any_more_does_not_pass_unnoticed() -> None:
    found = change(make_record(), make_record(memory=None))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert found.reason.endswith("memory was counted before, and not now")


def test_saved_bytes_that_are_not_counted_any_more_do_not_pass_unnoticed() -> None:
    assert change(BACKWARD, with_memory(BACKWARD, saved_bytes=None)).kind is ChangeKind.INCONCLUSIVE


def test_memory_that_was_not_counted_before_is_not_compared() -> None:
    found = change(make_record(memory=None), make_record())
    assert found.kind is ChangeKind.UNCHANGED
    assert found.reason == "errors are equal"


def test_another_gpu_may_need_other_buffers() -> None:
    found = change(ON_GPU, elsewhere(with_memory(ON_GPU, peak_extra_bytes=1 << 40)))
    assert found.kind is ChangeKind.INCONCLUSIVE
    assert "kernels may size buffers by their GPU" in found.reason


def test_all_that_changed_is_told_the_worst_first() -> None:
    after = with_memory(with_error(make_record(), scaled_max_ulp=0.5), peak_extra_bytes=1 << 40)
    found = change(make_record(), after)
    assert found.metric is Metric.PEAK_MEMORY
    assert found.reason.startswith("bytes at the peak: ")
    assert "; y: largest scaled ulp " in found.reason


# --- operators -----------------------------------------------------------------------------------


def with_operators(count: int | None, mode: Mode = Mode.EAGER) -> Record:
    return replace(make_record(make_case(mode=mode)), operators=count)


@pytest.mark.parametrize("where", [lambda each: each, elsewhere], ids=["here", "elsewhere"])
def test_one_operator_more_broke_the_case_on_any_machine(where: Any) -> None:
    found = change(with_operators(9), where(with_operators(10)))
    assert found.kind is ChangeKind.REGRESSED
    assert found.metric is Metric.OPERATORS
    assert "operators of a call: 9 before, 10 now" in found.reason


def test_fewer_operators_are_better() -> None:
    assert change(with_operators(9), with_operators(8)).kind is ChangeKind.IMPROVED


def test_operators_that_are_not_counted_any_more_do_not_pass_unnoticed() -> None:
    assert change(with_operators(9), with_operators(None)).kind is ChangeKind.INCONCLUSIVE


def test_operators_that_were_not_counted_before_are_not_compared() -> None:
    assert change(with_operators(None), with_operators(9)).kind is ChangeKind.UNCHANGED


def test_a_compiler_elsewhere_may_fuse_otherwise() -> None:
    after = elsewhere(with_operators(10, Mode.COMPILED))
    assert change(with_operators(9, Mode.COMPILED), after).kind is ChangeKind.INCONCLUSIVE
