"""The lines below the table of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from figures_factory import make_errors
from golden import assert_golden
from results_factory import make_run

from harness.records import Case, MeasurementWarning, Record, Status, WarningKind
from harness.run.session import SessionOutcome
from harness.run.text import (
    case_lines,
    outcome_lines,
    problems_of,
    totals_line,
    warning_lines,
)
from harness.store import Results

CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
WARNING = MeasurementWarning(kind=WarningKind.NOISY, advice="close other programs")
EVERY_STATUS = [
    replace(OK, case=replace(CASE, implementation=f"of_{status}"), status=status, reason="why")
    for status in Status
]


def ended(status: Status, reason: str = "", name: str = "one_pass", seed: int = 0) -> Record:
    case = replace(CASE, implementation=name, seed=seed)
    return replace(OK, case=case, status=status, reason=reason)


def ended_run(
    records: Sequence[Record], wall_s: float = 62.3, overhead_ratio: float | None = 0.0614
) -> SessionOutcome:
    return SessionOutcome(
        results=Results(records=tuple(records), runs=(), environments={}),
        path=Path("results/mine.parquet"),
        left=0,
        run=make_run(wall_s=wall_s, overhead_ratio=overhead_ratio),
    )


def names_in(lines: list[str]) -> list[str]:
    return [line.split("/")[0].strip() for line in lines if line.startswith("  ")]


@pytest.mark.parametrize("verbose", [False, True])
def test_the_lines_below_the_table(verbose: bool) -> None:
    noisy = replace(OK, warnings=(WARNING,), errors=make_errors(CASE))
    records = [
        *[replace(noisy, case=replace(CASE, seed=seed)) for seed in range(30)],
        *[ended(Status.UNSUPPORTED, f"no {seed}", "native", seed) for seed in range(5)],
        *[ended(Status.ERROR, "ValueError: no", "raises", seed) for seed in range(3)],
        *[ended(Status.WRONG, f"y is {seed} ulp off", "mine", seed) for seed in range(12)],
        ended(Status.WRONG, "y has shape [2, 6], expected [/bold]", "other"),
    ]
    outcome = replace(ended_run(records), earlier=4)
    page = Path("reports/mine.html")
    lines = outcome_lines(outcome, page, ("wrong",), verbose=verbose)
    name = "outcome_verbose.txt" if verbose else "outcome.txt"
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / name)


# --- which cases are named -----------------------------------------------------------------------


def test_problems_are_wrong_cases_then_failures_then_those_asked_for() -> None:
    expected = [Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR]
    assert [record.status for record in problems_of(EVERY_STATUS)] == expected
    asked = problems_of(EVERY_STATUS, ("out_of_guarantee", "wrong"))
    assert [record.status for record in asked] == [*expected, Status.OUT_OF_GUARANTEE]


@pytest.mark.parametrize("fail_on", [(), ("unsupported",)])
def test_every_case_that_is_not_ok_is_named_once(fail_on: tuple[str, ...]) -> None:
    lines = [*outcome_lines(ended_run(EVERY_STATUS), Path("page.html"), fail_on, verbose=False)]
    named = [name for name in names_in(lines) if name.startswith("of_")]
    assert sorted(named) == sorted(f"of_{status}" for status in Status if status != "ok")


def test_cases_of_one_implementation_with_one_reason_share_a_line_unless_wrong() -> None:
    errors = [ended(Status.ERROR, "ValueError: no", seed=seed) for seed in range(3)]
    other = ended(Status.ERROR, "ValueError: no", "native")
    assert names_in([*case_lines([*errors, other])]) == ["one_pass", "native"]
    wrong = [replace(record, status=Status.WRONG) for record in errors]
    assert names_in([*case_lines(wrong)]) == ["one_pass"] * 3


# --- measurement warnings, statuses, time --------------------------------------------------------


def test_a_kind_of_measurement_warning_has_one_line() -> None:
    noisy = replace(OK, warnings=(WARNING, WARNING))
    other = replace(noisy, case=replace(CASE, seed=1))
    (line,) = warning_lines([OK, noisy, other])
    assert "noisy (2 cases)" in line
    assert line.endswith(WARNING.advice)
    assert warning_lines([OK]) == []


@pytest.mark.parametrize(
    ("wall_s", "ratio", "is_shown"), [(62.3, 0.061, True), (3.1, 1.0, False), (62.3, None, False)]
)
def test_the_overhead_of_a_short_run_is_not_printed(
    wall_s: float, ratio: float | None, is_shown: bool
) -> None:
    assert ("overhead" in totals_line(ended_run([OK], wall_s, ratio))) == is_shown
