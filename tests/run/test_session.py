"""A run that comes to its end, or is cut short: journal, then parquet."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from factories.fake_device import LocalFleet
from factories.sessions import ROWS, Make, calls, rows, run

from harness.cases import Grid, Sweep
from harness.records import Record
from harness.records.refusal import Refusal
from harness.run import session as module
from harness.run.fleet import Fleet
from harness.run.session import plan
from harness.store import StoreError, journal, read, read_journal


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
