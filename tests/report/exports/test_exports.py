"""Exports: GitHub's annotations, charts over commits, CSV."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from factories.compared_runs import (
    STEADY,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
    with_error,
)
from factories.exported import change_of, comparison_of, one_of_each
from factories.golden import assert_golden

from harness.records import Direction, Estimate, MeasurementWarning, Record, Status, WarningKind
from harness.regression import ChangeKind
from harness.report.ci import annotations_of_comparison, annotations_of_refusal
from harness.report.exports import bencher_metrics, csv_columns, csv_table, smaller_is_better


def test_annotations_read_as_in_the_golden_file() -> None:
    lines = [*annotations_of_comparison(one_of_each()), *annotations_of_refusal("no such file")]
    assert_golden("\n".join(lines), Path(__file__).parent / "golden" / "annotations.txt")


def test_of_more_than_ten_the_tenth_is_their_number() -> None:
    def annotations(number: int) -> list[str]:
        changes = [change_of(ChangeKind.SLOWER, f"why {place}", place) for place in range(number)]
        return annotations_of_comparison(comparison_of(*changes))

    assert [line[-5:] for line in annotations(10)] == [f"why {place}" for place in range(10)]
    assert len(annotations(14)) == 10
    assert annotations(14)[8].endswith("::why 8")
    assert "5 more" in annotations(14)[9]


def test_text_cannot_end_its_command() -> None:
    case = make_case("mine.py:f,g\n")
    change = change_of(ChangeKind.REGRESSED, "100 %\r\n::error::fake, really: yes", case=case)
    (line,) = annotations_of_comparison(comparison_of(change))
    title, message = line.removeprefix("::error title=").split("::", 1)
    assert title.startswith("regressed%3A mine.py%3Af%2Cg%0A/forward")
    assert message == "100 %25%0D%0A::error::fake, really: yes"
    (line,) = annotations_of_refusal("50%0A and \udcff")
    assert line.endswith("::50%250A and \\udcff")


def test_a_title_is_cut_to_the_limit_of_github() -> None:
    (line,) = annotations_of_comparison(
        comparison_of(change_of(ChangeKind.REGRESSED, case=make_case("x" * 400)))
    )
    assert len(line.removeprefix("::error title=").split("::")[0]) == 255 + len("%3A") - 1


# === Charts over commits: each value has its unit, and meaningless values are left out


RATIO = Estimate(value=1.5, low=1.4, high=1.7)
TIMED = make_record(make_case(), latency=make_latency((1.5,), reference_ratio=RATIO))


def entries(*records: Record) -> dict[str, dict[str, Any]]:
    """Return the entries for github-action-benchmark, by the part of the name after the id."""
    text = smaller_is_better(results_of(*records))
    assert text is not None
    found: list[dict[str, Any]] = json.loads(text)
    return {entry["name"].rpartition(": ")[2]: entry for entry in found}


def measures(*records: Record) -> dict[str, dict[str, float]]:
    """Return the measures of the first record for Bencher."""
    text = bencher_metrics(results_of(*records))
    assert text is not None
    found: dict[str, dict[str, dict[str, float]]] = json.loads(text)
    return found[records[0].case.id]


def test_time_is_charted_as_the_ratio_to_the_reference_or_else_in_seconds() -> None:
    time = entries(TIMED)["latency-ratio"]
    assert time["name"] == f"{TIMED.case.id}: latency-ratio"
    assert (time["unit"], time["value"], time["range"]) == ("ratio", 1.5, "± 0.2")
    assert "latency" not in entries(TIMED)
    alone = make_latency((1.5,), reference=None, reference_ratio=None)
    time = entries(replace(TIMED, latency=alone))["latency"]
    assert (time["unit"], time["value"]) == ("s", 1e-4)


def test_error_and_memory_are_charted_if_they_are_finite() -> None:
    charts = entries(with_error(TIMED, scaled_max_ulp=4.5))
    assert (charts["error"]["unit"], charts["error"]["value"]) == ("ulp", 4.5)
    assert TIMED.memory is not None
    assert charts["peak-memory"]["value"] == TIMED.memory.peak_extra_bytes
    assert charts["peak-memory"]["unit"] == "bytes"
    for error in (inf, nan):
        assert "error" not in entries(with_error(TIMED, scaled_max_ulp=error))
        assert "error" not in measures(with_error(TIMED, scaled_max_ulp=error))


def test_bencher_has_nanoseconds_and_the_ends_of_the_interval() -> None:
    time_s = Estimate(value=2e-6, low=1e-6, high=4e-6)
    found = measures(replace(TIMED, latency=make_latency(per_call_s=time_s, reference_ratio=RATIO)))
    assert found["latency"] == {
        "value": pytest.approx(2000),
        "lower_value": pytest.approx(1000),
        "upper_value": pytest.approx(4000),
    }
    assert found["latency-ratio"] == {"value": 1.5, "lower_value": 1.4, "upper_value": 1.7}


def test_an_infinite_end_of_an_interval_is_left_out() -> None:
    open_end = Estimate(value=1.5, low=0.0, high=inf)
    record = replace(TIMED, latency=make_latency(reference_ratio=open_end))
    assert measures(record)["latency-ratio"] == {"value": 1.5, "lower_value": 0.0}
    assert "range" not in entries(record)["latency-ratio"]


@pytest.mark.parametrize(
    "record",
    [
        replace(TIMED, latency=make_latency(is_valid=False)),
        replace(TIMED, latency=make_latency(per_call_s=Estimate(value=nan, low=nan, high=nan))),
        replace(TIMED, latency=None),
    ],
    ids=["faster than a copy", "nan", "not timed"],
)
def test_an_invalid_time_is_in_no_chart(record: Record) -> None:
    assert not {"latency", "latency-ratio"} & set(entries(record))
    assert not {"latency", "latency-ratio"} & set(measures(record))


def test_a_run_without_a_right_result_makes_no_chart() -> None:
    for record in (replace(TIMED, status=Status.WRONG), failed()):
        assert smaller_is_better(results_of(record)) is None
        assert bencher_metrics(results_of(record)) is None


# === CSV: one row per case, named as in the results file, empty where nothing was measured


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
