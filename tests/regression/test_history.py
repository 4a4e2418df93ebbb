"""Histories: order, series, change points, and folders in which something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import log
from pathlib import Path

import pytest
from factories.commanding import call
from factories.compared_runs import ELSEWHERE, make_case, make_record, with_memory
from factories.golden import assert_golden
from factories.histories import (
    history_of,
    results_of_commit,
    runs_of,
    stored_history,
    wavy,
)

from harness.records import NotMeasuredError, Status
from harness.regression import TREND_METRICS, Series, is_of, read_history, series_of
from harness.store import Results

CASE = make_case("c_recentred")


def series(runs: Sequence[Results], metric: str = "speed") -> tuple[Series, ...]:
    return series_of(history_of(*runs), TREND_METRICS[metric]).series


# --- series and change points --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        (wavy((0.7, 11), (0.91, 1), (0.7, 8)), []),
        (wavy((0.7, 3), (0.9, 4)), []),  # too few runs
        (wavy((0.7, 4), (0.9, 4)), [4]),
        (wavy((0.74, 10), (0.7, 10), (0.8, 10)), [10, 20]),
    ],
)
def test_a_series_changes_where_two_runs_or_more_leave_its_level(
    values: list[float], changes: list[int]
) -> None:
    (found,) = series(runs_of(CASE, values))
    assert len(found.runs) == len(values)
    assert [change.index for change in found.changes] == changes


def test_the_spread_of_a_series_is_that_between_its_runs() -> None:
    (found,) = series(runs_of(CASE, [0.7, 0.714] * 4))
    assert found.spread == pytest.approx(log(1.02) / 2**0.5)


def test_exact_metrics_change_wherever_they_differ() -> None:
    runs = [
        results_of_commit(number, with_memory(make_record(CASE), peak_extra_bytes=peak))
        for number, peak in enumerate((1000, 1000, 2000))
    ]
    (found,) = series(runs, "peak-memory")
    (change,) = found.changes
    assert (change.index, change.before, change.after, change.is_worse) == (2, 1000, 2000, True)


STATUSES = [
    results_of_commit(number, make_record(CASE, (0.7,), status=status))
    for number, status in enumerate((Status.OK, Status.OK, Status.WRONG))
]
MOVED = [*runs_of(CASE, wavy((0.7, 4))), *runs_of(CASE, wavy((0.9, 5)), environment=ELSEWHERE)]


@pytest.mark.parametrize(
    ("runs", "metric", "lengths"),
    [
        (MOVED, "speed", [4, 5]),
        (MOVED, "peak-memory", [9]),  # the same on every CPU
        (STATUSES, "speed", [2, 1]),  # a wrong result
        (runs_of(make_case("native"), (1.0, 1.0)), "speed", []),  # none against itself
    ],
)
def test_comparable_runs_of_a_case_are_a_series(
    runs: list[Results], metric: str, lengths: list[int]
) -> None:
    assert [len(found.runs) for found in series(runs, metric)] == lengths


def test_cases_are_chosen_by_text_or_pattern() -> None:
    chosen = {pattern: is_of(pattern) for pattern in ("c_rec", "c_*/forward/*", "c_*/backward/*")}
    found = [is_wanted is not None and is_wanted(CASE) for is_wanted in chosen.values()]
    assert found == [True, True, False]


# --- folders -------------------------------------------------------------------------------------


def test_trends_are_printed_as_in_the_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = runs_of(CASE, wavy((0.7, 10), (0.74, 10)))
    few = runs_of(make_case("two_pass"), wavy((2.0, 3)), environment=ELSEWHERE, first=20)
    stored_history(Path("results/history"), *runs, *few)
    texts = [call("history", "results/history").stdout]
    monkeypatch.setitem(sys.modules, "ruptures", None)  # it is not installed
    texts.append(call("history", "results/history").stdout)
    assert_golden("\n".join(texts), Path(__file__).parent / "golden/history.txt")


def test_files_that_cannot_be_used_are_named_and_the_rest_is_in_the_order_of_commits(
    tmp_path: Path,
) -> None:
    record, days = make_record(CASE, (0.7,)), ((2, 31), (0, 30), (1, 29), (5, 1))
    stored_history(tmp_path, *(results_of_commit(n, record, start_days=day) for n, day in days))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "left.jsonl").write_text("{}\n")
    (tmp_path / "same.parquet").write_bytes((tmp_path / "run000.parquet").read_bytes())
    found = read_history(tmp_path)
    assert [run.path.stem for run in found.runs] == ["run000", "run001", "run002", "run005"]
    for file, note in zip(("torn", "same", "left", "run005"), found.notes, strict=True):
        assert file in note


def test_a_folder_without_results_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match="holds no results file"):
        read_history(tmp_path)
