"""Accepting a run as the baseline, and recording one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories.checked_runs import BASELINE, ONE, TWO, Install, counts, gate, run_of, store
from factories.compared_runs import STEADY, ScriptedFleet, make_record, results_of

from harness.records import Status
from harness.store import read, write

pytestmark = pytest.mark.usefixtures("install")  # timing fails the test


def test_accept_shows_what_changed_and_makes_the_run_the_baseline() -> None:
    head = results_of(make_record(ONE, STEADY, status=Status.WRONG))
    store(head)
    result = gate("--accept")
    assert (result.exit_code, counts(result)) == (0, "1 regressed, 2 gone")
    assert read(Path("base.parquet")) == head


def test_accept_makes_the_first_baseline() -> None:
    write(run_of(1.0), Path("run.parquet"))
    assert gate("--accept").exit_code == 0
    assert read(Path("base.parquet")) == run_of(1.0)


def test_a_run_of_one_process_is_not_accepted_for_ten_and_nothing_is_timed() -> None:
    store(run_of(1.5))
    result = gate("--accept")
    assert result.exit_code == 2
    assert "--record-baseline" in result.stderr
    assert result.stdout == ""
    assert read(Path("base.parquet")) == BASELINE


def test_record_baseline_measures_the_cases_of_the_run_in_ten_processes(install: Install) -> None:
    write(run_of(1.0, 1.0), Path("run.parquet"))
    machine = install(ScriptedFleet(ratio_of={ONE.id: 1.0, TWO.id: 2.0}))
    result = gate("--record-baseline")
    assert result.exit_code == 0
    assert "2 of 2" in result.stdout  # steady cases
    assert machine.starts == 10
    assert gate().exit_code == 0


def test_an_interrupted_recording_prints_how_to_continue(install: Install) -> None:
    class Interrupted(ScriptedFleet):
        def run(self, *arguments: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    write(run_of(1.0), Path("run.parquet"))
    install(Interrupted(ratio_of={}))
    result = gate("--record-baseline")
    assert result.exit_code == 130
    assert "interrupted; continue with" in result.stderr
