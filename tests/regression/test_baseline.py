"""Recording a baseline in ten processes, and accepting a run in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from compared_runs import (
    ELSEWHERE,
    HERE,
    STEADY,
    ScriptedFleet,
    failed,
    make_case,
    make_latency,
    make_record,
    results_of,
)

from harness.records import Arm, Measurement, MeasurementWarning, Record, Status, WarningKind
from harness.regression.baseline import RecordingError, accept, passes_left, record_baseline
from harness.regression.compare import NotMeasuredError
from harness.regression.latency_test import process_ratios
from harness.run.messages import RunCase
from harness.run.session import ForeignRunError
from harness.store import Results, StoreError, read

CASES = [make_case(rows=rows) for rows in range(1, 7)]
WANTED = results_of(*(make_record(each, (1.0,)) for each in CASES))
OUT = Path("ci.parquet")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go to a folder of their own, and need not outlast a power cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Drifting(ScriptedFleet):
    """A machine on which every process finds another ratio: 1, 1.01, 1.02, ..."""

    noisy_starts: int = 0
    """So many processes shared their processor."""
    dies_in: int = 0
    """The number of the process in which the recording is interrupted."""

    def run(
        self, jobs: Sequence[RunCase], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        found = super().run(jobs, timeout_s, stop_at)
        for number, each in enumerate(found):
            if self.starts == self.dies_in and number == 3:
                raise KeyboardInterrupt
            if each.latency is None:
                yield each
                continue
            noisy = self.starts <= self.noisy_starts
            warnings = (MeasurementWarning(kind=WarningKind.NOISY, advice="busy"),) if noisy else ()
            latency = make_latency((1 + 0.001 * (self.starts - 1),))
            yield replace(each, latency=latency, warnings=warnings)


def fleet(**more: Any) -> Drifting:
    return Drifting(ratio_of={each.id: 1.0 for each in CASES}, **more)


def record(machine: ScriptedFleet, wanted: Results = WANTED, *, resume: bool = False) -> Results:
    made: Any = lambda: machine  # noqa: E731 - stands for the class
    return record_baseline(
        wanted, OUT, make_fleet=made, command="c", resume=resume, on_record=lambda each: None
    )


# --- recording -----------------------------------------------------------------------------------


def test_a_baseline_has_ten_fresh_processes_of_every_case() -> None:
    machine = fleet()
    found = record(machine)
    assert machine.starts == 10
    assert [each.case for each in found.records] == CASES
    for each in found.records:
        assert each.latency is not None
        assert each.latency.processes == 10
        assert process_ratios(each.latency) == pytest.approx([1 + 0.001 * n for n in range(10)])


def test_what_is_returned_is_what_is_on_disk_and_nothing_else_is_left() -> None:
    found = record(fleet())
    assert read(OUT) == found
    assert [each.name for each in Path().iterdir()] == ["ci.parquet"]


class Sampling(Drifting):
    """A machine that takes three samples an epoch, of which one was disturbed."""

    def run(
        self, jobs: Sequence[RunCase], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        for each in super().run(jobs, timeout_s, stop_at):
            assert each.latency is not None
            arms = tuple(map(self._thrice, each.latency.arms))
            yield replace(each, latency=replace(each.latency, arms=arms))

    @staticmethod
    def _thrice(arm: Arm) -> Arm:
        times = tuple(factor * each for each in arm.wall_s for factor in (1.0, 1.0, 7.0))
        epochs = tuple(each for each in arm.epochs for _ in range(3))
        return replace(arm, wall_s=times, cpu_s=times, epochs=epochs)


def test_a_baseline_keeps_one_figure_an_epoch_and_finds_what_all_samples_say() -> None:
    found = record(Sampling(ratio_of={each.id: 1.0 for each in CASES}))
    for each in found.records:
        assert each.latency is not None
        epochs = len(each.latency.process_of_epoch)
        assert {len(arm.wall_s) for arm in each.latency.arms} == {epochs}
        assert process_ratios(each.latency) == pytest.approx([1 + 0.001 * n for n in range(10)])


def test_every_process_takes_the_cases_in_an_order_of_its_own() -> None:
    machine = fleet()
    record(machine)
    orders = {tuple(job.case.id for job in jobs) for jobs in machine.asked}
    assert len(orders) == 10


def test_what_is_the_same_in_every_process_is_measured_in_the_first_alone() -> None:
    machine = fleet()
    record(machine)
    measured = [{each for job in jobs for each in job.measurements} for jobs in machine.asked]
    assert Measurement.MEMORY in measured[0]
    assert measured[1:] == [{Measurement.LATENCY}] * 9


def test_no_process_stops_early_and_none_takes_a_case_twice() -> None:
    machine = fleet()
    record(machine)
    budgets = {job.budget for jobs in machine.asked for job in jobs}
    assert {(each.min_epochs, each.max_epochs, each.processes) for each in budgets} == {(12, 12, 1)}


def test_only_what_was_measured_of_the_run_is_measured_again() -> None:
    machine = fleet()
    record(machine, results_of(make_record(CASES[0], memory=None)))
    (jobs,) = machine.asked
    assert jobs[0].measurements == (Measurement.ERRORS,)


def test_a_case_that_cannot_be_measured_is_tried_once() -> None:
    machine = Drifting(ratio_of={each.id: 1.0 for each in CASES[1:]})
    found = record(machine)
    assert found.records[0].status is Status.ERROR
    assert [len(jobs) for jobs in machine.asked] == [6, *[5] * 9]


def test_a_case_that_spreads_by_2_percent_has_converged() -> None:
    @dataclass
    class Spreading(Drifting):
        def run(self, *arguments: Any, **more: Any) -> Iterator[Record]:
            side = 1.02 if self.starts % 2 else 0.98
            for each in super().run(*arguments, **more):
                yield replace(each, latency=make_latency((side,)))

    found = record(Spreading(ratio_of={each.id: 1.0 for each in CASES}))
    assert found.records[0].latency is not None
    assert found.records[0].latency.converged


@pytest.mark.parametrize(("noisy", "is_told"), [(5, False), (6, True)])
def test_a_disturbance_of_half_the_processes_is_not_the_cases(noisy: int, is_told: bool) -> None:
    found = record(fleet(noisy_starts=noisy))
    assert bool(found.records[0].warnings) is is_told


def test_one_run_stands_for_all_ten() -> None:
    found = record(fleet())
    (run,) = found.runs
    assert (run.name, run.planned, run.command) == ("ci", 6, "c")
    assert run.wall_s is not None
    assert found.environments == {HERE.fingerprint: HERE}


def test_a_run_of_no_cases_makes_no_baseline() -> None:
    with pytest.raises(NotMeasuredError, match="no case that a baseline could be made of"):
        record(fleet(), results_of())


def test_a_machine_that_can_measure_nothing_leaves_no_baseline() -> None:
    with pytest.raises(NotMeasuredError, match="no case could be measured, such as"):
        record(Drifting(ratio_of={}))
    assert list(Path().iterdir()) == []


# --- recording, interrupted ----------------------------------------------------------------------


def interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        record(fleet(dies_in=3))


def test_an_interrupted_recording_is_continued_and_measures_nothing_twice() -> None:
    interrupted()
    assert passes_left(OUT) == 8
    machine = fleet()
    found = record(machine, resume=True)
    assert [len(jobs) for jobs in machine.asked] == [3, *[6] * 7]
    assert all(each.latency and each.latency.processes == 10 for each in found.records)


def test_an_interrupted_recording_leaves_the_old_baseline() -> None:
    accept(WANTED, None, OUT)
    interrupted()
    assert read(OUT) == WANTED


def test_an_interrupted_recording_is_not_begun_again_unasked() -> None:
    interrupted()
    with pytest.raises(RecordingError, match="continue it with --resume, or delete it"):
        record(fleet())


def test_a_recording_is_not_continued_on_another_machine() -> None:
    interrupted()
    with pytest.raises(ForeignRunError):
        record(fleet(environment=ELSEWHERE), resume=True)


def test_a_recording_is_not_continued_at_another_commit() -> None:
    interrupted()
    moved = replace(HERE, git_commit="fedcba98")
    with pytest.raises(RecordingError, match="delete it and record anew"):
        record(fleet(environment=moved), resume=True)


def test_a_recording_is_not_continued_with_another_sweep() -> None:
    interrupted()
    with pytest.raises(RecordingError, match="delete it and record anew"):
        record(fleet(), results_of(*WANTED.records[:4]), resume=True)


# --- accepting -----------------------------------------------------------------------------------


def test_an_accepted_run_is_the_baseline_from_then_on() -> None:
    accept(results_of(make_record(CASES[0])), None, OUT)
    accept(WANTED, read(OUT), OUT)
    assert read(OUT) == WANTED


def test_the_first_baseline_makes_its_folder() -> None:
    out = Path("results") / "baselines" / "here.parquet"
    accept(WANTED, None, out)
    assert out.exists()


def test_a_run_that_was_cut_short_is_not_accepted() -> None:
    cut = results_of(make_record(CASES[0]), planned=9)
    with pytest.raises(RecordingError, match="1 of its 9 cases are there; finish it first"):
        accept(cut, None, OUT)
    assert not OUT.exists()


def test_a_run_in_which_nothing_was_measured_is_not_accepted() -> None:
    with pytest.raises(NotMeasuredError, match="it is no baseline"):
        accept(results_of(failed(CASES[0])), None, OUT)
    assert not OUT.exists()


def test_a_run_of_one_process_does_not_replace_a_baseline_of_ten() -> None:
    old = results_of(make_record(CASES[0], STEADY))
    accept(old, None, OUT)
    with pytest.raises(RecordingError, match="make a new one with --record-baseline"):
        accept(results_of(make_record(CASES[0], (1.0,))), read(OUT), OUT)
    assert read(OUT) == old


def test_a_run_of_ten_processes_does() -> None:
    new = results_of(make_record(CASES[0], STEADY, status=Status.WRONG))
    accept(new, results_of(make_record(CASES[0], STEADY)), OUT)
    assert read(OUT) == new


def test_a_case_that_is_gone_keeps_no_run_from_being_accepted() -> None:
    old = results_of(make_record(CASES[0], STEADY), failed(CASES[1]))
    accept(results_of(make_record(CASES[1])), old, OUT)
    assert OUT.exists()


def test_a_disk_that_cannot_be_written_is_told() -> None:
    OUT.mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        accept(WANTED, None, OUT)
