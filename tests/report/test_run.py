"""The table of a finished run, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from factories.choice_records import ran, timed
from factories.figures_factory import make_errors, make_latency, make_memory
from factories.golden import assert_golden
from factories.results_factory import make_run

from harness.records import Case, MeasurementWarning, Record, Status, WarningKind
from harness.report.document import terminal_lines
from harness.report.run import (
    answer_lines,
    document_of_run,
    problems_of,
    run_tables,
)
from harness.run.session import SessionOutcome
from harness.store import Results

GOLDEN = Path(__file__).parent / "golden"
CASE = Case(implementation="one_pass", shape=(64, 768))
OK = Record(case=CASE, environment="here", status=Status.OK)
MEASURED = replace(
    OK, errors=make_errors(CASE), latency=make_latency(CASE), memory=make_memory(CASE)
)
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


def printed(*records: Record, every: bool = False, width: int = 100) -> str:
    return "\n".join(line for line, _ in terminal_lines([*run_tables(records, every=every)], width))


# --- the table -----------------------------------------------------------------------------------


def named(name: str, record: Record = OK) -> Record:
    return replace(record, case=replace(record.case, implementation=name))


def not_finite() -> Record:
    errors = make_errors(CASE)
    output = replace(errors.outputs[0], scaled_max_ulp=inf)
    return named("a[bold]/mine.py:norm", replace(OK, errors=replace(errors, outputs=(output,))))


def test_the_table_of_a_run() -> None:
    records = [
        MEASURED,
        named("native", OK),
        replace(named("two_pass", MEASURED), instructions=12345, status=Status.WRONG),
        not_finite(),
    ]
    texts = {f"{width} columns": printed(*records, width=width) for width in (40, 80, 100)}
    many = [*[OK] * 38, replace(OK, status=Status.WRONG), *[named("native")] * 2]
    texts["many cases"] = printed(*many)
    text = "\n\n".join(f"{title}:\n{table}" for title, table in texts.items())
    assert_golden(text, GOLDEN / "run_table.txt")


# --- below the table -----------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [False, True])
def test_what_is_printed_below_the_table(verbose: bool) -> None:
    noisy = replace(OK, warnings=(WARNING,), errors=make_errors(CASE))
    records = [
        *[replace(noisy, case=replace(CASE, seed=seed)) for seed in range(3)],
        *[ended(Status.UNSUPPORTED, "no gradient", name) for name in ("native", "welford")],
        *[ended(Status.ERROR, "ValueError: no", "raises", seed) for seed in range(3)],
        *[ended(Status.WRONG, f"y is {seed} ulp off", "mine", seed) for seed in range(4)],
        ended(Status.WRONG, "y has shape [2, 6], expected [/bold]", "other"),
    ]
    outcome = replace(ended_run(records), earlier=4)
    document = document_of_run(outcome, Path("mine.html"), ("wrong",), verbose=verbose)
    lines = [line for line, _ in terminal_lines(document, 80)]
    name = "run_verbose.txt" if verbose else "run.txt"
    assert_golden("\n".join(lines), GOLDEN / name)


ANSWERS: dict[str, Sequence[Record]] = {
    "several timed": [*timed("native", 1.0), *timed("quick", 0.5)],
    "one timed": timed("quick", 0.5),
    "native alone": timed("native", 1.0),
    "errors only": [ran("native"), ran("quick"), ran("mine", status=Status.WRONG)],
    "one that a case is not for": [
        ran("native"),
        ran("quick"),
        ended(Status.UNSUPPORTED, name="quick"),
    ],
}


def test_the_answer() -> None:
    lines = [
        line
        for title, records in ANSWERS.items()
        for line in (f"\n{title}", *answer_lines(ended_run(records)))
    ]
    assert_golden("\n".join(lines), GOLDEN / "run_answers.txt")


def test_problems_are_wrong_cases_then_failures_then_those_asked_for() -> None:
    expected = [Status.WRONG, Status.CRASHED, Status.TIMEOUT, Status.ERROR]
    assert [record.status for record in problems_of(EVERY_STATUS)] == expected
    asked = problems_of(EVERY_STATUS, ("out_of_guarantee", "wrong"))
    assert [record.status for record in asked] == [*expected, Status.OUT_OF_GUARANTEE]
