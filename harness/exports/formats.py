"""The formats of an exported run. To add one, write a function and list it in AS_TEXT."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.exports.charts import bencher_metrics, smaller_is_better
from harness.exports.csv_table import csv_table
from harness.exports.job_summary import summary_of_run
from harness.exports.junit import junit_of_run
from harness.exports.pytest_benchmark import pytest_benchmark_json
from harness.store import Results

__all__ = ["AS_TEXT"]

AS_TEXT: Mapping[str, Callable[[Results, str], str | None]] = {
    "csv": lambda results, _: csv_table(results),
    "junit": junit_of_run,
    "summary": summary_of_run,
    "pytest-benchmark": lambda results, _: pytest_benchmark_json(results),
    "smaller-is-better": lambda results, _: smaller_is_better(results),
    "bencher": lambda results, _: bencher_metrics(results),
}
"""Functions from a run and its name to text; they return None if nothing fits the format."""
