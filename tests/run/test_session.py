"""A whole run: journal, then parquet; and the records that an interrupted run keeps."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import pytest
from fake_device import LocalFleet

from harness.records import Record, Status
from harness.run import session as module
from harness.run.fleet import Fleet
from harness.run.session import (
    ForeignRunError,
    OutputExistsError,
    Session,
    SessionOutcome,
    plan,
    run_session,
)
from harness.store import StoreError, journal, read, read_journal
from harness.sweep import Grid, Sweep, SweepError

# counts its calls in a file; `waits` waits in its third case until a file named "go" exists
SUBJECTS = """
import time
from pathlib import Path
from torch.nn.functional import layer_norm

HERE = Path(__file__).parent

def counted(x, shape, weight=None, bias=None, eps=1e-5):
    with open(HERE / "calls", "a") as file:
        file.write(f"{len(x)}\\n")
    return layer_norm(x, tuple(shape), weight, bias, eps)

def waits(x, *rest):
    while len(x) == 3 and not (HERE / "go").exists():
        time.sleep(0.01)
    return counted(x, *rest)
"""
ROWS = (1, 2, 3, 4, 5)


@pytest.fixture
def implementation(tmp_path: Path) -> Path:
    path = tmp_path / "implementation.py"
    path.write_text(SUBJECTS)
    return path


def calls(implementation: Path) -> list[int]:
    """Rows of x in each call of the implementation so far."""
    path = implementation.with_name("calls")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


Make = Callable[..., Session]


@pytest.fixture
def make(implementation: Path, tmp_path: Path) -> Make:
    """Make a session of five cases of the implementation."""

    def session(rows: tuple[int, ...] = ROWS, **changes: Any) -> Session:
        grid = Grid(
            implementations=(f"{implementation}:counted",),
            shapes=tuple((each, 8) for each in rows),
            measure=("errors",),  # type: ignore[arg-type]
        )
        sweep = Sweep(grids=(grid,))
        usual = Session(
            planned=plan(sweep, cast("Fleet", LocalFleet())),
            sweep=sweep,
            out=tmp_path / "mine.parquet",
            command="layernorm-bench run",
            began=monotonic(),
        )
        return replace(usual, **changes)

    return session


def run(
    session: Session,
    on_record: Callable[[Record], None] = lambda _: None,
    fleet: LocalFleet | None = None,
) -> SessionOutcome:
    return run_session(session, cast("Fleet", fleet or LocalFleet()), on_record)


def rows(records: tuple[Record, ...]) -> list[int]:
    return [each.case.rows for each in records]


class StopError(Exception):
    """Ends a run from outside."""


def run_and_stop(session: Session, count: int) -> None:
    """Run a session that is interrupted after ``count`` records."""
    seen: list[Record] = []

    def on_record(record: Record) -> None:
        seen.append(record)
        if len(seen) == count:
            raise StopError

    with pytest.raises(StopError):
        run(session, on_record)


# --- a run that comes to its end -----------------------------------------------------------------


def test_a_finished_run_leaves_one_parquet_file_and_no_journal(make: Make) -> None:
    session = make()
    outcome = run(session)
    assert outcome.path == session.out
    assert (outcome.left, outcome.measured, outcome.failed) == (0, 5, 0)
    left = {each.name for each in session.out.parent.iterdir() if each.name.startswith("mine")}
    assert left == {"mine.parquet"}
    stored = read(session.out)
    assert stored == outcome.results
    assert rows(stored.records) == list(ROWS)


def test_the_run_stores_its_command_and_its_cost(make: Make) -> None:
    (stored,) = run(make(command="layernorm-bench run -i x")).results.runs
    assert (stored.name, stored.command, stored.planned) == ("mine", "layernorm-bench run -i x", 5)
    assert stored.wall_s is not None
    assert stored.wall_s > 0
    assert stored.overhead_ratio is not None
    assert 0 <= stored.overhead_ratio <= 1


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
    with pytest.raises(SweepError) as refused:
        plan(sweep, cast("Fleet", LocalFleet()))
    first, second = str(refused.value).splitlines()
    assert "no file gone.py" in first
    assert "did you mean 'native'?" in second
    assert not list(tmp_path.glob("*.jsonl"))


def test_shards_together_plan_every_case_once() -> None:
    fleet = cast("Fleet", LocalFleet())
    sweep = Sweep(grids=(Grid(seeds=tuple(range(10))),))
    whole = plan(sweep, fleet)
    parts = [each for index in (1, 2, 3) for each in plan(sweep, fleet, (index, 3))]
    assert sorted(each.case.id for each in parts) == sorted(each.case.id for each in whole)


# --- a run that is continued ---------------------------------------------------------------------


def test_a_continued_run_never_measures_a_finished_case_twice(
    make: Make, implementation: Path
) -> None:
    run_and_stop(make(), 2)
    assert calls(implementation) == [1, 2]
    left: list[int] = []
    session, fleet = make(resume=True), cast("Fleet", LocalFleet())
    outcome = run_session(session, fleet, lambda record: None, left.append)
    assert left == [3]
    assert calls(implementation) == [1, 2, 3, 4, 5]
    assert rows(outcome.results.records) == list(ROWS)
    assert len(outcome.results.runs) == 2
    assert read(outcome.path) == outcome.results


def test_a_torn_last_line_costs_one_case(make: Make, implementation: Path) -> None:
    run_and_stop(make(), 3)
    path = make().journal
    path.write_bytes(path.read_bytes()[:-40])  # as if killed within the write
    outcome = run(make(resume=True))
    assert calls(implementation) == [1, 2, 3, 3, 4, 5]
    assert rows(outcome.results.records) == list(ROWS)


def test_a_finished_run_that_is_continued_measures_nothing_and_keeps_all(
    make: Make, implementation: Path
) -> None:
    first = run(make())
    second = run(make(resume=True))
    assert calls(implementation) == list(ROWS)
    assert second.results.records == first.results.records
    assert not make().journal.exists()


def test_a_finished_run_that_is_extended_and_stopped_loses_nothing(
    make: Make, implementation: Path
) -> None:
    run(make(rows=(1, 2)))
    run_and_stop(make(resume=True), 1)
    outcome = run(make(resume=True))
    assert calls(implementation) == list(ROWS)
    assert rows(outcome.results.records) == list(ROWS)


def test_a_finished_run_whose_continuation_was_killed_at_its_start_loses_nothing(
    make: Make, implementation: Path
) -> None:
    first = run(make())
    with journal.Journal(make().journal) as begun:  # killed after one of five records
        for entry in (*first.results.runs, *first.results.environments.values()):
            begun.add(entry)
        begun.add(first.results.records[0])
    second = run(make(resume=True))
    assert calls(implementation) == list(ROWS)
    assert second.results.records == first.results.records
    assert second.results.runs[:-1] == first.results.runs


def test_cases_that_left_the_sweep_are_kept(make: Make) -> None:
    run(make())
    outcome = run(make(rows=(2,), resume=True))
    assert sorted(rows(outcome.results.records)) == list(ROWS)


def test_failures_are_results_and_are_not_retried(make: Make, implementation: Path) -> None:
    implementation.write_text(
        SUBJECTS.replace("    return layer_norm", "    raise ValueError('no')\n    #")
    )
    outcome = run(make())
    assert (outcome.measured, outcome.failed) == (0, 5)
    run(make(resume=True))
    assert calls(implementation) == list(ROWS)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_an_existing_file_is_not_overwritten(make: Make, suffix: str, implementation: Path) -> None:
    session = make()
    there = session.out.with_suffix(suffix)
    there.write_text("mine")
    with pytest.raises(OutputExistsError, match="--resume"):
        run(session)
    assert there.read_text() == "mine"
    assert calls(implementation) == []
    assert OutputExistsError.exit_code == 2


def fleet_with(**changes: Any) -> LocalFleet:
    """Return a fleet with another environment."""
    fleet = LocalFleet()
    fleet.info = replace(fleet.info, environment=replace(fleet.info.environment, **changes))
    return fleet


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_continued_at_another_commit_but_not_on_another_machine(
    make: Make, implementation: Path, finished: bool
) -> None:
    if finished:
        run(make(rows=(1, 2)))
    else:
        run_and_stop(make(), 2)
    with pytest.raises(ForeignRunError, match="--out"):
        run(make(resume=True), fleet=fleet_with(cpu="Another CPU"))
    assert calls(implementation) == [1, 2]
    assert ForeignRunError.exit_code == 4
    assert run(make(resume=True), fleet=fleet_with(git_commit="f" * 40)).left == 0


def test_a_damaged_journal_is_refused_with_its_line(make: Make) -> None:
    run_and_stop(make(), 2)
    path = make().journal
    lines = path.read_bytes().split(b"\n")
    lines[2] = b"{damaged"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(StoreError, match="line 3"):
        run(make(resume=True))


@pytest.mark.parametrize("resume", [True, False])
def test_a_second_run_on_one_file_is_refused_while_the_first_lasts(
    make: Make, implementation: Path, resume: bool
) -> None:

    def intrude(_: Record) -> None:
        with pytest.raises(
            StoreError if resume else OutputExistsError, match=r"mine\.jsonl|--resume"
        ):
            run(make(resume=resume))

    outcome = run(make(), intrude)
    assert calls(implementation) == list(ROWS)
    assert read(outcome.path) == outcome.results


def test_the_journal_is_locked_until_the_results_are_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = module.write

    def intrude(*arguments: Any) -> None:
        with pytest.raises(StoreError, match=r"mine\.jsonl"):
            run(make(resume=True))
        store(*arguments)

    monkeypatch.setattr(module, "write", intrude)
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


def test_an_empty_journal_does_not_hide_the_results(make: Make, implementation: Path) -> None:
    run(make())
    make().journal.touch()  # as if killed before the first line
    run(make(resume=True))
    assert calls(implementation) == list(ROWS)


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_in_the_place_of_the_results_is_refused(make: Make, resume: bool) -> None:
    session = make(resume=resume)
    session.out.mkdir()
    with pytest.raises(OutputExistsError, match=r"mine\.parquet"):
        run(session)
    assert not session.journal.exists()


# --- a run that is cut short ---------------------------------------------------------------------


class HastyFleet(LocalFleet):
    """A fleet whose time is up after two cases."""

    def run(self, jobs: Any, timeout_s: float, stop_at: float = float("inf")) -> Iterator[Record]:
        assert stop_at == 12.5
        yield from super().run(list(jobs)[:2], timeout_s)


def test_when_the_time_is_up_the_journal_stays(make: Make, implementation: Path) -> None:
    session = make(stop_at=12.5)
    outcome = run(session, fleet=HastyFleet())
    assert (outcome.left, outcome.measured) == (3, 2)
    assert outcome.path == session.journal
    assert not session.out.exists()
    assert rows(read_journal(session.journal).records) == [1, 2]
    assert run(make(resume=True)).left == 0
    assert calls(implementation) == list(ROWS)


def test_the_overhead_of_a_run_with_a_crash_is_unknown(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    normal = LocalFleet.run

    def crashing(self: LocalFleet, *arguments: Any) -> Iterator[Record]:
        for each in normal(self, *arguments):
            yield replace(each, status=Status.CRASHED, errors=None, cost=None)

    monkeypatch.setattr(LocalFleet, "run", crashing)
    outcome = run(make())
    assert outcome.run.overhead_ratio is None
    assert outcome.failed == 5


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
    make: Make, implementation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full_after(4, patch)  # the run, the environment and two cases
        with pytest.raises(StoreError) as refused:
            run(make())
    assert "mine.jsonl" in str(refused.value)
    assert "--resume" in str(refused.value)
    outcome = run(make(resume=True))
    assert rows(outcome.results.records) == list(ROWS)
    assert calls(implementation)[:2] == [1, 2]
    assert calls(implementation).count(1) == calls(implementation).count(2) == 1


def test_when_the_parquet_file_cannot_be_written_the_journal_stays(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make()

    def full(*_: object) -> None:
        raise StoreError("mine.parquet: cannot be written: No space left on device")

    monkeypatch.setattr(module, "write", full)
    with pytest.raises(StoreError):
        run(session)
    assert rows(read_journal(session.journal).records) == list(ROWS)
    assert not session.out.exists()


def test_a_folder_that_cannot_be_created_is_refused_before_the_measurement(
    make: Make, implementation: Path
) -> None:
    with pytest.raises(StoreError, match="mine"):
        run(make(out=implementation / "mine.parquet"))
    assert calls(implementation) == []


# --- the whole program, ended from outside -------------------------------------------------------


def command(implementation: Path, *more: str) -> list[str]:
    shapes = ",".join(f"{each}x8" for each in ROWS)
    program = "import sys; from harness.cli import main; sys.exit(main())"
    return [
        *(sys.executable, "-c", program, "run", "--shape", shapes, "--measure", "errors"),
        *("-i", f"{implementation}:waits"),
        *("--out", str(implementation.with_name("mine.parquet")), *more),
    ]


@pytest.fixture
def waiting(implementation: Path) -> Iterator[subprocess.Popen[str]]:
    """A run with two cases in its journal, which waits in its third."""
    with subprocess.Popen(
        command(implementation),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that Ctrl-C reaches all of it, and nothing else
        # a shell that runs the tests in the background has them ignore the interrupt
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        path, patience = implementation.with_name("mine.jsonl"), monotonic() + 60
        while not path.exists() or path.read_bytes().count(b'{"Record"') < 2:
            assert process.poll() is None, process.communicate()
            assert monotonic() < patience
            sleep(0.02)
        try:
            yield process
        finally:
            implementation.with_name("go").touch()  # nothing is left waiting, whatever became of it
            process.kill()


def finish(implementation: Path) -> dict[str, Any]:
    done = subprocess.run(
        command(implementation, "--resume", "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_is_killed_is_continued_with_every_case_once(
    waiting: subprocess.Popen[str], implementation: Path
) -> None:
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    path = implementation.with_name("mine.jsonl")
    kept = read_journal(path)
    assert rows(kept.records) == [1, 2]
    assert kept.runs[0].wall_s is None
    implementation.with_name("go").touch()
    found = finish(implementation)
    ids = [each["id"] for each in found["cases"]]
    assert len(set(ids)) == len(ids) == 5
    assert {each["status"] for each in found["cases"]} == {"ok"}
    assert (calls(implementation).count(1), calls(implementation).count(2)) == (1, 1)
    assert rows(read(implementation.with_name("mine.parquet")).records) == list(ROWS)
    assert not path.exists()


# a batch system sends SIGTERM, to the workers too, before it kills
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_and_says_how_to_continue(
    waiting: subprocess.Popen[str], implementation: Path, sent: signal.Signals
) -> None:
    os.killpg(waiting.pid, sent)
    out, err = waiting.communicate(timeout=60)
    path = implementation.with_name("mine.jsonl")
    assert waiting.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    *_, said, how = err.splitlines()
    assert str(path) in said
    assert how.startswith("  layernorm-bench run --shape 1x8,2x8,3x8,4x8,5x8 ")
    assert how.endswith(f" --resume --out {implementation.with_name('mine.parquet')}")
    assert rows(read_journal(path).records) == [1, 2]
    assert calls(implementation) == [1, 2]


def test_the_parent_of_a_run_does_not_import_torch() -> None:
    parents = "harness.run.session, harness.run.fleet, harness.regression.ab.pairing"
    program = f"import sys, {parents}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
