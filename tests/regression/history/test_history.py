"""Histories: order, series, change points, and folders in which something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.compared_runs import make_case, make_record, with_memory
from factories.golden import assert_golden
from factories.histories import (
    ANOTHER,
    URL,
    commit_of,
    history_of,
    results_of_commit,
    runs_of,
    stored_history,
    wavy,
)

from harness.records import Case, Status
from harness.records.metrics import Metric
from harness.records.refusal import NotMeasuredError, Refusal
from harness.regression import history as detector
from harness.regression.history import (
    TREND_METRICS,
    History,
    Series,
    Trend,
    is_of,
    read_history,
    series_of,
)
from harness.report.changes import document_of_history
from harness.report.document import terminal_lines
from harness.store import Results

CASE = make_case("c_recentred")
GOLDEN = Path(__file__).parent / "golden"


def only_series(*runs: Results, metric: Metric = TREND_METRICS["speed"]) -> Series:
    (series,) = series_of(history_of(*runs), metric).series
    return series


def printed(history: History, trend: Trend) -> str:
    return "\n".join(line for line, _ in terminal_lines(document_of_history(history, trend)))


# --- series and change points --------------------------------------------------------------------


def test_a_slowdown_is_found_where_it_happened() -> None:
    series = only_series(*runs_of(CASE, wavy((0.7, 10), (0.74, 10))))
    (change,) = series.changes
    assert (change.index, change.is_worse) == (10, True)
    assert change.commits == f"{commit_of(9)[:10]}..{commit_of(10)[:10]}"
    assert change.after / change.before == pytest.approx(0.7 / 0.74, rel=0.005)
    assert change.first.commit_url == f"{URL}/commit/{commit_of(10)}"


def test_an_unchanged_case_has_no_change() -> None:
    series = only_series(*runs_of(CASE, wavy((0.7, 20))))
    assert series.changes == ()
    assert series.spread == pytest.approx(0.004, abs=0.002)


def test_one_slow_run_is_no_change() -> None:
    values = wavy((0.7, 20))
    values[11] *= 1.3
    assert only_series(*runs_of(CASE, values)).changes == ()


def test_too_few_runs_are_not_searched() -> None:
    history = history_of(*runs_of(CASE, wavy((0.7, 3), (0.9, 3))))
    trend = series_of(history, TREND_METRICS["speed"])
    assert trend.series[0].changes == ()
    assert "fewer than 8 comparable runs" in printed(history, trend)


def test_exact_metrics_change_wherever_they_differ() -> None:
    runs = [
        results_of_commit(number, with_memory(make_record(CASE), peak_extra_bytes=peak))
        for number, peak in enumerate((1000, 1000, 2000))
    ]
    (change,) = only_series(*runs, metric=TREND_METRICS["peak-memory"]).changes
    assert (change.index, change.before, change.after, change.is_worse) == (2, 1000, 2000, True)


def test_another_machine_is_another_series() -> None:
    runs = runs_of(CASE, wavy((0.7, 4)))
    runs += runs_of(CASE, wavy((0.9, 5)), environment=ANOTHER, first=4)
    found = series_of(history_of(*runs), TREND_METRICS["speed"]).series
    assert [len(series.runs) for series in found] == [4, 5]
    # memory is the same on every CPU
    assert len(only_series(*runs, metric=TREND_METRICS["peak-memory"]).runs) == 9


def test_a_wrong_result_is_another_series() -> None:
    statuses = (Status.OK, Status.OK, Status.WRONG)
    runs = [
        results_of_commit(number, make_record(CASE, (0.7,), status=status))
        for number, status in enumerate(statuses)
    ]
    found = series_of(history_of(*runs), TREND_METRICS["speed"]).series
    assert [len(series.runs) for series in found] == [2, 1]


def test_a_case_against_itself_has_no_speed() -> None:
    runs = runs_of(make_case("native"), (1.0, 1.0))
    assert series_of(history_of(*runs), TREND_METRICS["speed"]).series == ()
    assert len(only_series(*runs, metric=TREND_METRICS["time"]).runs) == 2


@pytest.mark.parametrize(
    ("pattern", "is_match"),
    [("c_rec", True), ("c_*/forward/*", True), ("forward", True), ("c_*/backward/*", False)],
)
def test_cases_are_chosen_by_text_or_pattern(pattern: str, is_match: bool) -> None:
    is_wanted = is_of(pattern)
    assert is_wanted is not None
    assert is_wanted(Case(implementation="c_recentred", shape=(8, 8))) is is_match


def test_without_the_detector_trends_are_shown_and_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detector, "find_spec", lambda name: None)
    history = history_of(*runs_of(CASE, wavy((0.7, 10), (0.8, 10))))
    trend = series_of(history, TREND_METRICS["speed"])
    assert trend.series[0].changes == ()
    assert f"note: {detector.MISSING_DETECTOR}" in " ".join(printed(history, trend).split())


def test_golden_lines() -> None:
    runs = runs_of(CASE, wavy((0.7, 10), (0.74, 10)))
    runs += runs_of(make_case("two_pass"), wavy((2.0, 3)), environment=ANOTHER, first=20)
    history = history_of(*runs)
    text = printed(history, series_of(history, TREND_METRICS["speed"]))
    assert_golden(text, GOLDEN / "history.txt")


# --- folders -------------------------------------------------------------------------------------

RECORD = make_record(CASE, (0.7,))


def notes(folder: Path) -> str:
    return "\n".join(read_history(folder).notes)


def test_runs_are_in_the_order_of_their_commits(tmp_path: Path) -> None:
    days = ((2, 31), (0, 30), (1, 29))
    stored_history(tmp_path, *(results_of_commit(n, RECORD, start_days=day) for n, day in days))
    history = read_history(tmp_path)
    assert [run.run.git_commit for run in history.runs] == [
        commit_of(number) for number in range(3)
    ]


def test_a_run_before_its_commit_shows_a_wrong_clock(tmp_path: Path) -> None:
    stored_history(tmp_path, results_of_commit(5, RECORD, start_days=1))
    assert "before its commit was made, so a clock was wrong" in notes(tmp_path)


def test_unreadable_files_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    stored_history(tmp_path, *runs_of(CASE, (0.7, 0.7)))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "left.jsonl").write_text("{}\n")
    assert len(read_history(tmp_path).runs) == 2
    assert "torn.parquet" in notes(tmp_path)
    assert "left.jsonl" in notes(tmp_path)


def test_a_copied_file_counts_once(tmp_path: Path) -> None:
    stored_history(tmp_path, *runs_of(CASE, (0.7,)))
    (tmp_path / "same.parquet").write_bytes((tmp_path / "run000.parquet").read_bytes())
    assert len(read_history(tmp_path).runs) == 1
    assert "same.parquet holds the same measurements as run000.parquet" in notes(tmp_path)


def test_one_run_is_a_history(tmp_path: Path) -> None:
    history = read_history(stored_history(tmp_path, *runs_of(CASE, (0.7,))))
    (series,) = series_of(history, TREND_METRICS["speed"]).series
    assert (len(series.runs), series.changes, series.spread) == (1, (), None)


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no such folder"):
        read_history(tmp_path / "none")
    with pytest.raises(NotMeasuredError, match="holds no results file"):
        read_history(tmp_path)
