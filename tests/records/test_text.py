"""Quantities as people read them, and metrics, which are said once and shown wherever they say."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
from factories.commanding import call
from factories.compared_runs import make_record
from factories.histories import history_of, results_of_commit
from factories.results_factory import make_results

from harness.records import (
    METRICS,
    Estimate,
    Metric,
    as_speed,
    bytes_text,
    count,
    install_extra,
    percent_text,
    seconds_text,
    shape_text,
    speed_interval_text,
    speed_text,
    ulp_text,
)
from harness.regression import series_of
from harness.report import build_page
from harness.store import write
from implementations import contract


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (seconds_text, 2.5e-6, "2.5 µs"),
        (seconds_text, 999.9e-9, "1 µs"),
        (seconds_text, 119.6, "2 min 0 s"),
        (bytes_text, 1536, "1.5 KiB"),
        (ulp_text, 0.5, "0.5 ulp"),
        (ulp_text, nan, "not finite"),
        (percent_text, 0.00314, "0.31 %"),
        (shape_text, (64, 768), "64x768"),
        (speed_text, 12.34, "12.3x"),
        (speed_text, inf, "unknown"),
        (speed_interval_text, Estimate(value=2.0, low=0.0, high=inf), "2.00x [0x, ∞]"),
    ],
)
def test_a_quantity_has_few_digits_and_its_unit(
    write: Callable[[object], str], value: object, text: str
) -> None:
    assert write(value) == text


def test_a_speed_is_the_inverse_of_a_time_and_its_interval_is_turned_round() -> None:
    speed = as_speed(Estimate(value=0.8, low=0.5, high=1.0, confidence=0.9))
    assert speed == Estimate(value=1.25, low=1.0, high=2.0, confidence=0.9)


def test_one_is_singular() -> None:
    assert (count(1, "case"), count(2000, "case")) == ("1 case", "2,000 cases")


def test_harness_and_implementations_name_an_extra_alike() -> None:
    assert install_extra("ray") == contract.install_extra("ray")


# --- metrics -------------------------------------------------------------------------------------

EXTRA = Metric(
    "rows_count", "number of rows", "count", "case.rows",
    {"terminal": "", "summary": "", "brief": "", "csv": "", "page": "", "chart": "rows",
     "trend": "rows"},
    exact=True,
)  # fmt: skip


def test_a_new_metric_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.records.metrics.METRICS", (*METRICS, EXTRA))
    results, path = make_results(30, devices=("cpu",), dtypes=("float32",)), tmp_path / "r.parquet"
    write(results, path)
    for form, text in {"csv": ",case.rows", "summary": "| number of rows |"}.items():
        assert text in call("export", str(path), "--format", form).stdout
    assert '"rows_count"' in build_page([results])


def test_a_new_metric_has_a_trend() -> None:
    history = history_of(*(results_of_commit(day, make_record()) for day in range(2)))
    (first, *_) = series_of(history, EXTRA).series
    assert first.values[0].value == first.case.rows
