"""A metric of a record is said once: a row of METRICS is shown wherever the row says."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO

import pytest
from factories.compared_runs import make_record
from factories.histories import history_of, results_of_commit
from factories.results_factory import make_results

from harness.records import metrics
from harness.records.metrics import METRICS, Metric
from harness.regression.history import series_of
from harness.report import build_page
from harness.report.ci import junit_of_run, summary_of_run
from harness.report.document import markdown
from harness.report.exports import bencher_metrics, csv_table
from harness.report.run import run_tables

EXTRA = Metric(
    "rows_count", "number of rows", "count", "case.rows",
    {"terminal": "", "summary": "", "brief": "", "csv": "", "page": "", "chart": "rows",
     "trend": "rows"},
    exact=True,
)  # fmt: skip


def test_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_new_metric_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, EXTRA))
    results = make_results(30, devices=("cpu",), dtypes=("float32",))
    record = results.records[0]
    rows = str(record.case.rows)

    line = next(csv.DictReader(StringIO(csv_table(results), newline="")))
    assert line["case.rows"] == rows

    (table,) = run_tables([record])
    assert "number of rows" in {column.text for column in table.columns}

    assert f"number of rows {rows}" in junit_of_run(results, "run")
    assert "| number of rows |" in markdown(summary_of_run(results, "run"))

    charts = json.loads(bencher_metrics(results) or "")
    assert charts[record.case.id]["rows"] == {"value": record.case.rows}

    page = build_page([results])
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    assert "rows_count" in json.loads(found[1])["numbers"]


def test_a_new_metric_has_a_trend() -> None:
    history = history_of(*(results_of_commit(day, make_record()) for day in range(2)))
    (first, *_) = series_of(history, EXTRA).series
    assert first.values[0].value == first.case.rows
