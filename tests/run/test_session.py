"""A run that ends, is cut short or continued: journal, then parquet, and no case twice."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from factories.commanding import started, wait_until
from factories.fake_device import LocalFleet
from factories.sessions import ROWS, SUBJECTS, Sessions, rows

from harness.records import NotComparableError, Record, Refusal
from harness.store import StoreError, read, read_journal


@pytest.fixture
def mine(tmp_path: Path) -> Sessions:
    subjects = tmp_path / "implementation.py"
    subjects.write_text(SUBJECTS)
    return Sessions(subjects)


def test_a_run_has_every_record_on_disk_before_it_is_reported_and_leaves_one_parquet_file(
    mine: Sessions,
) -> None:
    session = mine.session()
    on_disk: list[list[int]] = []
    outcome = mine.run(lambda _: on_disk.append(rows(read_journal(session.journal).records)))
    assert on_disk == [ROWS[:count] for count in ROWS]
    assert (outcome.path, outcome.measured) == (session.out, 5)
    assert [*session.out.parent.glob("mine*")] == [session.out]
    assert read(session.out) == outcome.results
    assert rows(outcome.results.records) == ROWS


# --- a run that is continued ---------------------------------------------------------------------


def killed_in_its_last_line(mine: Sessions) -> None:
    mine.stop_after(3)
    path = mine.session().journal
    path.write_bytes(path.read_bytes()[:-40])
    mine.subjects.with_name("calls").write_text("1 2\n")  # the third is measured again


class HastyFleet(LocalFleet):
    """A fleet whose time is up after two cases."""

    def run(self, jobs: Any, timeout_s: float, stop_at: float = float("inf")) -> Iterator[Record]:
        assert stop_at == 12.5
        yield from super().run(list(jobs)[:2], timeout_s)


def stopped_as_the_time_is_up(mine: Sessions) -> None:
    outcome = mine.run(fleet=HastyFleet(), stop_at=12.5)
    assert (outcome.left, outcome.path) == (3, mine.session().journal)


@pytest.mark.parametrize(
    ("begin", "kept"),
    [
        (lambda mine: mine.stop_after(2), 2),
        (lambda mine: mine.run(), 5),
        (killed_in_its_last_line, 2),
        (stopped_as_the_time_is_up, 2),
    ],
)
def test_a_continued_run_keeps_what_was_measured_and_measures_the_rest_once(
    mine: Sessions, begin: Callable[[Sessions], object], kept: int
) -> None:
    begin(mine)
    assert mine.calls == ROWS[:kept]
    outcome = mine.run(resume=True)
    assert mine.calls == ROWS
    assert rows(outcome.results.records) == ROWS
    assert (outcome.left, outcome.earlier) == (0, kept)
    assert len(outcome.results.runs) >= 2
    assert read(outcome.path) == outcome.results
    assert not mine.session().journal.exists()


def test_failures_are_results_and_are_not_retried(mine: Sessions) -> None:
    outcome = mine.run(name="fails")
    assert (outcome.measured, outcome.failed) == (0, 5)
    mine.run(name="fails", resume=True)
    assert mine.calls == ROWS


def test_a_run_is_continued_at_another_commit_but_not_on_another_machine(mine: Sessions) -> None:
    def fleet_with(**changes: Any) -> LocalFleet:
        fleet = LocalFleet()
        fleet.info = replace(fleet.info, environment=replace(fleet.info.environment, **changes))
        return fleet

    mine.stop_after(2)
    with pytest.raises(NotComparableError, match="--out"):
        mine.run(resume=True, fleet=fleet_with(cpu="Another CPU"))
    assert mine.calls == [1, 2]
    assert mine.run(resume=True, fleet=fleet_with(git_commit="f" * 40)).left == 0


# --- what is refused, and what a failure leaves --------------------------------------------------


def test_a_second_run_on_one_file_is_refused_while_the_first_lasts(mine: Sessions) -> None:
    def intrude(_: Record) -> None:
        with pytest.raises(Refusal, match="--resume"):
            mine.run()
        with pytest.raises(StoreError, match=r"mine\.jsonl"):
            mine.run(resume=True)

    mine.run(intrude)
    assert mine.calls == ROWS


def test_the_journal_is_kept_and_locked_until_the_results_are_stored(
    mine: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def intrude_and_fail(*arguments: Any) -> Any:
        with pytest.raises(StoreError, match=r"mine\.jsonl"):
            mine.run(resume=True)
        raise StoreError("mine.parquet: cannot be written: No space left on device")

    monkeypatch.setattr("harness.run.session.writing", intrude_and_fail)
    with pytest.raises(StoreError, match="No space left"):
        mine.run()
    assert rows(read_journal(mine.session().journal).records) == ROWS
    assert not mine.session().out.exists()


def test_a_journal_that_cannot_be_removed_is_named_and_nothing_is_measured_again(
    mine: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"mine\.jsonl: cannot be removed: Input/output error$"):
        mine.run()
    monkeypatch.undo()
    assert rows(mine.run(resume=True).results.records) == mine.calls == ROWS
    assert not mine.session().journal.exists()


# --- the whole program, ended from outside -------------------------------------------------------


@pytest.fixture
def waiting(mine: Sessions) -> Iterator[subprocess.Popen[str]]:
    """A run with two cases in its journal, which waits in its third."""
    shapes, session = ",".join(f"{rows}x8" for rows in ROWS), mine.session()
    options = ("--shape", shapes, "--measure", "errors", "--out", session.out)
    with started("run", "-i", f"{mine.subjects}:waits", *options) as process:
        path = session.journal
        try:
            wait_until(lambda: path.exists() and path.read_bytes().count(b'{"Record"') >= 2)
            yield process
        finally:
            mine.subjects.with_name("go").touch()  # nothing is left waiting, whatever became of it
            process.kill()


# a batch system sends SIGTERM, to the workers too, before it kills
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_and_says_how_to_continue(
    waiting: subprocess.Popen[str], mine: Sessions, sent: signal.Signals
) -> None:
    os.killpg(waiting.pid, sent)
    out, err = waiting.communicate(timeout=60)
    session = mine.session()
    assert (waiting.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert err.endswith(f" --out {session.out} --resume\n")
    assert rows(read_journal(session.journal).records) == mine.calls == [1, 2]
