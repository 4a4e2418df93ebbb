"""A run that is continued, and what is refused instead of continued or overwritten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from factories.fake_device import LocalFleet
from factories.sessions import ROWS, SUBJECTS, Make, calls, rows, run, run_and_stop

from harness.records import Record
from harness.records.refusal import NotComparableError, Refusal
from harness.run import session as module
from harness.run.fleet import Fleet
from harness.run.session import run_session
from harness.store import StoreError, journal, read, writing


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
