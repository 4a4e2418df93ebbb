"""Charts over commits: each value has its unit, and meaningless values are left out."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from factories.compared_runs import (
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
    with_error,
)

from harness.records import Estimate, Record, Status
from harness.report.exports import bencher_metrics, smaller_is_better

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
