"""CSV: one row per case, named as in the results file, empty where nothing was measured."""

from __future__ import annotations

import csv
from dataclasses import replace
from io import StringIO

import pytest
from factories.compared_runs import STEADY, failed, make_case, make_record, results_of

from harness.records import Direction, MeasurementWarning, Record, WarningKind
from harness.report.exports import csv_columns, csv_table


def table(*records: Record) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(csv_table(results_of(*records)), newline="")))


def test_a_row_holds_the_case_and_its_figures() -> None:
    record = make_record(make_case(direction=Direction.BACKWARD), STEADY)
    assert record.errors is not None
    assert record.memory is not None
    warnings = tuple(
        MeasurementWarning(kind=kind, advice="wait")
        for kind in (WarningKind.NOISY, WarningKind.THROTTLED)
    )
    row, _ = table(replace(record, warnings=warnings), make_record())
    assert row["warnings"] == "noisy throttled"
    assert row["id"] == record.case.id
    assert row["case.shape"] == "64x768"
    assert row["case.direction"] == "backward"
    assert float(row["case.eps"]) == 1e-5
    assert float(row["errors.worst.scaled_max_ulp"]) == record.errors.worst.scaled_max_ulp
    assert float(row["latency.per_call_s.value"]) == 1e-4
    assert row["latency.reference_ratio.value"] == "1.0"
    assert row["latency.converged"] == "true"
    assert row["latency.timer"] == "layernorm-bench"
    assert row["memory.peak_extra_bytes"] == str(record.memory.peak_extra_bytes)


def test_values_that_were_not_measured_are_empty() -> None:
    (row,) = table(failed(reason='said "no", twice\nand left'))
    assert row["status"] == "error"
    assert row["reason"] == 'said "no", twice\nand left'
    empty = {name for name, value in row.items() if value == ""}
    assert {
        column for column in csv_columns() if column.startswith(("errors", "latency", "cold"))
    } <= empty
    assert not {column for column in csv_columns() if column.startswith("case.")} & empty


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_a_text_is_no_formula(start: str) -> None:
    record = replace(make_record(make_case(), STEADY), reason=f"{start}1+1")
    assert table(record)[0]["reason"] == f"'{start}1+1"
