"""Which cases were not measured, and which have a warning."""

from __future__ import annotations

import re
from dataclasses import replace

from results_factory import make_record, make_run
from small_results import CASE, FAILED, SMALL, shown

from harness.records import MeasurementWarning, Status, WarningKind
from harness.report.frame import gather
from harness.report.sections.provenance import not_measured, warnings
from harness.store import Results


def test_everything_not_measured_is_listed_with_its_reason(results: Results) -> None:
    listed = shown(not_measured, results)
    absent = [record for record in results.records if not record.status.is_measured]
    assert {record.status for record in absent} >= {
        Status.UNSUPPORTED, Status.TIMEOUT, Status.CRASHED,
    }  # fmt: skip
    # reasons that differ only in numbers are listed once
    assert all(re.split(r"\d", record.reason)[0] in listed for record in absent)
    assert f"{len(absent)} cases" in listed
    assert "3 cases of 1,203" in listed
    assert "--resume" in listed


def test_reasons_that_differ_only_in_numbers_are_listed_once() -> None:
    wanted = [
        replace(FAILED, case=replace(CASE, shape=(size, 8)), reason=f"float32 wanted {size}.5 GiB")
        for size in (1, 2, 3)
    ]
    other = replace(FAILED, reason="float16 wanted 1.5 GiB", environment="b")
    listed = shown(not_measured, SMALL, *wanted, other)
    assert listed.count("float32 wanted") == 1
    assert "and 2 with other numbers" in listed
    assert "float16 wanted" in listed


def test_a_complete_run_has_nothing_left_out() -> None:
    complete = replace(SMALL, runs=(make_run(planned=1),))
    (block,) = not_measured(gather([replace(complete, records=(make_record(CASE),))]))
    assert block.kind == "text"


def test_warnings_are_listed_with_their_advice(results: Results) -> None:
    assert "close other programs" in shown(warnings, results)
    certain = [replace(record, warnings=()) for record in results.records[:50]]
    assert "close other programs" not in shown(warnings, results, *certain)


def test_a_warning_of_most_timed_cases_is_said_once(results: Results) -> None:
    timed = [record for record in results.records if record.latency][:5]
    wide = MeasurementWarning(kind=WarningKind.NOT_CONVERGED, advice="give it more time")
    noisy = MeasurementWarning(kind=WarningKind.NOISY, advice="close other programs")

    def marks(wide_cases: int) -> tuple[list[str], str]:
        """Return the warnings of each case, and the section."""
        records = [replace(record, warnings=(wide, noisy)) for record in timed[:wide_cases]]
        records += [replace(record, warnings=()) for record in timed[wide_cases:]]
        found = gather([replace(results, records=tuple(records))])
        return list(found.cases["warnings"]), repr(warnings(found))

    marked, section = marks(2)
    assert marked.count("not converged, noisy") == 2
    assert "give it more time" in section
    marked, section = marks(3)
    assert marked.count("noisy") == 3
    assert "3 of 5 timed cases" in section
    assert "give it more time" not in section
    assert "close other programs" in section
