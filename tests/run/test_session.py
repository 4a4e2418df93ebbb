"""A run that ends, is cut short or continued: journal, then parquet, and no case twice."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from factories.fake_device import LocalFleet
from factories.sessions import ROWS, SUBJECTS, Make, calls, rows, run, run_and_stop

from harness.cases import Grid, Sweep
from harness.records import NotComparableError, Record, Refusal
from harness.run import session as module
from harness.run.fleet import Fleet
from harness.run.session import plan, run_session
from harness.store import StoreError, journal, read, read_journal, writing


def test_a_finished_run_leaves_one_parquet_file_and_no_journal(make: Make) -> None:
    session = make()
    outcome = run(session)
    assert outcome.path == session.out
    assert (outcome.left, outcome.measured, outcome.failed) == (0, 5, 0)
    left = {path.name for path in session.out.parent.iterdir() if path.name.startswith("mine")}
    assert left == {"mine.parquet"}
    stored = read(session.out)
    assert stored == outcome.results
    assert rows(stored.records) == list(ROWS)


def test_every_record_is_on_disk_before_it_is_reported(make: Make) -> None:
    session = make()
    on_disk: list[int] = []

    def look(_: Record) -> None:
        on_disk.append(len(read_journal(session.journal).records))

    run(session, look)
    assert on_disk == [1, 2, 3, 4, 5]


def test_an_implementation_that_cannot_be_found_is_refused_before_anything_is_written(
    make: Make, tmp_path: Path
) -> None:
    sweep = Sweep(grids=(Grid(implementations=("nativ", "gone.py:f")),))
    with pytest.raises(Refusal) as refused:
        plan(sweep, cast("Fleet", LocalFleet()))
    first, second = str(refused.value).splitlines()
    assert "no file gone.py" in first
    assert "did you mean 'native'?" in second
    assert not list(tmp_path.glob("*.jsonl"))


def test_shards_together_plan_every_case_once() -> None:
    fleet = cast("Fleet", LocalFleet())
    sweep = Sweep(grids=(Grid(seeds=tuple(range(10))),))
    whole = plan(sweep, fleet)
    parts = [job for index in (1, 2, 3) for job in plan(sweep, fleet, (index, 3))]
    assert sorted(job.case.id for job in parts) == sorted(job.case.id for job in whole)


# --- a run that is cut short ---------------------------------------------------------------------


class HastyFleet(LocalFleet):
    """A fleet whose time is up after two cases."""

    def run(self, jobs: Any, timeout_s: float, stop_at: float = float("inf")) -> Iterator[Record]:
        assert stop_at == 12.5
        yield from super().run(list(jobs)[:2], timeout_s)


def test_when_the_time_is_up_the_journal_stays(make: Make, subjects: Path) -> None:
    session = make(stop_at=12.5)
    outcome = run(session, fleet=HastyFleet())
    assert (outcome.left, outcome.measured) == (3, 2)
    assert outcome.path == session.journal
    assert not session.out.exists()
    assert rows(read_journal(session.journal).records) == [1, 2]
    assert run(make(resume=True)).left == 0
    assert calls(subjects) == list(ROWS)


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full once ``count`` lines of a journal are on it."""
    fsync, done = os.fsync, []

    def fake(descriptor: int) -> None:
        if len(done) == count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(journal.os, "fsync", fake)


def test_on_a_full_disk_earlier_records_are_kept(
    make: Make, subjects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full_after(4, patch)  # the run, the environment and two cases
        with pytest.raises(StoreError) as refused:
            run(make())
    assert "mine.jsonl" in str(refused.value)
    assert "--resume" in str(refused.value)
    outcome = run(make(resume=True))
    assert rows(outcome.results.records) == list(ROWS)
    assert calls(subjects)[:2] == [1, 2]
    assert calls(subjects).count(1) == calls(subjects).count(2) == 1


def test_when_the_parquet_file_cannot_be_written_the_journal_stays(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make()

    def full(*_: object) -> None:
        raise StoreError("mine.parquet: cannot be written: No space left on device")

    monkeypatch.setattr(module, "writing", full)
    with pytest.raises(StoreError):
        run(session)
    assert rows(read_journal(session.journal).records) == list(ROWS)
    assert not session.out.exists()


def test_a_folder_that_cannot_be_created_is_refused_before_the_measurement(
    make: Make, subjects: Path
) -> None:
    with pytest.raises(StoreError, match="mine"):
        run(make(out=subjects / "mine.parquet"))
    assert calls(subjects) == []


# === A run that is continued, and what is refused instead of continued or overwritten


def test_a_continued_run_never_measures_a_finished_case_twice(make: Make, subjects: Path) -> None:
    run_and_stop(make(), 2)
    assert calls(subjects) == [1, 2]
    left: list[int] = []
    session, fleet = make(resume=True), cast("Fleet", LocalFleet())
    outcome = run_session(session, fleet, lambda record: None, left.append)
    assert left == [3]
    assert calls(subjects) == [1, 2, 3, 4, 5]
    assert rows(outcome.results.records) == list(ROWS)
    assert len(outcome.results.runs) == 2
    assert read(outcome.path) == outcome.results


def test_a_torn_last_line_costs_one_case(make: Make, subjects: Path) -> None:
    run_and_stop(make(), 3)
    path = make().journal
    path.write_bytes(path.read_bytes()[:-40])  # as if killed within the write
    outcome = run(make(resume=True))
    assert calls(subjects) == [1, 2, 3, 3, 4, 5]
    assert rows(outcome.results.records) == list(ROWS)


def test_a_finished_run_that_is_continued_measures_nothing_and_keeps_all(
    make: Make, subjects: Path
) -> None:
    first = run(make())
    second = run(make(resume=True))
    assert calls(subjects) == list(ROWS)
    assert second.results.records == first.results.records
    assert not make().journal.exists()


def test_a_finished_run_that_is_extended_and_stopped_loses_nothing(
    make: Make, subjects: Path
) -> None:
    run(make(rows=(1, 2)))
    run_and_stop(make(resume=True), 1)
    outcome = run(make(resume=True))
    assert calls(subjects) == list(ROWS)
    assert rows(outcome.results.records) == list(ROWS)


def test_a_finished_run_whose_continuation_was_killed_at_its_start_loses_nothing(
    make: Make, subjects: Path
) -> None:
    first = run(make())
    with journal.Journal(make().journal) as begun:  # killed after one of five records
        for entry in (*first.results.runs, *first.results.environments.values()):
            begun.add(entry)
        begun.add(first.results.records[0])
    second = run(make(resume=True))
    assert calls(subjects) == list(ROWS)
    assert second.results.records == first.results.records
    assert second.results.runs[:-1] == first.results.runs


def test_failures_are_results_and_are_not_retried(make: Make, subjects: Path) -> None:
    subjects.write_text(
        SUBJECTS.replace("    return layer_norm", "    raise ValueError('no')\n    #")
    )
    outcome = run(make())
    assert (outcome.measured, outcome.failed) == (0, 5)
    run(make(resume=True))
    assert calls(subjects) == list(ROWS)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_an_existing_file_is_not_overwritten(make: Make, suffix: str, subjects: Path) -> None:
    session = make()
    there = session.out.with_suffix(suffix)
    there.write_text("mine")
    with pytest.raises(Refusal, match="--resume"):
        run(session)
    assert there.read_text() == "mine"
    assert calls(subjects) == []
    assert Refusal.exit_code == 2


def fleet_with(**changes: Any) -> LocalFleet:
    """Return a fleet with another environment."""
    fleet = LocalFleet()
    fleet.info = replace(fleet.info, environment=replace(fleet.info.environment, **changes))
    return fleet


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_continued_at_another_commit_but_not_on_another_machine(
    make: Make, subjects: Path, finished: bool
) -> None:
    if finished:
        run(make(rows=(1, 2)))
    else:
        run_and_stop(make(), 2)
    with pytest.raises(NotComparableError, match="--out"):
        run(make(resume=True), fleet=fleet_with(cpu="Another CPU"))
    assert calls(subjects) == [1, 2]
    assert NotComparableError.exit_code == 4
    assert run(make(resume=True), fleet=fleet_with(git_commit="f" * 40)).left == 0


@pytest.mark.parametrize("resume", [True, False])
def test_a_second_run_on_one_file_is_refused_while_the_first_lasts(
    make: Make, subjects: Path, resume: bool
) -> None:

    def intrude(_: Record) -> None:
        with pytest.raises(StoreError if resume else Refusal, match=r"mine\.jsonl|--resume"):
            run(make(resume=resume))

    outcome = run(make(), intrude)
    assert calls(subjects) == list(ROWS)
    assert read(outcome.path) == outcome.results


def test_the_journal_is_locked_until_the_results_are_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def intrude(*arguments: Any) -> Any:
        with pytest.raises(StoreError, match=r"mine\.jsonl"):
            run(make(resume=True))
        return writing(*arguments)

    monkeypatch.setattr(module, "writing", intrude)
    outcome = run(make())
    monkeypatch.undo()
    assert run(make(resume=True)).results.records == outcome.results.records


def test_a_run_that_cannot_be_continued_leaves_no_journal(make: Make) -> None:
    session = make(resume=True)
    session.out.write_text("no results")
    for _ in range(2):  # what the first leaves must not hide the file from the second
        with pytest.raises(StoreError, match=r"mine\.parquet"):
            run(session)
    assert not session.journal.exists()


def test_an_empty_journal_does_not_hide_the_results(make: Make, subjects: Path) -> None:
    run(make())
    make().journal.touch()  # as if killed before the first line
    run(make(resume=True))
    assert calls(subjects) == list(ROWS)
