"""Runs that are kept: baselines, recorded or accepted, and histories with their change points."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any
from unittest.mock import Mock

import pytest
from factories.commanding import call
from factories.compared_runs import (
    ELSEWHERE,
    HERE,
    STEADY,
    ScriptedFleet,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
    with_memory,
)
from factories.fake_device import CALL_S, latency_of, measure, payer
from factories.golden import assert_golden
from factories.histories import history_of, results_of_commit, runs_of, stored_history, wavy

from harness.records import (
    Measurement,
    MeasurementWarning,
    NotComparableError,
    NotMeasuredError,
    Record,
    Refusal,
    Status,
    WarningKind,
)
from harness.regression import (
    TREND_METRICS,
    Series,
    process_ratios,
    read_history,
    record_baseline,
    records_left,
    refuse_unacceptable,
    series_of,
)
from harness.run import Job
from harness.store import Results, StoreError, read, write

BASELINE = "harness.regression.baseline"
NAMES = ("drifts", "noisy in 5", "noisy in 6", "spreads", "pays", "fails")
CASES = {name: make_case(rows=rows) for rows, name in enumerate(NAMES, 1)}
ONE = CASES["drifts"]
WANTED = results_of(*(make_record(case, (1.0,)) for case in CASES.values()))
PAYING = latency_of(measure(payer(4, 8 * CALL_S)))
NOISE = (MeasurementWarning(kind=WarningKind.NOISY, advice="busy"),)


@dataclass
class Machine(ScriptedFleet):
    """A machine on which process number n measures each case as its name says."""

    dies_in: int = 0
    """The number of the process in which the recording is interrupted."""

    def answer(self, job: Job) -> Record:
        if self.starts == self.dies_in and job is self.asked[-1][3]:
            raise KeyboardInterrupt
        record = super().answer(job)
        if record.latency is None:
            return record
        (name,) = (name for name, case in CASES.items() if case == record.case)
        ratio = 1 + (0.04 * (-1) ** self.starts if name == "spreads" else 0.001 * (self.starts - 1))
        noisy = self.starts <= {"noisy in 5": 5, "noisy in 6": 6}.get(name, 0)
        return replace(
            record,
            latency=PAYING if name == "pays" else make_latency((ratio,)),
            warnings=NOISE if noisy else (),
        )


def machine(**more: Any) -> Machine:
    return Machine({case.id: 1.0 for name, case in CASES.items() if name != "fails"}, **more)


def record(fleet: Any, out: Path, wanted: Results = WANTED) -> Results:
    return record_baseline(
        wanted, out, make_fleet=lambda: fleet, command="c", on_record=lambda record: None
    )


# --- recording -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Machine, Path]:
    out, fleet = tmp_path_factory.mktemp("recorded") / "ci.parquet", machine()
    return record(fleet, out), fleet, out


def test_a_baseline_is_one_run_of_ten_fresh_processes(recorded: Any) -> None:
    results, fleet, out = recorded
    assert fleet.starts == 10
    assert [found.case for found in results.records] == [*CASES.values()]
    (run,) = results.runs
    assert (run.name, run.planned, run.command, run.wall_s is None) == ("ci", 6, "c", False)
    assert results.environments == {HERE.fingerprint: HERE}
    assert read(out) == results
    assert [path.name for path in out.parent.iterdir()] == ["ci.parquet"]


def test_it_keeps_the_ratio_of_each_process(recorded: Any) -> None:
    latencies = [found.latency for found in recorded[0].records]
    drifts, _, _, spreads, pays, fails = latencies
    assert (drifts.processes, fails) == (10, None)
    assert process_ratios(drifts) == pytest.approx([1 + 0.001 * number for number in range(10)])
    # the means of uneven calls are kept
    assert process_ratios(pays) == pytest.approx([3.0] * 10, rel=0.1)
    assert (drifts.converged, spreads.converged) == (True, False)


def test_noise_in_half_of_the_processes_is_not_a_warning(recorded: Any) -> None:
    kinds = [[warning.kind for warning in found.warnings] for found in recorded[0].records]
    assert kinds[1:3] == [[], [WarningKind.NOISY]]


def test_each_process_has_its_own_order_and_the_first_counts_memory(recorded: Any) -> None:
    _, fleet, _ = recorded
    # a case that cannot be measured is run once
    assert [len(jobs) for jobs in fleet.asked] == [6, *[5] * 9]
    assert len({tuple(job.case.id for job in jobs) for jobs in fleet.asked[1:]}) == 9
    measured = [{one for job in jobs for one in job.measurements} for jobs in fleet.asked]
    assert Measurement.MEMORY in measured[0]
    assert measured[1:] == [{Measurement.LATENCY}] * 9


def test_without_a_measured_case_there_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match=r"such as two_pass/.*: why; nothing was written"):
        record(machine(), tmp_path / "ci.parquet", results_of(failed(CASES["fails"])))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_recording_is_continued_on_the_same_machine_commit_and_sweep(
    tmp_path: Path,
) -> None:
    out, fleet = tmp_path / "begun/ci.parquet", machine()
    write(WANTED, out)
    with pytest.raises(KeyboardInterrupt):
        record(machine(dies_in=3), out)
    assert records_left(WANTED, out) == 8 * len(WANTED.records)
    other_commit = machine(environment=replace(HERE, git_commit="fedcba98"))
    for error, other, wanted in (
        (NotComparableError, machine(environment=ELSEWHERE), WANTED),
        (Refusal, other_commit, WANTED),
        (Refusal, machine(), results_of(*WANTED.records[:4])),
    ):
        copy = copytree(out.parent, Path(mkdtemp(dir=tmp_path)), dirs_exist_ok=True)
        with pytest.raises(error):
            record(other, copy / "ci.parquet", wanted)
        assert read(copy / "ci.parquet") == WANTED
    found = [found.latency for found in record(fleet, out).records]
    assert [len(jobs) for jobs in fleet.asked] == [2, *[5] * 7]
    assert [latency and latency.processes for latency in found] == [*[10] * 5, None]


def test_another_recording_of_the_same_commit_is_added(tmp_path: Path) -> None:
    out, other_commit = tmp_path / "ci.parquet", replace(HERE, git_commit="fedcba98")
    first, second = record(machine(), out), record(machine(), out)
    assert (second.runs[:1], len(second.runs)) == (first.runs, 2)
    assert [found.latency and found.latency.processes for found in second.records] == [
        *[20] * 5,
        None,
    ]
    one, two = (process_ratios(results.records[0].latency) for results in (first, second))
    assert two == one * 2
    assert len(record(machine(environment=other_commit), out).runs) == 1


def test_a_recording_killed_before_its_passes_are_removed_is_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fleet = tmp_path / "ci.parquet", machine()
    monkeypatch.setattr(f"{BASELINE}._discard", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        record(machine(), out)
    monkeypatch.undo()
    before = read(out)
    assert record(fleet, out) == before == read(out)
    assert (fleet.starts, [*tmp_path.iterdir()]) == (0, [out])


def test_no_pass_that_could_not_be_removed_is_taken_for_one_of_the_next_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fleet = tmp_path / "ci.parquet", machine()
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(f"{BASELINE}.rmtree", Mock(side_effect=[None, error]))
    with pytest.raises(StoreError, match=r"ci\.recording: cannot be removed: Input/output error$"):
        record(machine(), out)
    monkeypatch.undo()
    assert len(record(fleet, out).runs) == 2
    assert (fleet.starts, [*tmp_path.iterdir()]) == (10, [out])


# --- accepting -----------------------------------------------------------------------------------


def test_a_whole_run_that_judges_no_less_may_become_the_baseline() -> None:
    ten, nine = (results_of(make_record(ONE, STEADY[:count])) for count in (10, 9))
    refuse_unacceptable(WANTED, None)
    with pytest.raises(Refusal, match="1 of its 9 cases"):
        refuse_unacceptable(results_of(make_record(ONE), planned=9), None)
    with pytest.raises(Refusal, match=r"timed 1 case in 10 processes.*--record-baseline"):
        refuse_unacceptable(nine, ten)


# --- series of a history -------------------------------------------------------------------------

CASE = make_case("c_recentred")


def series(runs: Sequence[Results], metric: str = "speed") -> tuple[Series, ...]:
    return series_of(history_of(*runs), TREND_METRICS[metric]).series


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        (wavy((0.7, 11), (0.91, 1), (0.7, 8)), []),
        (wavy((0.7, 4), (0.9, 6)), []),  # too few runs
        (wavy((0.7, 6), (0.9, 6)), [6]),
        (wavy((0.7, 8), (0.9, 4)), []),  # three runs ago there was one that differed
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
    (found,) = series(runs_of(CASE, [0.7, 0.714] * 6))
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


# --- folders -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_trends_are_printed_as_in_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(CASE, wavy((0.7, 10), (0.74, 10)))
    few = runs_of(make_case("two_pass"), wavy((2.0, 3)), environment=ELSEWHERE, first=20)
    stored_history(Path("results/history"), *runs, *few)
    texts = [call("history", "results/history").stdout]
    monkeypatch.setitem(sys.modules, "ruptures", None)  # it is not installed
    texts.append(call("history", "results/history").stdout)
    assert_golden("\n".join(texts), __file__, "history.txt")


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
    for file, note in zip(("torn", "same", "left"), found.notes, strict=True):
        assert file in note
