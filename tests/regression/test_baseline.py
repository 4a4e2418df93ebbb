"""Recording a baseline in ten processes, and accepting a run as the baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
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
)
from factories.fake_device import CALL_S, latency_of, measure, payer

from harness.records import Arm, Measurement, MeasurementWarning, Record, Status, WarningKind
from harness.records.refusal import NotComparableError, NotMeasuredError, Refusal
from harness.regression import (
    passes_left,
    process_ratios,
    record_baseline,
    refuse_unacceptable,
)
from harness.run.fleet import Job
from harness.store import Results, read, write

CASES = [make_case(rows=rows) for rows in range(1, 7)]
WANTED = results_of(*(make_record(case, (1.0,)) for case in CASES))
ALL_ONE = {case.id: 1.0 for case in CASES}
DRIFT = pytest.approx([1 + 0.001 * number for number in range(10)])
OUT = Path("ci.parquet")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files go to a temporary folder and need not outlast a power cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class Drifting(ScriptedFleet):
    """A machine on which each process finds another ratio, by default 1, 1.001, 1.002, ..."""

    ratio_in: Callable[[int], float] = lambda number: 1 + 0.001 * (number - 1)

    noisy_starts: int = 0
    """The number of processes that warn of noise."""
    dies_in: int = 0
    """The number of the process in which the recording is interrupted."""

    def run(
        self, jobs: Sequence[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        for number, record in enumerate(super().run(jobs, timeout_s, stop_at)):
            if self.starts == self.dies_in and number == 3:
                raise KeyboardInterrupt
            if record.latency is None:
                yield record
                continue
            noisy = self.starts <= self.noisy_starts
            warnings = (MeasurementWarning(kind=WarningKind.NOISY, advice="busy"),) if noisy else ()
            latency = make_latency((self.ratio_in(self.starts),))
            yield replace(record, latency=latency, warnings=warnings)


def fleet(**more: Any) -> Drifting:
    return Drifting(ratio_of=ALL_ONE, **more)


def record(machine: ScriptedFleet, wanted: Results = WANTED) -> Results:
    made: Any = lambda: machine  # noqa: E731 - stands for the class
    return record_baseline(wanted, OUT, make_fleet=made, command="c", on_record=lambda record: None)


# --- recording -----------------------------------------------------------------------------------


def test_a_baseline_has_ten_fresh_processes_of_every_case() -> None:
    machine = fleet()
    results = record(machine)
    assert machine.starts == 10
    assert [found.case for found in results.records] == CASES
    for found in results.records:
        assert found.latency is not None
        assert found.latency.processes == 10
        assert process_ratios(found.latency) == DRIFT
    (run,) = results.runs
    assert (run.name, run.planned, run.command) == ("ci", 6, "c")
    assert run.wall_s is not None
    assert results.environments == {HERE.fingerprint: HERE}
    assert read(OUT) == results
    assert [path.name for path in Path().iterdir()] == ["ci.parquet"]


class Sampling(Drifting):
    """A machine that takes three samples per epoch, of which one was disturbed."""

    def run(
        self, jobs: Sequence[Job], timeout_s: float, stop_at: float = float("inf")
    ) -> Iterator[Record]:
        for record in super().run(jobs, timeout_s, stop_at):
            assert record.latency is not None
            arms = tuple(map(self._thrice, record.latency.arms))
            yield replace(record, latency=replace(record.latency, arms=arms))

    @staticmethod
    def _thrice(arm: Arm) -> Arm:
        times = tuple(factor * time_s for time_s in arm.wall_s for factor in (1.0, 1.0, 7.0))
        epochs = tuple(epoch for epoch in arm.epochs for _ in range(3))
        return replace(arm, wall_s=times, cpu_s=times, epochs=epochs)


def test_a_baseline_keeps_one_sample_per_epoch_with_the_same_ratios() -> None:
    for found in record(Sampling(ratio_of=ALL_ONE)).records:
        assert found.latency is not None
        epochs = len(found.latency.process_of_epoch)
        assert {len(arm.wall_s) for arm in found.latency.arms} == {epochs}
        assert process_ratios(found.latency) == DRIFT


def test_every_process_has_its_own_order_and_only_the_first_counts_memory() -> None:
    machine = fleet()
    record(machine)
    assert len({tuple(job.case.id for job in jobs) for jobs in machine.asked}) == 10
    measured = [{one for job in jobs for one in job.measurements} for jobs in machine.asked]
    assert Measurement.MEMORY in measured[0]
    assert measured[1:] == [{Measurement.LATENCY}] * 9
    budgets = [job.budget for jobs in machine.asked for job in jobs]
    assert {(one.min_epochs, one.max_epochs, one.processes) for one in budgets} == {(12, 12, 1)}


def test_only_the_measurements_of_the_run_are_repeated() -> None:
    machine = fleet()
    record(machine, results_of(make_record(CASES[0], memory=None)))
    (jobs,) = machine.asked
    assert jobs[0].measurements == (Measurement.ERRORS,)


def test_a_case_that_cannot_be_measured_is_run_once() -> None:
    machine = Drifting(ratio_of={case.id: 1.0 for case in CASES[1:]})
    found = record(machine)
    assert found.records[0].status is Status.ERROR
    assert [len(jobs) for jobs in machine.asked] == [6, *[5] * 9]


def test_a_case_that_spreads_by_2_percent_has_converged() -> None:
    found = record(fleet(ratio_in=lambda number: 1.02 if number % 2 else 0.98))
    assert found.records[0].latency is not None
    assert found.records[0].latency.converged


def test_a_baseline_keeps_the_means_of_uneven_calls() -> None:
    machine = fleet()
    paying = latency_of(measure(payer(4, 8 * CALL_S)))

    def run(jobs: Sequence[Job], *_: object) -> Iterator[Record]:
        for job in jobs:
            yield make_record(job.case, latency=paying)

    machine.run = run  # type: ignore[method-assign, assignment]
    found = record(machine).records[0].latency
    assert found is not None
    assert found.uneven_ratio == pytest.approx(3.0, rel=0.1)
    assert process_ratios(found) == pytest.approx([3.0] * 10, rel=0.1)


@pytest.mark.parametrize(("noisy", "is_warned"), [(5, False), (6, True)])
def test_noise_in_half_of_the_processes_is_not_a_warning(noisy: int, is_warned: bool) -> None:
    found = record(fleet(noisy_starts=noisy))
    assert bool(found.records[0].warnings) is is_warned


@pytest.mark.parametrize("wanted", [WANTED, results_of()], ids=["none measured", "no case"])
def test_without_a_measured_case_there_is_no_baseline(wanted: Results) -> None:
    with pytest.raises(NotMeasuredError):
        record(Drifting(ratio_of={}), wanted)
    assert list(Path().iterdir()) == []


# --- recording, interrupted ----------------------------------------------------------------------


def interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        record(fleet(dies_in=3))


def test_an_interrupted_recording_is_continued_and_measures_nothing_twice() -> None:
    write(WANTED, OUT)
    interrupted()
    assert read(OUT) == WANTED
    assert passes_left(OUT) == 8
    machine = fleet()
    found = record(machine)
    assert [len(jobs) for jobs in machine.asked] == [3, *[6] * 7]
    assert all(record.latency and record.latency.processes == 10 for record in found.records)


@pytest.mark.parametrize(
    ("machine", "wanted", "error"),
    [
        (fleet(environment=ELSEWHERE), WANTED, NotComparableError),
        (fleet(environment=replace(HERE, git_commit="fedcba98")), WANTED, Refusal),
        (fleet(), results_of(*WANTED.records[:4]), Refusal),
    ],
    ids=["machine", "commit", "sweep"],
)
def test_a_recording_is_continued_only_on_the_same_machine_commit_and_sweep(
    machine: Drifting, wanted: Results, error: type[Exception]
) -> None:
    interrupted()
    with pytest.raises(error):
        record(machine, wanted)


# --- accepting -----------------------------------------------------------------------------------


TEN = results_of(make_record(CASES[0], STEADY))


@pytest.mark.parametrize(
    ("head", "baseline"),
    [
        (WANTED, None),
        (WANTED, results_of(make_record(CASES[0]))),
        (results_of(make_record(CASES[0], STEADY, status=Status.WRONG)), TEN),
        (results_of(make_record(CASES[1])), TEN),
    ],
    ids=["no baseline", "not timed before", "ten processes", "other cases"],
)
def test_a_run_may_become_the_baseline(head: Results, baseline: Results | None) -> None:
    refuse_unacceptable(head, baseline)


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (results_of(make_record(CASES[0]), planned=9), Refusal),
        (results_of(failed(CASES[0])), NotMeasuredError),
    ],
    ids=["cut short", "nothing measured"],
)
def test_a_run_without_all_of_its_cases_is_not_accepted(
    head: Results, error: type[Exception]
) -> None:
    with pytest.raises(error):
        refuse_unacceptable(head, None)


def test_a_run_of_one_process_does_not_replace_a_baseline_of_ten() -> None:
    with pytest.raises(Refusal, match="--record-baseline"):
        refuse_unacceptable(results_of(make_record(CASES[0], (1.0,))), TEN)
