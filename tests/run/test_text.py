"""What stands below the table of a finished run."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from results_factory import make_errors, make_latency

from harness.records import Case, MeasurementWarning, Record, Status, WarningKind
from harness.run.next_step import next_step
from harness.run.text import (
    case_lines,
    note_lines,
    problems_of,
    status_counts,
    totals_line,
    warning_lines,
)

CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
WARNING = MeasurementWarning(kind=WarningKind.NOISY, advice="close other programs")
RESULTS = Path("results/mine.parquet")


def ended(status: Status, reason: str = "", name: str = "one_pass", seed: int = 0) -> Record:
    case = replace(CASE, implementation=name, seed=seed)
    return replace(OK, case=case, status=status, reason=reason)


# --- which cases are named -----------------------------------------------------------------------


def test_cases_to_act_upon_are_wrong_ones_before_those_that_failed() -> None:
    records = [ended(each, "why") for each in Status]
    found = [each.status for each in problems_of(records)]
    assert found == [Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR]


def test_a_status_that_the_run_is_to_fail_on_is_to_be_acted_upon() -> None:
    records = [ended(each, "why") for each in Status]
    found = [each.status for each in problems_of(records, ("out_of_guarantee", "wrong"))]
    assert found[-1] is Status.OUT_OF_GUARANTEE
    assert found.count(Status.WRONG) == 1


def test_every_case_that_is_not_ok_is_named_once() -> None:
    records = [ended(each, "why", f"of_{each}") for each in Status]
    for fail_on in ((), ("unsupported",)):
        lines = [
            *note_lines(records, fail_on), *case_lines(problems_of(records, fail_on)),
        ]  # fmt: skip
        named = [line.split("/")[0].strip() for line in lines if line.startswith("  ")]
        assert sorted(named) == sorted(f"of_{each}" for each in Status if each is not Status.OK)


def test_a_case_is_named_with_its_reason_below_its_status() -> None:
    record = ended(Status.WRONG, "y has shape [2, 6], expected [/bold]")
    assert list(case_lines([record])) == ["wrong (1 case):", f"  {CASE.id}: {record.reason}"]


def test_cases_of_one_implementation_with_one_reason_share_a_line() -> None:
    records = [ended(Status.ERROR, "ValueError: no", seed=each) for each in range(3)]
    other = ended(Status.ERROR, "ValueError: no", "native")
    assert list(case_lines([*records, other])) == [
        "error (4 cases):",
        f"  {CASE.id} and 2 more cases: ValueError: no",
        f"  {other.case.id}: ValueError: no",
    ]


def test_a_wrong_case_has_a_line_of_its_own() -> None:
    records = [ended(Status.WRONG, "9 ulp off", seed=each) for each in range(3)]
    _, *lines = case_lines(records)
    assert lines == [f"  {each.case.id}: 9 ulp off" for each in records]


def test_of_many_cases_each_implementation_has_its_first_named() -> None:
    records = [ended(Status.WRONG, f"{each} ulp off", seed=each) for each in range(5)]
    last = ended(Status.WRONG, "9 ulp off", "native")
    assert list(case_lines([*records, last], 2)) == [
        "wrong (6 cases):",
        f"  {CASE.id}: 0 ulp off",
        f"  {last.case.id}: 9 ulp off",
        "  and 4 more cases (one_pass 4): --verbose or the page lists all",
    ]
    assert len(list(case_lines([*records, last]))) == 7


# --- measurement warnings, statuses, time --------------------------------------------------------


def test_a_measurement_warning_is_printed_with_its_advice_once_a_kind() -> None:
    noisy = replace(OK, warnings=(WARNING, WARNING))
    other = replace(noisy, case=replace(CASE, seed=1))
    (line,) = warning_lines([OK, noisy, other])
    assert line == (
        f"measurement warning: noisy (2 cases), such as {CASE.id}: close other programs"
    )
    assert warning_lines([OK]) == []


def test_cases_are_counted_by_status_the_most_frequent_first() -> None:
    statuses = [Status.ERROR, Status.OK, Status.OK, Status.WRONG, Status.OK, Status.WRONG]
    found = status_counts([ended(each) for each in statuses])
    assert list(found.items()) == [("ok", 3), ("wrong", 2), ("error", 1)]
    assert status_counts([]) == {}


def test_the_outcome_says_how_many_cases_in_which_status_and_how_long() -> None:
    records = [OK, replace(OK, warnings=(WARNING,)), ended(Status.WRONG)]
    assert totals_line(records, 62.3, 0.0614) == (
        "3 cases in 62.3 s: 2 ok, 1 wrong; 1 case with a measurement warning; "
        "overhead of the benchmark 6% of the time"
    )


def test_the_overhead_is_left_out_where_it_is_the_start_of_the_program_or_unknown() -> None:
    assert totals_line([OK], 3.1, 1.0) == "1 case in 3.1 s: 1 ok"
    assert totals_line([OK], 62.3, None) == "1 case in 62.3 s: 1 ok"


def test_cases_that_an_earlier_run_measured_are_not_said_to_be_measured_now() -> None:
    line = totals_line([OK, OK], 3.1, None, earlier=1)
    assert line == "2 cases (1 of them measured earlier) in 3.1 s: 2 ok"


# --- what to do next -----------------------------------------------------------------------------


def timed(name: str) -> Record:
    case = replace(CASE, implementation=name)
    return replace(OK, case=case, errors=make_errors(case), latency=make_latency(case))


def test_next_is_a_look_at_the_first_problem_that_has_a_command() -> None:
    problems = [ended(Status.UNSUPPORTED), ended(Status.CRASHED, "SIGABRT", "mine.py:f")]
    step = next_step([*problems, timed("native"), timed("one_pass")], problems, RESULTS,
                     has_page=False)  # fmt: skip
    assert step is not None
    assert shlex.split(step.command)[:4] == ["layernorm-bench", "run", "-i", "mine.py:f"]


@pytest.mark.parametrize(
    ("names", "has_page", "command"),
    [
        (("native", "one_pass"), False, "choose"),
        (("native", "one_pass"), True, "choose"),
        (("native",), False, "report"),
        (("native",), True, None),
        ((), False, None),
    ],
)
def test_next_without_a_problem_is_a_use_of_the_results(
    names: tuple[str, ...], has_page: bool, command: str | None
) -> None:
    step = next_step([timed(each) for each in names], [], RESULTS, has_page=has_page)
    expected = None if command is None else f"layernorm-bench {command} {RESULTS}"
    assert (step.command if step else None) == expected
