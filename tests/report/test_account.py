"""Which cases were not measured, and which have a warning."""

from __future__ import annotations

import re
from dataclasses import replace

from factories.small_results import CASE, FAILED, SMALL, shown

from harness.records import Status
from harness.report.provenance import failures_and_warnings
from harness.store import Results


def test_everything_failures_and_warnings_is_listed_with_its_reason(results: Results) -> None:
    listed = shown(failures_and_warnings, results)
    absent = [record for record in results.records if not record.status.is_measured]
    assert {record.status for record in absent} >= {
        Status.UNSUPPORTED, Status.TIMEOUT, Status.CRASHED,
    }  # fmt: skip
    # reasons that differ only in numbers are listed once
    assert all(re.split(r"\d", record.reason)[0] in listed for record in absent)
    assert "3 cases of 1,203" in listed
    assert "--resume" in listed


def test_reasons_that_differ_only_in_numbers_are_listed_once() -> None:
    wanted = [
        replace(FAILED, case=replace(CASE, shape=(size, 8)), reason=f"float32 wanted {size}.5 GiB")
        for size in (1, 2, 3)
    ]
    other = replace(FAILED, reason="float16 wanted 1.5 GiB", environment="b")
    listed = shown(failures_and_warnings, SMALL, *wanted, other)
    assert listed.count("float32 wanted") == 1
    assert "and 2 like it" in listed
    assert "float16 wanted" in listed
